"""The tables of a comparison as rows of text: what terminal, page and Markdown show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_sampler.studies.compare_run import Run
from llm_sampler.studies.compare_statistics import Level, Reach
from llm_sampler.studies.compare_summary import Cell, Comparison

_MOST_RATIO = 100.0


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: Heading.
        columns: Names; the first is of text, the others of numbers.
        rows: Cells.
        note: How to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def overall_table(comparison: Comparison) -> Table:
    """Every arm over all spaces, the best at the end first."""
    last = comparison.checkpoints[-1]
    arms = sorted(comparison.arms, key=lambda arm: arm.levels[-1].mean)
    rows = []
    for arm in arms:
        means = [_ratio(one.mean) for one in arm.levels]
        end = arm.levels[-1]
        rows.append(
            (
                arm.arm,
                f"{arm.seeds}",
                *means,
                f"{_ratio(end.low)} to {_ratio(end.high)}",
                _score(arm.scores[-1]),
                f"{100 * arm.close:.0f} %",
                f"{100 * arm.very_close:.0f} %",
            )
        )
    exact = ["random, exact", "all"]
    for count in comparison.checkpoints:
        product = 1.0
        for space in comparison.spaces:
            product *= space.random[count - 1]
        exact.append(_ratio(product ** (1 / len(comparison.spaces))))
    rows.append((*exact, "", "0", "", ""))
    return Table(
        f"All spaces: time over the optimum after {', '.join(map(str, comparison.checkpoints))} measurements",
        (
            "arm",
            "seeds",
            *(f"at {count}" for count in comparison.checkpoints),
            f"95 % interval at {last}",
            f"score at {last}",
            "within 5 %",
            "within 1 %",
        ),
        tuple(rows),
        "Geometric mean over spaces of the mean over seeds, with a bootstrap interval over seeds. The score is 0 for "
        "the exact expectation of random search and 1 for the optimum, averaged over spaces. Last: share of runs that "
        "came there.",
    )


def space_table(comparison: Comparison, name: str) -> Table:
    """Every arm on one space."""
    space = next(one for one in comparison.spaces if one.name == name)
    cells = sorted((cell for cell in comparison.cells if cell.space == name), key=lambda cell: cell.levels[-1].mean)
    rows = [
        (
            cell.arm,
            *(_ratio(one.mean) for one in cell.levels),
            _ratio(cell.levels[-1].median),
            f"{_ratio(cell.levels[-1].low)} to {_ratio(cell.levels[-1].high)}",
            _score(cell.levels[-1].score),
            _reach(cell.close, comparison.trials),
            f"{cell.close.hits}/{cell.seeds}",
            _reach(cell.very_close, comparison.trials),
            f"{cell.very_close.hits}/{cell.seeds}",
        )
        for cell in cells
    ]
    exact = [_ratio(space.random[count - 1]) for count in comparison.checkpoints]
    rows.append(
        (
            "random, exact",
            *exact,
            "",
            "",
            "0",
            f"mean {space.random_close:.0f}",
            "",
            f"mean {space.random_very_close:.0f}",
            "",
        )
    )
    last = comparison.checkpoints[-1]
    default = "" if space.default_ratio is None else f", default {_ratio(space.default_ratio)}"
    return Table(
        f"{name}: {space.configurations:,} configurations, {space.failed} fail, "
        f"{space.close} within 5 %, {space.very_close} within 1 %{default}",
        (
            "arm",
            *(f"at {count}" for count in comparison.checkpoints),
            f"median at {last}",
            f"95 % interval at {last}",
            f"score at {last}",
            "to 5 %",
            "hits",
            "to 1 %",
            "hits",
        ),
        tuple(rows),
        "To 5 %, to 1 %: median number of measurements; > where more than half of the runs never came there.",
    )


def cost_table(comparison: Comparison) -> Table:
    """What a run of each arm takes, apart from the clock."""
    last = len(comparison.checkpoints) - 1
    rows = []
    for arm in comparison.arms:
        cells = [cell for cell in comparison.cells if cell.arm == arm.arm]
        levels = [cell.ask_levels[last] for cell in cells]
        rows.append(
            (
                arm.arm,
                f"{_mean(cells, 'asks'):.0f}",
                f"{_mean(cells, 'replaced'):.0f}",
                _ratio(_geometric(levels)),
                f"{_mean(cells, 'llm_calls'):.1f}",
                f"{_mean(cells, 'llm_tokens'):,.0f}",
                f"{_mean(cells, 'llm_s'):.1f}",
                f"{arm.simulated_s[last]:.1f}",
                f"{sum(sum(cell.failures.values()) for cell in cells)}",
            )
        )
    count = comparison.checkpoints[-1]
    return Table(
        f"What a run of {count} measurements takes (mean over runs)",
        (
            "arm",
            "asks",
            "replaced",
            f"at {count} asks",
            "LLM calls",
            "LLM tokens",
            "LLM seconds",
            "tuning seconds",
            "failed runs",
        ),
        tuple(rows),
        "Asks: draws of the sampler, those that were taken or forbidden included, and proposals of a language model "
        "that were rejected. Replaced: measurements of the nearest free configuration because every draw was taken or "
        "forbidden. Failed configurations count as measurements. Tuning seconds are simulated: recorded compiling and "
        "measuring, plus waiting for the model.",
    )


def clock_table(runs: Sequence[Run]) -> Table:
    """What the samplers themselves took on the machine that made the runs."""
    rows = []
    for arm in dict.fromkeys(run.arm for run in runs):
        ours = [run for run in runs if run.arm == arm and run.clock and run.rows]
        if ours:
            cpu = sum(run.clock["sampler_cpu_s"] for run in ours) / len(ours)
            per = 1e3 * cpu / (sum(len(run.rows) for run in ours) / len(ours))
            rows.append((arm, f"{cpu:.2f}", f"{per:.1f}"))
    return Table(
        "Processor time of the samplers, on the machine that made the runs",
        ("arm", "CPU seconds a run", "ms a measurement"),
        tuple(rows),
    )


def codec_table(comparison: Comparison) -> Table:
    """What each arm is."""
    return Table("Arms", ("arm", "what it is"), tuple((arm.arm, arm.description) for arm in comparison.arms))


def failure_lines(comparison: Comparison) -> list[str]:
    """Every cause of failed runs, with counts."""
    return [
        f"{cell.arm} on {cell.space}: {count} of {cell.seeds} runs: {cause}"
        for cell in comparison.cells
        for cause, count in cell.failures.items()
    ]


def _mean(cells: Sequence[Cell], name: str) -> float:
    return float(sum(getattr(cell, name) for cell in cells) / len(cells))


def _geometric(levels: Sequence[Level]) -> float:
    product = 1.0
    for one in levels:
        product *= one.mean
    return float(product ** (1 / len(levels)))


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < _MOST_RATIO else f"{value:.0f}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _reach(found: Reach, trials: int) -> str:
    return f"> {trials}" if found.median is None else f"{found.median:.0f}"
