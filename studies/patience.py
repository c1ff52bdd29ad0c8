"""`PatientStorage`: a run's storage that outlives a restart of its database, or of a gRPC proxy before it.

What failed because nobody answered is tried again, for at most two minutes. It may have been done though the answer was
lost: a trial that has ended as it was to end, and attributes that are there, count as written.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial

from llm_sampler.studies.run_storage import RunStorage

PATIENCE_S = 120.0
_FIRST_S, _LONGEST_S = 0.1, 3.0
_logger = optuna.logging.get_logger("optuna.llm_sampler")


class PatientStorage(RunStorage):
    """Wraps a database for one run, as `RunStorage`, and waits for it where it does not answer.

    Args:
        backend: The database.
        patience_s: How long to try again; the first failure is said once, the last is raised.
    """

    def __init__(self, backend: RDBStorage, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(backend)
        self._patience_s = patience_s

    def _start(self) -> None:
        super()._start()
        self._within = threading.local()
        self._waiting = False

    def __getstate__(self) -> dict[Any, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_within", "_waiting")}

    def patiently(self, method: str, *arguments: Any, **options: Any) -> Any:
        """The result of a method of `RunStorage`, tried again while the database does not answer."""
        attempt = functools.partial(getattr(super(), method), *arguments, **options)
        if getattr(self._within, "depth", 0):
            return attempt()  # the call that this one is part of is tried again as a whole
        self._within.depth = 1
        try:
            return self._again(attempt, method, arguments, options)
        finally:
            self._within.depth = 0

    def _again(
        self, attempt: Callable[[], Any], method: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        until, pause_s, failed = time.monotonic() + self._patience_s, _FIRST_S, False
        while True:
            try:
                made = self._made(*arguments, **options) if failed and method == "create_new_trial" else None
                result = attempt() if made is None else made
            except UpdateFinishedTrialError:
                if failed and method == "set_trial_state_values" and self._has_ended(*arguments, **options):
                    return True
                raise
            except (StorageInternalError, sqlalchemy.exc.IntegrityError) as error:
                if isinstance(error, sqlalchemy.exc.IntegrityError):
                    if not failed:
                        raise
                    self._learn()
                elif not is_passing(error) or time.monotonic() > until:
                    raise
                self._say(error)
                failed = True
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # not all workers at the same moment
                pause_s = min(2 * pause_s, _LONGEST_S)
            else:
                if failed:
                    self._waiting = False
                return result

    def _say(self, error: Exception) -> None:
        if not self._waiting:
            self._waiting = True
            cause = str(getattr(error.__cause__, "orig", None) or "a lost answer").strip().splitlines()[0]
            _logger.warning(f"The database does not answer ({cause}); trying again for up to {self._patience_s:g} s.")

    def _has_ended(self, trial_id: int, state: Any, *_: Any, **__: Any) -> bool:
        return bool(self._backend.get_trial(trial_id).state == state)

    def _made(self, study_id: int, template_trial: FrozenTrial | None = None) -> int | None:
        """The trial that was queued though the answer was lost; None if it was not, or is not known from others."""
        if template_trial is None:
            return None
        wanted = (template_trial.state, template_trial.system_attrs, template_trial.user_attrs)
        queued = self._backend.get_all_trials(study_id, deepcopy=False, states=(template_trial.state,))
        same = [t._trial_id for t in queued if (t.state, t.system_attrs, t.user_attrs) == wanted]
        return same[-1] if same else None

    def _learn(self) -> None:
        """Look up what the database has of the trials at work here: a transaction was done, and its answer lost."""
        with self._lock:
            for trial_id, own in self._own.items():
                stored = self._backend.get_trial(trial_id)
                own.known |= {(models.TrialUserAttributeModel, name) for name in stored.user_attrs}
                own.known |= {(models.TrialSystemAttributeModel, name) for name in stored.system_attrs}
                own.params = [row for row in own.params if row["param_name"] not in stored.params]
                own.heartbeat = False


def is_passing(error: StorageInternalError) -> bool:
    """Whether a database's failure may pass: no connection, a lost one, a deadlock; on SQLite none does."""
    cause = error.__cause__
    if isinstance(cause, sqlalchemy.exc.PendingRollbackError):
        return True  # after a lost connection Optuna asks its session once more, in another way
    if not isinstance(cause, sqlalchemy.exc.DBAPIError):
        return False
    local = type(cause.orig).__module__.startswith("sqlite3")
    return not local and (
        cause.connection_invalidated
        or isinstance(cause, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError)
    )


def _patient(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(RunStorage, name))
    def call(self: PatientStorage, *arguments: Any, **options: Any) -> Any:
        return self.patiently(name, *arguments, **options)

    return call


for _name in (
    "create_new_study",
    "create_new_trial",
    "flush",
    "get_all_studies",
    "get_all_trials",
    "get_best_trial",
    "get_study_directions",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_system_attrs",
    "get_study_user_attrs",
    "get_trial",
    "get_trial_id_from_study_id_trial_number",
    "record_heartbeat",
    "set_study_system_attr",
    "set_study_user_attr",
    "set_trial_intermediate_value",
    "set_trial_param",
    "set_trial_state_values",
    "set_trial_system_attr",
    "set_trial_user_attr",
    "_get_stale_trial_ids",
):
    setattr(PatientStorage, _name, _patient(_name))
