"""Kernel times by CUDA events: L2 flushed before each launch, kernel and reference interleaved, medians.

All launches are queued while the GPU still waits in a sleep kernel, so that the time between two events is the
GPU's alone and not that of Python's launching, which takes longer than a short kernel runs. That it did wait is
checked: were the first event over before the last launch was queued, the block is repeated behind a longer sleep.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

# The flush writes four times an H200's L2 (60 MB), so that neither inputs nor outputs stay in it.
FLUSH_BYTES = 256 * 2**20
_SLEEP_CYCLES_PER_S = 2.0e9  # about the SM clock of recent GPUs under load
_FIRST_QUEUE_S = 1e-3
_LONGEST_QUEUE_S = 2.0


@dataclass(frozen=True)
class TimingSettings:
    """How long to measure.

    Attributes:
        samples: Timed launches of the kernel, fewer if they would take longer than ``budget_ms``.
        min_samples: Timed launches at least.
        budget_ms: About how long the timed launches may take together, in ms.
        reference_every: One timed launch of the reference for so many of the kernel.
    """

    samples: int = 20
    min_samples: int = 5
    budget_ms: float = 100.0
    reference_every: int = 2


@dataclass(frozen=True)
class Timing:
    """Times in ms, in the order they were taken."""

    samples: tuple[float, ...]
    reference_samples: tuple[float, ...]

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


def time_interleaved(kernel: Callable[[], object], reference: Callable[[], object], settings: TimingSettings) -> Timing:
    """Time a kernel and the reference in one block on the current CUDA device.

    Args:
        kernel: Launches the kernel once; already compiled.
        reference: Launches the reference once.
        settings: How long to measure.
    """
    import torch

    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    queue_s = _FIRST_QUEUE_S

    def run(launches: list[Callable[[], object]]) -> list[float]:
        nonlocal queue_s
        while True:
            pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in launches]
            torch.cuda._sleep(int(_SLEEP_CYCLES_PER_S * queue_s))
            started = time.perf_counter()
            for launch, (start, end) in zip(launches, pairs, strict=True):
                flush.zero_()
                start.record()
                launch()
                end.record()
            queued_in_time = not pairs[0][0].query()
            needed_s = time.perf_counter() - started
            torch.cuda.synchronize()
            if queued_in_time:
                return [float(start.elapsed_time(end)) for start, end in pairs]
            if queue_s >= _LONGEST_QUEUE_S:
                raise RuntimeError(
                    f"queueing {len(launches)} launches took {needed_s:.2f} s: the host is too busy to time"
                )
            queue_s = min(max(2 * queue_s, 1.5 * needed_s), _LONGEST_QUEUE_S)

    # The first launches bring clocks up and fill instruction caches; the later estimate the time.
    estimate_ms = max(run([kernel, reference, kernel, reference, kernel])[2::2])
    count = int(min(settings.samples, max(settings.min_samples, settings.budget_ms / max(estimate_ms, 1e-3))))
    launches: list[Callable[[], object]] = []
    for index in range(count):
        if index % settings.reference_every == 0:
            launches.append(reference)
        launches.append(kernel)
    times = run(launches)
    return Timing(
        samples=tuple(ms for ms, launch in zip(times, launches, strict=True) if launch is kernel),
        reference_samples=tuple(ms for ms, launch in zip(times, launches, strict=True) if launch is reference),
    )
