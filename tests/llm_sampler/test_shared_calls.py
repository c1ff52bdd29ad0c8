"""Workers of one study, each with a sampler of its own: one call at a time, and all take from what it brought."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from chat_models import Scripted, batch
from four_numbers import TASK
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from llm_sampler import LLMSampler
from llm_sampler.attributes import CALLS, OFFERS, PROPOSED_BY, RESERVED
from llm_sampler.client import UnreachableError
from llm_sampler.reply import Proposal
from llm_sampler.shared_calls import Offer, publish
from llm_sampler.task import write_task

OPENING = [{"p0": i, "p1": i % 3, "p2": 4 - i, "p3": i % 3} for i in range(5)]


@pytest.fixture
def storage(tmp_path: Path) -> BaseStorage:
    return optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/s.db")


def worker(storage: BaseStorage, model: Scripted, **options: object) -> optuna.Study:
    """The study as another process sees it."""
    sampler = LLMSampler(client=model, seed=0, **options)  # type: ignore[arg-type]
    study = optuna.create_study(storage=storage, study_name="s", sampler=sampler, load_if_exists=True)
    if not study.user_attrs:
        write_task(study, TASK)
    return study


def propose(study: optuna.Study) -> optuna.trial.FrozenTrial:
    trial = study.ask()
    for parameter in TASK.space.parameters:
        trial.suggest_categorical(parameter.name, parameter.choices)
    return study.trials[trial.number]


def test_a_second_worker_measures_what_the_first_was_told(storage: BaseStorage) -> None:
    first, second = Scripted(batch(*OPENING)), Scripted(batch(*OPENING[::-1]))
    studies = worker(storage, first), worker(storage, second)
    trials = [propose(studies[number % 2]) for number in range(6)]
    assert (len(first.asked), len(second.asked)) == (1, 0)
    assert [trial.user_attrs[PROPOSED_BY] for trial in trials] == ["default", *5 * ["llm"]]
    assert [trial.params for trial in trials[1:]] == OPENING
    assert {trial.user_attrs["llm_sampler:rationale"] for trial in trials[1:]} == {"because"}
    assert len({trial.user_attrs["llm_sampler:call"] for trial in trials[1:]}) == 1


def test_workers_that_begin_together_make_one_opening_and_wait_for_it(storage: BaseStorage) -> None:
    asked = threading.Barrier(2, timeout=30)
    calls = []

    def slow(_: str) -> str:
        calls.append(1)
        asked.wait()
        return batch(*OPENING)

    studies = [worker(storage, Scripted(slow)) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(propose, study) for study in studies]
        asked.wait()
        trials = [future.result(timeout=60) for future in futures]
    assert len(calls) == 1
    assert sorted(trial.user_attrs[PROPOSED_BY] for trial in trials) == ["default", "llm", "llm"]


def test_a_worker_that_died_while_it_asked_holds_nobody_up(storage: BaseStorage) -> None:
    model = Scripted(batch(*OPENING))
    study = worker(storage, model)
    dead = study.ask()
    study._storage.set_trial_system_attr(dead._trial_id, RESERVED, [{"id": "0-dead", "tokens": 1}])
    study.tell(dead, state=TrialState.FAIL)
    assert propose(study).user_attrs[PROPOSED_BY] == "default"
    assert len(model.asked) == 1


def test_a_call_that_never_ends_is_waited_for_as_long_as_a_call_may_take(storage: BaseStorage) -> None:
    model = Scripted(batch(*OPENING))
    study = worker(storage, model, timeout_s=1.0)
    silent = study.ask()
    study._storage.set_trial_system_attr(silent._trial_id, RESERVED, [{"id": "0-silent", "tokens": 1}])
    began = time.monotonic()
    assert propose(study).user_attrs[PROPOSED_BY] == "default"
    assert time.monotonic() - began > 0.9
    assert len(model.asked) == 1


def test_a_call_that_failed_is_made_by_another(storage: BaseStorage) -> None:
    first, second = Scripted(UnreachableError("down")), Scripted(batch(*OPENING))
    assert propose(worker(storage, first)).user_attrs["llm_sampler:fallback"] == "down"
    assert propose(worker(storage, second)).user_attrs[PROPOSED_BY] in ("default", "llm")
    assert (len(first.asked), len(second.asked)) == (1, 1)
    calls = [call for trial in worker(storage, second).trials for call in trial.user_attrs.get(CALLS, [])]
    assert [call.get("error", "") for call in calls] == ["down", ""]


def test_a_large_batch_fits_into_an_attribute() -> None:
    study = optuna.create_study()
    trial = study.ask()
    proposals = tuple(Proposal({"x": i}, rationale="r" * 500, call="c") for i in range(300))
    publish(study, study.trials[0], [Offer("c", opening=True, proposals=proposals, trial=0)])
    (data,) = study.trials[trial.number].system_attrs[OFFERS]
    assert 50_000 < len(json.dumps(data)) <= 60_000
    assert [one["configuration"]["x"] for one in data["proposals"]] == list(range(len(data["proposals"])))
