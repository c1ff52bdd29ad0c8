"""Many writes to an archive as one: all of them are kept, or none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from optuna.storages import RDBStorage


@contextlib.contextmanager
def whole(storage: RDBStorage) -> Iterator[None]:
    """What this thread writes in the block is kept at its end, or not at all if it raises or the process is killed.

    Optuna commits each write; here its sessions join one outer transaction and their commits become savepoints
    (SQLAlchemy's documentation, "Joining a Session into an External Transaction"). Other writers wait meanwhile.
    """
    sessions = storage.scoped_session
    sessions.remove()
    with storage.engine.connect() as connection, connection.begin():
        sessions.configure(bind=connection, join_transaction_mode="create_savepoint")
        try:
            yield
        finally:
            sessions.remove()
            sessions.configure(bind=storage.engine, join_transaction_mode="conditional_savepoint")
