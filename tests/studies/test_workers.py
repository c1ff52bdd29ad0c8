from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
import sys
from collections.abc import Iterator

import optuna
import pytest
from optuna.trial import TrialState

from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies.workers import (
    OWNER_ATTRIBUTE,
    REQUEUED_ATTRIBUTE,
    WORKER_PREFIX,
    Worker,
    recover_orphans,
    registered,
    requeue,
    workers,
)
from llm_sampler.task import Task, write_task

CONFIGURATION = {"x": 3, "y": 1, "z": "b"}
LATER = datetime.timedelta(seconds=60)


@pytest.fixture
def study(url: str, task: Task) -> optuna.Study:
    study = optuna.create_study(storage=url, study_name="s")
    write_task(study, task)
    return study


@pytest.fixture
def other() -> Iterator[Worker]:
    """A worker in another process that lives."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield worker_of(process.pid)
    process.communicate(b"\n")


def worker_of(pid: int) -> Worker:
    from llm_sampler.studies.workers import _birth

    this = Worker.this()
    return dataclasses.replace(this, pid=pid, run=0, birth=_birth(pid) or "gone", started=this.started - LATER)


def dead_worker() -> Worker:
    process = subprocess.Popen([sys.executable, "-c", ""])
    worker = worker_of(process.pid)
    process.wait()
    return worker


def register(study: optuna.Study, worker: Worker) -> None:
    study.set_user_attr(WORKER_PREFIX + worker.name, worker.to_json())


def left_running(study: optuna.Study, owner: Worker | None = None, *, suggested: bool = True) -> int:
    study.enqueue_trial(
        CONFIGURATION,
        user_attrs={
            "llm_sampler:proposed_by": "llm",
            "llm_sampler:rationale": "wide",
            "llm_sampler:calls": [{"id": 1}],
        },
    )
    trial = study.ask()
    if owner is not None:
        trial.set_user_attr(OWNER_ATTRIBUTE, owner.name)
    if suggested:
        trial.suggest_categorical("x", list(range(1, 9)))
        trial.suggest_categorical("y", [0, 1, 2, 3, 4])
        trial.suggest_categorical("z", ["a", "b"])
    return trial.number


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("suggested", [True, False])
def test_a_trial_of_a_dead_worker_fails_and_waits_again_once(
    study: optuna.Study, signed: bool, suggested: bool
) -> None:
    dead = dead_worker()
    register(study, dead)
    number = left_running(study, dead if signed else None, suggested=suggested)
    assert recover_orphans(study) == [number]
    orphan, again = study.get_trials()
    assert (orphan.state, again.state) == (TrialState.FAIL, TrialState.WAITING)
    assert again.system_attrs["fixed_params"] == CONFIGURATION
    assert again.user_attrs[REQUEUED_ATTRIBUTE] == number
    assert again.user_attrs["llm_sampler:proposed_by"] == "llm"
    assert again.user_attrs["llm_sampler:rationale"] == "wide"
    assert "llm_sampler:calls" not in again.user_attrs  # they would count twice
    assert recover_orphans(study) == []
    study.ask()
    assert recover_orphans(study) == [1]
    assert [trial.state for trial in study.get_trials()] == [TrialState.FAIL, TrialState.FAIL]


def test_a_stored_measurement_of_a_dead_worker_is_kept(study: optuna.Study, evaluator: ReplayEvaluator) -> None:
    from llm_sampler.objectives.kernel_objective import measurement_json

    number = left_running(study)
    left_running(study)
    for trial, measured in zip(study.trials, (CONFIGURATION, {"x": 1, "y": 0, "z": "a"}), strict=True):
        data = measurement_json(evaluator.evaluate(measured))
        study._storage.set_trial_user_attr(trial._trial_id, "kernel:measurement", data)
    assert recover_orphans(study) == [number, number + 1]
    timed, failed = study.get_trials()
    assert (timed.state, timed.value) == (TrialState.COMPLETE, 9.0)
    assert (failed.state, failed.value) == (TrialState.PRUNED, None)


@pytest.mark.parametrize("signed", [True, False])
def test_a_trial_of_a_living_worker_is_left_alone(study: optuna.Study, other: Worker, signed: bool) -> None:
    register(study, other)
    register(study, dead_worker())
    left_running(study, other if signed else None)
    assert recover_orphans(study) == []
    assert study.trials[0].state == TrialState.RUNNING


def test_a_living_worker_does_not_keep_a_dead_ones_trial(study: optuna.Study, other: Worker) -> None:
    dead = dead_worker()
    register(study, other)
    register(study, dead)
    number = left_running(study, dead)
    assert recover_orphans(study) == [number]


def test_a_worker_that_began_later_cannot_own_an_unsigned_trial(study: optuna.Study, other: Worker) -> None:
    register(study, dead_worker())
    number = left_running(study)
    register(study, dataclasses.replace(other, started=other.started + 2 * LATER))
    assert recover_orphans(study) == [number]


def test_a_worker_of_another_host_is_left_to_its_heartbeat(study: optuna.Study) -> None:
    far = dataclasses.replace(dead_worker(), host="elsewhere")
    register(study, far)
    left_running(study, far)
    left_running(study)
    assert recover_orphans(study) == []
    register(study, dataclasses.replace(far, ended=True))
    assert recover_orphans(study) == [0, 1]


def test_a_worker_far_away_lives_while_it_says_so(study: optuna.Study) -> None:
    """On storages that keep no heartbeats of trials."""
    now = datetime.datetime.now(datetime.timezone.utc)
    far = dataclasses.replace(dead_worker(), host="elsewhere", seen=now - datetime.timedelta(seconds=60))
    register(study, far)
    number = left_running(study, far)
    assert recover_orphans(study) == []
    register(study, dataclasses.replace(far, seen=now - datetime.timedelta(seconds=600)))
    assert recover_orphans(study) == [number]


def test_equal_names_of_hosts_do_not_make_one_host(study: optuna.Study) -> None:
    twin = dataclasses.replace(dead_worker(), boot="another boot")
    assert twin.alive is None
    register(study, twin)
    left_running(study, twin)
    assert recover_orphans(study) == []


def test_a_process_that_took_over_the_number_is_another_worker(study: optuna.Study, other: Worker) -> None:
    earlier = dataclasses.replace(other, birth="1")
    register(study, earlier)
    assert earlier.alive is False
    number = left_running(study, earlier)
    assert recover_orphans(study) == [number]


def test_a_run_signs_on_and_off(study: optuna.Study) -> None:
    with registered(study) as worker:
        (known,) = workers(study)
        assert (known.name, known.alive, known.pid) == (worker.name, True, os.getpid())
    (known,) = workers(study)
    assert (known.ended, known.alive) == (True, False)


def test_the_claim_of_a_trial_that_had_no_time_to_take_it_waits_again(study: optuna.Study) -> None:
    trial = study.ask()
    claim = {"x": 2, "y": 1, "z": 1}
    study._storage.set_trial_system_attr(trial._trial_id, "llm_sampler:claim", claim)
    assert recover_orphans(study) == [0]
    assert study.trials[1].system_attrs["fixed_params"] == CONFIGURATION


def test_a_configuration_that_another_trial_has_does_not_wait_again(study: optuna.Study) -> None:
    dead = dead_worker()
    register(study, dead)
    number = left_running(study, dead)
    study.enqueue_trial(CONFIGURATION)
    assert recover_orphans(study) == [number]
    assert [trial.state for trial in study.get_trials()] == [TrialState.FAIL, TrialState.WAITING]


def test_an_incomplete_configuration_does_not_wait_again(study: optuna.Study) -> None:
    trial = study.ask()
    trial.suggest_categorical("x", list(range(1, 9)))
    assert recover_orphans(study) == [0]
    assert len(study.trials) == 1
    requeue(study, study.trials[0])
    assert len(study.trials) == 1
