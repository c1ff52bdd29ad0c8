from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_sampler.objectives.device_lock import DeviceBusyError, device_lock

# Measures: enters, notes it, and leaves. Two that were inside at once would interleave their lines.
WORKER = """
import sys, time
from pathlib import Path
from llm_sampler.objectives.device_lock import device_lock
folder, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for _ in range(rounds):
    with device_lock("GPU 0", folder=folder), open(folder / "events", "a", buffering=1) as events:
        events.write(f"{name} begins\\n")
        time.sleep(0.01)
        events.write(f"{name} ends\\n")
"""
# Holds a GPU until it is killed.
HOLDER = """
import sys, time
from pathlib import Path
from llm_sampler.objectives.device_lock import device_lock
with device_lock("GPU 0", folder=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
# Measures on the real GPU, and notes when the measuring process is at work.
MEASURER = """
import contextlib, itertools, sys
from pathlib import Path
from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.gpu import GpuEvaluator
folder, name = Path(sys.argv[1]), sys.argv[2]
spec = find_kernel("matmul")
with contextlib.closing(GpuEvaluator(spec, spec.problem("512x512x512-fp16"), device=detect_device())) as evaluator:
    call = evaluator._bench.call
    def noted(*arguments):
        with open(folder / "events", "a", buffering=1) as events:
            events.write(f"{name} begins\\n")
            try:
                return call(*arguments)
            finally:
                events.write(f"{name} ends\\n")
    evaluator._bench.call = noted
    for configuration in itertools.islice(evaluator.space.configurations(), 0, None, 97):
        print(evaluator.evaluate(configuration).status, flush=True)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start_one(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start_one
    for process in processes:
        process.kill()
        process.communicate()


def test_processes_never_measure_on_one_gpu_at_the_same_moment(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    workers = [start(WORKER, tmp_path, name, 20) for name in ("a", "b", "c")]
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    events = (tmp_path / "events").read_text().splitlines()
    assert len(events) == 2 * 3 * 20
    for begins, ends in zip(events[::2], events[1::2], strict=True):
        assert (begins.split()[1], ends.split()[1]) == ("begins", "ends")
        assert begins.split()[0] == ends.split()[0]
    # Nobody, however much it has to measure, takes the GPU again while another waits.
    names = [line.split()[0] for line in events[::2]]
    together = names[names.index(sorted(set(names), key=names.index)[-1]) :]
    longest = max(len(list(group)) for _, group in itertools.groupby(together[: len(together) // 2]))
    assert longest <= 2


def test_threads_exclude_each_other_as_well(tmp_path: Path) -> None:
    inside, most = 0, 0

    def measure() -> None:
        nonlocal inside, most
        for _ in range(50):
            with device_lock("GPU 0", folder=tmp_path):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_gpu_that_is_kept_is_refused_until_its_holder_dies(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start(HOLDER, tmp_path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DeviceBusyError, match=r"measured on GPU 0 all the time.* give each worker its own GPU"):
        with device_lock("GPU 0", timeout_s=0.1, folder=tmp_path):
            pass
    with device_lock("GPU 1", timeout_s=0.1, folder=tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    with device_lock("GPU 0", timeout_s=30, folder=tmp_path):
        pass


@pytest.mark.gpu
def test_two_processes_never_measure_on_this_gpu_at_the_same_moment(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    workers = [start(MEASURER, tmp_path, name) for name in ("a", "b")]
    statuses = [worker.communicate(timeout=120)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert all(set(words) <= {"ok", "out_of_resources"} and "ok" in words for words in statuses)
    events = (tmp_path / "events").read_text().splitlines()
    for begins, ends in zip(events[::2], events[1::2], strict=True):
        assert begins.replace("begins", "ends") == ends
    names = [line.split()[0] for line in events[::2]]
    assert set(names) == {"a", "b"}
    assert names != sorted(names), "one was done before the other began: this shows nothing"
