"""Workers of `llm-sampler tune --workers N`: each a process that runs ``llm-sampler tune`` on the same study.

What is shown meanwhile and at the end is read from the archive, so that any of these processes may die, the one that
started them included: the others carry on. Secrets reach them through the environment, which only their user can read;
their arguments, which everybody can, hold none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

import optuna
from rich.console import Console

from llm_sampler.scripts.setup import OptionError
from llm_sampler.scripts.storage import HIDDEN_VARIABLE
from llm_sampler.studies.loop import Limits, Observer
from llm_sampler.studies.records import TrialRecord, read_records
from llm_sampler.studies.result import Stopped, TuneResult, summarize

if TYPE_CHECKING:
    from types import FrameType

    from optuna.storages import BaseStorage

    from llm_sampler.space import Space

_LOOK_S = 0.5
# A worker that measures needs a core for the study, one for its measuring process, and one to compile.
_LEAST_CORES = 3


class WorkerError(RuntimeError):
    """No worker could work; the message is the last one's."""


def gpus_for(count: int) -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` is for each of so many workers: a GPU of its own.

    Raises:
        OptionError: There are fewer GPUs, or different ones.
    """
    from llm_sampler.objectives.device import detect_device

    names: list[str] = []
    while len(names) < count and (device := detect_device(len(names))) is not None:
        names.append(device.name)
    if count > len(names):
        raise OptionError(f"--workers must be at most {len(names)}, one for each visible GPU, got {count}")
    for index, name in enumerate(names):
        if name != names[0]:
            raise OptionError(
                f"GPU {index} is {name}, and GPU 0 is {names[0]}: times of two devices do not compare; "
                "CUDA_VISIBLE_DEVICES chooses those of one kind"
            )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(count)] if visible is None else visible.split(",")[:count]


def core_shares(cores: Sequence[int], count: int) -> list[Sequence[int]]:
    """The cores of each of so many measuring workers: its own, where there are enough; none disturbs another."""
    share = len(cores) // count
    if share < _LEAST_CORES:
        return [cores] * count
    return [cores[index * share : (index + 1) * share] for index in range(count)]


@dataclass
class _Worker:
    """A process, and the file of its error messages; None for the process once it has been seen to end."""

    number: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    status: int | None = None

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("llm-sampler: ") if lines else ""


@dataclass
class Fleet:
    """Worker processes of one study.

    Attributes:
        console: Gets a line about each worker that dies.
        storage: The archive.
        study_name: The study, which the first worker creates.
        space: The study's space.
        limits: Those that the workers were given.
        observer: What watches the study.
    """

    console: Console
    storage: BaseStorage
    study_name: str
    space: Space
    limits: Limits
    observer: Observer
    interrupted: bool = False
    _workers: list[_Worker] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _study: optuna.Study | None = None

    def run(self, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> TuneResult:
        """Start a worker with each command and environment, and wait for all.

        Args:
            commands: Arguments of ``llm-sampler``, without secrets.
            environments: What is added to this process's environment.

        Raises:
            WorkerError: Not one of them worked to the end.
        """
        started = time.monotonic()
        before = self._records()
        self._seen = {record.number for record in before if record.state.is_finished()}
        self.observer.on_start(before)
        measures = any("CUDA_VISIBLE_DEVICES" in environment for environment in environments)
        shares = core_shares(sorted(os.sched_getaffinity(0)), len(commands)) if measures else itertools.repeat(None)
        with contextlib.ExitStack() as stack, self._forwarding():
            stack.callback(self._end)
            for number, (command, environment, cores) in enumerate(zip(commands, environments, shares, strict=False)):
                errors = stack.enter_context(tempfile.TemporaryFile())
                with _pinned(cores):
                    self._workers.append(_Worker(number, _start(command, environment, errors), errors))
            self._wait()
            self._look()
            if not any(worker.status in (0, 130) for worker in self._workers):
                raise WorkerError(self._workers[-1].last_words() or "every worker was killed")
        return self._result(before, time.monotonic() - started)

    def _wait(self) -> None:
        looked_s = time.monotonic()
        while any(worker.status is None for worker in self._workers):
            for worker in self._workers:
                if worker.status is None and (status := worker.process.poll()) is not None:
                    worker.status = status
                    if status not in (0, 130):
                        self._tell(worker)
            if time.monotonic() - looked_s >= _LOOK_S:
                self._look()
                looked_s = time.monotonic()
            time.sleep(0.05)

    def _look(self) -> None:
        """Show the observer the trials that have ended since the last look."""
        study = self._find_study()
        for trial in [] if study is None else study.get_trials(deepcopy=False):
            if trial.state.is_finished() and trial.number not in self._seen:
                self._seen.add(trial.number)
                self.observer.on_trial(TrialRecord.from_trial(trial))

    def _records(self) -> list[TrialRecord]:
        study = self._find_study()
        return [] if study is None else read_records(study)

    def _find_study(self) -> optuna.Study | None:
        if self._study is None:
            with contextlib.suppress(KeyError):  # no worker has created it yet
                self._study = optuna.load_study(study_name=self.study_name, storage=self.storage)
        return self._study

    def _tell(self, worker: _Worker) -> None:
        status = worker.status or 0
        how = f"killed by signal {-status}" if status < 0 else worker.last_words() or f"status {status}"
        left = sum(other.status is None for other in self._workers)
        rest = f"; {left} carry on" if left else ""
        self.console.print(f"Worker {worker.number} ended: {how}{rest}", markup=False)

    def _result(self, before: Sequence[TrialRecord], seconds: float) -> TuneResult:
        records = self._records()
        times = [
            r.measurement.reference_ms for r in records if r.measurement and r.measurement.reference_ms is not None
        ]
        result = summarize(
            records,
            self.space,
            study_name=self.study_name,
            reference_ms=statistics.median(times) if times else None,
            stopped="exhausted",
            seconds=seconds,
            measured_before=sum(record.measured for record in before),
        )
        return replace(result, stopped=self._stopped(result))

    def _stopped(self, result: TuneResult) -> Stopped:
        speedup = result.reference_speedup if result.reference_speedup is not None else result.speedup
        if self.interrupted:
            return "interrupted"
        if self.limits.target_speedup is not None and (speedup or 0.0) >= self.limits.target_speedup:
            return "target"
        if self.limits.trials is not None and result.measured >= self.limits.trials:
            return "trials"
        return "time" if self.limits.seconds is not None and result.seconds >= self.limits.seconds else "exhausted"

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM become the workers' Ctrl-C: at the first they end their trials, at the second at once."""

        def forward(_: int, __: FrameType | None) -> None:
            self.interrupted = True
            self._interrupt()

        before = [(number, signal.signal(number, forward)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def _interrupt(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)

    def _end(self) -> None:
        """Whatever went wrong here, nothing is left behind."""
        self._interrupt()
        for worker in self._workers:
            worker.process.wait()


def _start(command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "llm_sampler.scripts.main", *command],
        env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        # A terminal's Ctrl-C reaches them through this process, once.
        start_new_session=True,
    )


@contextlib.contextmanager
def _pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """What is started in the block runs on these cores."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def private_environment(storage: str, *, model: str | None, base_url: str | None) -> dict[str, str]:
    """What the workers are told through the environment: URLs may hold passwords."""
    named = {HIDDEN_VARIABLE: storage, "LLM_SAMPLER_MODEL": model, "OPENAI_BASE_URL": base_url}
    return {name: value for name, value in named.items() if value is not None}
