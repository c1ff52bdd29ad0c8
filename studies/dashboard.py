"""What a dashboard says about a kernel's study beyond its trials: notes in Markdown and the speedups' figure.

Foreign text (an LLM's rationale, a kernel's name) is escaped, so that it shows as the characters that it is.
"""

from __future__ import annotations

import html
import itertools
import re
import statistics
from collections.abc import Sequence

import plotly.graph_objects as go

from llm_sampler.studies.entry import Entry
from llm_sampler.studies.records import TrialRecord, best_first
from llm_sampler.studies.report_figures import look, rank_of
from llm_sampler.studies.report_words import ms, pairs, times
from llm_sampler.studies.result import find_baseline, reference_speedup
from llm_sampler.task import Task

# Every ASCII punctuation mark may be escaped (CommonMark 2.4).
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_HOW_TO_READ = """\
The value is the median time in ms: less is better. `kernel:speedup` compares with the default configuration.

| state | meaning |
|---|---|
| Complete | measured, and its result is right |
| Pruned | the configuration failed; `kernel:status` says how. It has no value and is never the best |
| Fail | lost with its process; its configuration is measured again by another trial |

`llm_sampler:proposed_by` says who proposed a trial. The note of an LLM's trial is its reason; requests and replies
are artifacts of the trials that noted them.
"""


def escaped(text: str) -> str:
    """Foreign text for Markdown: one line, no markup, no links, no HTML."""
    # An invisible word joiner keeps GitHub's bare links, which no escape prevents, from being recognized.
    bare = re.sub(r"(://|www|@)", "\\1\u2060", " ".join(text.split()))
    return _PUNCTUATION.sub(r"\\\1", bare)


def study_note(entry: Entry, task: Task, records: Sequence[TrialRecord]) -> str:
    """What a study is about, how it stands, and how to read it."""
    done = [record for record in records if record.measured]
    lines = [f"# {escaped(entry.title)}", escaped(task.description)]
    baseline, best = find_baseline(records, task.space), next(iter(best_first(done)), None)
    if best is not None and best.median_ms is not None:
        compared = []
        if baseline is not None and baseline.median_ms is not None:
            compared.append(f"{times(baseline.median_ms / best.median_ms)} as fast as the default")
        if (versus := reference_speedup(best, None)) is not None:
            compared.append(f"{times(versus)} as fast as PyTorch")
        who = f", proposed by {escaped(best.proposed_by)}" if best.proposed_by else ""
        lines.append(f"**Best so far: {ms(best.median_ms)}**, {', '.join(compared)} (trial {best.number}{who}):")
        lines.append(escaped(pairs(best.configuration)))
    failed = sum(not record.ok for record in done)
    calls = sum(len(record.llm_calls) for record in records)
    tokens = sum(call.tokens for record in records for call in record.llm_calls)
    llm = f" {calls} calls of an LLM, {tokens:,} tokens." if calls else ""
    lines.append(f"{len(done):,} configurations are measured, {failed:,} of them failed.{llm}")
    lines.append(_HOW_TO_READ)
    return "\n\n".join(filter(None, lines))


def trial_note(record: TrialRecord) -> str:
    """Why the LLM proposed a trial, and what became of it; empty where the LLM gave no reason."""
    if not record.rationale:
        return ""
    family = f" ({escaped(record.family)})" if record.family else ""
    lines = [f"**Why{family}:** {escaped(record.rationale)}"]
    if record.changes:
        lines.append(f"**Changed by the checks:** {escaped(record.changes)}")
    measurement = record.measurement
    if record.median_ms is not None:
        versus = [f"{times(record.speedup)} as fast as the default"] if record.speedup is not None else []
        if (ratio := reference_speedup(record, None)) is not None:
            versus.append(f"{times(ratio)} as fast as PyTorch")
        lines.append(f"**Outcome:** {', '.join([ms(record.median_ms), *versus])}")
    elif record.status:
        detail = f": {escaped(measurement.detail)}" if measurement is not None and measurement.detail else ""
        lines.append(f"**Outcome:** {escaped(record.status)}{detail}")
    return "\n\n".join(lines)


def speedup_figure(records: Sequence[TrialRecord], default_ms: float) -> go.Figure:
    """Speedups over the default configuration: a marker a trial, by who proposed it; and the best so far."""
    timed = [(record, default_ms / record.median_ms) for record in records if record.median_ms]
    figure = go.Figure()
    for name in sorted({record.proposed_by for record, _ in timed}, key=rank_of):
        own = [(record, speedup) for record, speedup in timed if record.proposed_by == name]
        colour, symbol = look(name)
        figure.add_scatter(
            x=[record.number for record, _ in own],
            y=[round(speedup, 4) for _, speedup in own],
            mode="markers",
            name=f"{html.escape(name or 'unknown')} ({len(own)})",
            marker={"color": colour, "symbol": symbol, "size": 8},
        )
    if timed:
        numbers = [record.number for record, _ in timed]
        best = [round(speedup, 4) for speedup in itertools.accumulate((speedup for _, speedup in timed), max)]
        line = {"shape": "hv", "width": 2, "color": "#888888"}
        figure.add_scatter(x=numbers, y=best, mode="lines", name="best so far", line=line)
        references = [r.measurement.reference_ms for r, _ in timed if r.measurement and r.measurement.reference_ms]
        if references:
            level = round(default_ms / statistics.median(references), 4)
            line = {"dash": "dash", "width": 1.5, "color": "#888888"}
            figure.add_scatter(x=[numbers[0], numbers[-1]], y=[level] * 2, mode="lines", name="PyTorch", line=line)
    figure.update_layout(
        title="Speedup over the default configuration", xaxis_title="trial", yaxis_title="times as fast as the default"
    )
    return figure
