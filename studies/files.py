"""Files that are written as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class OutputError(ValueError):
    """A file that cannot be written."""


def write_whole(target: Path, data: bytes) -> None:
    """Write a file so that an interruption leaves what was there before.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".llm-sampler-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            # What `open` would have given it; mkstemp's files are their owner's alone.
            mask = os.umask(0)
            os.umask(mask)
            Path(name).chmod(0o666 & ~mask)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}") from None
