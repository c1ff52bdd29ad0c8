"""`Heartbeats`: one thread that says for all trials at work here that their process lives.

Optuna's ``Study.optimize`` keeps a thread for each trial and looks for stale trials before each; with many short trials
both cost more than the trials' own writes.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from types import TracebackType
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages._heartbeat import BaseHeartbeat

if TYPE_CHECKING:
    from typing_extensions import Self


class Heartbeats:
    """Records heartbeats of running trials, where the storage keeps them; a context manager.

    Args:
        study: The trials' study.
    """

    def __init__(self, study: optuna.Study) -> None:
        self._study = study
        storage = study._storage
        self._storage = storage if isinstance(storage, BaseHeartbeat) else None
        self._interval_s = self._storage.get_heartbeat_interval() if self._storage else None
        self._trials: set[int] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)
        self._looked_s = -float("inf")

    def __enter__(self) -> Self:
        if self._interval_s is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def begin(self, trial: optuna.Trial) -> None:
        """A trial is at work; its first heartbeat is written now: without one nobody would ever think it stale."""
        if self._storage is None or self._interval_s is None:
            return
        with self._lock:
            self._trials.add(trial._trial_id)
        self._storage.record_heartbeat(trial._trial_id)

    def end(self, trial: optuna.Trial) -> None:
        """A trial is no longer at work."""
        with self._lock:
            self._trials.discard(trial._trial_id)

    def fail_stale(self) -> None:
        """Fail trials whose host went silent; at most once in an interval."""
        if self._interval_s is None or time.monotonic() - self._looked_s < self._interval_s:
            return
        self._looked_s = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self._study)

    def _beat(self) -> None:
        assert self._storage is not None
        while not self._over.wait(self._interval_s):
            with self._lock:
                trials = list(self._trials)
            for trial_id in trials:
                # A database that does not answer now may do so at the next beat; the trial's own writes will tell.
                with contextlib.suppress(Exception):
                    self._storage.record_heartbeat(trial_id)
        with contextlib.suppress(Exception):
            self._study._storage.remove_session()
