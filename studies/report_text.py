"""A report as plain text and as JSON."""

from __future__ import annotations

import datetime
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from llm_sampler.studies.freshness import shown_versions
from llm_sampler.studies.report_data import Report
from llm_sampler.studies.report_words import (
    certainty,
    headline,
    interval,
    llm_summary,
    ms,
    ordered,
    pairs,
    pastes,
    percent,
    proposal,
    times,
)
from llm_sampler.studies.text import printable
from llm_sampler.task import Task

_MOST_DETAIL = 100
_DERIVED = {"cost_ratio", "untried", "share"}


def report_text(report: Report) -> str:
    """The report as plain text, for terminals and messages; foreign text holds no control characters."""
    return "\n".join(printable(line) for line in _lines(report)) + "\n"


def report_json(report: Report) -> str:
    """All of the report's data as JSON; numbers that are not finite are null."""
    data = {**_plain(report), "headline": headline(report), "certainty": certainty(report), "pastes": pastes(report)}
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield printable(report.entry.title)
    yield printable(f"Study {report.study_name}")
    yield ""
    yield headline(report)
    yield from certainty(report)
    if report.timings:
        yield ""
        rows = [
            (
                one.name,
                ms(one.median_ms),
                interval(one.interval_ms),
                one.rate,
                percent(one.roofline_share),
                times(one.versus_default),
                times(one.versus_reference),
                one.occupancy,
            )
            for one in report.timings
        ]
        yield from table(
            ("", "median", "95 % interval", "rate", "roofline", "vs default", "vs PyTorch", "a multiprocessor"), rows
        )
    if report.best is not None:
        yield ""
        yield printable(proposal(report))
        yield from (f"{name:<7} {printable(text)}" for name, text in pastes(report).items())
    yield from _parameters(report)
    yield from _stability(report)
    yield from _ranking(report)
    if report.failures:
        yield from ("", f"Failures ({sum(failure.count for failure in report.failures)})")
        failures = [(one.status, str(one.count), printable(one.detail)[:_MOST_DETAIL]) for one in report.failures]
        yield from table(("cause", "count", "first of them"), failures)
    yield from ("", "Proposed by")
    proposers = [
        (printable(p.name), str(p.measured), percent(p.share), str(p.failed), ms(p.best_ms)) for p in report.proposers
    ]
    yield from table(("who", "measured", "share", "failed", "best"), proposers)
    yield llm_summary(report)
    for reason, count in report.llm.fallbacks.items():
        yield printable(f"Fell back {count} times: {reason}")
    for seed in report.seeds:
        yield printable(f"Warm start: {seed.text}")
    yield from ("", "Environment")
    for versions, count in report.versions:
        yield printable(f"{count} measurements with {', '.join(f'{n} {v}' for n, v in versions.items())}")
    yield f"Versions that count: {printable(shown_versions(report.current))}"
    yield f"Space {report.entry.digest}, schema {report.entry.schema}; report of {report.made.isoformat(sep=' ')}"


def _parameters(report: Report) -> Iterator[str]:
    if report.best is None:
        return
    yield from ("", "Parameters, the most important first")
    rows = [
        (
            printable(impact.name),
            percent(impact.importance),
            printable(str(impact.winner)),
            times(impact.cost_ratio),
            printable(" ".join(str(value) for value in impact.untried)),
        )
        for impact in report.impacts
    ]
    yield from table(("parameter", "importance", "winner", "best other choice", "untried"), rows)


def _stability(report: Report) -> Iterator[str]:
    stability = report.stability
    score = "" if stability.score is None else f" (score {stability.score:.2f})"
    yield from ("", f"Other sizes{score}: {printable(stability.verdict)}")
    if stability.results:
        rows = [
            (
                printable(one.problem),
                ms(one.winner_ms) or one.winner,
                ms(one.default_ms),
                ms(one.reference_ms),
                ms(one.least_ms),
                percent(one.share),
                printable(one.detail)[:_MOST_DETAIL],
            )
            for one in stability.results
        ]
        yield from table(("problem", "winner", "default", "PyTorch", "least known", "share", "why not"), rows)


def _ranking(report: Report) -> Iterator[str]:
    if not report.ranked:
        return
    yield from ("", "Fastest")
    rows = [
        (
            str(place),
            ms(one.record.median_ms),
            times(one.ratio),
            ", ".join(filter(None, ["tie" if one.tied else "", "stale" if one.stale else ""])),
            str(one.record.number),
            printable(one.record.proposed_by),
            printable(pairs(ordered(one.record.configuration, report))),
        )
        for place, one in enumerate(report.ranked, 1)
    ]
    yield from table(("", "median", "ratio", "", "trial", "by", "configuration"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; columns that are empty throughout are left out."""
    kept = [index for index in range(len(head)) if any(row[index] for row in rows)]
    cells = [[row[index] for index in kept] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(kept))]
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _plain(value: Any) -> Any:
    """As JSON types; of the task all but the source text."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if not (isinstance(value, Task) and field.name == "source")]
        names += [
            name for name in _DERIVED if name not in names and isinstance(getattr(type(value), name, None), property)
        ]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
