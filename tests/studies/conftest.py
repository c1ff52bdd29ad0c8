from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from llm_sampler.kernels import Problem
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration, Parameter, Space
from llm_sampler.studies.archive import open_storage, study_name
from llm_sampler.studies.entry import Entry, write_entry
from llm_sampler.studies.tasks import recording_task
from llm_sampler.studies.workers import requeue
from llm_sampler.task import Task, write_task


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


@pytest.fixture
def add_study(storage: RDBStorage) -> Callable[..., optuna.Study]:
    """Adds a study of the toy space with the given trials: ``(configuration, ms or None, versions)``."""

    def add(
        kernel: str = "toy",
        problem: str = "8x8-fp16",
        device: str = "NVIDIA H200",
        trials: Sequence[tuple[Configuration, float | None, dict[str, str]]] = (),
        *,
        suffix: str = "",
        recording: str = "",
        with_entry: bool = True,
    ) -> optuna.Study:
        sizes, _, dtype = problem.partition("-")
        rows, columns = (int(size) for size in sizes.split("x"))
        input_ = Problem({"rows": rows, "columns": columns}, dtype)
        space = make_toy().space
        name = study_name(kernel, input_.name, device, space.digest(), suffix)
        study = optuna.create_study(storage=storage, study_name=name)
        facts = {**input_.sizes, "dtype": dtype, "flops": 10**9, "traffic_bytes": 10**6, "roofline_ms": 0.5}
        title = f"{kernel} {input_.name} on {device}"
        write_task(study, Task(title, space, problem=facts, device={"name": device}, outcome="kernel:measurement"))
        if with_entry:
            write_entry(study, Entry(kernel, input_, device, space.digest(), recording))
        default_ms = next((ms for configuration, ms, _ in trials if configuration == space.default), None)
        for configuration, ms, versions in trials:
            study.add_trial(toy_trial(space, configuration, ms, versions, default_ms))
        return study

    return add


def toy_trial(
    space: Space, configuration: Configuration, ms: float | None, versions: dict[str, str], default_ms: float | None
) -> optuna.trial.FrozenTrial:
    if ms is None:
        measurement = Measurement("out_of_resources", detail="required 9 of 8 bytes", versions=versions)
    else:
        samples = tuple(ms * (1 + 0.001 * step) for step in range(-4, 5))
        measurement = Measurement("ok", median_ms=ms, samples=samples, reference_ms=2.0, versions=versions)
    attributes = {
        "kernel:measurement": measurement.to_json(),
        "kernel:status": measurement.status,
        "llm_sampler:proposed_by": "default" if configuration == space.default else "tpe",
    }
    if ms is not None and default_ms is not None:
        attributes["kernel:speedup"] = round(default_ms / ms, 4)
    return optuna.trial.create_trial(
        state=TrialState.PRUNED if ms is None else TrialState.COMPLETE,
        value=ms,
        params=configuration,
        distributions={p.name: CategoricalDistribution(p.choices) for p in space.parameters},
        user_attrs=attributes,
        constraints={"kernel:failed": float(ms is None)},
    )
