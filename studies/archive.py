"""The archive: the Optuna storage in which studies live, opened with clear errors and without showing passwords.

Exceptions: ``ValueError`` <- `ArchiveError`.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from llm_sampler.studies.tables import has_these_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import optuna
    from optuna.trial import FrozenTrial

_EXAMPLES = "sqlite:///tuning.db or postgresql://user@host/database"
# Optuna's tables name studies with at most 512 characters.
_MOST_NAME = 512
# The extras install psycopg 3 and PyMySQL; a URL without a driver would look for older ones.
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql"}
# Several processes on one SQLite file wait for each other; with 0.2 s four of them raised 121 errors in 400 trials.
_SQLITE_TIMEOUT_S = 60
# Two processes made the same table or the same first row (PostgreSQL: duplicate key), or changed the journal's mode.
_MEETINGS = ("already exists", "UNIQUE constraint", "duplicate key", "Duplicate entry", "database is locked")
_HEARTBEAT_S = 30
_GRACE_S = 120


class ArchiveError(ValueError):
    """A storage that cannot be used; the message says what is allowed and holds no password."""


def open_storage(url: str, *, on_stale: Callable[[optuna.Study, FrozenTrial], None] | None = None) -> RDBStorage:
    """The storage at a SQLAlchemy URL, created if it does not exist.

    SQLite files are put in write-ahead mode, in which a trial costs 19 ms instead of 39 ms and readers never wait;
    they must not lie on a network file system. Running trials send heartbeats, so that those of a dead host are found.

    Args:
        url: E.g. ``sqlite:///tuning.db``.
        on_stale: Called with each trial whose host went silent, after Optuna has failed it.

    Raises:
        ArchiveError: The URL is malformed, its driver is not installed, or the database cannot be written.
    """
    parsed = _parse(url)
    for attempt in range(5):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats have been there since 2.6
                storage = RDBStorage(
                    parsed.render_as_string(hide_password=False),
                    engine_kwargs=_options(parsed),
                    heartbeat_interval=_HEARTBEAT_S,
                    grace_period=_GRACE_S,
                    heartbeat_stale_trial_callback=on_stale,
                )
            _prepare(storage, parsed)
        except ImportError as error:
            raise ArchiveError(_missing_driver(parsed, error)) from None
        except (SQLAlchemyError, StorageInternalError) as error:
            # Processes that create one database at once meet at its tables: the slower ones look again.
            if attempt < 4 and any(words in str(error) for words in _MEETINGS):
                time.sleep(0.2 * (attempt + 1))
                continue
            raise ArchiveError(f"cannot use storage {shown(parsed)}: {_reason(error, parsed)}") from None
        except (RuntimeError, ValueError) as error:
            # Another Optuna's schema, or a URL that only its driver can judge.
            raise ArchiveError(f"cannot use storage {shown(parsed)}: {_reason(error, parsed)}") from None
        else:
            return storage
    raise AssertionError("unreachable")


@contextlib.contextmanager
def existing(url: str) -> Iterator[RDBStorage]:
    """The storage at a URL for commands that only ask: a SQLite file that is not there is an error, not a new archive.

    Of a journal it is a copy in memory.

    Raises:
        ArchiveError: There is none, or it cannot be used.
    """
    if url.startswith("journal:"):
        from llm_sampler.studies.storages import copied

        with copied(url) as copy:
            yield copy
        return
    _refuse_missing(_parse(url))
    storage = open_storage(url)
    try:
        yield storage
    finally:
        storage.engine.dispose()


@contextlib.contextmanager
def reading(url: str) -> Iterator[sqlalchemy.Engine]:
    """The database at a URL for questions that are answered from its tables (``tables``), 0.4 s sooner than `existing`.

    Of a database with other tables Optuna's storage says what to do.

    Raises:
        ArchiveError: There is none, or it cannot be used.
    """
    if url.startswith("journal:"):
        with existing(url) as copy:
            yield copy.engine
        return
    parsed = _parse(url)
    _refuse_missing(parsed)
    engine = None
    with contextlib.suppress(ImportError, SQLAlchemyError):
        engine = sqlalchemy.create_engine(parsed, **_options(parsed))
    if engine is None or not has_these_tables(engine):
        engine = open_storage(url).engine
    try:
        yield engine
    finally:
        engine.dispose()


def _refuse_missing(parsed: URL) -> None:
    # With `uri=true` the driver reads the name itself.
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database != ":memory:" and "uri" not in parsed.query
    if is_file and parsed.database and not Path(parsed.database).exists():
        raise ArchiveError(f"there is no archive {shown(parsed)}: tune or import first, or give another --storage")


def _options(parsed: URL) -> dict[str, Any]:
    """For `sqlalchemy.create_engine`."""
    return {"connect_args": {"timeout": _SQLITE_TIMEOUT_S}} if parsed.get_backend_name() == "sqlite" else {}


def shown(url: str | URL) -> str:
    """The URL as it may be printed: no password, no query (drivers take passwords there, too)."""
    if isinstance(url, str) and url.startswith(("grpc:", "journal:")):
        return url
    parsed = _parse(url) if isinstance(url, str) else url
    return parsed.set(query={}).render_as_string(hide_password=True)


def study_name(kernel: str, problem: str, device: str, digest: str, *suffixes: str) -> str:
    """E.g. ``matmul/M4096-N4096-K4096-fp16/NVIDIA-H200/1f3a9c2e``: readable, and unique by the space's digest.

    Args:
        kernel: Name of the kernel.
        problem: Name of the problem; empty if unknown.
        device: Name of the device; empty if unknown.
        digest: The space's digest.
        suffixes: What else keeps the study apart, e.g. ``replay-9d1c33aa``; empty ones do not count.

    Raises:
        ArchiveError: The name is longer than Optuna's 512 characters.
    """
    parts = [kernel, problem or "any-problem", device or "unknown-device", digest, *filter(None, suffixes)]
    name = "/".join(re.sub(r"[\s/]+", "-", part) for part in parts)
    if len(name) > _MOST_NAME:
        raise ArchiveError(f"a study's name must have at most {_MOST_NAME} characters, got {len(name)}: {name:.60}…")
    return name


def _parse(url: str) -> URL:
    if url.startswith("grpc:"):
        raise ArchiveError(f"{url} is a proxy for workers that tune: give this command the database's own URL")
    try:
        parsed = make_url(url)
        return parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    except (SQLAlchemyError, ValueError):
        # A text with an @ may hold a password.
        got = f"{url.partition(':')[0]}:…" if "@" in url else repr(url)
        raise ArchiveError(f"storage must be a database URL such as {_EXAMPLES}, got {got}") from None


def _prepare(storage: RDBStorage, url: URL) -> None:
    """SQLite: write-ahead mode, whole transactions, and a write that changes nothing, so that read-only files show now.

    Python's driver begins a transaction at the first write, not at the first read: two workers both read that a trial
    waits, and both run it (Optuna's issue 4621). ``BEGIN IMMEDIATE`` makes the second wait for the first.
    """
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _set_modes(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        # Safe when a process is killed; only a power cut may lose the last commits (sqlite.org/pragma.html).
        connection.execute("PRAGMA synchronous=NORMAL")

    @sqlalchemy.event.listens_for(storage.engine, "begin")
    def _begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # connections from before the modes
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE version_info SET version_info_id = version_info_id")


def _missing_driver(url: URL, error: ImportError) -> str:
    backend = url.get_backend_name()
    if backend in _EXTRAS:
        return f"storage {shown(url)} needs a driver: pip install 'optuna-llm-sampler[{_EXTRAS[backend]}]'"
    name = getattr(error.__cause__, "name", None) or error.name or "its driver"
    return f"storage {shown(url)} needs {name}, which is not installed; sqlite:///tuning.db needs nothing"


def _reason(error: Exception, url: URL) -> str:
    """The first line of what the driver said, without the password."""
    cause: BaseException = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    text = str(cause.orig) if isinstance(cause, DBAPIError) and cause.orig is not None else str(cause)
    line = text.strip().splitlines()[0] if text.strip() else type(cause).__name__
    for secret in (str(url.password or ""), *(str(value) for value in url.query.values())):
        line = line.replace(secret, "***") if secret else line
    # Of another Optuna's schema the text itself says what to do.
    if url.get_backend_name() == "sqlite" and not isinstance(cause, RuntimeError):
        line += "; it must be a SQLite file, or a new name, in a folder that can be written"
    return line
