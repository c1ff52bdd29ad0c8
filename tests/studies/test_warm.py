from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from llm_sampler import DistinctSampler
from llm_sampler.kernels import Problem
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.prompt import Briefing, build_prompt
from llm_sampler.search_space import SearchSpace
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE, Entry
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.warm import SEEDS_ATTRIBUTE, read_seeds, told, warm_start
from llm_sampler.task import Task, read_task

DEFAULT = {"x": 2, "y": 2, "z": "a"}
FAST = {"x": 8, "y": 4, "z": "b"}
NEAR = {"x": 7, "y": 4, "z": "b"}
NEW = {"triton": "3.6.0"}


@pytest.fixture
def entry(evaluator: ReplayEvaluator) -> Entry:
    problem = Problem({"rows": 8, "columns": 8})
    return Entry("toy", problem, "NVIDIA H200", evaluator.space.digest())


@pytest.fixture
def relatives(add_study: Callable[..., optuna.Study]) -> None:
    add_study("toy", "16x8-fp16", trials=[(DEFAULT, 2.0, NEW), (NEAR, 1.5, NEW)])
    add_study("toy", "64x8-fp16", trials=[(DEFAULT, 1.0, NEW)])
    add_study("toy", "512x8-fp16", trials=[(DEFAULT, 9.0, NEW), (FAST, 3.0, NEW), ({"x": 8, "y": 0, "z": "b"}, 1, NEW)])
    add_study("toy", "512x8-fp16", "NVIDIA A100", trials=[(FAST, 4.0, NEW)])


def run(storage: RDBStorage, evaluator: ReplayEvaluator, task: Task, entry: Entry, trials: int = 5) -> optuna.Study:
    seeds = warm_start(storage, "new", entry, evaluator.space)
    sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0))
    tune(
        evaluator,
        told(task, seeds),
        storage=storage,
        study_name="new",
        sampler=sampler,
        limits=Limits(trials=trials),
        entry=entry,
        seeds=seeds,
    )
    return optuna.load_study(study_name="new", storage=storage)


def test_a_new_study_measures_the_best_of_its_relatives_after_the_default(
    relatives: None, storage: RDBStorage, evaluator: ReplayEvaluator, task: Task, entry: Entry
) -> None:
    trials = run(storage, evaluator, task, entry).trials
    proposers = [trial.user_attrs["llm_sampler:proposed_by"] for trial in trials]
    assert proposers == ["default", "archive", "archive", "random", "random"]
    # The nearest first; the default of 64x8 is measured anyway, and (8, 0) is not allowed here.
    assert [trial.params for trial in trials[:3]] == [DEFAULT, NEAR, FAST]
    assert trials[1].user_attrs["llm_sampler:rationale"].startswith("toy 16x8-fp16 on NVIDIA H200: of 2 measured")


def test_an_llm_is_told_what_held_there(
    relatives: None, storage: RDBStorage, evaluator: ReplayEvaluator, task: Task, entry: Entry
) -> None:
    study = run(storage, evaluator, task, entry)
    known = read_task(study.user_attrs)
    assert known is not None
    space = SearchSpace(study.trials[0].distributions)
    prompt = str(build_prompt(Briefing(space=space, rows=[], directions=study.directions, batch_size=4, task=known)))
    assert "toy 16x8-fp16 on NVIDIA H200: of 2 measured configurations" in prompt
    assert "x=7 y=4 z=b (1.5 ms, 1.33x the default, 1.33x PyTorch)" in prompt


def test_a_study_that_goes_on_keeps_what_it_began_with(
    relatives: None, add_study: Any, storage: RDBStorage, evaluator: ReplayEvaluator, task: Task, entry: Entry
) -> None:
    before = read_task(run(storage, evaluator, task, entry, trials=4).user_attrs)
    add_study("toy", "8x16-fp16", trials=[({"x": 5, "y": 4, "z": "b"}, 1.0, NEW)])
    study = run(storage, evaluator, task, entry, trials=8)
    proposers = [trial.user_attrs["llm_sampler:proposed_by"] for trial in study.trials]
    assert proposers.count("archive") == 2
    assert read_task(study.user_attrs) == before
    assert Entry.from_json(study.user_attrs[ENTRY_ATTRIBUTE]) == entry
    assert [seed.where for seed in read_seeds(study.user_attrs)] == [
        "toy 16x8-fp16 on NVIDIA H200",
        "toy 512x8-fp16 on NVIDIA H200",
    ]


def test_without_relatives_nothing_changes(
    storage: RDBStorage, evaluator: ReplayEvaluator, task: Task, entry: Entry
) -> None:
    study = run(storage, evaluator, task, entry, trials=2)
    assert SEEDS_ATTRIBUTE not in study.user_attrs
    assert read_task(study.user_attrs) == task


@pytest.mark.parametrize("data", [None, 1, "text", [1], [{}], [{"configuration": [], "where": 1}]])
def test_damaged_seeds_are_none(data: Any) -> None:
    assert read_seeds({SEEDS_ATTRIBUTE: data}) == ()
