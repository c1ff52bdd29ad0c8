"""`LLMSampler`: who proposes, what is recorded, and that nothing a model does ends a study."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from chat_models import Scripted, batch, dead, garbage
from chat_server import chat_server
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState

from llm_sampler.attributes import CALL, CALLS, CHANGES, FALLBACK, MODEL, PROPOSED_BY, RATIONALE
from llm_sampler.client import Answer, Message, UnreachableError
from llm_sampler.distinct import DistinctSampler
from llm_sampler.sampler import LLMFallbackError, LLMSampler
from llm_sampler.space import Parameter, Space, SpaceError, configuration_key
from llm_sampler.task import Task, write_task

SPACE = Space(
    tuple(Parameter(f"p{i}", tuple(range(5))) for i in range(4)),
    ("p0 + p1 <= 6",),
    {f"p{i}": 0 for i in range(4)},
)
TASK = Task("four numbers", SPACE)


def objective(trial: optuna.Trial) -> float:
    """Least at (3, 1, 4, 1)."""
    values = [trial.suggest_categorical(p.name, p.choices) for p in SPACE.parameters]
    return 1.0 + sum(abs(a - b) for a, b in zip(values, (3, 1, 4, 1), strict=True))


def point(*values: int) -> dict[str, int]:
    return {f"p{i}": value for i, value in enumerate(values)}


def run(
    sampler: LLMSampler, trials: int = 30, *, task: Task | None = TASK, storage: str | None = None, **arguments: Any
) -> optuna.Study:
    study = optuna.create_study(sampler=sampler, storage=storage)
    if task is not None:
        write_task(study, task)
    study.optimize(objective, n_trials=trials, **arguments)
    return study


def proposed_by(study: optuna.Study) -> list[str]:
    return [trial.user_attrs[PROPOSED_BY] for trial in study.trials]


def keys(study: optuna.Study) -> list[str]:
    return [configuration_key(trial.params) for trial in study.trials]


@pytest.fixture
def warnings_said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    optuna.logging.enable_propagation()
    caplog.set_level(logging.WARNING, "optuna.llm_sampler")
    return lambda: [r.message for r in caplog.records if r.name == "optuna.llm_sampler"]


OPENING = [point(3, 1, 4, 0), point(3, 1, 3, 1), point(2, 1, 4, 1)]


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


class Slow(Scripted):
    """Answers only when it is let."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*replies)
        self.let = threading.Event()

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        self.let.wait(10)
        return super().complete(messages, schema=schema, timeout_s=timeout_s)


def test_never_waits_when_told_so_and_uses_the_reply_once_it_is_there() -> None:
    model = Slow(batch(*OPENING))
    study = optuna.create_study(sampler=LLMSampler(client=model, seed=0, wait="never"))
    write_task(study, TASK)
    start = time.monotonic()
    study.optimize(objective, n_trials=5)
    assert time.monotonic() - start < 2
    assert set(proposed_by(study)) == {"tpe"}
    assert {trial.user_attrs[FALLBACK] for trial in study.trials} == {"the reply is under way"}
    model.let.set()
    deadline = time.monotonic() + 5
    while "llm" not in proposed_by(study) and time.monotonic() < deadline:
        study.optimize(objective, n_trials=1)
    assert "llm" in proposed_by(study)


def test_a_model_that_never_returns_costs_the_time_limit_once() -> None:
    model = Slow(batch(*OPENING))
    start = time.monotonic()
    study = run(LLMSampler(client=model, seed=0, timeout_s=0.3), 10)
    assert 0.3 < time.monotonic() - start < 3
    assert set(proposed_by(study)) == {"tpe"}
    assert "no reply within 0.3 s" in study.trials[0].user_attrs[FALLBACK]
    model.let.set()


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_threads_share_one_opening(tmp_path: Path, storage: str) -> None:
    model = Scripted(batch(*OPENING))
    url = None if storage == "memory" else f"sqlite:///{tmp_path}/study.db"
    study = run(LLMSampler(client=model), 24, storage=url, n_jobs=4)
    assert len(set(keys(study))) == 24
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    openings = [c for t in study.trials for c in t.user_attrs.get(CALLS, []) if c["kind"] == "opening"]
    assert len(openings) == 1
    assert sum(trial.user_attrs.get(CALL) == openings[0]["id"] for trial in study.trials) == 3


def test_a_resumed_study_does_not_open_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    run(LLMSampler(client=Scripted(batch(*OPENING)), seed=0), 4, storage=url)
    model = Scripted(batch(point(3, 1, 4, 1)))
    (summary,) = optuna.get_all_study_summaries(url)
    study = optuna.load_study(
        study_name=summary.study_name, storage=url, sampler=LLMSampler(client=model, seed=0, wait="always")
    )
    study.optimize(objective, n_trials=25)
    assert len(set(keys(study))) == 29
    kinds = [call["kind"] for trial in study.trials for call in trial.user_attrs.get(CALLS, [])]
    assert kinds[0] == "opening"
    assert set(kinds[1:]) <= {"refinement", "follow-up"}
    assert "1 " in model.asked[0][1]["content"]


def test_copies_and_pickles_work_and_hold_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-abcdefghijklmnop1234"
    sampler = LLMSampler(model="m", base_url="http://127.0.0.1:1/v1", api_key=secret, seed=3, timeout_s=5)
    assert secret.encode() not in pickle.dumps(sampler)
    assert secret not in repr(vars(sampler))
    expected = keys(run(LLMSampler(client=dead(), seed=3), 15))
    for made in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        study = run(made, 15)
        assert keys(study) == expected
        assert "no connection" in study.trials[0].user_attrs[FALLBACK]


def test_reseeding_changes_the_proposals() -> None:
    sampler = LLMSampler(client=dead(), seed=3)
    sampler.reseed_rng()
    assert keys(run(sampler, 15)) != keys(run(LLMSampler(client=dead(), seed=3), 15))


def test_any_sampler_can_be_the_fallback() -> None:
    study = run(LLMSampler(client=dead(), fallback=RandomSampler(seed=1)), 10)
    assert set(proposed_by(study)) == {"random"}


def test_a_prompt_of_ones_own() -> None:
    model = Scripted(batch(*OPENING))
    run(LLMSampler(client=model, seed=0, prompt=lambda b: [{"role": "user", "content": f"give {b.batch_size}"}]), 2)
    assert model.asked[0] == ({"role": "user", "content": "give 12"},)


def test_a_prompt_builder_that_fails_is_a_fallback() -> None:
    study = run(LLMSampler(client=Scripted(batch(*OPENING)), prompt=lambda b: 1 / 0), 3)  # type: ignore[arg-type,return-value]
    assert "the prompt builder failed" in study.trials[0].user_attrs[FALLBACK]


def test_multi_objective_studies_are_told_both_directions() -> None:
    model = Scripted(batch(*OPENING))
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=LLMSampler(client=model, seed=0))
    write_task(study, TASK)
    study.optimize(lambda trial: (objective(trial), float(trial.params["p0"])), n_trials=30)
    assert len(set(keys(study))) == 30
    assert "2 objectives: minimize value 0, maximize value 1" in model.asked[0][1]["content"]


def test_hyperband_studies_have_a_model_too() -> None:
    study = optuna.create_study(
        sampler=LLMSampler(client=Scripted(batch(*OPENING)), seed=0),
        pruner=optuna.pruners.HyperbandPruner(max_resource=9),
    )
    write_task(study, TASK)

    def reporting(trial: optuna.Trial) -> float:
        value = objective(trial)
        for step in range(9):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(reporting, n_trials=30)
    assert proposed_by(study)[:4] == ["default", "llm", "llm", "llm"]
    assert len(set(keys(study))) == 30


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_partial_fixed_sampler_keeps_its_values() -> None:
    study = run(LLMSampler(client=Scripted(batch(*OPENING)), seed=0), 2)
    study.sampler = optuna.samplers.PartialFixedSampler({"p3": 2}, study.sampler)
    study.optimize(objective, n_trials=20)
    assert all(trial.params["p3"] == 2 for trial in study.trials[2:])
    assert len(set(keys(study))) == 22


def test_ask_and_tell() -> None:
    study = optuna.create_study(sampler=LLMSampler(client=Scripted(batch(*OPENING)), seed=0))
    write_task(study, TASK)
    distributions = {p.name: CategoricalDistribution(p.choices) for p in SPACE.parameters}
    trials = [study.ask(distributions) for _ in range(4)]
    assert [trial.params for trial in trials] == [SPACE.default, *OPENING]
    for trial in trials:
        study.tell(trial, 1.0)


def test_one_sampler_serves_several_studies() -> None:
    sampler = LLMSampler(client=Scripted(batch(*OPENING)), seed=0)
    assert keys(run(sampler, 4)) == keys(run(sampler, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"llm_share": 1.5}, "llm_share must be from 0 to 1, got 1.5"),
        ({"timeout_s": 0}, "timeout_s must be positive, got 0"),
        ({"wait": "maybe"}, "wait must be first, always or never, got 'maybe'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLMSampler(**arguments)


def test_a_task_and_a_search_space_together_are_refused() -> None:
    with pytest.raises(SpaceError):
        LLMSampler(task=TASK, search_space={"n": IntDistribution(0, 1)})


def test_a_task_can_be_an_argument() -> None:
    model = Scripted(batch(*OPENING))
    study = run(LLMSampler(client=model, task=TASK, seed=0), 4, task=None)
    assert [trial.params for trial in study.trials] == [SPACE.default, *OPENING]


def test_the_whole_way_over_http() -> None:
    with chat_server(lambda request: request.send_text(f"Sure.\n```json\n{batch(*OPENING)}\n```")) as server:
        study = run(LLMSampler(base_url=server.url, seed=0), 4)
    assert proposed_by(study) == ["default", "llm", "llm", "llm"]
    assert study.user_attrs[MODEL] == "test-model-1"
    assert json.dumps(server.chats[0].body)
    assert study.trials[0].user_attrs[CALLS][0]["prompt_tokens"] == 120


def test_unreachable_errors_name_their_cause_on_the_trial() -> None:
    study = run(LLMSampler(client=Scripted(UnreachableError("HTTP 503: overloaded")), seed=0), 2)
    assert study.trials[0].user_attrs[FALLBACK] == "HTTP 503: overloaded"
    assert study.trials[0].user_attrs[CALLS][0]["error"] == "HTTP 503: overloaded"
