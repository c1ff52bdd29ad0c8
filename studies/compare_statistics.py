"""What runs achieved: curves, summaries with intervals, and evaluations to within a share of the optimum.

Notation: S seeds, T measurements. A *ratio* is the recorded time of the incumbent over the recorded optimum; the
incumbent is the configuration with the best time that the sampler was told. With noise the two differ, and the
ratio judges what was really found. A run that ended early keeps what it had; one that measured nothing has the default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_sampler.studies.compare_run import Run
from llm_sampler.studies.compare_space import ComparedSpace

Array = NDArray[np.float64]

CHECKPOINTS = (5, 10, 20, 50, 100, 200)
CLOSE = 0.05
VERY_CLOSE = 0.01
_RESAMPLES = 2_000
# 95 % of the bootstrap distribution lie between these.
_QUANTILES = (0.025, 0.975)
# Below this there is no room between random search and the optimum, and the score would be noise.
_LEAST_ROOM = 1e-3


@dataclass(frozen=True)
class Level:
    """An arm's ratios after so many measurements (or asks).

    Attributes:
        count: How many.
        mean: Over seeds.
        median: Over seeds.
        low: Lower end of the 95 % bootstrap interval of the mean.
        high: Upper end.
        score: 0 for the exact expectation of random search, 1 for the optimum; None where they are equal.
    """

    count: int
    mean: float
    median: float
    low: float
    high: float
    score: float | None = None


@dataclass(frozen=True)
class Reach:
    """When an arm came within a share of the optimum.

    Attributes:
        share: The share, e.g. 0.05.
        median: Median number of measurements over seeds, None where more than half of the runs never did.
        low: First quartile, None as above.
        high: Third quartile, None as above.
        mean_censored: Mean number, with T for the runs that never did: a lower bound.
        hits: How many runs did.
        runs: How many there were.
    """

    share: float
    median: float | None
    low: float | None
    high: float | None
    mean_censored: float
    hits: int
    runs: int


def checkpoints(trials: int) -> tuple[int, ...]:
    """The numbers of measurements that are reported, the last one included."""
    return tuple(sorted({count for count in CHECKPOINTS if count < trials} | {trials}))


def ratios(runs: Sequence[Run], space: ComparedSpace, *, default_first: bool) -> Array:
    """Ratio after each measurement, for each run [S, T]."""
    found = []
    for run in runs:
        curve = _curve(run, space, default_first)
        found.append(curve[np.minimum(np.arange(1, run.trials + 1), len(curve) - 1)])
    return np.array(found)


def ratios_by_asks(runs: Sequence[Run], space: ComparedSpace, asks: Sequence[int], *, default_first: bool) -> Array:
    """Ratio within each number of asks, for each run [S, B]."""
    found = []
    for run in runs:
        curve = _curve(run, space, default_first)
        found.append([curve[int(np.searchsorted(run.asks, count, side="right"))] for count in asks])
    return np.array(found)


def _curve(run: Run, space: ComparedSpace, default_first: bool) -> Array:
    """Ratio after 0, 1, ... measurements [measurements + 1]."""
    times = space.times_ms
    worst = max(ms for ms in times if ms is not None)
    default_ms = times[space.default_row] if default_first and space.default_row is not None else None
    current, best_observed = default_ms or worst, math.inf
    curve = [current]
    for row, observed in zip(run.rows, run.observed_ms, strict=True):
        if observed is not None and observed < best_observed:
            best_observed = observed
            current = times[row] or worst
        curve.append(current)
    return np.array(curve) / space.optimum_ms


def level(count: int, values: Array, *, random: float | None = None) -> Level:
    """Summary of the ratios of one arm after ``count`` measurements.

    Args:
        count: Measurements.
        values: Ratios [S].
        random: Expected ratio of random search, None to leave the score out.
    """
    mean = float(values.mean())
    rng = np.random.default_rng(count)
    means = rng.choice(values, size=(_RESAMPLES, len(values))).mean(axis=1)
    low, high = (float(value) for value in np.quantile(means, _QUANTILES))
    return Level(count, mean, float(np.median(values)), low, high, score(mean, random))


def score(ratio: float, random: float | None) -> float | None:
    """How far an arm is on the way from random search to the optimum; negative if it is worse than random."""
    if random is None or random - 1.0 < _LEAST_ROOM:
        return None
    return (random - ratio) / (random - 1.0)


def reach(curves: Array, share: float) -> Reach:
    """When runs came within a share of the optimum.

    All runs are censored at the same T, so the product-limit estimate of the distribution is the empirical one and its
    quantiles up to the share of hits are those of the sample.

    Args:
        curves: Ratios [S, T].
        share: E.g. 0.05.
    """
    within = curves <= 1.0 + share
    hit = within.any(axis=1)
    first = np.where(hit, within.argmax(axis=1) + 1.0, math.inf)
    ends = np.quantile(first, (0.25, 0.5, 0.75), method="inverted_cdf")
    low, median, high = (float(value) if math.isfinite(value) else None for value in ends)
    censored = np.where(hit, first, curves.shape[1])
    return Reach(share, median, low, high, float(censored.mean()), int(hit.sum()), len(curves))


def geometric_level(count: int, values: Sequence[Array]) -> Level:
    """Geometric mean over spaces of the mean ratio, with a bootstrap interval over the seeds of each space.

    Args:
        count: Measurements.
        values: Ratios of each space [S].
    """
    rng = np.random.default_rng(count)
    means = np.array([rng.choice(v, size=(_RESAMPLES, len(v))).mean(axis=1) for v in values])
    low, high = (float(value) for value in np.quantile(np.exp(np.log(means).mean(axis=0)), _QUANTILES))
    mean = float(np.exp(np.mean([np.log(v.mean()) for v in values])))
    median = float(np.exp(np.mean([np.log(np.median(v)) for v in values])))
    return Level(count, mean, median, low, high)
