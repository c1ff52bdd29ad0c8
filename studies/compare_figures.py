"""The figures of a comparison: best-so-far curves, evaluations to 5 %, shares of runs, cost against quality."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from llm_sampler.studies.compare_summary import Cell, Comparison

# Okabe and Ito's palette, which people of every colour vision tell apart; dashes and symbols tell the same.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C00", "#7F7F7F")
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "pentagon", "hexagon", "cross")
# Ticks of a ratio's axis by its largest value: more would stand on each other.
_TICKS: Mapping[float, tuple[float, ...]] = {
    1.02: (1.0, 1.002, 1.005, 1.01, 1.02),
    1.12: (1.0, 1.01, 1.02, 1.05, 1.1),
    1.6: (1.0, 1.05, 1.1, 1.2, 1.3, 1.5),
    4.0: (1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0),
    math.inf: (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0),
}


@dataclass(frozen=True)
class Drawing:
    """A figure on the page.

    Attributes:
        name: For links.
        title: Heading.
        caption: What it shows, and how to read it.
        figure: The figure.
    """

    name: str
    title: str
    caption: str
    figure: go.Figure


def drawings(comparison: Comparison) -> list[Drawing]:
    """All figures in the page's order."""
    return [
        Drawing(
            "curves",
            "Best so far",
            "Mean over seeds of the incumbent's recorded time over the optimum, per space, with the quartiles over "
            "seeds as a band. The black line is the exact expectation of random search without replacement. Lower is "
            "better; click an arm in the legend to hide it.",
            curves_figure(comparison),
        ),
        Drawing(
            "reach",
            "Measurements to within 5 % of the optimum",
            "Median over seeds with quartiles. An open mark at the right edge: more than half of the runs never came "
            "there. The dotted line is the mean of random search, exactly.",
            reach_figure(comparison),
        ),
        Drawing(
            "edf",
            "How many runs came there",
            "Share of all runs, over all spaces, that had found a configuration within 5 % (left) or 1 % (right) of "
            "the optimum after so many measurements.",
            edf_figure(comparison),
        ),
        Drawing(
            "cost",
            "Cost against quality",
            "Geometric mean over spaces of the mean ratio, against the simulated tuning time of a run: recorded "
            "compiling and measuring, and waiting for a language model's replies. A mark for each number of "
            "measurements in the tables.",
            cost_figure(comparison),
        ),
    ]


def first_reached(cells: Sequence[Cell], *, very: bool) -> list[int | None]:
    """Measurements of all runs to within 5 % (1 %), None where one never came there."""
    return [first for cell in cells for first in (cell.first_very_close if very else cell.first_close)]


def shares_reached(firsts: Sequence[int | None], trials: int) -> list[float]:
    """Share of runs that have reached their target after 1 ... T measurements."""
    return [
        sum(first is not None and first <= count for first in firsts) / len(firsts) for count in range(1, trials + 1)
    ]


def curves_figure(comparison: Comparison) -> go.Figure:
    """Best-so-far curves, a panel per space."""
    names = [space.name for space in comparison.spaces]
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    figure = make_subplots(rows, columns, subplot_titles=names, vertical_spacing=0.28 / rows, horizontal_spacing=0.09)
    x = list(range(1, comparison.trials + 1))
    for index, space in enumerate(comparison.spaces):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        for number, arm in enumerate(comparison.arms):
            cell = comparison.cell(space.name, arm.arm)
            common = {"legendgroup": arm.arm, "x": x}
            edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
            figure.add_scatter(y=cell.high, **common, **edge, **place)
            figure.add_scatter(y=cell.low, fill="tonexty", fillcolor=_faint(_colour(number)), **common, **edge, **place)
            figure.add_scatter(
                y=cell.mean, name=arm.arm, mode="lines", line=_line(number), showlegend=index == 0, **common, **place
            )
        figure.add_scatter(
            x=x,
            y=space.random,
            name="random, exact",
            legendgroup="exact",
            mode="lines",
            line={"color": "#000000", "width": 1.5, "dash": "dot"},
            showlegend=index == 0,
            **place,
        )
        # The first measurements are far above what is of interest, and a logarithm cannot begin at zero.
        worst = max(max(comparison.cell(space.name, arm.arm).mean[min(4, len(x) - 1) :]) for arm in comparison.arms)
        figure.update_yaxes(**_ratio_axis(max(worst, space.random[min(4, len(x) - 1)])), **place)
    figure.update_xaxes(title_text="measurements")
    figure.update_layout(height=420 * rows + 80, **_layout())
    return figure


def reach_figure(comparison: Comparison) -> go.Figure:
    """Evaluations to within 5 %, a panel per space, arms as rows."""
    names = [space.name for space in comparison.spaces]
    figure = make_subplots(len(names), 1, subplot_titles=names, shared_xaxes=True, vertical_spacing=0.3 / len(names))
    labels = [arm.arm for arm in comparison.arms]
    for row, space in enumerate(comparison.spaces, 1):
        for number, arm in enumerate(labels):
            found = comparison.cell(space.name, arm).close
            ends = [comparison.trials if value is None else value for value in (found.low, found.median, found.high)]
            symbol = _SYMBOLS[number % len(_SYMBOLS)] + ("-open" if found.median is None else "")
            figure.add_scatter(
                x=[ends[1]],
                y=[arm],
                mode="markers",
                marker={"color": _colour(number), "size": 11, "symbol": symbol, "line": {"width": 2}},
                error_x={"array": [ends[2] - ends[1]], "arrayminus": [ends[1] - ends[0]], "color": _colour(number)},
                name=arm,
                showlegend=False,
                hovertemplate=f"{arm}: {found.hits} of {found.runs} runs<extra></extra>",
                row=row,
                col=1,
            )
        if space.random_close <= comparison.trials:
            figure.add_vline(
                x=space.random_close, line={"dash": "dot", "color": "#000000", "width": 1.5}, row=row, col=1
            )
        figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], row=row, col=1)
    figure.update_xaxes(range=[0, comparison.trials * 1.03], showticklabels=True)
    figure.update_xaxes(title_text="measurements to within 5 %", row=len(names), col=1)
    figure.update_layout(height=(34 * len(labels) + 90) * len(names) + 60, **_layout())
    return figure


def edf_figure(comparison: Comparison) -> go.Figure:
    """Empirical distribution of the measurements to within 5 % and 1 %, over all runs."""
    figure = make_subplots(
        1, 2, subplot_titles=["within 5 %", "within 1 %"], shared_yaxes=True, horizontal_spacing=0.05
    )
    x = list(range(1, comparison.trials + 1))
    for number, arm in enumerate(comparison.arms):
        cells = [cell for cell in comparison.cells if cell.arm == arm.arm]
        for column, very in ((1, False), (2, True)):
            figure.add_scatter(
                x=x,
                y=shares_reached(first_reached(cells, very=very), comparison.trials),
                name=arm.arm,
                legendgroup=arm.arm,
                showlegend=column == 1,
                mode="lines",
                line={**_line(number), "shape": "hv"},
                row=1,
                col=column,
            )
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%")
    figure.update_yaxes(title_text="runs", row=1, col=1)
    figure.update_xaxes(title_text="measurements")
    figure.update_layout(height=460, **_layout())
    return figure


def cost_figure(comparison: Comparison) -> go.Figure:
    """Quality against simulated tuning time."""
    figure = go.Figure()
    for number, arm in enumerate(comparison.arms):
        tokens = np.mean([cell.llm_tokens for cell in comparison.cells if cell.arm == arm.arm])
        figure.add_scatter(
            x=arm.simulated_s,
            y=[one.mean for one in arm.levels],
            name=arm.arm,
            mode="lines+markers",
            line=_line(number),
            marker={"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 9},
            customdata=comparison.checkpoints,
            hovertemplate=f"{arm.arm}, %{{customdata}} measurements: %{{y:.3f}} in %{{x:.1f}} s, "
            f"{tokens:,.0f} tokens a run<extra></extra>",
        )
    figure.update_yaxes(**_ratio_axis(max(arm.levels[0].mean for arm in comparison.arms)))
    figure.update_xaxes(title_text="simulated tuning time (s)", type="log")
    figure.update_layout(height=520, **_layout())
    return figure


def _ratio_axis(most: float) -> dict[str, object]:
    """A logarithmic axis for ratios from 1 to ``most``."""
    top = max(most, 1.004) ** 1.08
    ticks = next(ticks for limit, ticks in _TICKS.items() if top <= limit)
    return {
        "type": "log",
        "range": [-0.04 * math.log10(top), math.log10(top)],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
        "title_text": "time / optimum",
    }


def _layout() -> dict[str, object]:
    return {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 20, "t": 60, "b": 50},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.06, "x": 0},
        "font": {"size": 13},
    }


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _line(number: int) -> dict[str, object]:
    return {"color": _colour(number), "width": 2, "dash": _DASHES[number // len(_COLOURS) % len(_DASHES)]}


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.10)"
