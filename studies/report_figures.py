"""The figures of a report: data first, then Plotly figures; and Optuna's own visualizations of the study.

Optuna's figures are drawn from a copy of the study that has parameters, times and states only: its hover texts would
show every attribute (a megabyte for a thousand trials), and Plotly reads texts as HTML. In the copy and in our own
figures all foreign text is escaped.
"""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna import visualization
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState

from llm_sampler.space import Space, Value
from llm_sampler.studies.records import TrialRecord, best_first
from llm_sampler.studies.report_data import Report
from llm_sampler.studies.stability import SizeResult

# Okabe and Ito's palette, which people of every colour vision tell apart; the symbols tell the same without colour.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C8C00", "#777777")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "pentagon", "hexagon", "cross")
# Fixed, so that a source looks the same in every report.
_ORDER = ("llm", "tpe", "local", "independent", "default", "archive", "user")
_TARGET = "median time (ms)"
_MOST_TIMELINE = 1_000
# Beyond, the page would grow past what mail takes, and markers would hide each other.
_MOST_DRAWN = 2_000
# Each line of the parallel coordinates is an element of its own, half a kilobyte long.
_MOST_LINES = 200


@dataclass(frozen=True)
class CurvePoint:
    """A measured trial in the history.

    Attributes:
        number: The trial's number.
        proposed_by: Who proposed it.
        status: Its measurement's status.
        median_ms: Its time; None if it failed.
        incumbent_ms: The least time up to it; None if there is none yet.
    """

    number: int
    proposed_by: str
    status: str
    median_ms: float | None
    incumbent_ms: float | None


@dataclass(frozen=True)
class Drawing:
    """A figure with the words that go with it.

    Attributes:
        name: Identifier within the page.
        title: Heading.
        caption: How to read it.
        figure: The figure.
        least_width: In pixels; a narrower screen scrolls it.
        height: In pixels.
    """

    name: str
    title: str
    caption: str
    figure: go.Figure
    least_width: int = 320
    height: int = 420


def curve_points(records: Sequence[TrialRecord]) -> list[CurvePoint]:
    """The measured trials, by number, with the least time so far."""
    points: list[CurvePoint] = []
    incumbent_ms: float | None = None
    for record in records:
        if not record.measured:
            continue
        if record.median_ms is not None:
            incumbent_ms = min(record.median_ms, incumbent_ms or record.median_ms)
        who = record.proposed_by or "unknown"
        points.append(CurvePoint(record.number, who, record.status, record.median_ms, incumbent_ms))
    return points


def curve_figure(
    points: Sequence[CurvePoint], *, default_ms: float | None = None, reference_ms: float | None = None
) -> go.Figure:
    """The history: a marker a trial, coloured and shaped by who proposed it; failures as crosses above; the incumbent.

    Args:
        points: See `curve_points`.
        default_ms: Drawn as a dotted line.
        reference_ms: PyTorch's median time, drawn as a dashed line.
    """
    figure = go.Figure()
    timed = [point for point in points if point.median_ms is not None]
    names = sorted({point.proposed_by for point in timed}, key=rank_of)
    for name in names:
        own = [point for point in timed if point.proposed_by == name]
        colour, symbol = look(name)
        figure.add_scatter(
            x=[point.number for point in own],
            y=[point.median_ms for point in own],
            mode="markers",
            name=f"{html.escape(name)} ({len(own)})",
            marker={"color": colour, "symbol": symbol, "size": 8},
        )
    if timed:
        started = [point for point in points if point.incumbent_ms is not None]
        figure.add_scatter(
            x=[point.number for point in started],
            y=[point.incumbent_ms for point in started],
            mode="lines",
            name="least so far",
            line={"shape": "hv", "width": 2, "color": "#888888"},
        )
    failed = [point for point in points if point.median_ms is None]
    if failed:
        top = 1.15 * max((point.median_ms or 0.0 for point in timed), default=1.0)
        figure.add_scatter(
            x=[point.number for point in failed],
            y=[top] * len(failed),
            mode="markers",
            name=f"failed ({len(failed)})",
            text=[f"{html.escape(point.status)}, by {html.escape(point.proposed_by)}" for point in failed],
            hovertemplate="trial %{x}: %{text}<extra></extra>",
            marker={"color": "#888888", "symbol": "x-thin-open", "size": 8},
        )
    for name, value, dash in (("default", default_ms, "dot"), ("PyTorch", reference_ms, "dash")):
        if value is not None:
            # A trace, not a shape: the legend names it, and its scale follows.
            ends = [points[0].number, points[-1].number] if points else [0, 1]
            line = {"dash": dash, "width": 1.5, "color": "#888888"}
            figure.add_scatter(x=ends, y=[value, value], mode="lines", name=f"{name} {value:.4g} ms", line=line)
    figure.update_layout(xaxis_title="trial", yaxis_title=_TARGET, yaxis_type="log")
    if timed:
        # Plotly's own labels of a logarithmic axis leave the power of ten out between two of them.
        times = [point.median_ms or 1.0 for point in timed]
        marks = log_ticks(min(times), max(times))
        figure.update_yaxes(tickvals=marks, ticktext=[f"{mark:g}" for mark in marks])
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """Marks of a logarithmic axis: 1, 2, 3, 5 and 7 times the powers of ten around a range, fewer over many decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 3, 5, 7) if len(decades) <= 3 else (1, 3) if len(decades) <= 6 else (1,)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]


def stability_figure(results: Sequence[SizeResult]) -> go.Figure:
    """For each problem how many times the least known time the winner, the default and PyTorch take."""
    figure = go.Figure()
    known = [result for result in results if result.least_ms]
    series: tuple[tuple[str, str, str, Callable[[SizeResult], float | None]], ...] = (
        ("winner", _COLOURS[0], "", lambda result: result.winner_ms),
        ("default", _COLOURS[1], "/", lambda result: result.default_ms),
        ("PyTorch", _COLOURS[2], "x", lambda result: result.reference_ms),
    )
    for name, colour, pattern, time_of in series:
        ratios = [
            None if (time_ms := time_of(result)) is None else time_ms / (result.least_ms or 1.0) for result in known
        ]
        figure.add_bar(
            x=[html.escape(result.problem) for result in known],
            y=ratios,
            name=name,
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=["" if ratio is None else f"{ratio:.2f}x" for ratio in ratios],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_layout(barmode="group", yaxis_title="times the least known", xaxis_type="category")
    return figure


def drawings(report: Report) -> list[Drawing]:
    """All figures of a report, ours first; those for which there is too little data are left out."""
    by_name = {timing.name: timing.median_ms for timing in report.timings}
    points = curve_points(report.records)
    found = []
    if points:
        figure = curve_figure(points, default_ms=by_name.get("default"), reference_ms=by_name.get("PyTorch"))
        caption = "Each marker is a measured configuration; its shape and colour say who proposed it. Lower is better."
        found.append(Drawing("history", "History", caption, figure))
    if any(result.least_ms for result in report.stability.results):
        caption = "1 is the least time known for that size; lower is better. No bar: it does not run there."
        found.append(Drawing("stability", "Other sizes", caption, stability_figure(report.stability.results)))
    return [*found, *_optuna_drawings(report)]


def plain_study(records: Sequence[TrialRecord], space: Space) -> optuna.Study:
    """A copy of a study in memory with parameters, times, states and dates only, and all texts escaped."""
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), study_name="report")
    choices = {parameter.name: parameter.choices for parameter in space.parameters}
    distributions: dict[str, BaseDistribution] = {
        html.escape(name): CategoricalDistribution([_escaped(value) for value in values])
        for name, values in choices.items()
    }
    trials = []
    for record in records:
        whole = record.configuration.keys() == choices.keys()
        if not record.state.is_finished() or not whole or not space.allows(record.configuration):
            continue
        trial = optuna.trial.create_trial(
            state=record.state,
            value=record.median_ms if record.state == TrialState.COMPLETE else None,
            params={html.escape(name): _escaped(value) for name, value in record.configuration.items()},
            distributions=distributions,
        )
        trial.datetime_start, trial.datetime_complete = record.started, record.ended
        trials.append(trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.add_trials(trials)
    return study


def thinned(records: Sequence[TrialRecord], most: int = _MOST_DRAWN) -> list[TrialRecord]:
    """At most so many trials for drawing: the faster half of them, and the others evenly; by number."""
    if len(records) <= most:
        return list(records)
    fastest = best_first(records)[: most // 2]
    chosen = {record.number for record in fastest}
    others = [record for record in records if record.number not in chosen]
    room = most - len(fastest)
    chosen |= {others[index * len(others) // room].number for index in range(room)}
    return [record for record in records if record.number in chosen]


def _optuna_drawings(report: Report) -> list[Drawing]:
    drawn = thinned(report.records)
    study = plain_study(drawn, report.space)
    few = plain_study(thinned(drawn, _MOST_LINES), report.space)
    varied = [html.escape(impact.name) for impact in report.impacts if sum(c.measured > 0 for c in impact.choices) > 1]
    pair = varied[:2]
    if sum(trial.state == TrialState.COMPLETE for trial in study.get_trials(deepcopy=False)) < 2 or not varied:
        return []
    target: dict[str, Any] = {"target_name": _TARGET}
    pairs = [
        Drawing(
            "optimization",
            "Optimization history",
            "Optuna: every time, and the least so far.",
            visualization.plot_optimization_history(study, **target),
        ),
        Drawing(
            "slice",
            "Slice",
            "Optuna: the times by each parameter's choices; darker markers are later trials.",
            visualization.plot_slice(study, params=varied, **target),
            least_width=max(320, 190 * len(varied)),
        ),
        Drawing(
            "parallel",
            "Parallel coordinates",
            "Optuna: each line is a configuration; darker lines are faster."
            + (f" Of {_MOST_LINES} trials: the fastest hundred, others evenly." if len(drawn) > _MOST_LINES else ""),
            visualization.plot_parallel_coordinate(few, params=varied, **target),
            least_width=max(320, 110 * (len(varied) + 1)),
            height=460,
        ),
        Drawing(
            "edf",
            "Empirical distribution",
            "Optuna: the share of configurations that take at most so long.",
            visualization.plot_edf(study, **target),
        ),
        Drawing(
            "timeline",
            "Timeline",
            f"Optuna: when each of the last {_MOST_TIMELINE:,} trials ran, and how it ended.",
            visualization.plot_timeline(study, n_recent_trials=_MOST_TIMELINE),
        ),
    ]
    if any(impact.importance for impact in report.impacts):
        figure = visualization.plot_param_importances(study, **target)
        caption = "Optuna: the share of each parameter in what makes a configuration fast (PED-ANOVA)."
        pairs.insert(1, Drawing("importances", "Parameter importances", caption, figure))
    if len(pair) == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            figure = visualization.plot_rank(study, params=pair, **target)
        caption = "Optuna: the two most important parameters; the colour is the rank of the time, blue the fastest."
        pairs.insert(-2, Drawing("rank", "Rank of the two most important", caption, figure, height=480))
    _adapt(pairs)
    if len(drawn) < len(report.records):
        note = f" Drawn are {len(drawn):,} of {len(report.records):,} trials: the faster half of them, others evenly."
        pairs = [replace(drawing, caption=drawing.caption + note) for drawing in pairs]
    for drawing in pairs:
        # The heading says it, and a narrow screen has no room for it twice.
        drawing.figure.update_layout(title=None)
    return pairs


def _adapt(drawings: Sequence[Drawing]) -> None:
    """Fit Optuna's figures to the page; hover texts with a trial's every parameter, 400 bytes each, become short."""
    for drawing in drawings:
        if drawing.name == "timeline":
            drawing.figure.update_traces(text=None, hovertemplate="trial %{y}<extra></extra>")
        elif drawing.name == "parallel":
            # Its lines run from light to dark blue, which only a light ground shows, in a dark page as well.
            drawing.figure.update_layout(plot_bgcolor="white", paper_bgcolor="white", font_color="#1b1f24")
        elif drawing.name == "rank":
            drawing.figure.update_traces(hovertext=None, hovertemplate="%{x}, %{y}<extra></extra>")


def _escaped(value: Value) -> Value:
    return html.escape(value) if isinstance(value, str) else value


def rank_of(name: str) -> tuple[int, str]:
    """Where a source stands in legends."""
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def look(name: str) -> tuple[str, str]:
    """Colour and symbol of a source; all samplers that have none of their own share the last."""
    index = min(rank_of(name)[0], len(_COLOURS) - 1)
    return _COLOURS[index], _SYMBOLS[index]
