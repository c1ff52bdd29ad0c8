"""Processes that crash, hang or fail on purpose: the caller goes on, and nothing stays behind."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm_sampler.objectives.isolation import CallCrash, CallTimeout, ParallelProcesses, PreparedProcess

pytest.importorskip("pebble", reason="worker processes: pip install -e '.[test]'")


@pytest.fixture
def process() -> Iterator[PreparedProcess]:
    with contextlib.closing(PreparedProcess(os.chdir, "/", timeout_s=20.0)) as prepared:
        yield prepared


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_share_one_prepared_process(process: PreparedProcess) -> None:
    assert process.call(os.getcwd) == "/" != os.getcwd()  # noqa: PTH109
    assert process.call(os.getpid) == process.call(os.getpid) != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_reported_and_the_process_replaced(process: PreparedProcess, number: signal.Signals) -> None:
    before = process.call(os.getpid)
    with pytest.raises(CallCrash, match=f"exit code -{number.value}|before it began"):
        process.call(os.kill, before, number)
    assert process.call(os.getpid) != before
    assert process.call(os.getcwd) == "/", "the new process is prepared, too"
    assert not is_alive(before)


def test_a_hang_is_killed_at_the_limit() -> None:
    with contextlib.closing(PreparedProcess(os.getpid, timeout_s=0.5)) as process:
        before = process.call(os.getpid)
        started = time.monotonic()
        with pytest.raises(CallTimeout, match=r"longer than 0\.5 s"):
            process.call(time.sleep, 60)
        assert time.monotonic() - started < 10
        assert not is_alive(before)
        assert process.call(os.getpid) != before


def test_an_exception_comes_back_and_keeps_the_process(process: PreparedProcess) -> None:
    before = process.call(os.getpid)
    with pytest.raises(ZeroDivisionError):
        process.call(operator.truediv, 1, 0)
    assert process.call(os.getpid) == before


def test_a_failing_preparation_is_the_callers_error() -> None:
    with contextlib.closing(PreparedProcess(os.chdir, "/does/not/exist", timeout_s=20.0)) as process:
        with pytest.raises(FileNotFoundError):
            process.call(os.getpid)


def test_close_leaves_no_process() -> None:
    process = PreparedProcess(os.getpid, timeout_s=20.0)
    pid = process.call(os.getpid)
    process.close()
    assert not is_alive(pid)


def test_an_idle_process_that_dies_breaks_no_later_call() -> None:
    with contextlib.closing(ParallelProcesses(1, timeout_s=20.0)) as processes:
        before = processes.call(os.getpid)
        os.kill(before, signal.SIGKILL)
        time.sleep(0.5)
        assert processes.call(os.getpid) != before


def test_a_closed_pool_starts_no_new_processes() -> None:
    processes = ParallelProcesses(1, timeout_s=20.0)
    processes.call(os.getpid)
    processes.close()
    with pytest.raises(CallCrash, match="closed"):
        processes.call(os.getpid)


def test_parallel_processes_outlive_a_crash_among_other_calls() -> None:
    with contextlib.closing(ParallelProcesses(2, timeout_s=20.0)) as processes, ThreadPoolExecutor(6) as threads:
        good = [threads.submit(processes.call, operator.mul, index, 2) for index in range(4)]
        bad = threads.submit(processes.call, os.abort)
        good += [threads.submit(processes.call, operator.mul, index, 2) for index in range(4, 8)]
        assert [future.result() for future in good] == [0, 2, 4, 6, 8, 10, 12, 14]
        assert isinstance(bad.exception(), CallCrash)


def test_processes_stay_on_their_cores() -> None:
    core = max(os.sched_getaffinity(0))
    with contextlib.closing(ParallelProcesses(1, timeout_s=20.0, cores=[core])) as processes:
        assert processes.call(os.sched_getaffinity, 0) == {core}
