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
MOST_CALLS = 6


def same_to_everybody(request: Handler) -> None:
    """A model that tells every worker the same, so that they would collide."""
    asked = re.search(r"Propose (\d+)", request.body["messages"][-1]["content"])
    count = int(asked[1]) if asked else 1
    proposals = [{"p0": i % 5, "p1": (i * 2) % 3, "p2": 4 - i % 5, "p3": i % 3} for i in range(count)]
    request.send_text(json.dumps(proposals))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return str(request.getfixturevalue("postgres_url"))


def start(url: str, trials: int, server: ChatServer, pause_s: float = 0.0) -> subprocess.Popen[str]:
    """A worker with the seed that all have: they would choose the same."""
    arguments = [url, "s", str(trials), "0", server.url, str(MOST_CALLS), str(pause_s)]
    return subprocess.Popen([sys.executable, str(WORKER), *arguments], stderr=subprocess.PIPE, text=True)


def finish(worker: subprocess.Popen[str]) -> None:
    _, errors = worker.communicate(timeout=250)
    assert worker.returncode == 0, errors


@pytest.mark.slow
def test_processes_share_a_study_and_one_of_them_is_killed(url: str) -> None:
    """Nothing is measured twice, the budget of calls is kept, the others finish, and a new worker carries on."""
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(storage=storage, study_name="s")
    write_task(study, TASK)
    with chat_server(same_to_everybody) as server:
        workers = [start(url, 50, server) for _ in range(4)]
        victim = start(url, 1_000, server, pause_s=0.05)
        deadline = time.monotonic() + 120
        while len(study.get_trials(deepcopy=False)) < 40 and time.monotonic() < deadline:
            time.sleep(0.1)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        for worker in workers:
            finish(worker)
        finish(start(url, 10, server))
        assert 1 <= len(server.chats) <= MOST_CALLS
    trials = study.get_trials(deepcopy=False)
    storage.engine.dispose()
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(complete) >= 210
    assert len({configuration_key(trial.params) for trial in complete}) == len(complete)
    assert {"llm", "tpe"} <= {trial.user_attrs[PROPOSED_BY] for trial in complete}
    ids = [call["id"] for trial in trials for call in trial.user_attrs.get(CALLS, [])]
    assert len(ids) == len(set(ids)) <= MOST_CALLS
    # What the victim was measuring stays its own until somebody fails it.
    assert len(trials) - len(complete) <= 1
