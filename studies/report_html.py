"""A report as one HTML file that needs nothing else: no network, no files beside it.

Everything that comes from a study is escaped by Jinja2; figures are JSON in which ``<`` is written as an escape, and
are drawn by Plotly, which stands in the page once. The page forbids itself every connection (Content-Security-Policy).
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jinja2
import optuna
import plotly.offline
from markupsafe import Markup

from llm_sampler.studies import report_words
from llm_sampler.studies.freshness import shown_versions
from llm_sampler.studies.pages import page_environment, script_json
from llm_sampler.studies.report_data import Report
from llm_sampler.studies.report_figures import Drawing, drawings

_TEMPLATE = "report.html.j2"


def report_html(report: Report) -> str:
    """The page."""
    figures = drawings(report)
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            report=report,
            own=[drawing for drawing in figures if drawing.name == "history"],
            sizes=[drawing for drawing in figures if drawing.name == "stability"],
            figures=[drawing for drawing in figures if drawing.name not in ("history", "stability")],
            plotly=plotly.offline.get_plotlyjs(),
            optuna_version=optuna.__version__,
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = page_environment()
    names = ("ms", "times", "percent", "interval", "pairs")
    environment.filters.update({name: getattr(report_words, name) for name in names})
    environment.filters["figure"] = figure_json
    environment.filters["versions"] = shown_versions
    for name in ("headline", "certainty", "pastes", "proposal", "llm_summary", "ordered"):
        environment.globals[name] = getattr(report_words, name)
    return environment


def figure_json(drawing: Drawing) -> Markup:
    """A figure as JSON that cannot end the script element it stands in; without Plotly's theme: the page has one."""
    figure: dict[str, Any] = json.loads(drawing.figure.to_json())
    figure["layout"].pop("template", None)
    return script_json({"data": _rounded(figure["data"]), "layout": figure["layout"]})


def _rounded(value: Any) -> Any:
    """Figure data with six significant digits: a pixel shows three, and logarithms have sixteen."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value
