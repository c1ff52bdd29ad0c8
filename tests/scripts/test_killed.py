"""kill -9 and Ctrl-C in the middle of ``llm-sampler tune``, and the same command again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
from optuna.trial import TrialState

TRIALS = 60


def start(package: Path, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    recording = str(sorted(package.iterdir())[0])
    command = [sys.executable, "-m", "llm_sampler.scripts.main", "tune", "matmul", "--replay", recording]
    command += ["--trials", str(TRIALS), "--study", "killed", *options]
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("OPENAI", "LLM_SAMPLER"))}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def finished(database: Path) -> int:
    if not database.exists():
        return 0
    connection = sqlite3.connect(database, timeout=30)
    try:
        return int(
            connection.execute("SELECT count(*) FROM trials WHERE state IN ('COMPLETE', 'PRUNED')").fetchone()[0]
        )
    except sqlite3.OperationalError:  # the tables are still being made
        return 0
    finally:
        connection.close()


def wait_for(enough: int, database: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while finished(database) < enough and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def test_a_killed_run_resumes_without_losing_or_repeating(package: Path, tmp_path: Path) -> None:
    database = tmp_path / "llm-sampler.db"
    for enough in (8, 20, 35):
        process = start(package, tmp_path)
        wait_for(enough, database, process)
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"it ended before it was killed: {err.decode()}"
        assert finished(database) >= enough
    kept = finished(database)
    process = start(package, tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    assert f"Continuing: {kept} of {TRIALS} trials were done before" in out.decode() or kept < TRIALS

    url = f"sqlite:///{database}"
    (name,) = optuna.get_all_study_names(url)
    trials = optuna.load_study(study_name=name, storage=url).get_trials()
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == TRIALS
    assert states[TrialState.RUNNING] == states[TrialState.WAITING] == 0
    # At most one trial was at work at each kill, and each that was waits again or was not yet suggested.
    assert states[TrialState.FAIL] <= 3
    done = [str(sorted(t.params.items())) for t in trials if t.state != TrialState.FAIL]
    assert max(Counter(done).values()) == 1
    for lost in (t for t in trials if t.state == TrialState.FAIL and len(t.params) == 5):
        assert str(sorted(lost.params.items())) in done


def test_ctrl_c_ends_with_the_result_so_far(package: Path, tmp_path: Path) -> None:
    database = tmp_path / "llm-sampler.db"
    process = start(package, tmp_path, "--sampler", "random")
    wait_for(10, database, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err.decode()
    assert "interrupted; the same command goes on from here" in out.decode()
    assert "Top five:" in out.decode()
    assert err == b""
    count = finished(database)
    assert 10 <= count < TRIALS
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT count(*) FROM trials").fetchone()[0] == count
    connection.close()


def test_processes_share_a_study_from_its_first_moment(package: Path, tmp_path: Path) -> None:
    processes = [start(package, tmp_path, "--sampler", "tpe") for _ in range(2)]
    outcomes = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outcomes
    url = f"sqlite:///{tmp_path}/llm-sampler.db"
    (name,) = optuna.get_all_study_names(url)
    trials = optuna.load_study(study_name=name, storage=url).get_trials()
    done = [str(sorted(t.params.items())) for t in trials if t.user_attrs.get("kernel:status")]
    # The other may have been at work when the last was counted.
    assert TRIALS <= len(done) <= TRIALS + 1
    assert max(Counter(done).values()) == 1
    assert sum(t.user_attrs.get("llm_sampler:proposed_by") == "default" for t in trials) == 1
    assert len({t.user_attrs["worker"] for t in trials}) == 2
