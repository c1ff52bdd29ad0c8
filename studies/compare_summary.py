"""`Comparison`: everything that tables, figures and pages show, computed from the runs and nothing else.

It holds no clock time of the machine that made it: equal runs make equal bytes. Numbers are rounded to six digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llm_sampler.studies.compare_arms import parse_arm
from llm_sampler.studies.compare_noise import Noise
from llm_sampler.studies.compare_run import Run
from llm_sampler.studies.compare_space import ComparedSpace
from llm_sampler.studies.compare_statistics import (
    CLOSE,
    VERY_CLOSE,
    Array,
    Level,
    Reach,
    checkpoints,
    geometric_level,
    level,
    ratios,
    ratios_by_asks,
    reach,
)
from llm_sampler.studies.compare_verdict import Verdict, judge

_DIGITS = 6


@dataclass(frozen=True)
class SpaceSummary:
    """A space and exact random search over it.

    Attributes:
        name: Its name.
        device: What was recorded.
        configurations: How many are allowed.
        failed: How many of them fail.
        optimum_ms: The best time.
        default_ratio: Time of the default over the optimum; None without one, or where it fails.
        close: Configurations within 5 % of the optimum.
        very_close: Configurations within 1 %.
        random: Expected ratio of random search after 1 ... T measurements.
        random_close: Expected number of the first measurement within 5 %.
        random_very_close: The same for 1 %.
    """

    name: str
    device: str
    configurations: int
    failed: int
    optimum_ms: float
    default_ratio: float | None
    close: int
    very_close: int
    random: tuple[float, ...]
    random_close: float
    random_very_close: float


@dataclass(frozen=True)
class Cell:
    """An arm on a space.

    Attributes:
        space: The space.
        arm: The arm.
        seeds: Runs.
        levels: Ratios after each checkpoint's measurements.
        ask_levels: Ratios within each checkpoint's asks.
        close: When runs came within 5 %.
        very_close: When runs came within 1 %.
        first_close: Measurements of each run to within 5 %, None where it never came there.
        first_very_close: The same for 1 %.
        mean: Mean ratio after 1 ... T measurements.
        low: First quartile over runs.
        high: Third quartile.
        asks: Mean number of asks of a run.
        replaced: Mean number of measurements that were not the arm's own proposals.
        simulated_s: Mean simulated tuning time at each checkpoint.
        llm_calls: Mean calls of a run.
        llm_tokens: Mean tokens of a run.
        llm_s: Mean seconds of calls of a run.
        failures: How many runs failed with each cause.
    """

    space: str
    arm: str
    seeds: int
    levels: tuple[Level, ...]
    ask_levels: tuple[Level, ...]
    close: Reach
    very_close: Reach
    first_close: tuple[int | None, ...]
    first_very_close: tuple[int | None, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    asks: float
    replaced: float
    simulated_s: tuple[float, ...]
    llm_calls: float
    llm_tokens: float
    llm_s: float
    failures: Mapping[str, int]


@dataclass(frozen=True)
class ArmSummary:
    """An arm over all spaces.

    Attributes:
        arm: Its text.
        description: Class, encoding and arguments.
        levels: Geometric mean over spaces of the mean ratio, at each checkpoint.
        scores: Mean score over spaces at each checkpoint, None where no space leaves room.
        close: Share of runs within 5 % at the end.
        very_close: Share of runs within 1 % at the end.
        simulated_s: Mean simulated tuning time of a run at each checkpoint.
        seeds: Runs on the space that has the fewest.
    """

    arm: str
    description: str
    levels: tuple[Level, ...]
    scores: tuple[float | None, ...]
    close: float
    very_close: float
    simulated_s: tuple[float, ...]
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """A comparison.

    Attributes:
        trials: Measurements of a run.
        noise: What a replayed measurement gave.
        default_first: Whether every run began with the default.
        baseline: The arm that verdicts compare with.
        checkpoints: Numbers of measurements that are reported.
        spaces: The spaces.
        arms: The arms over all spaces.
        cells: Each arm on each space.
        verdicts: On each arm but the baseline, for each number of measurements that is judged.
    """

    trials: int
    noise: Noise
    default_first: bool
    baseline: str
    checkpoints: tuple[int, ...]
    spaces: tuple[SpaceSummary, ...]
    arms: tuple[ArmSummary, ...]
    cells: tuple[Cell, ...]
    verdicts: tuple[Verdict, ...]

    def cell(self, space: str, arm: str) -> Cell:
        """An arm on a space."""
        return next(cell for cell in self.cells if (cell.space, cell.arm) == (space, arm))

    def verdict(self, arm: str, count: int) -> Verdict | None:
        """The verdict on an arm, None for the baseline."""
        return next((one for one in self.verdicts if (one.arm, one.count) == (arm, count)), None)


def compare(
    runs: Sequence[Run],
    spaces: Sequence[ComparedSpace],
    *,
    baseline: str,
    noise: Noise = "mean",
    default_first: bool = True,
) -> Comparison:
    """The comparison that runs make.

    Args:
        runs: Every arm on every space, with at least one seed each.
        spaces: Their spaces.
        baseline: The arm that others are compared with.
        noise: As the runs had it.
        default_first: As the runs had it.
    """
    trials = max(run.trials for run in runs)
    arms = list(dict.fromkeys(run.arm for run in runs))
    counts = checkpoints(trials)
    summaries = [_space_summary(space, trials, default_first) for space in spaces]
    curves = {
        (space.name, arm): ratios(_select(runs, space.name, arm), space, default_first=default_first)
        for space in spaces
        for arm in arms
    }
    cells = [
        _cell(arm, space, summary, _select(runs, space.name, arm), curves[space.name, arm], counts, default_first)
        for space, summary in zip(spaces, summaries, strict=True)
        for arm in arms
    ]
    names = [space.name for space in spaces]
    judged = sorted({min(20, trials), trials})
    verdicts = [
        judge(arm, baseline, count, {name: _paired(runs, curves, name, arm, baseline, count) for name in names})
        for arm in arms
        if arm != baseline
        for count in judged
    ]
    return Comparison(
        trials=trials,
        noise=noise,
        default_first=default_first,
        baseline=baseline,
        checkpoints=counts,
        spaces=tuple(summaries),
        arms=tuple(_arm_summary(arm, [c for c in cells if c.arm == arm], curves, counts) for arm in arms),
        cells=tuple(cells),
        verdicts=tuple(verdicts),
    )


def _select(runs: Sequence[Run], space: str, arm: str) -> list[Run]:
    return sorted((run for run in runs if run.space == space and run.arm == arm), key=lambda run: run.seed)


def _paired(
    runs: Sequence[Run], curves: Mapping[tuple[str, str], Array], space: str, arm: str, baseline: str, count: int
) -> tuple[Array, Array]:
    """Ratios of both arms for the seeds that both have."""
    ours, theirs = ([run.seed for run in _select(runs, space, name)] for name in (arm, baseline))
    both = sorted(set(ours) & set(theirs))
    pick = [[seeds.index(seed) for seed in both] for seeds in (ours, theirs)]
    return curves[space, arm][pick[0], count - 1], curves[space, baseline][pick[1], count - 1]


def _space_summary(space: ComparedSpace, trials: int, default_first: bool) -> SpaceSummary:
    search = space.random_search(default_first=default_first)
    expected = search.expected_best_ms(range(1, trials + 1)) / space.optimum_ms
    default_ms = None if space.default_row is None else space.times_ms[space.default_row]
    return SpaceSummary(
        name=space.name,
        device=space.recording.device_name,
        configurations=len(space.times_ms),
        failed=sum(ms is None for ms in space.times_ms),
        optimum_ms=space.optimum_ms,
        default_ratio=None if default_ms is None else default_ms / space.optimum_ms,
        close=space.within(CLOSE),
        very_close=space.within(VERY_CLOSE),
        random=tuple(float(value) for value in expected),
        random_close=search.expected_measurements(space.optimum_ms * (1 + CLOSE)),
        random_very_close=search.expected_measurements(space.optimum_ms * (1 + VERY_CLOSE)),
    )


def _cell(
    arm: str,
    space: ComparedSpace,
    summary: SpaceSummary,
    runs: Sequence[Run],
    curves: Array,
    counts: Sequence[int],
    default_first: bool,
) -> Cell:
    by_asks = ratios_by_asks(runs, space, counts, default_first=default_first)
    low, high = np.quantile(curves, (0.25, 0.75), axis=0)
    failures: dict[str, int] = {}
    for run in runs:
        if run.failure:
            failures[run.failure] = failures.get(run.failure, 0) + 1
    return Cell(
        space=space.name,
        arm=arm,
        seeds=len(runs),
        levels=tuple(level(count, curves[:, count - 1], random=summary.random[count - 1]) for count in counts),
        ask_levels=tuple(level(count, by_asks[:, index]) for index, count in enumerate(counts)),
        close=reach(curves, CLOSE),
        very_close=reach(curves, VERY_CLOSE),
        first_close=_first(curves, CLOSE),
        first_very_close=_first(curves, VERY_CLOSE),
        mean=tuple(curves.mean(axis=0).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        asks=_mean([run.asks[-1] if run.asks else 0 for run in runs]),
        replaced=_mean([run.replaced for run in runs]),
        simulated_s=tuple(_mean([_at(run.simulated_s, count) for run in runs]) for count in counts),
        llm_calls=_mean([run.llm_calls for run in runs]),
        llm_tokens=_mean([run.llm_tokens for run in runs]),
        llm_s=_mean([run.llm_s for run in runs]),
        failures=dict(sorted(failures.items())),
    )


def _first(curves: Array, share: float) -> tuple[int | None, ...]:
    within = curves <= 1.0 + share
    return tuple(int(row.argmax()) + 1 if row.any() else None for row in within)


def _at(values: Sequence[float], count: int) -> float:
    return values[min(count, len(values)) - 1] if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _arm_summary(
    arm: str, cells: Sequence[Cell], curves: Mapping[tuple[str, str], Array], counts: Sequence[int]
) -> ArmSummary:
    levels, scores = [], []
    for index, count in enumerate(counts):
        levels.append(geometric_level(count, [curves[cell.space, arm][:, count - 1] for cell in cells]))
        known = [one for cell in cells if (one := cell.levels[index].score) is not None]
        scores.append(_mean(known) if known else None)
    total = sum(cell.seeds for cell in cells)
    return ArmSummary(
        arm=arm,
        description=parse_arm(arm).description,
        levels=tuple(levels),
        scores=tuple(scores),
        close=sum(cell.close.hits for cell in cells) / total,
        very_close=sum(cell.very_close.hits for cell in cells) / total,
        simulated_s=tuple(_mean([cell.simulated_s[index] for cell in cells]) for index in range(len(counts))),
        seeds=min(cell.seeds for cell in cells),
    )


def comparison_json(comparison: Comparison, runs: Sequence[Run]) -> str:
    """The comparison and every run, as JSON text; nothing in it depends on a clock."""
    data = {
        "comparison": asdict(comparison),
        "runs": [run.to_json(with_clock=False) for run in sorted(runs, key=lambda run: run.key)],
    }
    return json.dumps(_rounded(data), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    """Six digits: sums may differ in the last bit from processor to processor."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _rounded(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(child) for child in value]
    return value
