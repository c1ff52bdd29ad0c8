"""Sentences and numbers of a report as text, for every format. Times in ms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sampler.space import Configuration
from llm_sampler.studies.freshness import shown_versions
from llm_sampler.studies.paste import json_line, python_line, triton_line
from llm_sampler.studies.report_data import Report, Timing


def ms(value: float | None) -> str:
    """E.g. ``0.1899 ms``; empty for None."""
    return "" if value is None else f"{value:.4g} ms"


def times(value: float | None) -> str:
    """E.g. ``2.36x``; empty for None."""
    return "" if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    """E.g. ``73 %``, with a decimal under 10 %; empty for None."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def interval(value: tuple[float, float] | None) -> str:
    """E.g. ``0.1894 to 0.1905``; empty for None."""
    return "" if value is None else f"{value[0]:.4g} to {value[1]:.4g}"


def pairs(configuration: Mapping[str, Any]) -> str:
    """E.g. ``BLOCK_M=128 num_warps=4``."""
    return " ".join(f"{name}={value}" for name, value in configuration.items())


def ordered(configuration: Configuration, report: Report) -> Configuration:
    """The configuration in the order of the space's parameters."""
    names = [name for name in report.space.names if name in configuration]
    return {name: configuration[name] for name in [*names, *(n for n in configuration if n not in names)]}


def pastes(report: Report) -> dict[str, str]:
    """The winner ready to paste, by the name of the form; empty if nothing has a time."""
    if report.best is None:
        return {}
    winner = ordered(report.best.record.configuration, report)
    return {"JSON": json_line(winner), "Triton": triton_line(winner), "Python": python_line(winner)}


def timing(report: Report, name: str) -> Timing | None:
    """The line of that name."""
    return next((one for one in report.timings if one.name == name), None)


def headline(report: Report) -> str:
    """The result in one sentence."""
    best = timing(report, "best")
    if best is None:
        return f"None of {report.measured:,} measured configurations has a time."
    parts = []
    if best.versus_default is not None:
        parts.append(f"{times(best.versus_default)} as fast as the default")
    if best.versus_reference is not None:
        parts.append(f"{times(best.versus_reference)} as fast as PyTorch")
    if best.roofline_share is not None:
        parts.append(f"{percent(best.roofline_share)} of the roofline")
    tail = f": {', '.join(parts)}" if parts else ""
    return f"The best of {report.measured:,} measured configurations takes {ms(best.median_ms)}{tail}."


def certainty(report: Report) -> list[str]:
    """How sure the result is: spread, ties, share of the space, distance to a known optimum, stale measurements."""
    found = []
    best, reference = timing(report, "best"), timing(report, "PyTorch")
    if best is not None and best.interval_ms is not None:
        spread = (best.interval_ms[1] - best.interval_ms[0]) / best.median_ms
        found.append(
            f"With 95 % confidence the best's median lies from {interval(best.interval_ms)} ms ({percent(spread)} "
            f"wide, {best.samples} samples of one measurement; another day's clocks may shift it)."
        )
        if report.ties:
            what = "1 other configuration" if report.ties == 1 else f"{report.ties} other configurations"
            found.append(f"{what} cannot be told from it: the intervals overlap.")
        else:
            found.append("No other configuration's interval overlaps it.")
    if (
        best is not None
        and best.interval_ms is not None
        and reference is not None
        and reference.interval_ms is not None
    ):
        apart = best.interval_ms[0] > reference.interval_ms[1] or best.interval_ms[1] < reference.interval_ms[0]
        found.append(
            "Its interval and PyTorch's do not overlap." if apart else "Its interval and PyTorch's overlap: a tie."
        )
    if report.allowed:
        share = report.measured / report.allowed
        found.append(f"{percent(share)} of the {report.allowed:,} allowed configurations are measured.")
    if report.optimum_ms is not None and best is not None:
        above = best.median_ms / report.optimum_ms - 1
        distance = "is the recorded optimum" if above <= 0 else f"is {percent(above)} above the recorded optimum"
        found.append(f"The measurements are replayed from a recording; the best {distance} ({ms(report.optimum_ms)}).")
    elif report.entry.recording:
        found.append("The measurements are replayed from a recording.")
    if report.stale:
        found.append(
            f"{report.stale} timed configurations are stale: measured with another driver or Triton than "
            f"{shown_versions(report.current)}."
        )
    return found


def proposal(report: Report) -> str:
    """Who proposed the winner, and why; empty if nothing has a time."""
    if report.best is None:
        return ""
    record = report.best.record
    text = f"Trial {record.number}, proposed by {record.proposed_by or 'unknown'}"
    return f"{text}: {record.rationale}" if record.rationale else f"{text}; no rationale is recorded."


def llm_summary(report: Report) -> str:
    """What the LLM did, in a sentence."""
    llm = report.llm
    if not llm.calls:
        return "No LLM was called."
    model = f" of {llm.model}" if llm.model else ""
    failed = f", {sum(llm.failed.values())} of them failed" if llm.failed else ""
    return (
        f"{llm.calls} calls{model}{failed}, {llm.tokens:,} tokens, {llm.seconds:.1f} s; it proposed "
        f"{percent(llm.share)} of the measured configurations."
    )
