"""`LLMSampler` in threads, on databases, resumed, copied, and in Optuna's other kinds of study."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from chat_models import Scripted, batch, dead
from chat_server import chat_server
from four_numbers import OPENING, SPACE, TASK, keys, objective, point, proposed_by, run
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from llm_sampler.attributes import CALL, CALLS, FALLBACK, MODEL
from llm_sampler.client import Answer, Message, UnreachableError
from llm_sampler.sampler import LLMSampler
from llm_sampler.space import SpaceError
from llm_sampler.task import write_task


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


def test_later_batches_are_fetched_while_trials_go_on(tmp_path: Path) -> None:
    class Patient(Scripted):
        """Answers at once at first, later after a while."""

        def complete(
            self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
        ) -> Answer:
            if self.asked:
                time.sleep(0.5)
            return super().complete(messages, schema=schema, timeout_s=timeout_s)

    model = Patient(batch(*OPENING), batch(*(point(*divmod(i, 5), 4, 1) for i in range(25))))
    study = optuna.create_study(sampler=LLMSampler(client=model, seed=0))
    write_task(study, TASK)
    waits = []
    ended = time.monotonic()

    def timed(trial: optuna.Trial) -> float:
        value = objective(trial)
        waits.append(time.monotonic() - ended)
        return value

    while sum(name == "llm" for name in proposed_by(study)) < 4 and len(study.trials) < 400:
        study.optimize(timed, n_trials=1)
        time.sleep(0.005)
        ended = time.monotonic()
    assert proposed_by(study).count("llm") >= 4
    assert max(waits[1:]) < 0.4  # the model takes half a second, and no trial waited for it
    assert 2 <= len(model.asked) <= 4  # a batch is asked for again where the incumbent has moved on
