"""`LLMSampler`: who proposes, what is recorded, and that nothing a model does ends a study."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import optuna
import pytest
from chat_models import Scripted, batch, dead, garbage
from four_numbers import OPENING, SPACE, TASK, keys, objective, point, proposed_by, run
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from llm_sampler.attributes import CALL, CALLS, CHANGES, FALLBACK, MODEL, PROPOSED_BY, RATIONALE
from llm_sampler.client import Answer
from llm_sampler.distinct import DistinctSampler
from llm_sampler.sampler import LLMFallbackError, LLMSampler
from llm_sampler.space import Parameter, Space
from llm_sampler.task import Task, write_task


@pytest.fixture
def warnings_said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    optuna.logging.enable_propagation()
    caplog.set_level(logging.WARNING, "optuna.llm_sampler")
    return lambda: [r.message for r in caplog.records if r.name == "optuna.llm_sampler"]


def test_the_default_comes_first_then_the_opening_in_the_models_order() -> None:
    model = Scripted(batch(*OPENING))
    study = run(LLMSampler(client=model, seed=0), 4)
    assert [trial.params for trial in study.trials] == [SPACE.default, *OPENING]
    assert proposed_by(study) == ["default", "llm", "llm", "llm"]
    assert len(model.asked) == 1


def test_a_proposal_says_why_it_was_made_and_a_call_what_it_cost() -> None:
    moved = {**point(3, 1, 4, 1), "p3": 1.2}
    study = run(LLMSampler(client=Scripted(batch(OPENING[0], moved, point(9, 9, 9, 9) | {"q": 1})), seed=0), 3)
    (call,) = study.trials[0].user_attrs[CALLS]
    assert (call["kind"], call["model"], call["prompt_tokens"]) == ("opening", "scripted-1", 100)
    assert (call["completion_tokens"], call["seconds"]) == (50, 0.25)
    assert (call["proposals"], call["rejected"]) == (2, 1)
    assert call["reasons"] == ["unknown parameter 'q'; parameters are p0, p1, p2, p3"]
    first, second = study.trials[1:]
    assert first.user_attrs[CALL] == second.user_attrs[CALL] == call["id"]
    assert first.user_attrs[RATIONALE] == "because"
    assert CHANGES not in first.user_attrs
    assert second.user_attrs[CHANGES] == "p3: 1.2 -> 1"
    assert study.user_attrs[MODEL] == "scripted-1"


def test_an_enqueued_default_is_not_measured_again() -> None:
    study = optuna.create_study(sampler=LLMSampler(client=Scripted(batch(*OPENING)), seed=0))
    write_task(study, TASK)
    study.enqueue_trial(SPACE.default or {}, user_attrs={PROPOSED_BY: "default"})
    study.optimize(objective, n_trials=4)
    assert proposed_by(study) == ["default", "llm", "llm", "llm"]


def test_after_the_opening_all_sources_take_part_and_nothing_is_measured_twice() -> None:
    def reply(prompt: str) -> str:
        rows = [point(*divmod(i, 5), 4, 1) for i in range(25)]
        return batch(*rows)

    study = run(LLMSampler(client=Scripted(batch(*OPENING), reply), seed=0, wait="always"), 80)
    counts = Counter(proposed_by(study))
    assert set(counts) == {"default", "llm", "tpe", "local", "independent"}
    assert len(set(keys(study))) == 80
    assert all(SPACE.allows(trial.params) for trial in study.trials)


@pytest.mark.parametrize("make", [dead, garbage, lambda: Scripted(ZeroDivisionError("boom")), lambda: Scripted("")])
def test_a_model_that_is_of_no_use_leaves_distinct_tpe_trial_by_trial(make: Callable[[], Scripted]) -> None:
    study = run(LLMSampler(client=make(), seed=7), 40)
    expected = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=7)))
    write_task(expected, TASK)
    expected.optimize(objective, n_trials=40)
    assert keys(study) == keys(expected)
    assert set(proposed_by(study)) == {"tpe"}
    assert all(trial.user_attrs[FALLBACK] for trial in study.trials)


def test_without_an_endpoint_it_is_distinct_tpe_with_one_warning(warnings_said: Callable[[], list[str]]) -> None:
    study = run(LLMSampler(seed=7), 40)
    expected = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=7), space=SPACE))
    expected.optimize(objective, n_trials=40)
    assert keys(study) == keys(expected)
    (warning,) = warnings_said()
    assert "OPENAI_API_KEY" in warning
    assert all(trial.user_attrs[FALLBACK].startswith("no endpoint") for trial in study.trials)


def test_an_ordinary_study_without_kernel_and_key_works(warnings_said: Callable[[], list[str]]) -> None:
    def plain(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -5, 5)
        n = trial.suggest_int("n", 1, 100, log=True)
        kind = trial.suggest_categorical("kind", ("a", "b", "c"))
        return (x - 1) ** 2 + abs(n - 7) + (kind != "b")

    study = optuna.create_study(sampler=LLMSampler(seed=1))
    study.optimize(plain, n_trials=60)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert study.best_value < 3
    assert len(warnings_said()) == 1
    other = optuna.create_study(sampler=study.sampler)
    other.optimize(plain, n_trials=12)
    assert len(warnings_said()) == 2


def test_an_ordinary_study_with_a_model_is_told_the_space_once_a_trial_has_shown_it() -> None:
    def plain(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", -5, 5) ** 2 + trial.suggest_int("n", 0, 9)

    model = Scripted(batch({"x": 0.5, "n": 1}, {"x": 0.1, "n": 0}))
    study = optuna.create_study(sampler=LLMSampler(client=model, seed=0))
    study.optimize(plain, n_trials=3)
    assert [trial.user_attrs[PROPOSED_BY] for trial in study.trials] == ["tpe", "llm", "llm"]
    assert study.trials[0].user_attrs[FALLBACK] == "the space is unknown until a trial has finished"
    assert study.trials[2].params == {"x": 0.1, "n": 0}
    assert "x: a number from -5.0 to 5.0" in model.asked[0][1]["content"]


def test_a_stated_search_space_with_restrictions_is_told_and_obeyed() -> None:
    space = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    model = Scripted(batch({"x": 0.9, "y": 0.9}, {"x": 0.2, "y": 0.3}))
    study = optuna.create_study(
        sampler=LLMSampler(client=model, search_space=space, restrictions=["x + y <= 1"], seed=0)
    )
    study.optimize(lambda trial: -trial.suggest_float("x", 0, 1) - trial.suggest_float("y", 0, 1), n_trials=25)
    assert study.trials[0].params == {"x": 0.2, "y": 0.3}
    assert all(sum(trial.params.values()) <= 1 for trial in study.trials)
    assert "x + y <= 1" in model.asked[0][1]["content"]


def test_conditional_parameters_may_be_proposed_or_left_out() -> None:
    def conditional(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("kind", ("a", "b")) == "a":
            return trial.suggest_float("x", 0, 1)
        return trial.suggest_int("n", 0, 3) + 0.5

    model = Scripted(batch({"kind": "a", "x": 0.125}, {"kind": "b"}, {"kind": "b", "n": 0}))
    study = optuna.create_study(sampler=LLMSampler(client=model, seed=0, wait="always"))
    study.enqueue_trial({"kind": "a", "x": 0.5})
    study.enqueue_trial({"kind": "b", "n": 3})
    study.optimize(conditional, n_trials=20)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert study.trials[2].params == {"kind": "a", "x": 0.125}
    assert study.trials[3].params["kind"] == "b"
    assert study.trials[4].params == {"kind": "b", "n": 0}


def test_a_poor_reply_gets_one_follow_up_that_shows_the_reasons() -> None:
    model = Scripted(batch(point(4, 4, 0, 0), point(9, 0, 0, 0) | {"q": 1}, OPENING[0]), batch(OPENING[1]))
    study = run(LLMSampler(client=model, seed=0), 3)
    assert [trial.params for trial in study.trials] == [SPACE.default, OPENING[0], OPENING[1]]
    assert len(model.asked) == 2
    told = model.asked[1]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
    assert "p0 + p1 <= 6 (left side 8, right side 6)" in told[-1]["content"]


def test_strict_turns_a_failure_into_an_error_and_leaves_no_running_trial() -> None:
    study = optuna.create_study(sampler=LLMSampler(client=dead(), strict=True))
    write_task(study, TASK)
    with pytest.raises(LLMFallbackError, match="no connection"):
        study.optimize(objective, n_trials=5)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL]


def test_a_used_up_space_ends_the_study() -> None:
    small = Space((Parameter("a", (0, 1, 2)), Parameter("b", (0, 1))), (), {"a": 0, "b": 0})
    study = optuna.create_study(sampler=LLMSampler(client=Scripted(batch({"a": 2, "b": 1})), seed=0))
    write_task(study, Task("small", small))
    study.optimize(lambda t: t.suggest_categorical("a", (0, 1, 2)) + t.suggest_categorical("b", (0, 1)), n_trials=50)
    assert len(study.trials) == len(set(keys(study))) == 6


def test_the_call_budget_holds_and_is_a_recorded_reason() -> None:
    model = Scripted(batch(*OPENING))
    study = run(LLMSampler(client=model, seed=0, max_calls=2, wait="always"), 60)
    assert len(model.asked) <= 2
    reasons = {trial.user_attrs.get(FALLBACK) for trial in study.trials}
    assert "the budget of 2 calls is used up" in reasons


def test_the_token_budget_counts_what_was_used() -> None:
    model = Scripted(batch(*OPENING))
    study = run(LLMSampler(client=model, seed=0, max_tokens=1_000, wait="always", batch_size=1), 60)
    assert len(model.asked) <= 6
    assert any("tokens is used up" in trial.user_attrs.get(FALLBACK, "") for trial in study.trials)


def test_a_model_that_ends_its_thread_ends_no_study() -> None:
    class Leaving:
        name = "leaving"

        def complete(self, messages: object, *, schema: object = None, timeout_s: float = 60.0) -> Answer:
            raise SystemExit("gone")

    study = run(LLMSampler(client=Leaving(), seed=0), 4)
    assert len(study.trials) == 4
    assert study.trials[0].user_attrs[FALLBACK] == "SystemExit: gone"
