"""``llm-sampler tune --workers N`` on real storages: what dies is made up for, and no secret can be seen."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from chat_server import ChatServer, Handler, chat_server
from database_servers import PASSWORD, NoServerError, Postgres, Server, fresh_database, running
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CALLS
from llm_sampler.kernels import H200
from llm_sampler.scripts import fleet
from llm_sampler.scripts.setup import OptionError
from llm_sampler.studies.storages import close, open_any
from llm_sampler.studies.workers import WORKER_PREFIX, Worker

Start = Callable[..., subprocess.Popen[str]]


def proposals(request: Handler) -> None:
    """A model that proposes what is in every space of a matmul."""
    batch = [
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32, "num_warps": 8, "num_stages": 3}
        for m in (16, 32, 64, 128)
        for n in (32, 64, 128)
    ]
    request.send_text(json.dumps(batch))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(proposals) as one:
        yield one


@pytest.fixture
def start(package: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts ``llm-sampler tune`` on a recording of matmul; everything is ended afterwards."""
    started: list[subprocess.Popen[str]] = []
    small = str(sorted(package.iterdir())[0])

    def start_one(*options: str, url: str = "", recording: str = "", **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "llm_sampler.scripts.main", "tune", "matmul", *options]
        command += ["--replay", recording or small]
        environment = {n: v for n, v in os.environ.items() if not n.startswith(("OPENAI", "LLM_SAMPLER"))}
        environment |= {"LLM_SAMPLER_STORAGE": url, **variables} if url else variables
        started.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start_one
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def all_trials(url: str) -> list[FrozenTrial]:
    storage = open_any(url)
    try:
        studies = storage.get_all_studies()
        return storage.get_all_trials(studies[0]._study_id) if studies else []
    finally:
        close(storage)


def registered_workers(url: str) -> list[Worker]:
    storage = open_any(url)
    try:
        (study,) = storage.get_all_studies()
        return [Worker.from_json(v) for n, v in study.user_attrs.items() if n.startswith(WORKER_PREFIX)]
    finally:
        close(storage)


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(text) for text in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def ended(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and process.poll() is None:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"it never came true; the process: {process.poll()}, {process.communicate(timeout=60)}")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_accounts(url: str, wanted: int, workers: int, killed: int) -> None:
    """Every trial is accounted for: measured once, or lost with its process."""
    trials = all_trials(url)
    done = ended(trials)
    # Others may have been at work when the last was counted, or just about to begin.
    assert wanted <= len(done) < wanted + 2 * workers
    assert max(Counter(str(sorted(trial.params.items())) for trial in done).values()) == 1
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.RUNNING] == 0
    assert states[TrialState.FAIL] <= killed
    assert states[TrialState.WAITING] <= states[TrialState.FAIL]
    assert len(registered_workers(url)) == workers


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL server that may be stopped."""
    try:
        with running(Postgres) as one:
            yield one
    except NoServerError as error:
        pytest.skip(str(error))


def kill(process: subprocess.Popen[str], count: int) -> None:
    for pid in children(process)[:count]:
        os.kill(pid, signal.SIGKILL)


# How many trials, and of which recording; the full size is as large as the shipped one allows.
SIZES = [pytest.param((160, ""), marks=pytest.mark.slow), pytest.param((1600, "shipped"), marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("size", SIZES, ids=["small", "full"])
def test_eight_workers_on_postgresql_two_killed_and_the_server_restarted(
    start: Start, own_postgres: Server, size: tuple[int, str]
) -> None:
    trials, recording = size
    with fresh_database(own_postgres.url()) as url:
        process = start("--sampler", "random", "--workers", "8", "--trials", str(trials), url=url, recording=recording)
        wait_until(lambda: len(ended(all_trials(url))) >= trials // 8, process)
        kill(process, 2)
        own_postgres.stop()
        own_postgres.start()
        out, err = process.communicate(timeout=250)
        assert (process.returncode, err) == (0, ""), err
        assert out.count("ended: killed by signal 9") == 2
        # Answers that the restart cut off may leave trials that nobody knows.
        check_accounts(url, trials, 8, killed=2 + 6)


@pytest.mark.parametrize("size", SIZES, ids=["small", "full"])
@pytest.mark.parametrize("storage", ["sqlite", "journal"])
def test_four_workers_without_a_server_two_killed(
    start: Start, tmp_path: Path, storage: str, size: tuple[int, str]
) -> None:
    trials, recording = size
    file = tmp_path / "s"
    url = f"sqlite:///{file}" if storage == "sqlite" else f"journal:///{file}"
    process = start("--sampler", "random", "--workers", "4", "--trials", str(trials), url=url, recording=recording)
    wait_until(lambda: file.exists() and len(ended(all_trials(url))) >= trials // 8, process)
    kill(process, 2)
    out, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, ""), err
    assert out.count("ended: killed by signal 9") == 2
    check_accounts(url, trials, 4, killed=2)


@pytest.mark.slow
def test_workers_on_mariadb_one_killed(start: Start, mysql_url: str) -> None:
    process = start("--sampler", "random", "--workers", "2", "--trials", "60", url=mysql_url)
    wait_until(lambda: len(ended(all_trials(mysql_url))) >= 15, process)
    kill(process, 1)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, ""), err
    check_accounts(mysql_url, 60, 2, killed=1)


def test_workers_carry_on_without_the_one_that_started_them(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    process = start("--sampler", "random", "--workers", "2", "--trials", "150", url=url)
    wait_until(lambda: (tmp_path / "s.db").exists() and len(ended(all_trials(url))) >= 10, process)
    workers = children(process)
    process.kill()
    process.communicate()
    until = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    check_accounts(url, 150, 2, killed=0)


def test_ctrl_c_ends_the_workers_and_shows_the_result(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    process = start("--sampler", "random", "--workers", "2", "--timeout", "100", "--trials", "250", url=url)
    wait_until(lambda: (tmp_path / "s.db").exists() and len(ended(all_trials(url))) >= 10, process)
    workers = children(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "interrupted; the same command goes on from here" in out
    assert not any(map(is_running, workers))
    assert {trial.state for trial in all_trials(url)} <= {TrialState.COMPLETE, TrialState.PRUNED}


def test_a_study_has_one_opening_whatever_the_number_of_workers(
    start: Start, server: ChatServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    address = server.url.replace("://", "://user:hunter2@")
    variables = {"OPENAI_API_KEY": "sk-hunter2", "LLM_SAMPLER_MODEL": "m"}
    process = start("--workers", "4", "--trials", "40", "--base-url", address, url=url, **variables)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, ""), err
    calls = [call for trial in all_trials(url) for call in trial.user_attrs.get(CALLS, [])]
    assert [call["kind"] for call in calls].count("opening") == 1
    assert len(server.chats) == len(calls)
    assert len(registered_workers(url)) == 4
    assert "llm" in out
    assert "hunter2" not in out + (tmp_path / "s.db").read_bytes().decode("latin-1")


@pytest.mark.slow
def test_no_password_is_seen_by_others(start: Start, postgres_url: str) -> None:
    def seen() -> str:
        """Arguments of the processes, as `ps` shows them."""
        pids = [process.pid, *children(process)]
        pids += [
            int(pid) for child in pids[1:] for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()
        ]
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)

    process = start("--storage", postgres_url, "--sampler", "random", "--workers", "2", "--trials", "60")
    wait_until(lambda: len(children(process)) == 2, process)
    shown = seen()
    assert shown.count("tune") == 3
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    escaped = postgres_url.rpartition("@")[0].rpartition(":")[2]
    for text in (shown, out, err):
        assert PASSWORD not in text
        assert escaped not in text
    assert "postgresql+psycopg://tuner:***@127.0.0.1" in out
    assert len(ended(all_trials(postgres_url))) >= 60


def test_a_worker_that_cannot_begin_says_why(start: Start, tmp_path: Path) -> None:
    process = start(
        "--workers", "2", "--study", "matmul/a/b/c", recording="none.json", url=f"sqlite:///{tmp_path}/s.db"
    )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (2, 1)
    assert "cannot read none.json" in err


def test_a_study_is_joined_by_its_whole_name_from_the_same_device_only(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    options = ("--sampler", "random", "--trials", "20")
    process = start(*options, url=url)
    process.communicate(timeout=60)
    storage = open_any(url)
    (study,) = storage.get_all_studies()
    joined = start(*options, "--study", study.study_name, "--trials", "25", url=url)
    joined.communicate(timeout=60)
    assert joined.returncode == 0
    assert len(storage.get_all_trials(study._study_id)) == 25
    # As if it had been measured on another GPU.
    entry = {**study.user_attrs["archive:entry"], "device": "NVIDIA A100"}
    storage.set_study_user_attr(study._study_id, "archive:entry", entry)
    close(storage)
    for workers, status in (((), 2), (("--workers", "1"), 1)):
        refused = start(*options, "--study", study.study_name, "--trials", "30", *workers, url=url)
        _, err = refused.communicate(timeout=60)
        assert refused.returncode == status
        assert "are replayed, of NVIDIA A100, and those here replayed, of NVIDIA H200: they do not compare" in err
        assert "A study of its own: llm-sampler tune matmul --problem 16x8192x8192-fp16\n" in err


def test_each_measuring_worker_has_a_gpu_and_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [H200, H200, dataclasses.replace(H200, name="NVIDIA A100")]
    found = "llm_sampler.objectives.device.detect_device"
    monkeypatch.setattr(found, lambda index=0: devices[index] if index < len(devices) else None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert fleet.gpus_for(2) == ["0", "1"]
    with pytest.raises(OptionError, match="GPU 2 is NVIDIA A100, and GPU 0 is NVIDIA H200"):
        fleet.gpus_for(3)
    with pytest.raises(OptionError, match="--workers must be at most 3, one for each visible GPU, got 4"):
        fleet.gpus_for(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8f3a,2")
    assert fleet.gpus_for(2) == ["5", "GPU-8f3a"]
    assert fleet.core_shares(range(8), 2) == [range(4), range(4, 8)]
    assert fleet.core_shares(range(4), 2) == [range(4), range(4)]
