"""A bench as tables of text, and as the Markdown page of results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_sampler.objectives.side_by_side import COMPILED, EAGER
from llm_sampler.studies.bench import DEFAULT, TUNED, Bench, Column, Ratio, Row, geometric_means, with_verdict

HEADER = ("problem", "default", "tuned", "PyTorch", "compile", "vs PyTorch", "vs compile", "rate", "roofline", "copy")


def cells(row: Row) -> list[str]:
    """A row's texts, one for each of `HEADER` but the first."""
    times = [_time(row.columns.get(name)) for name in (DEFAULT, TUNED, EAGER, COMPILED)]
    ratios = [_ratio(row.against.get(name)) for name in (EAGER, COMPILED)]
    return [*times, *ratios, _rate(row), _percent(row.roofline_share), _percent(row.copy_share)]


def faults(row: Row) -> list[str]:
    """What was not timed, and why."""
    return [f"{row.title}, {column.name}: {column.fault}" for column in row.columns.values() if column.fault]


def summary_lines(bench: Bench) -> list[str]:
    """Geometric means, and on which problems ours is slower, or no different."""
    lines = []
    for other in (EAGER, COMPILED):
        means = geometric_means(bench.rows, other)
        if not means:
            continue
        listed = ", ".join(f"{kernel} {value:.2f}x ({_problems(count)})" for kernel, (value, count) in means.items())
        lines.append(f"Geometric mean against {other}: {listed}.")
        for words, verdict in (("Slower than", "slower"), ("No different from", "no difference")):
            rows = with_verdict(bench.rows, other, verdict)  # type: ignore[arg-type]
            named = ", ".join(f"{row.title} ({row.against[other].value:.3f}x)" for row in rows)
            if rows or verdict == "slower":
                lines.append(f"{words} {other} on: {named or 'none of these problems'}.")
    return lines


def headline(bench: Bench) -> str:
    """Device, versions, date."""
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    return f"{bench.device}; {versions}; {bench.date[:10]}; {bench.rounds} interleaved rounds"


def markdown(bench: Bench, *, picture: str = "") -> str:
    """The page of results.

    Args:
        bench: The run.
        picture: Address of its picture, relative to the page; empty for none.
    """
    kernels = list(dict.fromkeys(row.kernel for row in bench.rows))
    copies = [row.copy_tbps for row in bench.rows if row.copy_tbps]
    lines = [
        f"# Results on an {bench.device}",
        "",
        f"Written by `{bench.command}` on {bench.date[:10]}: "
        + ", ".join(f"{name} {version}" for name, version in bench.versions.items())
        + ".",
        "",
        *(f"- {line}" for line in summary_lines(bench)),
        "",
    ]
    if picture:
        lines += [f"![Times of tuned kernels, PyTorch and the roofline, relative to PyTorch]({picture})", ""]
    lines += [
        "## How to read it",
        "",
        f"- Times are medians of {bench.rounds} rounds in ms, with the half width of their 95 % interval. In each",
        "  round all of a line run once, in random order, L2 flushed before each: see [measuring](measuring.md).",
        "- **vs** says how many times faster the tuned kernel (without one, the default) is: the median of the rounds'",
        "  ratios, with the half width of its 95 % interval. Where the interval holds 1 there is no difference.",
        f"- **compile** is `torch.compile` of the reference, {_mode(bench.compile_mode)}.",
        "- **roofline** is the least time by the datasheet's rates over ours; **copy** is our bandwidth over that of a",
        "  device-to-device copy of 1 GiB in the same rounds"
        + (f" ({_range(copies)} TB/s read and written)," if copies else ",")
        + " where memory bounds the problem.",
        "- All was checked first against float64, ours also on odd sizes and hostile values: see the errors below.",
        "",
    ]
    for kernel in kernels:
        own = [row for row in bench.rows if row.kernel == kernel]
        lines += [f"## {kernel}", "", *_table(HEADER, [[row.problem, *cells(row)] for row in own]), ""]
        if failed := [fault for row in own for fault in faults(row)]:
            lines += ["Not timed:", "", *(f"- {fault}" for fault in failed), ""]
    lines += [
        "## What was compared",
        "",
        "Largest deviation from the float64 result, relative to its scale; at most twice that of PyTorch's eager one,",
        "or of one rounding, is allowed.",
        "",
        *_table(
            ("kernel and problem", "error of ours", "PyTorch", "compile", "allowed", "tuned configuration", "from"),
            [_checked(row) for row in bench.rows],
        ),
        "",
        "## Device meanwhile",
        "",
        *_table(
            ("kernel and problem", "timed by", "SM clock", "memory clock", "temperature", "power", "slowed by"),
            [_state(row) for row in bench.rows],
        ),
    ]
    return "\n".join(lines) + "\n"


def _checked(row: Row) -> list[str]:
    ours, eager, compiled = (row.columns.get(name) for name in (row.ours, EAGER, COMPILED))
    configuration = " ".join(f"{name}={value}" for name, value in (row.configuration or {}).items())
    errors = [_error(column) for column in (ours, eager, compiled)]
    limit = f"{eager.limit:.2g}" if eager and eager.limit is not None else ""
    return [row.title, *errors, limit, f"`{configuration}`" if configuration else "", row.source]


def _state(row: Row) -> list[str]:
    units = {"sm_mhz": "MHz", "memory_mhz": "MHz", "temperature_c": "°C", "power_w": "W"}
    known = [f"{row.state[name]:g} {unit}" if name in row.state else "unknown" for name, unit in units.items()]
    return [row.title, row.method, *known, str(row.state.get("slowed_by", ""))]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(texts)} |" for texts in (header, ["---"] * len(header), *rows)]


def _time(column: Column | None) -> str:
    if column is None:
        return ""
    if column.median_ms is None:
        return "failed"
    digits = max(0, 3 - math.floor(math.log10(column.median_ms)))
    text = f"{column.median_ms:.{digits}f}"
    if column.low_ms is None or column.high_ms is None:
        return text
    return f"{text} ±{100 * (column.high_ms - column.low_ms) / 2 / column.median_ms:.1f}%"


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.3f}x ±{100 * (ratio.high - ratio.low) / 2 / ratio.value:.1f}%"


def _rate(row: Row) -> str:
    if not row.our_ms:
        return ""
    if row.bound == "arithmetic":
        return f"{row.flops / row.our_ms / 1e9:.0f} TFLOP/s"
    return f"{row.traffic_bytes / row.our_ms / 1e9:.2f} TB/s"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _error(column: Column | None) -> str:
    return "" if column is None or column.error is None else f"{column.error:.2g}"


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count} problems"


def _mode(mode: str) -> str:
    return "left out here" if not mode else f"mode `{mode}`"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
