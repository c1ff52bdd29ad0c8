"""Optuna's own suites for samplers, for both samplers and models of every kind, in memory and on SQLite."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from chat_models import dead, garbage
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from llm_sampler.client import Answer, Message
from llm_sampler.distinct import DistinctSampler
from llm_sampler.sampler import LLMSampler


class FromSchema:
    """Proposes legal values of whatever space it is asked about, read from the schema.

    Args:
        hostile: Whether it always takes the last choice and the upper end.
    """

    name = "from-schema"

    def __init__(self, hostile: bool = False) -> None:
        self.hostile = hostile
        self.count = 0

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        assert schema is not None
        asked = re.search(r"Propose (\d+)", messages[-1]["content"])
        assert asked is not None
        described = schema["properties"]["proposals"]["items"]["properties"]["configuration"]["properties"]
        proposals = [{name: self._value(value) for name, value in described.items()} for _ in range(int(asked[1]))]
        return Answer(json.dumps([{"configuration": proposal} for proposal in proposals]))

    def _value(self, described: Mapping[str, Any]) -> Any:
        self.count += 1
        if "enum" in described:
            return described["enum"][-1 if self.hostile else self.count % len(described["enum"])]
        share = 1.0 if self.hostile else (self.count * 0.37) % 1
        return described["minimum"] + share * (described["maximum"] - described["minimum"])


MODELS: dict[str, Callable[[], Any]] = {
    "good": FromSchema,
    "dead": dead,
    "garbage": garbage,
    "hostile": functools.partial(FromSchema, hostile=True),
}
SAMPLERS: dict[str, Callable[[], BaseSampler]] = {
    "distinct tpe": lambda: DistinctSampler(TPESampler(seed=0, n_startup_trials=0)),
    "distinct random": lambda: DistinctSampler(RandomSampler(seed=0)),
    "no model": lambda: LLMSampler(seed=0),
    **{
        name: functools.partial(lambda make: LLMSampler(client=make(), seed=0, wait="always"), make)
        for name, make in MODELS.items()
    },
}


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "empty.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["memory", "sqlite"], autouse=True)
def _storage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _empty_database: Path
) -> None:
    """The suites make their studies without a storage; half of the runs get a database.

    Most of those repeat what is shown in memory: ``conftest.py`` marks them ``exhaustive``.
    """
    if request.param == "memory":
        return
    path = tmp_path / "study.db"
    shutil.copy(_empty_database, path)
    original = optuna.create_study

    def create_study(**arguments: Any) -> optuna.Study:
        return original(**{"storage": f"sqlite:///{path}"} | arguments)

    monkeypatch.setattr(optuna, "create_study", create_study)
    monkeypatch.setattr(optuna.study, "create_study", create_study)


@pytest.fixture(params=SAMPLERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _Mine:
    @pytest.fixture
    def sampler(self, name: str) -> Callable[[], BaseSampler]:
        return SAMPLERS[name]


class TestBasic(_Mine, BasicSamplerTestCase):
    pass


class TestRelative(_Mine, RelativeSamplerTestCase):
    pass


class TestMultiObjective(_Mine, MultiObjectiveSamplerTestCase):
    pass
