"""A storage as a dashboard sees it: with notes, the speedups' figure and fewer columns, made while somebody looks.

Nothing of that is written: tuning pays nothing for it, and what is shown is never out of date. A note that somebody
writes in the dashboard is stored, and shown instead of the made one from then on.
"""

# The class after `_View` in each view has the methods that mypy takes for abstract ones.
# mypy: disable-error-code="safe-super"

from __future__ import annotations

import copy
import threading
from collections.abc import Container, Iterator, Mapping
from typing import Any

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CALL, CALLS, CHANGES, PROPOSED_BY, RATIONALE
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE, STATUS_ATTRIBUTE
from llm_sampler.studies.dashboard import speedup_figure, study_note, trial_note
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE, Entry, read_entry
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.result import find_baseline, reference_speedup
from llm_sampler.studies.workers import WORKER_PREFIX
from llm_sampler.task import TASK_ATTRIBUTE, Task, read_task

# How optuna-dashboard keeps notes and figures in a study's system attributes (its `_note.py`, `_custom_plot_data.py`).
_PREFIX = "dashboard:"
_FIGURE = f"{_PREFIX}plot_data:speedup:0"
# Attributes of a study that are for programs: the task is tens of kilobytes long.
_HIDDEN = (TASK_ATTRIBUTE, ENTRY_ATTRIBUTE, WORKER_PREFIX)
# What a trial's note tells; of a measurement the dashboard would show the first kilobyte of JSON in each row.
_HIDDEN_IN_TRIALS = {MEASUREMENT_ATTRIBUTE, RATIONALE, CHANGES, CALL, CALLS}
_VERSUS_PYTORCH = "kernel:versus_pytorch"
_FIRST = (SPEEDUP_ATTRIBUTE, _VERSUS_PYTORCH, STATUS_ATTRIBUTE, PROPOSED_BY)


class StudyAttributes(Mapping[str, Any]):
    """System attributes of a study, with what is made for the dashboard; made when one of those is asked for.

    The list of studies asks every study for one attribute that is not ours.

    Args:
        stored: What the storage has.
        make: Makes the others.
    """

    def __init__(self, stored: Mapping[str, Any], make: Any) -> None:
        self._stored = stored
        self._make = make
        self._all: dict[str, Any] | None = None

    def _merged(self) -> dict[str, Any]:
        if self._all is None:
            self._all = {**self._make(self._stored), **self._stored}
        return self._all

    def __getitem__(self, name: str) -> Any:
        return self._merged()[name] if name.startswith(_PREFIX) else self._stored[name]

    def __contains__(self, name: object) -> bool:
        return name in (self._merged() if isinstance(name, str) and name.startswith(_PREFIX) else self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._merged())

    def __len__(self) -> int:
        return len(self._merged())


class _View(BaseStorage):
    """What a view changes in the storage class that follows it."""

    def _start(self) -> None:
        self._guard = threading.Lock()
        self._figures: dict[int, tuple[int, str]] = {}
        self._about: dict[int, tuple[Entry, Task] | None] = {}

    def get_all_studies(self) -> list[FrozenStudy]:
        """All studies, as shown."""
        return [self._shown(study) for study in super().get_all_studies()]

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """A study's attributes, as shown."""
        return dict(self._attributes(study_id, super().get_study_system_attrs(study_id)))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """A trial, as shown."""
        return _shown_trial(super().get_trial(trial_id))

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials, as shown."""
        return [_shown_trial(trial) for trial in super().get_all_trials(study_id, deepcopy=deepcopy, states=states)]

    def _shown(self, study: FrozenStudy) -> FrozenStudy:
        attributes = {name: value for name, value in study.user_attrs.items() if not name.startswith(_HIDDEN)}
        made = self._attributes(study._study_id, study.system_attrs)
        # The dashboard only reads it.
        return FrozenStudy(
            study.study_name,
            None,
            attributes,
            made,  # type: ignore[arg-type]
            study._study_id,
            directions=study.directions,
        )

    def _attributes(self, study_id: int, stored: Mapping[str, Any]) -> StudyAttributes:
        return StudyAttributes(stored, lambda stored: self._made(study_id, stored))

    def _made(self, study_id: int, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Notes of the study and of its trials, and the figure; nothing for other programs' studies."""
        about = self._task(study_id)
        if about is None:
            return {}
        entry, task = about
        trials = super().get_all_trials(study_id, deepcopy=False)
        records = [TrialRecord.from_trial(trial) for trial in trials]
        made: dict[str, Any] = {}
        _add_note(made, stored, _PREFIX, study_note(entry, task, records))
        for trial, record in zip(trials, records, strict=True):
            if note := trial_note(record):
                _add_note(made, stored, f"{_PREFIX}{trial._trial_id}:", note)
        baseline = find_baseline(records, task.space)
        if baseline is not None and baseline.median_ms is not None:
            made[_FIGURE] = self._figure(study_id, records, baseline.median_ms)
        return made

    def _task(self, study_id: int) -> tuple[Entry, Task] | None:
        """What a study is about, read once; None if it is not one of ours."""
        with self._guard:
            if self._about.get(study_id) is None:
                attributes = super().get_study_user_attrs(study_id)
                entry, task = read_entry(super().get_study_name_from_id(study_id), attributes), read_task(attributes)
                self._about[study_id] = None if entry is None or task is None else (entry, task)
            return self._about[study_id]

    def _figure(self, study_id: int, records: list[TrialRecord], default_ms: float) -> str:
        """As JSON; drawn again only when more trials have ended."""
        count = sum(record.measured for record in records)
        with self._guard:
            known = self._figures.get(study_id)
        if known is None or known[0] != count:
            known = (count, str(speedup_figure(records, default_ms).to_json()))
            with self._guard:
                self._figures[study_id] = known
        return known[1]


class _DatabaseView(_View, _CachedStorage):
    """A view of a database."""

    def __init__(self, backend: RDBStorage) -> None:
        super().__init__(backend)
        self._start()


class _JournalView(_View, JournalStorage):
    """A view of a journal."""

    def __init__(self, journal: JournalStorage) -> None:
        super().__init__(journal._backend)
        self._start()


def dashboard_view(storage: RDBStorage | JournalStorage) -> BaseStorage:
    """The storage as a dashboard should see it."""
    return _JournalView(storage) if isinstance(storage, JournalStorage) else _DatabaseView(storage)


def _add_note(made: dict[str, Any], stored: Mapping[str, Any], prefix: str, text: str) -> None:
    """A note in the dashboard's form, unless somebody has written one."""
    if f"{prefix}note_ver" not in stored:
        made |= {f"{prefix}note_ver": 1, f"{prefix}note_str:0": text}


def _shown_trial(trial: FrozenTrial) -> FrozenTrial:
    """With columns that a table can show, the most useful first."""
    attributes = {name: value for name, value in trial.user_attrs.items() if name not in _HIDDEN_IN_TRIALS}
    if MEASUREMENT_ATTRIBUTE in trial.user_attrs and trial.state == TrialState.COMPLETE:
        ratio = reference_speedup(TrialRecord.from_trial(trial), None)
        attributes |= {} if ratio is None else {_VERSUS_PYTORCH: round(ratio, 4)}
    first = [name for name in _FIRST if name in attributes]
    shown = copy.copy(trial)
    shown.user_attrs = {name: attributes[name] for name in dict.fromkeys([*first, *attributes])}
    return shown
