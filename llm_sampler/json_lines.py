"""Files of JSON objects, one a line, that several threads and processes append to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class LinesError(ValueError):
    """A file that cannot be read, or holds no JSON objects."""


def append_line(path: Path, data: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Append an object with a single write: processes do not mix their lines, and a kill cuts none in two.

    POSIX appends a write to a local file as a whole (O_APPEND). A line that a full disk has cut is left behind.

    Args:
        path: The file; made with its folders if it is missing.
        data: The object; what JSON does not know becomes text.
        mode: Permissions of a file that is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        size = os.fstat(descriptor).st_size
        whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        os.write(descriptor, (("" if whole else "\n") + json.dumps(data, default=str) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; lines that were cut off are skipped.

    Raises:
        LinesError: The file cannot be read, or holds lines and not one object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LinesError(f"cannot read {path}: {error}") from None
    found = 0
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found += 1
            yield data
    if lines and not found:
        raise LinesError(f"{path} must hold JSON objects, one a line; it holds something else")
