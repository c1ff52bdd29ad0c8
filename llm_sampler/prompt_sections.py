"""The sections of a prompt, each in variants from long to short (see ``prompt.fit``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_sampler.attributes import LLM
from llm_sampler.history import Row, choice_records, failures_by_cause, ranked
from llm_sampler.insight import best_of_families, bound_choices, untried_pairs
from llm_sampler.pairs import pairs_of, two_valued
from llm_sampler.prompt import Briefing, fenced
from llm_sampler.reply import describe
from llm_sampler.search_space import SearchSpace
from llm_sampler.source_text import abridged

_MOST_DETAIL = 160
_MOST_MEASURED = 6
# Spread and bookkeeping of a measurement: true, and of no use for choosing the next one.
_DULL = re.compile(r"p\d+_.*|.*_s|reference_.*|median_.*|.*_limit|.*_mhz|temperature_c|power_w")


@dataclass(frozen=True)
class Section:
    """A part of the prompt.

    Attributes:
        variants: From long to short.
        worth: Sections of little worth are shortened first.
    """

    variants: tuple[str, ...]
    worth: int


def sections(briefing: Briefing) -> list[Section]:
    """The sections in the order in which they stand."""
    best_first = ranked(briefing.rows, briefing.directions)
    parts = [_goal(briefing), _source(briefing), _facts(briefing), _parameters(briefing), _restrictions(briefing)]
    if best_first:
        parts.append(_history(briefing, best_first))
    if any(row.values is None for row in briefing.rows):
        parts.append(_failures(briefing))
    if len(best_first) >= 4:
        parts += [_effects(briefing), _sources(briefing, best_first)]
    if not briefing.opening and best_first:
        parts.append(_open_questions(briefing, best_first))
    if best_first:
        parts.append(_incumbent(briefing, best_first))
    parts.append(_request(briefing, best_first))
    return parts


def _goal(briefing: Briefing) -> Section:
    task = briefing.task
    text = f"# Task\nGoal: {briefing.goal}."
    if task is None:
        return Section((text,), 9)
    short = f"{text}\n{fenced('task', task.title)}"
    return Section((f"{text}\n{fenced('task', f'{task.title}. {task.description}'.strip())}", short), 8)


def _source(briefing: Briefing) -> Section:
    source = briefing.task.source if briefing.task else ""
    if not source:
        return Section(("",), 0)
    variants = []
    for share in (1.0, 0.7, 0.5, 0.35, 0.2, 0.1):
        text = abridged(source, briefing.space.names, int(len(source) * share))
        if text:
            variants.append(f"# Source\n{fenced('source', text)}")
    return Section((*variants, ""), 2)


def _facts(briefing: Briefing) -> Section:
    task = briefing.task
    lines = []
    if task and task.problem:
        lines.append(f"problem: {_listed(task.problem)}")
    if task and task.device:
        lines.append(f"device: {_listed(task.device)}")
    if not lines:
        return Section(("",), 0)
    return Section((f"# Problem and device\n{fenced('facts', chr(10).join(lines))}",), 9)


def _parameters(briefing: Briefing) -> Section:
    space = briefing.space
    lines = ["# Parameters and legal values"]
    lines += [f"- {name}: {describe(distribution)}" for name, distribution in space.sampled.items()]
    lines += [f"- {name}: always {value!r}; leave it out" for name, value in space.single_values.items()]
    if briefing.partial:
        lines.append("Not every parameter is used in every configuration; leave out those that are not.")
    elif briefing.default:
        lines.append(f"Default: {_compact(briefing.default, space)}")
        lines.append("A parameter that you leave out of a configuration has its default value.")
    short = "\n".join(lines)
    known = briefing.task.space.parameters if briefing.task else ()
    meanings = [f"{p.name}: {' '.join(p.meaning.split())}" for p in known if p.meaning and p.name in space.sampled]
    if not meanings:
        return Section((short,), 7)
    return Section((f"{short}\n{fenced('meanings', chr(10).join(meanings))}", short), 7)


def _restrictions(briefing: Briefing) -> Section:
    texts = briefing.space.restrictions.texts
    if not texts:
        return Section(("",), 0)
    facts = briefing.space.restrictions.facts
    used = {name: facts[name] for name in facts if any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)}
    lines = [f"- {text}" for text in texts]
    if used:
        lines.append(f"where {_listed(used)}")
    size = f" {len(briefing.space.table)} configurations are allowed." if briefing.space.table else ""
    return Section((f"# Restrictions (all must hold)\n{fenced('restrictions', chr(10).join(lines))}{size}",), 9)


def _history(briefing: Briefing, best_first: Sequence[Row]) -> Section:
    names = _telling(best_first)
    variants = []
    for count in (15, 10, 6, 3):
        lines = [_row_text(briefing, row, names) for row in best_first[:count]]
        title = f"# Measured, best first ({min(count, len(best_first))} of {len(briefing.rows)} trials)"
        variants.append(f"{title}\n{fenced('measurements', chr(10).join(lines))}")
    return Section(tuple(dict.fromkeys(variants)), 6)


def _telling(rows: Sequence[Row]) -> list[str]:
    """Names of measured numbers that differ between rows, at most six."""
    values: dict[str, set[Any]] = {}
    for row in rows:
        for name, value in (row.measured or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not _DULL.fullmatch(name):
                values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1][:_MOST_MEASURED]


def _row_text(briefing: Briefing, row: Row, names: Sequence[str]) -> str:
    parts = [_values_text(briefing, row), _compact(row.configuration, briefing.space)]
    measured = [f"{name} {_short(row.measured[name])}" for name in names if row.measured and name in row.measured]
    if share := _roofline_share(briefing, row):
        measured.append(share)
    if measured:
        parts.append(", ".join(measured))
    return " | ".join([*parts, f"by {row.proposed_by or 'unknown'}"])


def _roofline_share(briefing: Briefing, row: Row) -> str:
    least = briefing.task.problem.get("roofline_ms") if briefing.task and briefing.task.unit == "ms" else None
    if not row.values or not isinstance(least, int | float) or row.values[0] <= 0:
        return ""
    return f"{100 * least / row.values[0]:.0f} % of roofline"


def _failures(briefing: Briefing) -> Section:
    long, short = [], []
    for status, rows in failures_by_cause(briefing.rows).items():
        short.append(f"{status}: {len(rows)} times")
        long.append(f"{status}: {len(rows)} times, e.g.")
        for row in rows[:3]:
            detail = f" ({_one_line(row.detail)})" if row.detail else ""
            long.append(f"  {_compact(row.configuration, briefing.space)}{detail}")
    head = "# Failed\n"
    return Section((head + fenced("failures", "\n".join(long)), head + fenced("failures", "\n".join(short))), 4)


def _effects(briefing: Briefing) -> Section:
    if len(briefing.directions) != 1:
        return Section(("",), 0)
    lines = []
    for name, records in choice_records(briefing.rows, briefing.space, briefing.directions[0]).items():
        if len(records) > 16:
            continue
        cells = [
            f"{record.choice}: "
            + ("untried" if not record.count else f"{'none' if record.best is None else _short(record.best)}")
            + (f" ({record.count}x{f', {record.failures} failed' if record.failures else ''})" if record.count else "")
            for record in records
        ]
        lines.append(f"{name}: {'; '.join(cells)}")
    text = f"# Best value per choice (how often tried)\n{fenced('choices', chr(10).join(lines))}" if lines else ""
    return Section((text, ""), 5)


def _sources(briefing: Briefing, best_first: Sequence[Row]) -> Section:
    counts: dict[str, int] = {}
    for row in briefing.rows:
        counts[row.proposed_by or "unknown"] = counts.get(row.proposed_by or "unknown", 0) + 1
    best = {row.proposed_by or "unknown": row for row in reversed(best_first)}
    cells = [
        f"{'you' if who == LLM else who}: {count} trial{'s' * (count > 1)}"
        + (f", best {_values_text(briefing, best[who])}" if who in best else ", none succeeded")
        for who, count in counts.items()
    ]
    return Section((f"# Proposed by whom\n{fenced('sources', '; '.join(cells))}", ""), 1)


def _open_questions(briefing: Briefing, best_first: Sequence[Row]) -> Section:
    lines = []
    for row in best_of_families(best_first, briefing.space, most=6)[1:]:
        lines.append(
            f"best of another family: {_values_text(briefing, row)} {_compact(row.configuration, briefing.space)}"
        )
    for bound in bound_choices(briefing.rows, briefing.space, most=8):
        lines.append(
            f"{bound.name}={bound.choice} ({bound.count} trials) was always tried together with "
            f"{bound.other}={bound.value}"
        )
    if pairs := untried_pairs(best_first, briefing.space, most=16):
        lines.append("never tried together: " + "; ".join(pair.text(briefing.space) for pair in pairs))
    if not lines:
        return Section(("",), 0)
    return Section((f"# Open questions\n{fenced('open', chr(10).join(lines))}", ""), 5)


def _incumbent(briefing: Briefing, best_first: Sequence[Row]) -> Section:
    row = best_first[0]
    what = "# Incumbent" if len(briefing.directions) == 1 else "# One of the best compromises"
    told = f"{_values_text(briefing, row)} with {_compact(row.configuration, briefing.space)}"
    return Section((f"{what}\n{fenced('incumbent', told)}",), 9)


def _request(briefing: Briefing, best_first: Sequence[Row]) -> Section:
    count = briefing.batch_size
    head = f"# Request\nPropose {count} configurations"
    if briefing.opening:
        text = (
            f"{head} to open the search, in three families: safe (what is known to work well on such a device), "
            "balanced, and aggressive (what could be far better and may fail). Within a family vary what matters, not "
            "everything at once."
        )
        if pairs_of(briefing.space, two_valued(briefing.space)):
            text += (
                f"\nOver the whole batch every allowed pair of values of the two-valued parameters "
                f"({', '.join(two_valued(briefing.space))}) must occur at least once in an otherwise strong "
                "configuration: two of them that are always switched together cannot be told apart."
            )
        return Section((text,), 9)
    if not best_first:
        return Section((f"{head}: nothing has succeeded yet, so stay far from what failed and from every limit.",), 9)
    text = (
        f"{head}, the most promising first:\n"
        "(a) about half: changes of one parameter of the incumbent and of the best of each other family, untried "
        "choices first, unlikely ones included (family: neighbour);\n"
        "(b) for each choice or family that looks bad, one member that differs in what it was always tried together "
        "with (family: unpick);\n"
        "(c) combinations of the best choices that were never tried together (family: combine)."
    )
    return Section((text,), 9)


def _values_text(briefing: Briefing, row: Row) -> str:
    unit = f" {briefing.task.unit}" if briefing.task and briefing.task.unit else ""
    return ", ".join(_short(value) for value in row.values or ()) + unit


def _compact(configuration: Mapping[str, Any], space: SearchSpace) -> str:
    return " ".join(f"{name}={configuration[name]}" for name in space.sampled if name in configuration)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _short(value: float | str) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_DETAIL else line[: _MOST_DETAIL - 1] + "…"
