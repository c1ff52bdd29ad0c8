"""A comparison as a Markdown page and as one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import plotly.offline
from markupsafe import Markup

from llm_sampler.studies.compare_figures import Drawing, drawings
from llm_sampler.studies.compare_run import Run
from llm_sampler.studies.compare_summary import Comparison
from llm_sampler.studies.compare_tables import (
    Table,
    clock_table,
    codec_table,
    cost_table,
    failure_lines,
    overall_table,
    space_table,
)
from llm_sampler.studies.pages import page_environment, script_json

_TEMPLATE = "compare.html.j2"


def headline(comparison: Comparison) -> str:
    """One sentence: what was compared."""
    seeds = sorted({arm.seeds for arm in comparison.arms})
    ranged = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    start = "every run begins with the default" if comparison.default_first else "no run begins with the default"
    noise = {
        "mean": "a replayed measurement is the recorded one",
        "bootstrap": "a replayed measurement is the median of recorded samples drawn with replacement",
    }[comparison.noise]
    return (
        f"{len(comparison.arms)} arms on {len(comparison.spaces)} recorded spaces, {ranged} seeds, "
        f"{comparison.trials} measurements a run; {start}; {noise}."
    )


def missing_notes(comparison: Comparison) -> list[str]:
    """What the comparison does not have, and how to add it."""
    notes = []
    if not any(arm.arm.split("/")[0] == "llm" and "simulated" not in arm.arm for arm in comparison.arms):
        notes.append(
            "There is no arm with a language model, because neither an endpoint nor a transcript was at hand. Add it "
            "with --samplers llm,… --model NAME (and --base-url URL) --transcript FILE: the transcript keeps every "
            "request and reply, and with it the same command repeats the comparison without the model."
        )
    fewest = min(arm.seeds for arm in comparison.arms)
    few = [arm.arm for arm in comparison.arms if arm.seeds == fewest]
    if fewest < max(arm.seeds for arm in comparison.arms):
        notes.append(f"Only {fewest} seeds of {', '.join(few)}, which is slow: small differences cannot be seen there.")
    return notes


def all_tables(comparison: Comparison) -> list[Table]:
    """The tables, but for the clock's."""
    spaces = [space_table(comparison, space.name) for space in comparison.spaces]
    return [overall_table(comparison), *spaces, cost_table(comparison), codec_table(comparison)]


def comparison_markdown(comparison: Comparison, runs: Sequence[Run], command: str) -> str:
    """The page of results.

    Args:
        comparison: What to show.
        runs: For the processor times, which stand in a section of their own.
        command: What made it.
    """
    overall, *rest = all_tables(comparison)
    lines = ["# Comparison of samplers", "", headline(comparison), "", "```console", command, "```", ""]
    lines += _markdown(overall)
    lines += ["## Verdicts", ""]
    lines += [f"- {verdict.text}" for verdict in comparison.verdicts]
    lines += ["", _how(), ""]
    if notes := missing_notes(comparison):
        lines += ["## What is missing", "", *(f"- {note}" for note in notes), ""]
    for table in rest:
        lines += _markdown(table)
    if failures := failure_lines(comparison):
        lines += ["## Failed runs", "", *(f"- {line}" for line in failures), ""]
    lines += _markdown(clock_table(runs))
    return "\n".join(lines).rstrip() + "\n"


def _how() -> str:
    return (
        "Wilcoxon's signed-rank test on differences of log ratios, paired by seed, two-sided. For each pair of arms "
        "Holm's correction over all spaces and the mean over them keeps the chance of any false verdict at 5 %; "
        "several pairs are several chances. *Not distinguishable* means that these runs cannot tell, not that the arms "
        "are equal."
    )


def _markdown(table: Table) -> list[str]:
    head = "| " + " | ".join(table.columns) + " |"
    rule = "|" + "|".join(["---"] + ["---:" if table.title != "Arms" else "---"] * (len(table.columns) - 1)) + "|"
    rows = ["| " + " | ".join(row) + " |" for row in table.rows]
    note = [table.note, ""] if table.note else []
    return [f"## {table.title}", "", head, rule, *rows, "", *note]


def comparison_html(comparison: Comparison) -> str:
    """The page; nothing in it depends on a clock."""
    environment = page_environment()
    environment.filters["figure"] = _figure_json
    return environment.get_template(_TEMPLATE).render(
        comparison=comparison,
        headline=headline(comparison),
        how=_how().replace("*", ""),
        tables=all_tables(comparison),
        notes=missing_notes(comparison),
        failures=failure_lines(comparison),
        figures=drawings(comparison),
        plotly=plotly.offline.get_plotlyjs(),
    )


def _figure_json(drawing: Drawing) -> Markup:
    """A figure as JSON that cannot end the script element it stands in."""
    figure: dict[str, Any] = json.loads(drawing.figure.to_json())
    figure["layout"].pop("template", None)
    return script_json({"data": figure["data"], "layout": figure["layout"]}, sort_keys=True)
