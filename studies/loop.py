"""The closed loop: create or resume a study, measure the default, optimize until a limit is reached.

All that it knows is in the storage: a run that was killed is carried on by calling `tune` again, and several processes
may tune one study at once.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import DEFAULT, PROPOSED_BY
from llm_sampler.objectives.evaluate import Evaluator
from llm_sampler.objectives.kernel_objective import STATUS_ATTRIBUTE
from llm_sampler.space import Space, configuration_key
from llm_sampler.studies.archive import ArchiveError
from llm_sampler.studies.dispatch import Dispatcher
from llm_sampler.studies.entry import Entry, refuse_other_device, write_entry
from llm_sampler.studies.patience import PatientStorage
from llm_sampler.studies.records import TrialRecord, read_records
from llm_sampler.studies.result import Stopped, TuneResult, find_baseline, reference_speedup, summarize
from llm_sampler.studies.warm import Seed, keep_seeds, queue_seeds
from llm_sampler.studies.workers import Worker, recover_orphans, registered
from llm_sampler.task import Task, read_task, write_task

METRIC_NAME = "median_ms"
# How long a worker that finds an empty study leaves its creator to queue the default.
_CREATOR_GRACE_S = 2.0


class LimitError(ValueError):
    """A limit that cannot be one."""


class Observer:
    """Watches a run; the base class does nothing. Calls may come from several threads."""

    def on_start(self, records: Sequence[TrialRecord]) -> None:
        """The study is open; ``records`` are the trials that it had."""

    def on_trial(self, record: TrialRecord) -> None:
        """This process has finished a trial."""


@dataclass(frozen=True)
class Limits:
    """When a study stops; whatever comes first.

    Attributes:
        trials: Measured configurations in the study, those of earlier runs and other workers included; None: no limit.
        seconds: Length of this run, after which no configuration is begun; None: no limit.
        target_speedup: A speedup that is enough: over the PyTorch reference where there is one, else over the default
            configuration; None: no target.
    """

    trials: int | None = None
    seconds: float | None = None
    target_speedup: float | None = None

    def __post_init__(self) -> None:
        """Check that limits are positive."""
        for name in ("trials", "seconds", "target_speedup"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise LimitError(f"{name} must be positive, got {value}")


def tune(
    evaluator: Evaluator,
    task: Task,
    *,
    storage: BaseStorage,
    study_name: str,
    sampler: BaseSampler,
    limits: Limits,
    observer: Observer | None = None,
    entry: Entry | None = None,
    seeds: Sequence[Seed] = (),
) -> TuneResult:
    """Tune until a limit is reached, the space is exhausted, or Ctrl-C.

    At the first Ctrl-C the configurations at work are finished; at the second they are given up.

    Args:
        evaluator: What measures; its space is the study's.
        task: What the sampler may tell an LLM; ``task.space`` must be the evaluator's.
        storage: Where the study lives: see `open_storage`.
        study_name: See `study_name`; an existing study of that name is continued.
        sampler: E.g. `LLMSampler`, or any Optuna sampler wrapped in `DistinctSampler`.
        limits: When to stop.
        observer: What watches the run, e.g. a progress bar.
        entry: What the study is about, for queries of the archive; None leaves it to its name and task.
        seeds: What a new study measures after the default: see `warm_start`.

    Raises:
        ArchiveError: The storage refuses, or the study belongs to another space or device.
        Exception: What ``evaluator.evaluate`` raises where the machine is broken; the trial is in state FAIL.
    """
    started = time.monotonic()
    storage = PatientStorage(storage) if isinstance(storage, RDBStorage) else storage
    study, created = _open_study(storage, study_name, sampler, task, entry, seeds)
    with registered(study) as worker:
        run = _Run(study, evaluator, limits, worker, observer or Observer())
        recover_orphans(study)
        _queue_default(study, task.space, created=created)
        if created:
            queue_seeds(study, seeds)
        before = run.measured()
        run.observer.on_start(read_records(study))
        with _interruptible(run):
            stopped = run.until_stopped(started)
    recover_orphans(study)  # a trial whose number was lost on its way from the database is nobody's now
    return summarize(
        read_records(study),
        task.space,
        study_name=study_name,
        reference_ms=evaluator.reference_ms,
        stopped=stopped,
        seconds=time.monotonic() - started,
        measured_before=before,
    )


@dataclass
class _Run:
    """One process's work on a study."""

    study: optuna.Study
    evaluator: Evaluator
    limits: Limits
    worker: Worker
    observer: Observer
    interrupted: threading.Event = field(default_factory=threading.Event)
    default_ms: float | None = None

    def until_stopped(self, started: float) -> Stopped:
        """Optimize; and again, where workers died meanwhile and left their configurations to the others."""
        until = float("inf") if self.limits.seconds is None else started + self.limits.seconds
        while (stopped := self._stopped(until)) is None:
            begun = len(self.study.get_trials(deepcopy=False))
            work = Dispatcher(
                self.study,
                self.evaluator,
                self.worker.name,
                may_begin=functools.partial(self._may_begin, until),
                on_trial=self.observer.on_trial,
            )
            try:
                work.run()
            except KeyboardInterrupt:
                return "interrupted"
            if work.error is not None:
                raise work.error
            recover_orphans(self.study)
            if len(self.study.get_trials(deepcopy=False)) == begun and self._stopped(until) is None:
                return "exhausted"  # the rest is at work elsewhere
        return stopped

    def measured(self) -> int:
        """How many configurations the study has measured."""
        return len(_measured(self.study))

    def _stopped(self, until: float) -> Stopped | None:
        """Why to stop now, None to go on; ``until`` is when the time is over."""
        if self.interrupted.is_set():
            return "interrupted"
        if self._target_reached():
            return "target"
        if self.limits.trials is not None and self.measured() >= self.limits.trials:
            return "trials"
        if time.monotonic() >= until:
            return "time"
        return "exhausted" if self._exhausted() else None

    def _may_begin(self, until: float, at_work: int) -> bool:
        """Whether another trial may begin while ``at_work`` of this process are measured."""
        if self.interrupted.is_set() or time.monotonic() >= until or self._target_reached():
            return False
        # Optuna asks no sampler about parameters with one choice, so none can say that such a space is used up.
        if all(len(parameter.choices) == 1 for parameter in self.evaluator.space.parameters):
            return at_work == 0 and self.measured() == 0
        return self.limits.trials is None or self.measured() + at_work < self.limits.trials

    def _target_reached(self) -> bool:
        target = self.limits.target_speedup
        timed = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if target is not None else []
        if target is None or not timed:
            return False
        best = TrialRecord.from_trial(min(timed, key=lambda trial: trial.value or float("inf")))
        speedup = reference_speedup(best, self.evaluator.reference_ms)
        if speedup is None and best.median_ms is not None:
            if self.default_ms is None:
                baseline = find_baseline([TrialRecord.from_trial(trial) for trial in timed], self.evaluator.space)
                self.default_ms = baseline.median_ms if baseline else None
            speedup = self.default_ms / best.median_ms if self.default_ms is not None else None
        return speedup is not None and speedup >= target

    def _exhausted(self) -> bool:
        """Whether every allowed configuration is measured; it looks no further than the first that is not."""
        if self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return False
        seen = {configuration_key(trial.params) for trial in _measured(self.study)}
        return all(configuration_key(configuration) in seen for configuration in self.evaluator.space.configurations())


def _measured(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a measurement: see `TrialRecord.measured`."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return [t for t in done if t.state == TrialState.COMPLETE or STATUS_ATTRIBUTE in t.user_attrs]


def _open_study(
    storage: BaseStorage, name: str, sampler: BaseSampler, task: Task, entry: Entry | None, seeds: Sequence[Seed]
) -> tuple[optuna.Study, bool]:
    """The study with its task and entry, and whether this process created it."""
    try:
        try:
            study = optuna.create_study(storage=storage, study_name=name, sampler=sampler, direction="minimize")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                study.set_metric_names([METRIC_NAME])
            keep_seeds(study, seeds)  # before the task: see `warm_start`
            created = True
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
            created = False
            if entry is not None:
                refuse_other_device(study, entry)
        known = read_task(study.user_attrs)
        if known is not None and known.space.digest() != task.space.digest():
            raise ArchiveError(f"study {name} is about another space: give this one another name")
        if known is None or known.to_json() != task.to_json():
            write_task(study, task)
        if entry is not None:
            write_entry(study, entry)
    except StorageInternalError as error:
        raise ArchiveError(f"the storage refuses to keep study {name}: {error.__cause__ or error}") from None
    return study, created


def _queue_default(study: optuna.Study, space: Space, *, created: bool) -> None:
    """Queue the default configuration as the first trial, unless it is there."""
    if space.default is None:
        return
    key = configuration_key(space.default)
    until = time.monotonic() + (0.0 if created else _CREATOR_GRACE_S)
    while True:
        records = read_records(study)
        if any(record.key == key and record.state != TrialState.FAIL for record in records):
            return
        if records or time.monotonic() >= until:
            study.enqueue_trial(space.default, user_attrs={PROPOSED_BY: DEFAULT})
            return
        time.sleep(0.1)


@contextlib.contextmanager
def _interruptible(run: _Run) -> Iterator[None]:
    """Ctrl-C ends the run after the trials at work; a second one raises at once. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(_: int, __: FrameType | None) -> None:
        if run.interrupted.is_set():
            raise KeyboardInterrupt
        run.interrupted.set()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
