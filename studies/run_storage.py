"""`RunStorage`: a database as one run uses it: trials at work here are kept in memory too, their writes put together.

Optuna's storage reads each running trial anew for every look at a study, and commits every parameter and attribute by
itself: with 16 trials at work about 100 ms of processor time a trial. Here a trial costs four transactions: it is
made; its configuration is claimed; its parameters are there; its measurement, value and state are there.

What is kept when: a claim (`at_once`) and the end of a trial are in the database when the call returns, and with them
all that was written to the trial before, as Optuna demands of storages (``_CachedStorage``). A process that is killed
loses nothing else than what it had not been told yet.
"""

from __future__ import annotations

import copy
import datetime
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy
from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import PREFIX

# What other processes wrote may be so old when it is read: less than any of them takes to propose a configuration.
_FRESH_S = 0.02


@dataclass
class _Unwritten:
    """What the database does not have yet of a trial at work here.

    Attributes:
        params: Rows of parameters.
        attributes: JSON texts of attributes by kind and name.
        heartbeat: Whether the first heartbeat is to be written.
        known: Attributes that the database has, perhaps with another value.
        beats: Whether the database has a heartbeat.
    """

    params: list[dict[str, Any]] = field(default_factory=list)
    attributes: dict[tuple[type[Any], str], str] = field(default_factory=dict)
    heartbeat: bool = False
    known: set[tuple[type[Any], str]] = field(default_factory=set)
    beats: bool = False


class RunStorage(_CachedStorage):
    """Wraps a database for one run; safe to use from several threads.

    Args:
        backend: The database.
    """

    def __init__(self, backend: RDBStorage) -> None:
        super().__init__(backend)
        self._start()

    def _start(self) -> None:
        self._lock: Any = threading.RLock()
        self._own: dict[int, _Unwritten] = {}
        self._read_s: dict[int, float] = {}

    def __getstate__(self) -> dict[Any, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_own", "_read_s")}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._start()

    @staticmethod
    def at_once(name: str) -> bool:
        """Whether a system attribute is one by which workers see each other's choices: ours are."""
        return name.startswith(PREFIX)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """A new trial; one that runs is this run's own."""
        trial_id = super().create_new_trial(study_id, template_trial)
        with self._lock:
            study = self._studies[study_id]
            if template_trial is None:
                self._own[trial_id] = _Unwritten()
            else:
                study.unfinished_trial_ids.add(trial_id)
        return trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Note a parameter."""
        with self._lock:
            own = self._own.get(trial_id)
            study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
            known = self._studies[study_id].param_distribution.get(param_name)
            if own is None or known is None:
                super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            else:
                check_distribution_compatibility(known, distribution)
                own.params.append(
                    {
                        "trial_id": trial_id,
                        "param_name": param_name,
                        "param_value": param_value_internal,
                        "distribution_json": distribution_to_json(distribution),
                    }
                )
            if own is not None:
                trial = self._copy(trial_id)
                trial.params[param_name] = distribution.to_external_repr(param_value_internal)
                trial.distributions[param_name] = distribution

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note a user attribute."""
        with self._lock:
            if trial_id not in self._own:
                super().set_trial_user_attr(trial_id, key, value)
                return
            text = json.dumps(value)
            self._copy(trial_id)._user_attrs[key] = json.loads(text)
            self._own[trial_id].attributes[models.TrialUserAttributeModel, key] = text

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note a system attribute; write it, and all that was noted, if others must see it."""
        with self._lock:
            if trial_id not in self._own:
                super().set_trial_system_attr(trial_id, key, value)
                return
            text = json.dumps(value)
            self._copy(trial_id)._system_attrs[key] = json.loads(text)
            self._own[trial_id].attributes[models.TrialSystemAttributeModel, key] = text
            if self.at_once(key):
                self.flush(trial_id)
                self._read_s.clear()  # whoever wrote a claim wants to see those of others as they are now

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Write a value of a step."""
        with self._lock:
            super().set_trial_intermediate_value(trial_id, step, intermediate_value)
            if trial_id in self._own:
                self._copy(trial_id).intermediate_values[step] = intermediate_value

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Write a state, and all that was noted."""
        with self._lock:
            if trial_id in self._own:
                return self._end(trial_id, state, values)
            done = super().set_trial_state_values(trial_id, state, values)
            if done and state == TrialState.RUNNING:
                self._adopt(trial_id)
            return done

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """The trial as it is, what is noted included."""
        with self._lock:
            return self._copy(trial_id, keep=False) if trial_id in self._own else super().get_trial(trial_id)

    def record_heartbeat(self, trial_id: int) -> None:
        """Write a heartbeat; the first of an own trial is noted."""
        with self._lock:
            own = self._own.get(trial_id)
            if own is not None and not own.beats:
                own.heartbeat = True
                return
        super().record_heartbeat(trial_id)

    def flush(self, trial_id: int) -> None:
        """Write what is noted of a trial."""
        with self._lock:
            self._write(trial_id)

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        """Read what others did, unless that was done just now; own trials are known."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_s.get(study_id, -1.0) < _FRESH_S:
                return
            study = self._studies.setdefault(study_id, _StudyInfo())
            trials = self._backend._get_trials(
                study_id,
                states=None,
                included_trial_ids=study.unfinished_trial_ids,
                trial_id_greater_than=study.last_finished_trial_id,
            )
            trials = [trial for trial in trials if trial._trial_id not in self._own]
            self._add_trials_to_cache(study_id, trials)
            for trial in trials:
                if trial.state.is_finished():
                    study.unfinished_trial_ids.discard(trial._trial_id)
                else:
                    study.unfinished_trial_ids.add(trial._trial_id)
            # The last that is known at all: a study's trials get their identifiers one after the other, under a lock.
            known = (*(trial._trial_id for trial in trials), *self._own_of(study_id), study.last_finished_trial_id)
            study.last_finished_trial_id = max(known)
            self._read_s[study_id] = time.monotonic()

    def _own_of(self, study_id: int) -> list[int]:
        return [t for t in self._own if self._trial_id_to_study_id_and_number[t][0] == study_id]

    def _adopt(self, trial_id: int) -> None:
        """A trial that waited is this run's own now."""
        trial = self._backend.get_trial(trial_id)
        study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
        self._add_trials_to_cache(study_id, [trial])
        self._studies[study_id].unfinished_trial_ids.discard(trial_id)
        known = {(models.TrialUserAttributeModel, name) for name in trial.user_attrs}
        known |= {(models.TrialSystemAttributeModel, name) for name in trial.system_attrs}
        self._own[trial_id] = _Unwritten(known=known)

    def _copy(self, trial_id: int, *, keep: bool = True) -> FrozenTrial:
        """A copy of an own trial; it takes the place of the one that others may be reading, if it is to be kept."""
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        trial = copy.copy(self._studies[study_id].trials[number])
        trial.params = dict(trial.params)
        trial._distributions = dict(trial._distributions)
        trial._user_attrs = dict(trial._user_attrs)
        trial._system_attrs = dict(trial._system_attrs)
        trial.intermediate_values = dict(trial.intermediate_values)
        if keep:
            self._studies[study_id].trials[number] = trial
        return trial

    def _end(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> bool:
        if state == TrialState.RUNNING:
            return False
        try:
            self._write(trial_id, state, values)
        except UpdateFinishedTrialError:
            # Somebody thought this process dead and has ended the trial: what they say counts.
            study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
            self._studies[study_id].unfinished_trial_ids.add(trial_id)
            del self._own[trial_id]
            raise
        del self._own[trial_id]
        return True

    def _write(self, trial_id: int, state: TrialState | None = None, values: Sequence[float] | None = None) -> None:
        """Write what is noted in one transaction; with a state also how the trial ended."""
        own = self._own[trial_id]
        if state is None and not own.params and not own.attributes and not own.heartbeat:
            return
        ended = datetime.datetime.now()
        with _create_scoped_session(self._backend.scoped_session) as session:
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            self._backend.check_trial_is_updatable(trial_id, trial.state)
            if own.params:
                session.execute(sqlalchemy.insert(models.TrialParamModel), own.params)
            for kind in (models.TrialUserAttributeModel, models.TrialSystemAttributeModel):
                self._write_attributes(session, trial_id, own, kind)
            if own.heartbeat:
                session.add(models.TrialHeartbeatModel(trial_id=trial_id))
            for objective, value in enumerate(values or ()):
                stored, stored_as = models.TrialValueModel.value_to_stored_repr(value)
                session.add(
                    models.TrialValueModel(trial_id=trial_id, objective=objective, value=stored, value_type=stored_as)
                )
            if state is not None:
                trial.state = state
                trial.datetime_complete = ended
        own.known.update(own.attributes)
        own.beats |= own.heartbeat
        own.params, own.attributes, own.heartbeat = [], {}, False
        if state is not None:
            frozen = self._copy(trial_id)
            frozen.state, frozen.datetime_complete = state, ended
            frozen.values = None if values is None else [float(value) for value in values]

    @staticmethod
    def _write_attributes(session: Any, trial_id: int, own: _Unwritten, kind: type[Any]) -> None:
        new = []
        for (model, name), text in own.attributes.items():
            if model is not kind:
                continue
            if (model, name) in own.known:
                same = (kind.trial_id == trial_id, kind.key == name)
                session.execute(sqlalchemy.update(kind).where(*same).values(value_json=text))
            else:
                new.append({"trial_id": trial_id, "key": name, "value_json": text})
        if new:
            session.execute(sqlalchemy.insert(kind), new)
