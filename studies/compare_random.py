"""Random search without replacement, exactly: what any sampler has to beat.

Notation: N configurations remain to be drawn, ranked by time, those that fail last; M are drawn. The best of the draws
has rank i (from 1) with probability ``C(N-i, M-1) / C(N, M)``, which equals ``survive[i-1] * M / (N-i+1)`` where
``survive[i] = C(N-i, M) / C(N, M)`` is the probability that none of the best i is drawn. The products below never leave
[0, 1] and subtract nothing, so they hold for any N; binomial coefficients of thousands do not fit a float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RandomSearch:
    """Random search over a recorded space.

    Attributes:
        times_ms: Time of every configuration, None where it fails.
        first: Index of the configuration that is measured first (the default), None if the first is drawn as well.
    """

    times_ms: Sequence[float | None]
    first: int | None = None

    def expected_best_ms(self, measurements: Sequence[int]) -> NDArray[np.float64]:
        """Expected time of the best of the first M measurements, for each M [B].

        Failures yield nothing. Where all M may fail, the expectation is over searches that measured a time.

        Args:
            measurements: How many configurations are measured, from 1; more than there are count as all.

        Returns:
            Times in ms; nan where nothing can have been measured.
        """
        first_ms = None if self.first is None else self.times_ms[self.first]
        rest = self._rest()
        times = np.sort(np.array([ms for ms in rest if ms is not None], dtype=float))
        if first_ms is not None:
            times = np.minimum(times, first_ms)
        found = np.empty(len(measurements))
        for index, count in enumerate(measurements):
            drawn = min(count, len(self.times_ms)) - (self.first is not None)
            survive = _survive(len(rest), drawn, len(times))
            hits = survive[:-1] * drawn / (len(rest) - np.arange(len(times)))
            total = float(hits @ times)
            none = float(survive[-1])
            if first_ms is not None:
                found[index] = total + none * first_ms
            else:
                found[index] = total / (1.0 - none) if none < 1.0 else math.nan
        return found

    def hit_rates(self, limit_ms: float, measurements: Sequence[int]) -> NDArray[np.float64]:
        """Probability that one of the first M measurements is at most ``limit_ms``, for each M [B]."""
        first_ms = None if self.first is None else self.times_ms[self.first]
        if first_ms is not None and first_ms <= limit_ms:
            return np.ones(len(measurements))
        rest = self._rest()
        targets = sum(ms is not None and ms <= limit_ms for ms in rest)
        drawn = [min(count, len(self.times_ms)) - (self.first is not None) for count in measurements]
        return np.array([1.0 - _survive(len(rest), count, targets)[-1] for count in drawn])

    def expected_measurements(self, limit_ms: float) -> float:
        """Expected number of the first measurement that is at most ``limit_ms``; infinite if there is none.

        Among N configurations with k targets in random order the first target stands at (N+1)/(k+1) on average.
        """
        first_ms = None if self.first is None else self.times_ms[self.first]
        if first_ms is not None and first_ms <= limit_ms:
            return 1.0
        rest = self._rest()
        targets = sum(ms is not None and ms <= limit_ms for ms in rest)
        return math.inf if not targets else (self.first is not None) + (len(rest) + 1) / (targets + 1)

    def _rest(self) -> list[float | None]:
        return [ms for index, ms in enumerate(self.times_ms) if index != self.first]


def _survive(size: int, drawn: int, ranks: int) -> NDArray[np.float64]:
    """Probability that none of the best i of ``size`` is among ``drawn`` draws, for i = 0 ... ranks [ranks + 1]."""
    left = size - np.arange(ranks)
    factors = np.clip(left - drawn, 0, None) / left
    return np.concatenate([[1.0], np.cumprod(factors)])
