"""What lists and queries need of many trials, read in three statements instead of one for each trial.

Optuna's own summaries load every trial with all that it has, which takes 4 s for 10,000 trials on SQLite. The tables
are Optuna's (``optuna.storages._rdb.models``), the same since its version 3.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import TrialState

from llm_sampler.attributes import PROPOSED_BY
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE, STATUS_ATTRIBUTE

_NAMES = (MEASUREMENT_ATTRIBUTE, STATUS_ATTRIBUTE, SPEEDUP_ATTRIBUTE, PROPOSED_BY)
# SQLite allows 32,766 variables a statement, older ones 999.
_MOST_IDS = 500
_SHORT = 40


@dataclass(frozen=True)
class TrialRow:
    """A trial without its configuration.

    Attributes:
        trial_id: The storage's identifier.
        number: The trial's number in its study.
        state: Optuna's state.
        median_ms: The value; None unless it was timed.
        completed: When it ended, UTC without a time zone; None while it runs.
        status: The measurement's status; empty if there is none.
        speedup: Over the default configuration; None if unknown.
        reference_ms: Median time of the PyTorch reference beside it; None if there was none.
        proposed_by: Who proposed it.
        versions: What made the measurement.
    """

    trial_id: int
    number: int
    state: TrialState
    median_ms: float | None
    completed: datetime.datetime | None
    status: str = ""
    speedup: float | None = None
    reference_ms: float | None = None
    proposed_by: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def read_rows(storage: RDBStorage, study_ids: Collection[int], *, proposers: bool = True) -> dict[int, list[TrialRow]]:
    """The trials of studies, by study identifier, in the order of their numbers.

    Args:
        storage: The archive.
        study_ids: Of the studies.
        proposers: Whether to read who proposed them, and statuses of trials without a measurement.
    """
    names = _NAMES if proposers else (MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE)
    found: dict[int, list[TrialRow]] = {study_id: [] for study_id in study_ids}
    ids = sorted(found)
    with storage.engine.connect() as connection:
        for start in range(0, len(ids), _MOST_IDS):
            some = ids[start : start + _MOST_IDS]
            attributes = _read_attributes(connection, some, names)
            for study_id, row in _read_trials(connection, some, attributes):
                found[study_id].append(row)
    return found


def last_ends(storage: RDBStorage, study_ids: Collection[int]) -> dict[int, datetime.datetime]:
    """When the newest trial of each study ended, UTC; without studies in which none has."""
    trials = models.TrialModel.__table__
    ended = sqlalchemy.func.max(trials.c.datetime_complete)
    statement = sqlalchemy.select(trials.c.study_id, ended).group_by(trials.c.study_id)
    with storage.engine.connect() as connection:
        found = connection.execute(statement.where(trials.c.datetime_complete.is_not(None)))
        wanted = set(study_ids)
        return {study_id: end for study_id, end in found if study_id in wanted}


def _read_attributes(
    connection: sqlalchemy.Connection, study_ids: list[int], names: tuple[str, ...]
) -> dict[int, dict[str, Any]]:
    trials, attributes = models.TrialModel.__table__, models.TrialUserAttributeModel.__table__
    statement = (
        sqlalchemy.select(attributes.c.trial_id, attributes.c.key, attributes.c.value_json)
        .join(trials, trials.c.trial_id == attributes.c.trial_id)
        .where(trials.c.study_id.in_(study_ids), attributes.c.key.in_(names))
    )
    found: dict[int, dict[str, Any]] = {}
    for trial_id, key, text in connection.execute(statement):
        found.setdefault(trial_id, {})[key] = _parsed(text) if len(text) <= _SHORT else json.loads(text)
    return found


@functools.lru_cache(maxsize=10_000)
def _parsed(text: str) -> Any:
    """A short text's value: statuses and names of samplers are the same few, thousands of times."""
    return json.loads(text)


def _read_trials(
    connection: sqlalchemy.Connection, study_ids: list[int], attributes: Mapping[int, Mapping[str, Any]]
) -> list[tuple[int, TrialRow]]:
    trials, values = models.TrialModel.__table__, models.TrialValueModel.__table__
    statement = (
        sqlalchemy.select(
            trials.c.study_id,
            trials.c.trial_id,
            trials.c.number,
            trials.c.state,
            trials.c.datetime_complete,
            values.c.value,
        )
        .outerjoin(values, (values.c.trial_id == trials.c.trial_id) & (values.c.objective == 0))
        .where(trials.c.study_id.in_(study_ids))
        .order_by(trials.c.number)
    )
    return [
        (study_id, _row(trial_id, number, state, completed, value, attributes.get(trial_id, {})))
        for study_id, trial_id, number, state, completed, value in connection.execute(statement)
    ]


def _row(
    trial_id: int,
    number: int,
    state: TrialState,
    completed: datetime.datetime | None,
    value: float | None,
    attributes: Mapping[str, Any],
) -> TrialRow:
    measurement = attributes.get(MEASUREMENT_ATTRIBUTE)
    measurement = measurement if isinstance(measurement, dict) else {}
    versions = measurement.get("versions")
    reference_ms, speedup = measurement.get("reference_ms"), attributes.get(SPEEDUP_ATTRIBUTE)
    done = state == TrialState.COMPLETE
    return TrialRow(
        trial_id=trial_id,
        number=number,
        state=state,
        median_ms=value if done else None,
        completed=completed,
        status=str(attributes.get(STATUS_ATTRIBUTE) or measurement.get("status") or ("ok" if done else "")),
        speedup=speedup if isinstance(speedup, int | float) else None,
        reference_ms=reference_ms if isinstance(reference_ms, int | float) else None,
        proposed_by=str(attributes.get(PROPOSED_BY) or ""),
        versions={str(n): str(v) for n, v in versions.items()} if isinstance(versions, dict) else {},
    )
