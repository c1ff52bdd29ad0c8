"""A bench as a picture: bars of times relative to PyTorch's, as SVG without any script or font of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_sampler.objectives.side_by_side import COMPILED, EAGER
from llm_sampler.studies.bench import DEFAULT, TUNED, Bench, Row
from llm_sampler.studies.pages import page_environment

WIDTH = 860
_LABEL = 300
_PLOT = WIDTH - _LABEL - 90
_BAR, _GAP = 9, 12
_MOST = 2.0
# Okabe and Ito's palette; each with its place in the legend.
_COLOURS = {TUNED: "#0072B2", COMPILED: "#009E73", EAGER: "#777777", DEFAULT: "#E69F00"}


@dataclass(frozen=True)
class Bar:
    """A bar of the picture.

    Attributes:
        name: The column's name.
        time: Time over PyTorch's.
        text: What stands behind it.
    """

    name: str
    time: float
    text: str


@dataclass(frozen=True)
class Group:
    """The bars of a problem.

    Attributes:
        title: Kernel and problem.
        bars: In order.
        roofline: The roofline's time over PyTorch's; None if unknown.
    """

    title: str
    bars: tuple[Bar, ...]
    roofline: float | None


def groups(rows: Sequence[Row]) -> list[Group]:
    """The rows that have a time of PyTorch's and of ours, with times relative to PyTorch's."""
    found = []
    for row in rows:
        eager = row.columns.get(EAGER)
        if eager is None or eager.median_ms is None or not row.ours:
            continue
        names = (TUNED, DEFAULT, COMPILED)
        bars = []
        for name in names:
            column = row.columns.get(name)
            if column is not None and column.median_ms is not None:
                bars.append(Bar(name, column.median_ms / eager.median_ms, f"{eager.median_ms / column.median_ms:.2f}x"))
        roofline = row.roofline_ms / eager.median_ms if row.roofline_ms else None
        found.append(Group(row.title, tuple(bars), roofline))
    return found


def picture(bench: Bench) -> str:
    """The SVG document."""
    drawn, y = [], 66
    for group in groups(bench.rows):
        height = len(group.bars) * _BAR
        bars = [
            {
                "y": y + index * _BAR,
                "width": round(min(bar.time, _MOST) / _MOST * _PLOT, 1),
                "colour": _COLOURS[bar.name],
                "text": bar.text,
                "cut": bar.time > _MOST,
                "name": bar.name,
            }
            for index, bar in enumerate(group.bars)
        ]
        roofline = None if group.roofline is None else round(_LABEL + min(group.roofline, _MOST) / _MOST * _PLOT, 1)
        drawn.append({"title": group.title, "y": y, "height": height, "bars": bars, "roofline": roofline})
        y += height + _GAP
    template = page_environment().get_template("bench.svg.j2")
    return template.render(
        width=WIDTH,
        height=y + 8,
        left=_LABEL,
        one=_LABEL + _PLOT / _MOST,
        bar_height=_BAR - 1,
        groups=drawn,
        legend=[(name, _COLOURS[name]) for name in (TUNED, DEFAULT, COMPILED)],
        headline=f"{bench.device}, {bench.date[:10]}",
    )
