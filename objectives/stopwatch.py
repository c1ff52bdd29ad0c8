"""`Stopwatch`: the GPU's time for each of many launches, with L2 flushed before each of them. Times in ms.

By *queue*, the launches of a block wait behind a sleep kernel, so that the time between two events is the GPU's alone
and not that of Python's launching, which takes longer than a short kernel runs. That they did wait is checked: were
the first event over before the last launch was queued, the block is repeated behind a longer sleep, and with fewer
launches. By *graph*, a block is captured into a CUDA graph, flushes and events included, and replayed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

Launch: TypeAlias = "Callable[[], object]"
Method: TypeAlias = Literal["queue", "graph"]

# The flush writes four times an H200's L2 (60 MB), so that neither inputs nor outputs stay in it.
FLUSH_BYTES = 256 * 2**20
# The driver's queue holds 1,024 entries; flush, two events and a kernel are four, a composed reference has more.
MOST_QUEUED = 100
_SLEEP_CYCLES_PER_S = 2.0e9  # about the SM clock of recent GPUs under load
_LEAST_QUEUE_S = 5e-4
_LONGEST_QUEUE_S = 1.0
_FIRST_LAUNCH_S = 1e-4
_MOST_REPEATS = 3
_REST_S = 0.1


class TimingError(RuntimeError):
    """Launches that cannot be timed; the message says why."""


class Stopwatch(Protocol):
    """Times launches; what `timing` builds on, so that its rules can be tried on a simulated device.

    Attributes:
        method: How the last launches were timed.
    """

    @property
    def method(self) -> str: ...  # noqa: D102

    def times_ms(self, launches: Sequence[Launch]) -> list[float]:
        """Time of each launch, made in this order, each after a flush of L2."""
        ...


class Monitor(Protocol):
    """Looks at the device while a block runs."""

    def look(self) -> bool:
        """Note the device's state; False if a fault slows it down, so that the block should be repeated."""
        ...

    def forget(self) -> None:
        """Drop the last note: its block is repeated."""
        ...


class CudaStopwatch:
    """A stopwatch of the current CUDA device.

    Args:
        method: ``graph`` falls back to ``queue``, for good, at a launch that cannot be captured.
        monitor: Looks at the device in each block; one that it rejects is repeated at most three times.
    """

    def __init__(self, *, method: Method = "queue", monitor: Monitor | None = None) -> None:
        import torch

        self.method: Method = method
        self._monitor = monitor
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._launch_s = _FIRST_LAUNCH_S
        self._most_queued = MOST_QUEUED
        self._side: torch.cuda.Stream | None = None

    def times_ms(self, launches: Sequence[Launch]) -> list[float]:
        """See `Stopwatch`.

        Raises:
            TimingError: The host cannot queue launches fast enough, e.g. because one of them waits for the GPU.
        """
        times: list[float] = []
        while len(times) < len(launches):
            times += self._block(launches[len(times) : len(times) + self._most_queued])
        return times

    def _block(self, launches: Sequence[Launch]) -> list[float]:
        for repeat in range(_MOST_REPEATS + 1):
            times, undisturbed = self._by_graph(launches) if self.method == "graph" else self._by_queue(launches)
            if undisturbed or self._monitor is None or repeat == _MOST_REPEATS:
                break
            self._monitor.forget()
            time.sleep(_REST_S)
        return times

    def _look(self) -> bool:
        return self._monitor is None or self._monitor.look()

    def _by_queue(self, launches: Sequence[Launch]) -> tuple[list[float], bool]:
        """Times of as many of the launches as one block takes, and whether the device was undisturbed."""
        import torch

        failures = 0
        while True:
            launches = launches[: self._most_queued]
            queue_s = min(_LEAST_QUEUE_S + 1.5 * self._launch_s * len(launches), _LONGEST_QUEUE_S)
            while len(self._pairs) < len(launches):
                self._pairs.append(_pair())
            pairs = self._pairs[: len(launches)]
            torch.cuda._sleep(int(_SLEEP_CYCLES_PER_S * queue_s))
            started = time.perf_counter()
            for launch, (start, end) in zip(launches, pairs, strict=True):
                self._flush.zero_()
                start.record()
                launch()
                end.record()
            queued_in_time = not pairs[0][0].query()
            needed_s = time.perf_counter() - started
            if queued_in_time:
                pairs[len(pairs) // 2][0].synchronize()  # past the sleep: clocks are those of the launches
                undisturbed = self._look()
                pairs[-1][1].synchronize()
                self._launch_s = max(needed_s / len(launches), 0.7 * self._launch_s)
                return [float(start.elapsed_time(end)) for start, end in pairs], undisturbed
            torch.cuda.synchronize()
            if len(launches) == 1 and queue_s >= _LONGEST_QUEUE_S:
                raise TimingError(
                    f"queueing one launch took {needed_s:.2f} s while the GPU slept {queue_s:.2f} s: the launch must "
                    "not wait for the GPU, and the host must have a core to spare"
                )
            # Either the host was slow, or the queue was full, and the host waited for the sleep to end.
            self._launch_s = max(2 * self._launch_s, needed_s / len(launches))
            failures += 1
            if failures > 1:
                self._most_queued = max(1, len(launches) // 2)

    def _by_graph(self, launches: Sequence[Launch]) -> tuple[list[float], bool]:
        import torch

        if self._side is None:
            self._side = torch.cuda.Stream()
        pairs = [_pair(external=True) for _ in launches]
        graph = torch.cuda.CUDAGraph()
        self._side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._side):
                for launch in dict.fromkeys(launches):
                    launch()  # libraries allocate a stream's workspace at their first call, outside of the graph
                # `torch.cuda.graph` would also collect garbage and give the allocator's memory back: milliseconds.
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    for launch, (start, end) in zip(launches, pairs, strict=True):
                        self._flush.zero_()
                        start.record()
                        launch()
                        end.record()
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # the same error once more
                        graph.capture_end()
                    raise
                graph.capture_end()
        except RuntimeError:
            self.method = "queue"
            return self._by_queue(launches)
        torch.cuda.current_stream().wait_stream(self._side)
        graph.replay()
        undisturbed = self._look()
        torch.cuda.current_stream().synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairs], undisturbed


def _pair(**options: Any) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    import torch

    return torch.cuda.Event(enable_timing=True, **options), torch.cuda.Event(enable_timing=True, **options)
