"""Questions to the archive: which studies there are, and the best configuration for a problem on a device."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import sqlalchemy
from optuna.trial import TrialState

from llm_sampler.kernels.spec import ELEMENT_BYTES, Problem
from llm_sampler.space import Configuration
from llm_sampler.studies.archive import ArchiveError
from llm_sampler.studies.entry import Entry
from llm_sampler.studies.freshness import is_stale, newest_versions
from llm_sampler.studies.rows import TrialRow, last_ends, read_configurations, read_rows, read_studies
from llm_sampler.studies.tables import TRIALS

Match = Literal["exact", "nearest problem", "other device", "other problem and device"]
MATCHES: tuple[Match, ...] = get_args(Match)
# A trial alone costs 2 ms, in the company of its study 0.1 ms.
_SINGLY = 5


@dataclass(frozen=True)
class StudyOverview:
    """A study in a list.

    Attributes:
        name: The study's name.
        entry: What it is about; None if it is no kernel's study.
        trials: All trials.
        measured: Those with a measurement, failures included.
        failed: Measured configurations that have no time.
        stale: Timed configurations whose driver or Triton differs from what counts today on the device.
        best_ms: Least time of those that are not stale, or of all where all are.
        speedup: Of that trial over the default configuration; None if unknown.
        reference_speedup: Of that trial over PyTorch beside it; None if unknown.
        proposers: Timed and failed configurations by who proposed them.
        updated: When its newest trial ended, UTC; None if none has.
    """

    name: str
    entry: Entry | None
    trials: int
    measured: int
    failed: int
    stale: int
    best_ms: float | None
    speedup: float | None
    reference_speedup: float | None
    proposers: Mapping[str, int] = field(default_factory=dict)
    updated: datetime.datetime | None = None


@dataclass(frozen=True)
class Answer:
    """A configuration that the archive has for a question.

    Attributes:
        match: How the study fits the question.
        entry: What the study is about.
        study: The study's name.
        trial: The trial's number.
        configuration: What was measured.
        median_ms: Its median time.
        speedup: Over the default configuration; None if unknown.
        reference_speedup: Over PyTorch beside it; None if unknown.
        stale: Whether it was measured with another driver or Triton than ``current``, for want of newer ones.
        versions: What made the measurement.
        current: The versions that count today; empty if unknown.
        faster_stale_ms: Least time among stale measurements of the same studies where it is less; None otherwise.
        measured: Configurations that the studies have measured for that problem and device.
        registers: Registers a thread; None if unknown.
        shared_bytes: Shared memory a block; None if unknown.
    """

    match: Match
    entry: Entry
    study: str
    trial: int
    configuration: Configuration
    median_ms: float
    speedup: float | None
    reference_speedup: float | None
    stale: bool
    versions: Mapping[str, str]
    current: Mapping[str, str]
    faster_stale_ms: float | None
    measured: int
    registers: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class _Known:
    """A kernel's study with its trials."""

    study_id: int
    name: str
    entry: Entry
    rows: Sequence[TrialRow]

    @property
    def timed(self) -> list[TrialRow]:
        return [row for row in self.rows if row.median_ms is not None]


def list_studies(engine: sqlalchemy.Engine, *, here: tuple[str, Mapping[str, str]] = ("", {})) -> list[StudyOverview]:
    """Every study of the archive, the newest first.

    Args:
        engine: The archive.
        here: This machine's device and versions: see `machine_versions`.
    """
    studies = read_studies(engine)
    rows = read_rows(engine, [study.study_id for study in studies])
    known = [_Known(s.study_id, s.name, s.entry, rows[s.study_id]) for s in studies if s.entry is not None]
    current = _current_by_device(known, here)
    found = [_overview(s.name, s.entry, rows[s.study_id], current.get(_place(s.entry), {})) for s in studies]
    return sorted(found, key=lambda one: (one.updated or datetime.datetime.min, one.name), reverse=True)


def find_best(
    engine: sqlalchemy.Engine,
    kernel: str,
    problem: Problem | None,
    device: str,
    *,
    allows: Callable[[Configuration], bool] = lambda _: True,
    here: tuple[str, Mapping[str, str]] = ("", {}),
) -> Answer:
    """The best configuration that the archive has for a problem on a device.

    An exact match first; else the nearest problem on that device; else the same problem on another device; else the
    nearest problem on another device. Stale measurements count only where there are no others.

    Args:
        engine: The archive.
        kernel: Name of the kernel.
        problem: The input; None for studies that do not say theirs.
        device: Name of the device; empty for studies that do not say theirs.
        allows: Whether a configuration can run for the problem on the device.
        here: This machine's device and versions: see `machine_versions`.

    Raises:
        ArchiveError: It has no time of the kernel that can be used; the message says what it has.
    """
    for answer in relatives(engine, kernel, problem, device, allows=allows, here=here):
        return answer
    raise ArchiveError(_nothing(engine, kernel))


def relatives(
    engine: sqlalchemy.Engine,
    kernel: str,
    problem: Problem | None,
    device: str,
    *,
    allows: Callable[[Configuration], bool] = lambda _: True,
    here: tuple[str, Mapping[str, str]] = ("", {}),
    without: str = "",
) -> Iterator[Answer]:
    """The best of each problem and device that the archive has of a kernel, the nearest first.

    Args:
        engine: The archive.
        kernel: Name of the kernel.
        problem: The input.
        device: Name of the device.
        allows: Whether a configuration can run for the problem on the device; others are passed over.
        here: This machine's device and versions.
        without: Name of a study that does not count.
    """
    entries = [(study_id, name, entry) for study_id, name, entry in _entries_of(engine, kernel) if name != without]
    groups = sorted(
        {(entry.problem.name if entry.problem else "", entry.device): entry for _, _, entry in entries}.values(),
        key=lambda entry: (
            MATCHES.index(_match(entry, problem, device)),
            problem_distance(entry.problem, problem),
            entry.device,
        ),
    )
    # The trials of a device are read when it is its turn: mostly the first is enough.
    on_device: dict[tuple[str, str], list[_Known]] = {}
    for wanted in groups:
        place = _place(wanted)
        if place not in on_device:
            on_device[place] = _known(engine, [one for one in entries if _place(one[2]) == place])
        group = [
            one
            for one in on_device[place]
            if one.entry.device == wanted.device and problem_distance(one.entry.problem, wanted.problem) == 0
        ]
        current = _current_by_device(on_device[place], here)[place]
        answer = _best_of(engine, group, problem, device, allows, current)
        if answer is not None:
            yield answer


def problem_distance(one: Problem | None, other: Problem | None) -> float:
    """How far two problems are apart: the sum over the sizes of ``|log2(ratio)|``, and 1 for another dtype.

    Another dtype of the same width counts half. Infinite where the sizes have other names.
    """
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    if set(one.sizes) != set(other.sizes):
        return math.inf
    apart = sum(abs(math.log2(one.sizes[name] / other.sizes[name])) for name in one.sizes)
    if one.dtype == other.dtype:
        return apart
    return apart + (0.5 if ELEMENT_BYTES[one.dtype] == ELEMENT_BYTES[other.dtype] else 1.0)


def same_device(one: str, other: str) -> bool:
    """Whether two names mean one device: ``NVIDIA H200``, ``nvidia-h200`` and ``H200`` do."""
    return _plain(one) == _plain(other)


def devices_of(engine: sqlalchemy.Engine, kernel: str) -> list[str]:
    """Devices of a kernel's studies, the one with the newest trial first."""
    entries = _entries_of(engine, kernel)
    ended = last_ends(engine, [study_id for study_id, _, _ in entries])
    newest: dict[str, datetime.datetime] = {}
    for study_id, _, entry in entries:
        end = ended.get(study_id, datetime.datetime.min)
        newest[entry.device] = max(end, newest.get(entry.device, end))
    return sorted(newest, key=lambda device: newest[device], reverse=True)


def problems_of(engine: sqlalchemy.Engine, kernel: str) -> list[Problem]:
    """Problems that the archive has of a kernel."""
    entries = (entry for _, _, entry in _entries_of(engine, kernel))
    return list({entry.problem.name: entry.problem for entry in entries if entry.problem is not None}.values())


def _entries_of(engine: sqlalchemy.Engine, kernel: str) -> list[tuple[int, str, Entry]]:
    """Identifier, name and entry of the kernel's studies that this version can read."""
    return [
        (study.study_id, study.name, study.entry)
        for study in read_studies(engine)
        if study.entry and study.entry.kernel == kernel and not study.entry.too_new
    ]


def _known(engine: sqlalchemy.Engine, entries: Sequence[tuple[int, str, Entry]]) -> list[_Known]:
    rows = read_rows(engine, [study_id for study_id, _, _ in entries], proposers=False)
    return [_Known(study_id, name, entry, rows[study_id]) for study_id, name, entry in entries]


def _best_of(
    engine: sqlalchemy.Engine,
    group: Sequence[_Known],
    problem: Problem | None,
    device: str,
    allows: Callable[[Configuration], bool],
    current: Mapping[str, str],
) -> Answer | None:
    """The best of studies of one problem and device: fresh ones first, by time."""
    timed = [(is_stale(row.versions, current), row.median_ms or 0.0, one, row) for one in group for row in one.timed]
    measured = sum(_is_measured(row) for one in group for row in one.rows)
    configurations = _Configurations(engine)
    for stale, median_ms, one, row in sorted(timed, key=lambda item: (item[:2], item[3].trial_id)):
        configuration = configurations.of(one, row)
        if not allows(configuration):
            continue
        faster = min((ms for was_stale, ms, _, _ in timed if was_stale and ms < median_ms), default=None)
        return Answer(
            match=_match(one.entry, problem, device),
            entry=one.entry,
            study=one.name,
            trial=row.number,
            configuration=configuration,
            median_ms=median_ms,
            speedup=row.speedup,
            reference_speedup=row.reference_ms / median_ms if row.reference_ms is not None else None,
            stale=stale,
            versions=row.versions,
            current=current,
            faster_stale_ms=None if stale else faster,
            measured=measured,
            registers=row.registers,
            shared_bytes=row.shared_bytes,
        )
    return None


class _Configurations:
    """Configurations of trials: the first few one by one, since mostly the first will do; then whole studies."""

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self._engine = engine
        self._asked = 0
        self._studies: dict[int, dict[int, Configuration]] = {}

    def of(self, study: _Known, row: TrialRow) -> Configuration:
        self._asked += 1
        if self._asked <= _SINGLY:
            return read_configurations(self._engine, TRIALS.c.trial_id == row.trial_id).get(row.trial_id, {})
        if study.study_id not in self._studies:
            self._studies[study.study_id] = read_configurations(self._engine, TRIALS.c.study_id == study.study_id)
        return self._studies[study.study_id].get(row.trial_id, {})


def _match(entry: Entry, problem: Problem | None, device: str) -> Match:
    same_problem = problem_distance(entry.problem, problem) == 0
    if same_device(entry.device, device):
        return "exact" if same_problem else "nearest problem"
    return "other device" if same_problem else "other problem and device"


def _overview(name: str, entry: Entry | None, rows: Sequence[TrialRow], current: Mapping[str, str]) -> StudyOverview:
    timed = [row for row in rows if row.median_ms is not None]
    measured = [row for row in rows if _is_measured(row)]
    fresh = [row for row in timed if not is_stale(row.versions, current)]
    best = min(fresh or timed, key=lambda row: (row.median_ms, row.number), default=None)
    reference_ms = best.reference_ms if best else None
    return StudyOverview(
        name=name,
        entry=entry,
        trials=len(rows),
        measured=len(measured),
        failed=len(measured) - len(timed),
        stale=len(timed) - len(fresh),
        best_ms=best.median_ms if best else None,
        speedup=best.speedup if best else None,
        reference_speedup=reference_ms / best.median_ms if best and best.median_ms and reference_ms else None,
        proposers=Counter(row.proposed_by for row in measured),
        updated=max((row.completed for row in rows if row.completed), default=None),
    )


def _current_by_device(
    studies: Sequence[_Known], here: tuple[str, Mapping[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """The versions that count, by kernel and device."""
    places: dict[tuple[str, str], list[_Known]] = {}
    for one in studies:
        places.setdefault(_place(one.entry), []).append(one)
    current = {}
    for place, group in places.items():
        measured = ((not one.entry.recording, row.completed, row.versions) for one in group for row in one.timed)
        on_this_machine = bool(here[0]) and same_device(group[0].entry.device, here[0])
        current[place] = dict(here[1]) if on_this_machine else newest_versions(measured)
    return current


def _place(entry: Entry | None) -> tuple[str, str]:
    return ("", "") if entry is None else (entry.kernel, _plain(entry.device))


def _is_measured(row: TrialRow) -> bool:
    return row.state == TrialState.COMPLETE or (row.state == TrialState.PRUNED and row.status != "")


def _plain(device: str) -> str:
    return re.sub(r"[^a-z0-9]", "", device.lower()).removeprefix("nvidia")


def _nothing(engine: sqlalchemy.Engine, kernel: str) -> str:
    entries = [study.entry for study in read_studies(engine)]
    newer = [entry for entry in entries if entry and entry.kernel == kernel and entry.too_new]
    if newer:
        return (
            f"the archive's {len(newer)} studies of {kernel} were written by a newer version of this program: "
            "pip install --upgrade optuna-llm-sampler"
        )
    has = sorted({entry.title for entry in entries if entry})
    listed = "; ".join(has[:8]) + ("; ..." if len(has) > 8 else "")
    return f"the archive has no time of {kernel} that can be used here; it has: {listed or 'no study of a kernel'}"
