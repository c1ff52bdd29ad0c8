"""Optuna's tables, as far as lists and queries read them, without Optuna's storage.

Optuna's own models (``optuna.storages._rdb.models``) need SQLAlchemy's ORM and Alembic, whose imports take 0.4 s: half
of what a question to the archive may take. The tables are the same since Optuna 3.2; a database says which it has.
"""

from __future__ import annotations

import sqlalchemy
from optuna.trial import TrialState
from sqlalchemy import Column, DateTime, Enum, Float, Integer, String, Table, Text
from sqlalchemy.exc import SQLAlchemyError

# Alembic's revision of the tables that Optuna 3.2 to 5.0 make.
_REVISION = "v3.2.0.a"
_METADATA = sqlalchemy.MetaData()

STUDIES = Table("studies", _METADATA, Column("study_id", Integer), Column("study_name", String))
STUDY_ATTRIBUTES = Table(
    "study_user_attributes",
    _METADATA,
    Column("study_id", Integer),
    Column("key", String),
    Column("value_json", Text),
)
TRIALS = Table(
    "trials",
    _METADATA,
    Column("trial_id", Integer),
    Column("number", Integer),
    Column("study_id", Integer),
    Column("state", Enum(TrialState)),
    Column("datetime_complete", DateTime),
)
TRIAL_ATTRIBUTES = Table(
    "trial_user_attributes",
    _METADATA,
    Column("trial_id", Integer),
    Column("key", String),
    Column("value_json", Text),
)
PARAMETERS = Table(
    "trial_params",
    _METADATA,
    Column("param_id", Integer),
    Column("trial_id", Integer),
    Column("param_name", String),
    Column("param_value", Float),
    Column("distribution_json", Text),
)
VALUES = Table(
    "trial_values",
    _METADATA,
    Column("trial_id", Integer),
    Column("objective", Integer),
    Column("value", Float),
)
_REVISIONS = Table("alembic_version", _METADATA, Column("version_num", String))


def has_these_tables(engine: sqlalchemy.Engine) -> bool:
    """Whether the database can be read and says that its tables are these."""
    try:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.select(_REVISIONS.c.version_num)).scalars().all() == [_REVISION]
    except SQLAlchemyError:
        return False
