"""A stopwatch of a GPU that is not there: noise, and clocks that drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np


class SimulatedStopwatch:
    """Times launches by a table.

    Args:
        times_ms: Each launch's time at nominal clocks.
        noise: Standard deviation of a sample, relative to it.
        drift: Amplitude of the slow change of clocks, relative.
        period: Launches in one wave of the drift.
        seed: Of the noise, and of the drift's phase.
    """

    method = "simulated"

    def __init__(
        self,
        times_ms: Mapping[Callable[[], object], float],
        *,
        noise: float = 0.01,
        drift: float = 0.0,
        period: int = 400,
        seed: int = 0,
    ) -> None:
        self.calls: list[list[Callable[[], object]]] = []
        self._table = times_ms
        self._noise, self._drift, self._period = noise, drift, period
        self._generator = np.random.default_rng(seed)
        self._clock = int(self._generator.integers(period))

    def times_ms(self, launches: Sequence[Callable[[], object]]) -> list[float]:
        self.calls.append(list(launches))
        times = []
        for launch in launches:
            self._clock += 1
            slow = 1 + self._drift * math.sin(2 * math.pi * self._clock / self._period)
            times.append(self._table[launch] * slow * (1 + self._noise * self._generator.standard_normal()))
        return times
