"""`ComparedSpace`: a recorded space on which samplers are compared, and how the command line names one.

A name is a shipped recording's kernel (``matmul``: all its recordings), its whole name
(``softmax-8192x8192-fp16-NVIDIA-H200``), or a T4 file; a foreign T4 file may be followed by its T1 file
(``blur_A4000_T4.json.gz:blur_T1.json``), else ``<benchmark>_T1.json`` beside it is taken. Times in ms.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_sampler.objectives.recording import Recording, read_recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration, configuration_key
from llm_sampler.studies.compare_random import RandomSearch
from llm_sampler.studies.tasks import recording_task
from llm_sampler.task import Task


class CompareError(ValueError):
    """A comparison that cannot be made; the message says rule, value and remedy."""


@dataclass(frozen=True)
class SpaceFile:
    """Where a recorded space is; passed to other processes instead of the recording.

    Attributes:
        name: Its name in tables and run keys.
        path: The T4 file.
        t1: The T1 file of a foreign recording, None for one of ours.
        source: Source text to show to an LLM; None for that of the kernel, where it is one of ours.
    """

    name: str
    path: Path
    t1: Path | None = None
    source: str | None = None

    def load(self) -> ComparedSpace:
        """The space; read once per process.

        Raises:
            RecordingError: The file cannot be used.
        """
        return _load(self)


@functools.lru_cache(maxsize=32)
def _load(file: SpaceFile) -> ComparedSpace:
    from llm_sampler.kernels import KERNELS

    recording = read_recording(file.path, file.t1)
    ours = file.t1 is None
    task = recording_task(recording, KERNELS.get(recording.kernel) if ours else None)
    if file.source is not None:
        task = replace(task, source=file.source)
    return ComparedSpace(file.name, recording, task)


@dataclass(frozen=True)
class ComparedSpace:
    """A recorded space.

    Attributes:
        name: Its name.
        recording: What was measured.
        task: What an LLM may be told.
    """

    name: str
    recording: Recording
    task: Task

    def __post_init__(self) -> None:
        """Check that something succeeded."""
        if self.recording.best is None:
            raise CompareError(f"{self.name}: every recorded configuration failed, so there is nothing to compare")

    @functools.cached_property
    def replay(self) -> ReplayEvaluator:
        """Answers from the recording.

        Raises:
            RecordingError: It lacks an allowed configuration.
        """
        return ReplayEvaluator(self.recording)

    @functools.cached_property
    def configurations(self) -> Sequence[Configuration]:
        """All recorded configurations, in the order of their keys: runs name them by index."""
        return [result.configuration for result in sorted(self.recording.results, key=lambda result: result.key)]

    @functools.cached_property
    def rows(self) -> Mapping[str, int]:
        """Index of each configuration by key."""
        return {configuration_key(configuration): row for row, configuration in enumerate(self.configurations)}

    @functools.cached_property
    def times_ms(self) -> Sequence[float | None]:
        """Recorded time of each configuration, None where it failed."""
        return [self.recording.by_key[key].median_ms for key in self.rows]

    @functools.cached_property
    def costs_s(self) -> Sequence[float]:
        """Seconds that measuring each configuration took: compiling, checking, timing, as far as they were recorded."""
        measurements = [self.recording.by_key[key] for key in self.rows]
        return [(m.compile_s or 0.0) + (m.measure_s or sum(m.samples) / 1e3) for m in measurements]

    @property
    def optimum_ms(self) -> float:
        """The best recorded time."""
        best = self.recording.best
        assert best is not None
        assert best.measurement.median_ms is not None
        return best.measurement.median_ms

    @property
    def default_row(self) -> int | None:
        """Index of the default configuration, None if there is none."""
        default = self.recording.space.default
        return None if default is None else self.rows.get(configuration_key(default))

    def random_search(self, *, default_first: bool) -> RandomSearch:
        """Random search without replacement over this space."""
        return RandomSearch(self.times_ms, self.default_row if default_first else None)

    def within(self, share: float) -> int:
        """How many configurations are within a share of the optimum, e.g. 0.05."""
        limit_ms = self.optimum_ms * (1.0 + share)
        return sum(ms is not None and ms <= limit_ms for ms in self.times_ms)


def find_spaces(names: Sequence[str], *, sources: Mapping[str, Path] | None = None) -> list[SpaceFile]:
    """The spaces that the command line names; all shipped recordings where it names none.

    Args:
        names: See the module's docstring.
        sources: Source files to show to an LLM, by space name or recorded kernel; under ``""`` for all foreign spaces.

    Raises:
        CompareError: A name fits nothing, or a source file cannot be read.
    """
    found: list[SpaceFile] = []
    for name in names or [""]:
        found += _find(name)
    if twice := sorted({one.name for one in found if sum(other.name == one.name for other in found) > 1}):
        raise CompareError(f"every space must be named once, got {', '.join(twice)} twice")
    return [replace(one, source=_source_of(one, sources or {})) for one in found]


def _find(name: str) -> list[SpaceFile]:
    from llm_sampler.objectives.shipped import shipped_recordings

    shipped = {one.path.name.removesuffix(".json.gz"): one for one in shipped_recordings()}
    fitting = [stem for stem, one in shipped.items() if name in ("", stem, one.header.kernel)]
    if fitting:
        return [SpaceFile(stem, shipped[stem].path) for stem in fitting]
    first, _, second = name.partition(":")
    path = Path(first)
    if not path.is_file():
        raise CompareError(f"a space must be a T4 file or one of {', '.join(shipped)} (or their kernels), got {name!r}")
    stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix("_T4")
    if second and not Path(second).is_file():
        raise CompareError(f"there is no T1 file {second}")
    return [SpaceFile(stem, path, Path(second) if second else _t1_beside(path))]


def _t1_beside(path: Path) -> Path | None:
    """``<benchmark>_T1.json`` beside ``<benchmark>_<device>_T4.json``; None for a file that holds its space."""
    fitting = [
        other for other in path.parent.glob("*_T1.json") if path.name.startswith(other.name.removesuffix("T1.json"))
    ]
    return max(fitting, key=lambda other: len(other.name), default=None)


def _source_of(file: SpaceFile, sources: Mapping[str, Path]) -> str | None:
    kernel = next((key for key in sources if key and file.name.startswith(key)), "" if file.t1 else None)
    path = None if kernel is None else sources.get(kernel)
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CompareError(f"cannot read the source file {path}: {error}") from None
