"""Several processes on one database, one of them killed: nothing measured twice, the budget kept."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from chat_server import ChatServer, Handler, chat_server
from four_numbers import TASK
from optuna.trial import TrialState

from llm_sampler.attributes import CALLS, PROPOSED_BY
from llm_sampler.space import configuration_key
from llm_sampler.task import write_task

WORKER = Path(__file__).parent / "support" / "worker.py"


def same_to_everybody(request: Handler) -> None:
    """A model that tells every worker the same, so that they would collide."""
    asked = re.search(r"Propose (\d+)", request.body["messages"][-1]["content"])
    count = int(asked[1]) if asked else 1
    proposals = [{"p0": i % 5, "p1": (i * 2) % 3, "p2": 4 - i % 5, "p3": i % 3} for i in range(count)]
    request.send_text(json.dumps(proposals))


def start(storage: str, seed: int, trials: int, server: ChatServer, calls: int, pause_s: float = 0.0) -> object:
    arguments = [storage, "s", str(trials), str(seed), server.url, str(calls), str(pause_s)]
    return subprocess.Popen([sys.executable, str(WORKER), *arguments], stderr=subprocess.PIPE, text=True)


def made_calls(server: ChatServer) -> int:
    return len(server.chats)


@pytest.mark.slow
def test_four_processes_share_a_study_without_repetition_and_within_the_budget(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, study_name="s")
    write_task(study, TASK)
    with chat_server(same_to_everybody) as server:
        # All with the same seed: the worst case.
        workers = [start(storage, 0, 50, server, 6) for _ in range(4)]
        for worker in workers:
            _, errors = worker.communicate(timeout=200)  # type: ignore[attr-defined]
            assert worker.returncode == 0, errors  # type: ignore[attr-defined]
        assert 1 <= made_calls(server) <= 6
    trials = study.get_trials(deepcopy=False)
    assert len(trials) == 200
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert len({configuration_key(trial.params) for trial in trials}) == 200
    assert {"llm", "tpe"} <= {trial.user_attrs[PROPOSED_BY] for trial in trials}
    ids = [call["id"] for trial in trials for call in trial.user_attrs.get(CALLS, [])]
    assert len(ids) == len(set(ids)) <= 6


@pytest.mark.slow
def test_after_a_kill_the_others_finish_and_a_new_worker_carries_on(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=storage, study_name="s")
    write_task(study, TASK)
    with chat_server(same_to_everybody) as server:
        victim = start(storage, 1, 1_000, server, 8, pause_s=0.02)
        other = start(storage, 2, 25, server, 8, pause_s=0.02)
        deadline = time.monotonic() + 60
        while len(study.get_trials(deepcopy=False)) < 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        victim.send_signal(signal.SIGKILL)  # type: ignore[attr-defined]
        victim.communicate()  # type: ignore[attr-defined]
        for worker in (other, start(storage, 1, 15, server, 8)):
            _, errors = worker.communicate(timeout=100)  # type: ignore[attr-defined]
            assert worker.returncode == 0, errors  # type: ignore[attr-defined]
        assert made_calls(server) <= 8
    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(complete) >= 40
    assert len({configuration_key(trial.params) for trial in complete}) == len(complete)
    assert sum(trial.state == TrialState.RUNNING for trial in trials) <= 1  # the victim's
