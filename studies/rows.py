"""What lists and queries need of studies and many trials, read in a few statements instead of one for each trial.

Optuna's own summaries load every trial with all that it has, which takes 4 s for 10,000 trials on SQLite.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import TrialState

from llm_sampler.attributes import PROPOSED_BY
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE, STATUS_ATTRIBUTE
from llm_sampler.space import Configuration
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE, Entry, read_entry
from llm_sampler.studies.tables import PARAMETERS, STUDIES, STUDY_ATTRIBUTES, TRIAL_ATTRIBUTES, TRIALS, VALUES

_NAMES = (MEASUREMENT_ATTRIBUTE, STATUS_ATTRIBUTE, SPEEDUP_ATTRIBUTE, PROPOSED_BY)
# SQLite allows 32,766 variables a statement, older ones 999.
_MOST_IDS = 500
_SHORT = 40


@dataclass(frozen=True)
class StudyRow:
    """A study without its trials.

    Attributes:
        study_id: The storage's identifier.
        name: The study's name.
        entry: What it is about; None if it is no kernel's study.
    """

    study_id: int
    name: str
    entry: Entry | None


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
        registers: Registers a thread; None if unknown.
        shared_bytes: Shared memory a block; None if unknown.
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
    registers: int | None = None
    shared_bytes: int | None = None


def read_studies(engine: sqlalchemy.Engine) -> list[StudyRow]:
    """All studies of the archive, in the order in which they were made."""
    entry = STUDY_ATTRIBUTES.c.key == ENTRY_ATTRIBUTE
    with engine.connect() as connection:
        studies = connection.execute(sqlalchemy.select(STUDIES).order_by(STUDIES.c.study_id)).all()
        attributes = _study_attributes(connection, entry)
        if any(study_id not in attributes for study_id, _ in studies):
            # Studies of other programs: all that they say of themselves, kernels' sources among it.
            attributes = _study_attributes(connection, sqlalchemy.true())
    return [StudyRow(study_id, name, read_entry(name, attributes.get(study_id, {}))) for study_id, name in studies]


def _study_attributes(
    connection: sqlalchemy.Connection, condition: sqlalchemy.ColumnElement[bool]
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for study_id, key, text in connection.execute(sqlalchemy.select(STUDY_ATTRIBUTES).where(condition)):
        found.setdefault(study_id, {})[key] = json.loads(text)
    return found


def read_configurations(
    engine: sqlalchemy.Engine, condition: sqlalchemy.ColumnElement[bool]
) -> dict[int, Configuration]:
    """Configurations by the storage's identifier of their trial.

    Args:
        engine: The archive.
        condition: On ``TRIALS``.
    """
    columns = (PARAMETERS.c.trial_id, PARAMETERS.c.param_name, PARAMETERS.c.param_value, PARAMETERS.c.distribution_json)
    statement = (
        sqlalchemy.select(*columns)
        .join(TRIALS, TRIALS.c.trial_id == PARAMETERS.c.trial_id)
        .where(condition)
        .order_by(PARAMETERS.c.param_id)
    )
    found: dict[int, dict[str, Any]] = {}
    with engine.connect() as connection:
        for trial_id, name, number, distribution in connection.execute(statement):
            found.setdefault(trial_id, {})[name] = _distribution(distribution).to_external_repr(number)
    return found


@functools.lru_cache(maxsize=1_000)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


def read_rows(
    engine: sqlalchemy.Engine, study_ids: Collection[int], *, proposers: bool = True
) -> dict[int, list[TrialRow]]:
    """The trials of studies, by study identifier, in the order of their numbers.

    Args:
        engine: The archive.
        study_ids: Of the studies.
        proposers: Whether to read who proposed them, and statuses of trials without a measurement.
    """
    names = _NAMES if proposers else (MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE)
    found: dict[int, list[TrialRow]] = {study_id: [] for study_id in study_ids}
    ids = sorted(found)
    with engine.connect() as connection:
        for start in range(0, len(ids), _MOST_IDS):
            some = ids[start : start + _MOST_IDS]
            attributes = _read_attributes(connection, some, names)
            for study_id, row in _read_trials(connection, some, attributes):
                found[study_id].append(row)
    return found


def last_ends(engine: sqlalchemy.Engine, study_ids: Collection[int]) -> dict[int, datetime.datetime]:
    """When the newest trial of each study ended, UTC; without studies in which none has."""
    ended = sqlalchemy.func.max(TRIALS.c.datetime_complete)
    statement = sqlalchemy.select(TRIALS.c.study_id, ended).group_by(TRIALS.c.study_id)
    with engine.connect() as connection:
        found = connection.execute(statement.where(TRIALS.c.datetime_complete.is_not(None)))
        wanted = set(study_ids)
        return {study_id: end for study_id, end in found if study_id in wanted}


def _read_attributes(
    connection: sqlalchemy.Connection, study_ids: list[int], names: tuple[str, ...]
) -> dict[int, dict[str, Any]]:
    statement = (
        sqlalchemy.select(TRIAL_ATTRIBUTES)
        .join(TRIALS, TRIALS.c.trial_id == TRIAL_ATTRIBUTES.c.trial_id)
        .where(TRIALS.c.study_id.in_(study_ids), TRIAL_ATTRIBUTES.c.key.in_(names))
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
    statement = (
        sqlalchemy.select(
            TRIALS.c.study_id,
            TRIALS.c.trial_id,
            TRIALS.c.number,
            TRIALS.c.state,
            TRIALS.c.datetime_complete,
            VALUES.c.value,
        )
        .outerjoin(VALUES, (VALUES.c.trial_id == TRIALS.c.trial_id) & (VALUES.c.objective == 0))
        .where(TRIALS.c.study_id.in_(study_ids))
        .order_by(TRIALS.c.number)
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
    registers, shared_bytes = measurement.get("registers"), measurement.get("shared_bytes")
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
        registers=registers if isinstance(registers, int) else None,
        shared_bytes=shared_bytes if isinstance(shared_bytes, int) else None,
    )
