"""`Dispatcher`: keeps an evaluator busy from one thread, which alone asks the sampler and writes to the storage.

Sampling and storing are Python's own work: sixteen threads that do it at once wait for each other's locks and run
slower than one after the other. Only ``evaluate`` runs in threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from llm_sampler.objectives.evaluate import Evaluator
from llm_sampler.objectives.kernel_objective import KernelObjective
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration
from llm_sampler.studies.heartbeat import Heartbeats
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.run_storage import RunStorage
from llm_sampler.studies.workers import OWNER_ATTRIBUTE


@dataclass(frozen=True)
class _Job:
    """A trial at work."""

    trial: optuna.Trial
    configuration: Configuration


@dataclass
class Dispatcher:
    """Runs trials of a study.

    Attributes:
        study: The study.
        evaluator: What measures.
        owner: Name of the run, with which trials are signed.
        may_begin: Whether another trial may begin, given how many are at work here.
        on_trial: Called with each trial that has ended here.
        error: What a trial raised first; None if none did. No trial begins afterwards.
    """

    study: optuna.Study
    evaluator: Evaluator
    owner: str
    may_begin: Callable[[int], bool]
    on_trial: Callable[[TrialRecord], None]
    error: Exception | None = None
    _jobs: dict[Future[Measurement], _Job] = field(default_factory=dict)

    def run(self) -> None:
        """Begin trials while that is allowed, and end them all.

        Raises:
            KeyboardInterrupt: A second Ctrl-C; the trials at work have failed.
        """
        self._objective = KernelObjective(self.evaluator)
        executor: Executor = _Inline() if self.evaluator.parallel == 1 else ThreadPoolExecutor(self.evaluator.parallel)
        with _optimizing(self.study), Heartbeats(self.study) as self._heartbeats:
            try:
                while self._begin_one(executor) or self._jobs:
                    self._end_some()
            except BaseException:
                for job in self._jobs.values():
                    self._fail(job.trial)
                executor.shutdown(wait=False, cancel_futures=True)
                raise
            executor.shutdown()

    def _begin_one(self, executor: Executor) -> bool:
        """Begin one trial, if it may; whether there is room and leave for more."""
        if not self._may_begin():
            return False
        self._heartbeats.fail_stale()
        trial = self.study.ask()
        self._heartbeats.begin(trial)
        try:
            trial.set_user_attr(OWNER_ATTRIBUTE, self.owner)
            configuration = self._objective.suggest(trial)
        except Exception as error:  # noqa: BLE001 - `run`'s caller raises it
            self._end(trial, error)
            return True
        except BaseException:
            self._fail(trial)
            raise
        if isinstance(self.study._storage, RunStorage):
            self.study._storage.flush(trial._trial_id)
        job = _Job(trial, configuration)
        try:
            future = executor.submit(self._objective.measure, configuration)
        except BaseException:
            self._fail(trial)
            raise
        self._jobs[future] = job
        return True

    def _may_begin(self) -> bool:
        if self.error is not None or self.study._stop_flag or len(self._jobs) >= self.evaluator.parallel:
            return False
        return self.may_begin(len(self._jobs))

    def _end_some(self) -> None:
        """End the trials whose measurement is there; where no other may begin, wait for one."""
        timeout_s = 0.0 if self._may_begin() else None
        done, _ = wait(self._jobs, timeout_s, return_when=FIRST_COMPLETED)
        for future in done:
            job = self._jobs.pop(future)
            try:
                value = self._objective.finish(job.trial, job.configuration, future.result())
            except Exception as error:  # noqa: BLE001 - `run`'s caller raises it
                self._end(job.trial, error)
            else:
                self._end(job.trial, None, value)

    def _end(self, trial: optuna.Trial, error: Exception | None, value: float | None = None) -> None:
        """Tell the study how a trial ended."""
        state = TrialState.COMPLETE
        if error is not None:
            state = TrialState.PRUNED if isinstance(error, optuna.TrialPruned) else TrialState.FAIL
        if state == TrialState.FAIL:
            self.error = self.error or error
        self._heartbeats.end(trial)
        # Whoever thought this process dead has ended the trial already.
        with contextlib.suppress(UpdateFinishedTrialError):
            self.study.tell(trial, value, state)
        ended = self.study._storage.get_trial(trial._trial_id)
        self.on_trial(TrialRecord.from_trial(ended))

    def _fail(self, trial: optuna.Trial) -> None:
        with contextlib.suppress(Exception):
            self.study.tell(trial, state=TrialState.FAIL)


class _Inline(Executor):
    """Runs calls at once, in the thread that submits them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it
            future.set_exception(error)
        return future


@contextlib.contextmanager
def _optimizing(study: optuna.Study) -> Iterator[None]:
    """As within ``Study.optimize``: samplers may call ``study.stop``."""
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True
    try:
        yield
    finally:
        study._thread_local.in_optimize_loop = False
