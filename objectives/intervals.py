"""Intervals of medians, as reports show them. Times in ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

_CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """An interval that holds the median with at least 95 % confidence, whatever the distribution.

    It ends at order statistics, the k-th least and the k-th largest sample, with the largest k for which
    ``P(Binomial(n, 1/2) < k)`` is at most 2.5 % (H. A. David and H. N. Nagaraja, Order Statistics, section 7.1). It
    knows the spread within a measurement, not the drift between two.

    Returns:
        None for fewer than six samples, which bound no such interval.
    """
    n = len(samples)
    tail = (1 - _CONFIDENCE) / 2
    k, below = 0, 0.0
    while k < n:
        below += math.comb(n, k) / 2**n
        if below > tail:
            break
        k += 1
    if k == 0:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[n - k]


def overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Whether two intervals have a point in common; intervals that nobody knows have none."""
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]
