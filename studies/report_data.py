"""`Report`: everything that a report of a study says, as data; how it looks is not decided here.

Every number comes from the study's trials and its task. Times in ms (``_ms``) or seconds (``_s``). Stale measurements
(see `freshness`) are marked; they count in the ranking only if all are stale.
"""

from __future__ import annotations

import datetime
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.trial import TrialState

from llm_sampler.objectives.intervals import median_interval, overlap
from llm_sampler.objectives.occupancy import Occupancy, occupancy_of
from llm_sampler.space import Configuration, Space, Value
from llm_sampler.studies.archive import ArchiveError
from llm_sampler.studies.entry import Entry, read_entry, refuse_newer
from llm_sampler.studies.freshness import is_stale, newest_versions
from llm_sampler.studies.records import TrialRecord, best_first, read_records
from llm_sampler.studies.report_impact import ParameterImpact, parameter_impacts
from llm_sampler.studies.report_sources import Failure, LLMUse, Proposer, failures_of, llm_use_of, proposers_of
from llm_sampler.studies.result import find_baseline, reference_speedup
from llm_sampler.studies.stability import Stability
from llm_sampler.studies.warm import Seed, read_seeds
from llm_sampler.task import Task, read_task

_MOST_RANKED = 10
# Above so many FLOPs a byte every GPU of today is bound by arithmetic; below, by memory.
_ARITHMETIC_INTENSITY = 50


@dataclass(frozen=True)
class Timing:
    """One line of the table that a report begins with.

    Attributes:
        name: ``default``, ``best`` or ``PyTorch``.
        median_ms: Median time; of PyTorch the median over all measurements beside which it was timed.
        interval_ms: 95 % interval of the median; None where there are too few samples.
        samples: How many samples, or of PyTorch medians, it stands on.
        rate: TFLOP/s or TB/s with its unit; empty if the work is unknown.
        roofline_share: Least possible time on the device through the median; None if unknown.
        versus_default: How many times faster than the default configuration.
        versus_reference: How many times faster than PyTorch, timed interleaved where possible.
        occupancy: Blocks and warps that a multiprocessor holds, and what limits them; empty if unknown.
        trial: The trial's number; None for PyTorch.
        configuration: None for PyTorch.
    """

    name: str
    median_ms: float
    interval_ms: tuple[float, float] | None
    samples: int
    rate: str
    roofline_share: float | None
    versus_default: float | None
    versus_reference: float | None
    occupancy: str = ""
    trial: int | None = None
    configuration: Configuration | None = None


@dataclass(frozen=True)
class Ranked:
    """A configuration in the ranking.

    Attributes:
        record: Its trial.
        interval_ms: 95 % interval of its median; None if unknown.
        ratio: Its median over the best's.
        tied: Whether its interval overlaps the best's: the two cannot be told apart.
        stale: Whether it was measured with another driver or Triton.
    """

    record: TrialRecord
    interval_ms: tuple[float, float] | None
    ratio: float
    tied: bool
    stale: bool


@dataclass(frozen=True)
class Report:
    """All that a report says of a study.

    Attributes:
        study_name: The study's name.
        entry: Kernel, problem, device, digests and schema.
        task: What the study is about; its space and facts.
        made: When the report was made, local time with its zone.
        started: When the first trial began; None if none did.
        ended: When the last one ended; None if none has.
        records: All trials, by number.
        measured: How many configurations are measured, failures included.
        lost: Trials that ended with their machine.
        allowed: Configurations that the space allows; None where that is too many to count.
        timings: Default, best, PyTorch, as far as there are times.
        best: The winner; None if nothing has a time.
        ranked: The ten fastest.
        ties: How many other configurations cannot be told from the winner.
        impacts: The parameters, the most important first.
        failures: By cause, the most frequent first.
        proposers: By number of configurations.
        llm: What the LLM did.
        seeds: What the study began with from the archive.
        stability: The winner on the kernel's other problems.
        current: Driver and Triton that count.
        versions: Sets of versions, and how many measurements each has made, the most frequent first.
        stale: Timed configurations that are stale.
        optimum_ms: Least time of the whole recording, where a known one is replayed; None otherwise.
    """

    study_name: str
    entry: Entry
    task: Task
    made: datetime.datetime
    started: datetime.datetime | None
    ended: datetime.datetime | None
    records: tuple[TrialRecord, ...]
    measured: int
    lost: int
    allowed: int | None
    timings: tuple[Timing, ...]
    best: Ranked | None
    ranked: tuple[Ranked, ...]
    ties: int
    impacts: tuple[ParameterImpact, ...]
    failures: tuple[Failure, ...]
    proposers: tuple[Proposer, ...]
    llm: LLMUse
    seeds: tuple[Seed, ...]
    stability: Stability
    current: Mapping[str, str]
    versions: tuple[tuple[Mapping[str, str], int], ...]
    stale: int
    optimum_ms: float | None = None

    @property
    def space(self) -> Space:
        """The study's space."""
        return self.task.space


def read_study(study: optuna.Study) -> tuple[Entry, Task]:
    """What a study is about.

    Raises:
        ArchiveError: It is no kernel's study, or a newer version of this program wrote it.
    """
    attributes = study.user_attrs
    entry, task = read_entry(study.study_name, attributes), read_task(attributes)
    if entry is None or task is None:
        raise ArchiveError(
            f"study {study.study_name} holds no task: it was not made by `llm-sampler tune`; "
            "optuna-dashboard shows any study"
        )
    refuse_newer(study.study_name, entry)
    return entry, task


def build_report(
    study: optuna.Study,
    stability: Stability,
    *,
    optimum_ms: float | None = None,
    here: tuple[str, Mapping[str, str]] = ("", {}),
) -> Report:
    """The report of a study.

    Args:
        study: A study that `tune` made.
        stability: How its winner does on other problems: see `stability`.
        optimum_ms: Least time of the recording that it replays, if known.
        here: This machine's device and versions: see `machine_versions`.

    Raises:
        ArchiveError: It is no kernel's study, or a newer version of this program wrote it.
    """
    entry, task = read_study(study)
    records = read_records(study)
    current = current_versions(entry, records, here)
    done = [record for record in records if record.measured]
    ranking = rank(records, current)
    best = ranking[0] if ranking else None
    return Report(
        study_name=study.study_name,
        entry=entry,
        task=task,
        made=datetime.datetime.now().astimezone().replace(microsecond=0),
        started=min((r.started for r in records if r.started), default=None),
        ended=max((r.ended for r in records if r.ended), default=None),
        records=tuple(records),
        measured=len(done),
        lost=sum(record.state == TrialState.FAIL for record in records),
        allowed=_allowed(task.space),
        timings=_timings(records, task, best),
        best=best,
        ranked=tuple(ranking[:_MOST_RANKED]),
        ties=sum(one.tied for one in ranking[1:]),
        impacts=tuple(parameter_impacts(study, task.space, done, best.record if best else None)),
        failures=failures_of(done),
        proposers=proposers_of(done),
        llm=llm_use_of(study, records, done),
        seeds=read_seeds(study.user_attrs),
        stability=stability,
        current=current,
        versions=_versions(done),
        stale=sum(record.ok and stale(record, current) for record in records),
        optimum_ms=optimum_ms,
    )


def current_versions(
    entry: Entry, records: Sequence[TrialRecord], here: tuple[str, Mapping[str, str]] = ("", {})
) -> dict[str, str]:
    """Driver and Triton that count: of this machine, where it has the device, else of the newest measurement."""
    if here[0] and here[0] == entry.device:
        return dict(here[1])
    return newest_versions((True, r.ended, r.measurement.versions) for r in records if r.measurement is not None)


def stale(record: TrialRecord, current: Mapping[str, str]) -> bool:
    """Whether a trial was measured with another driver or Triton."""
    return record.measurement is not None and is_stale(record.measurement.versions, current)


def rank(records: Sequence[TrialRecord], current: Mapping[str, str]) -> list[Ranked]:
    """The timed configurations, those that are not stale first, then by time."""
    ordered = sorted(best_first(records), key=lambda record: stale(record, current))
    if not ordered:
        return []
    best_ms = ordered[0].median_ms or 0.0
    best_interval = _interval(ordered[0])
    return [
        Ranked(
            record,
            interval := _interval(record),
            (record.median_ms or 0.0) / best_ms,
            tied=record is not ordered[0] and overlap(interval, best_interval),
            stale=stale(record, current),
        )
        for record in ordered
    ]


def rate_text(time_ms: float, facts: Mapping[str, Value]) -> str:
    """The rate of the task's work in TFLOP/s, or in TB/s where memory is the limit; empty if the work is unknown."""
    flops, traffic_bytes = _number(facts.get("flops")), _number(facts.get("traffic_bytes"))
    if not flops or not traffic_bytes:
        return ""
    if flops > _ARITHMETIC_INTENSITY * traffic_bytes:
        return f"{flops / time_ms / 1e9:.0f} TFLOP/s"
    return f"{traffic_bytes / time_ms / 1e9:.2f} TB/s"


def _timings(records: Sequence[TrialRecord], task: Task, best: Ranked | None) -> tuple[Timing, ...]:
    baseline = find_baseline(records, task.space)
    references = [
        record.measurement.reference_ms
        for record in records
        if record.ok and record.measurement is not None and record.measurement.reference_ms is not None
    ]
    reference_ms = statistics.median(references) if references else None
    default_ms = baseline.median_ms if baseline else None
    roofline_ms = _number(task.problem.get("roofline_ms"))

    def timing(
        name: str, ms: float, interval: tuple[float, float] | None, samples: int, record: TrialRecord | None
    ) -> Timing:
        versus = reference_speedup(record, reference_ms) if record else 1.0
        return Timing(
            name=name,
            median_ms=ms,
            interval_ms=interval,
            samples=samples,
            rate=rate_text(ms, task.problem),
            roofline_share=roofline_ms / ms if roofline_ms else None,
            versus_default=default_ms / ms if default_ms is not None else None,
            versus_reference=versus,
            occupancy=held.text if record and (held := _occupancy(record, task)) else "",
            trial=record.number if record else None,
            configuration=record.configuration if record else None,
        )

    found = []
    for name, one in (("default", baseline), ("best", best.record if best else None)):
        if one is not None and one.median_ms is not None:
            count = len(one.measurement.samples) if one.measurement else 0
            found.append(timing(name, one.median_ms, _interval(one), count, one))
    if reference_ms is not None:
        found.append(timing("PyTorch", reference_ms, median_interval(references), len(references), None))
    return tuple(found)


def _occupancy(record: TrialRecord, task: Task) -> Occupancy | None:
    return occupancy_of(record.measurement, record.configuration, {**task.space.facts, **task.device})


def _interval(record: TrialRecord) -> tuple[float, float] | None:
    return median_interval(record.measurement.samples) if record.measurement is not None else None


def _versions(done: Sequence[TrialRecord]) -> tuple[tuple[Mapping[str, str], int], ...]:
    counts: Counter[tuple[tuple[str, str], ...]] = Counter(
        tuple(sorted(record.measurement.versions.items())) for record in done if record.measurement is not None
    )
    return tuple((dict(items), count) for items, count in counts.most_common() if items)


def _allowed(space: Space) -> int | None:
    possible = 1
    for parameter in space.parameters:
        possible *= len(parameter.choices)
    # Counting tries every combination that restrictions do not cut off early: about a microsecond each.
    return space.size if possible <= 2_000_000 else None


def _number(value: Value | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
