"""The recordings that come with the package: what can be tuned without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from llm_sampler.kernels.spec import Problem
from llm_sampler.objectives.recording import Recording, RecordingError, read_header, read_recording


@dataclass(frozen=True)
class Shipped:
    """A recording in the package.

    Attributes:
        path: The file.
        header: The recording without its results.
        summary: Numbers of its results: ``configurations``, ``by_status``, ``best_ms``.
    """

    path: Path
    header: Recording
    summary: Mapping[str, Any]

    def read(self) -> Recording:
        """The whole recording."""
        return read_recording(self.path)


def shipped_recordings(folder: Path | None = None) -> list[Shipped]:
    """The recordings in the package (or in a folder), by file name; only the beginning of each file is read.

    Raises:
        RecordingError: A file is damaged.
    """
    with as_file(folder or files("llm_sampler.objectives") / "recordings") as place:
        paths = sorted(place.glob("*.json.gz")) if place.is_dir() else []
        return [Shipped(path, *read_header(path)) for path in paths]


def find_recording(kernel: str, problem: Problem | None = None, *, folder: Path | None = None) -> Recording:
    """The shipped recording of a kernel's problem; of its first recorded problem where none is given.

    Raises:
        RecordingError: There is none; the message lists what there is.
    """
    shipped = shipped_recordings(folder)
    of_kernel = [s for s in shipped if s.header.kernel == kernel]
    for one in of_kernel:
        if problem is None or one.header.problem == problem:
            return one.read()
    if of_kernel:
        names = ", ".join(s.header.problem.short for s in of_kernel if s.header.problem)
        assert problem is not None
        raise RecordingError(f"no recording of {kernel} {problem.short}; recorded problems: {names}")
    names = ", ".join(sorted({s.header.kernel for s in shipped}))
    raise RecordingError(f"no recording of {kernel}; recorded kernels: {names or 'none'}")
