"""Which launches to time, how often, and when to stop: rounds of several kernels, or a kernel beside its reference.

Times in ms. What measures one launch is a `Stopwatch`; everything here is arithmetic on its times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llm_sampler.objectives.intervals import median_interval
from llm_sampler.objectives.stopwatch import FLUSH_BYTES, Launch, Stopwatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Why a measurement stopped: clearly worse than the incumbent, precise enough, or its samples or time were used up.
Stopped = Literal["worse", "precise", "samples", "time"]


@dataclass(frozen=True)
class TimingSettings:
    """How long to time a configuration.

    Attributes:
        least_samples: Timed launches before anything is decided; six give the first interval of a median. Enough
            precision is not decided before twice as many.
        most_samples: Timed launches at most.
        budget_ms: Once the timed launches have taken so long, ms, none is added.
        contender_budget_ms: The same for what may be the best: its interval does not lie above the incumbent's time.
        precision: Enough is a 95 % interval of the median this narrow, relative to the median.
        worse: Enough is an interval wholly above the incumbent's time by this share of it. An H200's clocks make the
            same kernel drift by 10 % between two measurements.
        reference_every: One timed launch of the reference for so many of the kernel.
    """

    least_samples: int = 6
    most_samples: int = 60
    budget_ms: float = 40.0
    contender_budget_ms: float = 160.0
    precision: float = 0.01
    worse: float = 0.15
    reference_every: int = 2

    @property
    def text(self) -> str:
        """In one line, as each measurement carries it."""
        return (
            f"{self.least_samples} to {self.most_samples} samples in {self.budget_ms:g} ms, "
            f"{self.contender_budget_ms:g} for contenders, "
            f"enough at {100 * self.precision:g} % or {100 * self.worse:g} % worse, "
            f"reference every {self.reference_every}, {FLUSH_BYTES // 2**20} MiB flushed"
        )

    def to_json(self) -> dict[str, int | float]:
        """As JSON types, with the size of the flush."""
        return {
            "least_samples": self.least_samples,
            "most_samples": self.most_samples,
            "budget_ms": self.budget_ms,
            "contender_budget_ms": self.contender_budget_ms,
            "precision": self.precision,
            "worse": self.worse,
            "reference_every": self.reference_every,
            "flush_bytes": FLUSH_BYTES,
        }


@dataclass(frozen=True)
class Timing:
    """Times in ms, in the order they were taken.

    Attributes:
        samples: The kernel's.
        reference_samples: The reference's, interleaved.
        stopped: Why there are no more.
        method: The stopwatch's.
    """

    samples: tuple[float, ...]
    reference_samples: tuple[float, ...]
    stopped: Stopped
    method: str

    @property
    def median_ms(self) -> float:
        """Median of the kernel's samples."""
        return statistics.median(self.samples)

    @property
    def reference_ms(self) -> float:
        """Median of the reference's samples."""
        return statistics.median(self.reference_samples)

    def percentile_ms(self, percent: float) -> float:
        """A percentile of the kernel's samples, linearly interpolated."""
        import numpy as np

        return float(np.percentile(self.samples, percent))


def time_rounds(
    launches: Sequence[Launch], *, rounds: int, stopwatch: Stopwatch | None = None, warm_up_rounds: int = 1
) -> NDArray[np.float64]:
    """Time several launches side by side: each once a round, in an order of the round's own.

    Drift of clocks reaches all of them alike, so that differences and ratios within a round hold; none of them always
    follows the same other one.

    Args:
        launches: Each launches one kernel, or whatever is compared, once; already compiled.
        rounds: Timed rounds.
        stopwatch: What times them; by default a `CudaStopwatch` of the current device.
        warm_up_rounds: Rounds before, which bring clocks up and fill caches and do not count.

    Returns:
        Times in ms, [rounds, launches].

    Raises:
        TimingError: See `CudaStopwatch.times_ms`.
    """
    import numpy as np

    from llm_sampler.objectives.stopwatch import CudaStopwatch

    watch = stopwatch if stopwatch is not None else CudaStopwatch()
    generator = np.random.default_rng(0)
    orders = np.array([generator.permutation(len(launches)) for _ in range(warm_up_rounds + rounds)])
    taken = watch.times_ms([launches[index] for index in orders.ravel()])
    times = np.empty(orders.shape)
    np.put_along_axis(times, orders, np.array(taken).reshape(orders.shape), axis=1)
    return times[warm_up_rounds:]


def time_beside_reference(
    kernel: Launch,
    reference: Launch,
    *,
    stopwatch: Stopwatch,
    settings: TimingSettings,
    incumbent_ms: float | None = None,
) -> Timing:
    """Time a kernel and, interleaved, its reference, until `enough`.

    Args:
        kernel: Launches the kernel once; already compiled.
        reference: Launches the reference once.
        stopwatch: What times them.
        settings: How long.
        incumbent_ms: Least time known of the problem; None if there is none.

    Raises:
        TimingError: See `CudaStopwatch.times_ms`.
    """
    stopwatch.times_ms([kernel, reference])  # clocks and caches; does not count
    samples: list[float] = []
    reference_samples: list[float] = []
    stopped: Stopped | None = None
    while stopped is None:
        count = next_samples(samples, sum(samples) + sum(reference_samples), settings, incumbent_ms)
        launches = [
            launch
            for index in range(len(samples), len(samples) + count)
            for launch in ((reference, kernel) if index % settings.reference_every == 0 else (kernel,))
        ]
        for launch, ms in zip(launches, stopwatch.times_ms(launches), strict=True):
            (samples if launch is kernel else reference_samples).append(ms)
        stopped = enough(samples, sum(samples) + sum(reference_samples), settings, incumbent_ms)
    return Timing(tuple(samples), tuple(reference_samples), stopped, stopwatch.method)


def enough(
    samples: Sequence[float], spent_ms: float, settings: TimingSettings, incumbent_ms: float | None
) -> Stopped | None:
    """Why these samples of a kernel are enough; None if they are not.

    Args:
        samples: Times in ms.
        spent_ms: Time of all launches so far, the reference's included.
        settings: The rule.
        incumbent_ms: Least time known of the problem; None if there is none.
    """
    interval = median_interval(samples)
    if interval is not None and len(samples) >= settings.least_samples:
        low, high = interval
        if incumbent_ms is not None and low > (1 + settings.worse) * incumbent_ms:
            return "worse"
        # Of six samples some lie together by chance: that look would make the interval hold in 94.6 % only (simulated).
        twice_as_many = len(samples) >= 2 * settings.least_samples
        if twice_as_many and high - low <= settings.precision * statistics.median(samples):
            return "precise"
    if len(samples) >= settings.most_samples:
        return "samples"
    if len(samples) >= settings.least_samples and spent_ms >= _budget_ms(samples, settings, incumbent_ms):
        return "time"
    return None


def next_samples(
    samples: Sequence[float], spent_ms: float, settings: TimingSettings, incumbent_ms: float | None
) -> int:
    """How many samples the next block takes: few at first, then as many again, within what is left.

    Each look at the samples costs a wait for the GPU, so blocks grow.
    """
    if not samples:
        return settings.least_samples
    left_ms = _budget_ms(samples, settings, incumbent_ms) - spent_ms
    affordable = int(left_ms * len(samples) / max(spent_ms, 1e-3))
    return max(1, min(len(samples), affordable, settings.most_samples - len(samples)))


def _budget_ms(samples: Sequence[float], settings: TimingSettings, incumbent_ms: float | None) -> float:
    interval = median_interval(samples)
    worse = incumbent_ms is not None and interval is not None and interval[0] > incumbent_ms
    return settings.budget_ms if worse else settings.contender_budget_ms
