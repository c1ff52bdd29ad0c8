from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage

from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration, Parameter, Space
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.tasks import recording_task
from llm_sampler.studies.workers import requeue
from llm_sampler.task import Task


def toy_ms(configuration: Configuration) -> float | None:
    """Fastest at (8, 4, "b"), 1 ms; x = 1 with y = 0 fails; the default (2, 2, "a") takes 12 ms."""
    x, y = int(configuration["x"]), int(configuration["y"])
    if (x, y) == (1, 0):
        return None
    return 1.0 + (8 - x) + abs(4 - y) + (3.0 if configuration["z"] == "a" else 0.0)


def make_toy(default: Configuration | None = None, reference_ms: float | None = 2.0) -> Recording:
    """78 configurations of 80: two are restricted."""
    parameters = (
        Parameter("x", tuple(range(1, 9)), "width"),
        Parameter("y", (0, 1, 2, 3, 4)),
        Parameter("z", ("a", "b")),
    )
    space = Space(parameters, ("x < 8 or y > 0",), default or {"x": 2, "y": 2, "z": "a"})
    results = []
    for configuration in space.configurations():
        ms = toy_ms(configuration)
        if ms is None:
            measurement = Measurement("out_of_resources", detail="required 9 of 8 bytes")
        else:
            measurement = Measurement("ok", median_ms=ms, samples=(ms,), reference_ms=reference_ms)
        results.append(Recorded(configuration, measurement))
    return Recording("toy", space, tuple(results), device="Toy GPU", reference_ms=reference_ms)


@pytest.fixture
def toy() -> Callable[..., Recording]:
    return make_toy


@pytest.fixture
def recording() -> Recording:
    return make_toy()


@pytest.fixture
def evaluator(recording: Recording) -> ReplayEvaluator:
    return ReplayEvaluator(recording)


@pytest.fixture
def task(recording: Recording) -> Task:
    return recording_task(recording)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture
def storage(url: str) -> RDBStorage:
    return open_storage(url, on_stale=requeue)


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
