from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from llm_sampler.client import Answer
from llm_sampler.objectives.kernel_objective import KernelObjective
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.sampler import LLMSampler
from llm_sampler.studies.records import TrialRecord, best_first, read_records
from llm_sampler.studies.result import find_baseline, reference_speedup, summarize


@pytest.fixture
def study(evaluator: ReplayEvaluator) -> optuna.Study:
    study = optuna.create_study()
    llm = {"llm_sampler:proposed_by": "llm", "llm_sampler:rationale": "wide"}
    study.enqueue_trial({"x": 2, "y": 2, "z": "a"}, user_attrs={"llm_sampler:proposed_by": "default"})
    calls = [{"id": "1", "prompt_tokens": 900, "completion_tokens": 100, "seconds": 2.5}, {"id": "2", "error": "429"}]
    study.enqueue_trial({"x": 8, "y": 4, "z": "b"}, user_attrs={**llm, "llm_sampler:calls": calls})
    study.enqueue_trial({"x": 1, "y": 0, "z": "b"}, user_attrs={"llm_sampler:fallback": "no key"})
    study.optimize(KernelObjective(evaluator), n_trials=3)
    study.enqueue_trial({"x": 3, "y": 0, "z": "b"})
    return study


def test_records_tell_what_trials_hold(study: optuna.Study) -> None:
    default, best, failed, queued = read_records(study)
    assert (default.number, default.status, default.median_ms, default.proposed_by) == (0, "ok", 12.0, "default")
    assert (best.speedup, best.proposed_by, best.rationale) == (12.0, "llm", "wide")
    assert [(call.tokens, call.seconds, call.error) for call in best.llm_calls] == [(1000, 2.5, ""), (0, 0.0, "429")]
    assert best.measurement is not None
    assert best.measurement.samples == (1.0,)
    assert best.duration_s is not None
    assert (failed.status, failed.ok, failed.measured, failed.fallback) == ("out_of_resources", False, True, "no key")
    assert failed.measurement is not None
    assert failed.measurement.detail == "required 9 of 8 bytes"
    assert (queued.state, queued.status, queued.measured) == (TrialState.WAITING, "", False)
    assert queued.configuration == {"x": 3, "y": 0, "z": "b"}
    assert queued.proposed_by == "user"
    assert [record.number for record in best_first(read_records(study))] == [1, 0]


def test_records_tell_where_a_proposal_comes_from(tmp_path: Path) -> None:
    """A real sampler on a real database writes what the records read: with two models, each trial names its own."""

    class Model:
        def __init__(self, name: str, why: str) -> None:
            self.name = name
            self.why = why

        def complete(self, messages: object, **_: object) -> Answer:
            start = 1 if self.name == "first" else 5
            proposals = [
                {"family": "wide", "rationale": self.why, "configuration": {"x": x + 0.2}}
                for x in range(start, start + 2)
            ]
            return Answer(json.dumps(proposals), model=self.name)

    storage = f"sqlite:///{tmp_path}/study.db"
    space = {"x": IntDistribution(0, 40)}
    for calls, (name, why) in enumerate([("first", "w" * 900), ("second", "short")], start=1):
        sampler = LLMSampler(
            client=Model(name, why),
            search_space=space,
            batch_size=2,
            llm_share=1.0,
            max_calls=calls,
            wait="always",
            seed=0,
        )
        study = optuna.create_study(storage=storage, study_name="s", sampler=sampler, load_if_exists=True)
        study.optimize(lambda trial: trial.suggest_int("x", 0, 40), n_trials=6)
        assert study.user_attrs["llm_sampler:model"] == name
    records = read_records(study)
    proposed = [record for record in records if record.proposed_by == "llm"]
    assert [(r.configuration["x"], r.model, r.family, r.changes) for r in proposed] == [
        (1, "first", "wide", "x: 1.2 -> 1"),
        (2, "first", "wide", "x: 2.2 -> 2"),
        (5, "second", "wide", "x: 5.2 -> 5"),
        (6, "second", "wide", "x: 6.2 -> 6"),
    ]
    assert [len(record.rationale) for record in proposed] == [500, 500, 5, 5]
    assert len({record.call for record in proposed}) == 2
    others = [record for record in records if record.proposed_by != "llm"]
    assert others
    assert all((r.model, r.call, r.rationale) == ("", "", "") for r in others)
    assert any("calls" in record.fallback for record in others)  # the budget of one call is spent


def test_a_result_adds_up_the_trials(study: optuna.Study, evaluator: ReplayEvaluator) -> None:
    result = summarize(
        read_records(study), evaluator.space, study_name="s", reference_ms=3.0, stopped="trials", seconds=1.5
    )
    assert result.best is not None
    assert result.baseline is not None
    assert (result.best.number, result.baseline.number, result.measured) == (1, 0, 3)
    assert result.speedup == 12.0
    # 2 ms, timed beside the best, not the 3 ms of the whole study.
    assert result.reference_speedup == 2.0
    assert result.failures == {"out_of_resources": 1}
    assert result.proposers == {"default": 1, "llm": 1, "user": 1}
    assert result.fallbacks == {"no key": 1}
    assert (result.llm_calls, result.llm_tokens) == (2, 1000)
    assert [record.number for record in result.top] == [1, 0]


def test_a_result_of_nothing_is_a_result(evaluator: ReplayEvaluator) -> None:
    result = summarize([], evaluator.space, study_name="s", reference_ms=None, stopped="interrupted", seconds=0.0)
    assert (result.best, result.baseline, result.speedup, result.reference_speedup) == (None, None, None, None)


def test_without_a_reference_there_is_no_speedup_over_it() -> None:
    record = TrialRecord(0, TrialState.COMPLETE, {"x": 1}, median_ms=2.0)
    assert reference_speedup(record, None) is None
    assert reference_speedup(record, 3.0) == 1.5


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel:measurement": {"status": "great"}},
        {"kernel:measurement": "text", "llm_sampler:calls": "text"},
        {"kernel:measurement": {"samples": 3, "status": "ok"}, "llm_sampler:calls": [1, {}]},
    ],
)
def test_a_record_of_foreign_attributes_leaves_them_out(attributes: dict[str, Any]) -> None:
    trial = optuna.create_trial(
        value=1.0, params={"x": 1}, distributions={"x": CategoricalDistribution((1, 2))}, user_attrs=attributes
    )
    record = TrialRecord.from_trial(trial)
    assert record.measurement is None
    assert record.median_ms == 1.0


def test_the_baseline_is_the_measured_default(study: optuna.Study, evaluator: ReplayEvaluator) -> None:
    records = read_records(study)
    assert find_baseline(records, evaluator.space) == records[0]
    assert find_baseline(records[1:], evaluator.space) is None
