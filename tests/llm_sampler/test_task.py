"""The task of a study, through a storage."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from llm_sampler.space import Parameter, Space, SpaceError
from llm_sampler.task import TASK_ATTRIBUTE, Task, read_task, write_task

SPACE = Space((Parameter("a", (1, 2), "first"),), ("a < limit",), {"a": 1}, {"limit": 5})
TASK = Task("title", SPACE, "description", "source", {"M": 4}, {"name": "device"}, "time", "ms", "kernel:measurement")


@pytest.mark.parametrize("source", ["", "short", "é" * 70_000], ids=["none", "short", "long"])
def test_a_task_comes_back_from_a_database_as_it_was(tmp_path: Path, source: str) -> None:
    task = Task("title", SPACE, source=source)
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", study_name="s")
    write_task(study, task)
    again = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/study.db")
    assert read_task(again.user_attrs) == task
    assert all(len(str(value)) <= 60_000 for value in again.user_attrs.values())


def test_every_field_survives_json() -> None:
    assert Task.from_json(TASK.to_json()) == TASK


def test_a_study_without_a_task_has_none() -> None:
    assert read_task({}) is None
    assert read_task({"other": 1}) is None


def test_a_shorter_task_replaces_a_longer_one() -> None:
    study = optuna.create_study()
    write_task(study, Task("long", SPACE, source="x" * 200_000))
    write_task(study, TASK)
    assert read_task(study.user_attrs) == TASK


@pytest.mark.parametrize(
    "attributes",
    [
        {TASK_ATTRIBUTE: 2, f"{TASK_ATTRIBUTE}:0": "{}"},
        {TASK_ATTRIBUTE: "two"},
        {TASK_ATTRIBUTE: 1, f"{TASK_ATTRIBUTE}:0": "{}"},
        {TASK_ATTRIBUTE: 1, f"{TASK_ATTRIBUTE}:0": "not json"},
        {TASK_ATTRIBUTE: 1, f"{TASK_ATTRIBUTE}:0": '{"title": "t", "space": {}}'},
    ],
)
def test_attributes_that_hold_something_else_are_an_error(attributes: dict[str, object]) -> None:
    with pytest.raises(SpaceError):
        read_task(attributes)
