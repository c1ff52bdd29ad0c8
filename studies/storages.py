"""Storages that are no database: a journal file where there is no server, and Optuna's gRPC proxy before a database.

``journal:///folder/tuning.log`` is a file that several processes, also of several hosts on one network file system,
append to. ``grpc://host:13000`` is a proxy that keeps connections away from a database with hundreds of workers.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.trial import FrozenTrial

from llm_sampler.studies.archive import ArchiveError, existing, open_storage

_JOURNAL, _GRPC = "journal:///", "grpc://"
_GRPC_PORT = 13000
_GRPC_WAIT_S = 20.0
# Calls wait for a proxy that is away; what failed on the way, or in a database that does not answer, is tried again
# after about 1, 3, 9 and 27 s (gRPC's service config; five attempts are its most).
_GRPC_PATIENCE = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "waitForReady": True,
                "timeout": "120s",
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "1s",
                    "backoffMultiplier": 3,
                    "maxBackoff": "30s",
                    "retryableStatusCodes": ["UNAVAILABLE", "UNKNOWN"],
                },
            }
        ]
    }
)


def open_any(url: str, *, on_stale: Callable[[optuna.Study, FrozenTrial], None] | None = None) -> BaseStorage:
    """The storage that workers of a study share: a database, a journal file or a gRPC proxy.

    Args:
        url: E.g. ``postgresql://host/database``, ``journal:///tuning.log`` or ``grpc://host:13000``.
        on_stale: See `open_storage`; journal and proxy have no heartbeats of trials, their workers have (`workers`).

    Raises:
        ArchiveError: It cannot be used.
    """
    if url.startswith(_JOURNAL):
        return open_journal(url)
    if url.startswith(_GRPC):
        return _open_proxy(url)
    return open_storage(url, on_stale=on_stale)


def open_journal(url: str, *, make: bool = True) -> JournalStorage:
    """The journal file at a URL.

    Args:
        url: E.g. ``journal:///tuning.log``, or ``journal:////folder/tuning.log`` with an absolute path.
        make: Whether to make a file that is missing.

    Raises:
        ArchiveError: It cannot be read or written.
    """
    from optuna.storages.journal import JournalFileBackend

    path = Path(url.removeprefix(_JOURNAL))
    if not make and not path.exists():
        raise ArchiveError(f"there is no archive {url}: tune first, or give another --storage")
    try:
        with path.open("a+b") as file:
            file.seek(0)
            if file.read(1) not in (b"", b"{"):
                raise ValueError  # Optuna would append to whatever it is
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return JournalStorage(JournalFileBackend(str(path)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no journal of Optuna's"
        raise ArchiveError(
            f"cannot use storage {url}: {reason}; it must be a file in a folder that can be written"
        ) from None


@contextlib.contextmanager
def copied(url: str) -> Iterator[RDBStorage]:
    """A journal's studies in a database in memory, for commands that ask; changes are lost.

    Raises:
        ArchiveError: It cannot be read.
    """
    journal = open_journal(url, make=False)
    storage = RDBStorage("sqlite://")
    try:
        for study in journal.get_all_studies():
            optuna.copy_study(from_study_name=study.study_name, from_storage=journal, to_storage=storage)
        yield storage
    finally:
        storage.engine.dispose()


@contextlib.contextmanager
def watching(url: str) -> Iterator[RDBStorage | JournalStorage]:
    """The storage at a URL as it is at any moment, for commands that only ask; it must be there.

    Raises:
        ArchiveError: There is none, or it cannot be used.
    """
    if url.startswith(_JOURNAL):
        yield open_journal(url, make=False)
        return
    with existing(url) as database:
        yield database


def close(storage: BaseStorage) -> None:
    """Close connections."""
    if isinstance(storage, RDBStorage):
        storage.engine.dispose()
    elif hasattr(storage, "close"):
        storage.close()


def _open_proxy(url: str) -> BaseStorage:
    try:
        import grpc
        from optuna.storages import GrpcStorageProxy
        from optuna.storages._grpc.auto_generated.api_pb2_grpc import StorageServiceStub
        from optuna.storages._grpc.client import GrpcClientCache
    except ImportError as error:
        raise ArchiveError(f"storage {url} needs {error.name}: pip install 'optuna-llm-sampler[grpc]'") from None

    class Proxy(GrpcStorageProxy):
        """Waits for the proxy, and for the database behind it."""

        def _setup(self) -> None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.service_config", _GRPC_PATIENCE)]
            self._channel = grpc.insecure_channel(f"{self._host}:{self._port}", options=options)
            self._stub = StorageServiceStub(self._channel)  # type: ignore[no-untyped-call]
            self._cache = GrpcClientCache(self._stub)

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _GRPC_PORT
    except ValueError:
        host, port = None, 0
    if not host or parts.path not in ("", "/"):
        raise ArchiveError(f"storage must be a proxy's URL such as grpc://host:{_GRPC_PORT}, got {url!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        proxy = Proxy(host=host, port=port)
    try:
        proxy.wait_server_ready(timeout=_GRPC_WAIT_S)
    except ConnectionError:
        proxy.close()
        raise ArchiveError(f"no gRPC proxy answers at {url}: docs/scaling.md says how to start one") from None
    return proxy
