"""What NVML says, parsed; a scripted library stands where the driver's is, which needs a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llm_sampler.objectives import stopwatch
from llm_sampler.objectives.clocks import ClockMonitor


class Library:
    """Answers like ``pynvml``; a question whose answer is None is refused."""

    class NVMLError(Exception):
        pass

    class NVMLError_FunctionNotFound(NVMLError):  # noqa: N801 - pynvml's name
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **answers: Any) -> None:
        self.answers = {"sm": 1980, "memory": 3201, "temperature": 41, "power": 512_345, "reasons": 0, **answers}
        self.asked: list[str] = []

    def _answer(self, name: str) -> Any:
        self.asked.append(name)
        if self.answers[name] is None:
            raise self.NVMLError("not supported")
        return self.answers[name]

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> Any:  # noqa: N802
        assert handle == "gpu"
        return self._answer({1: "sm", 2: "memory"}[clock])

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> Any:  # noqa: N802
        return self._answer("temperature")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:  # noqa: N802
        return self._answer("power")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> Any:  # noqa: N802
        raise self.NVMLError_FunctionNotFound

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> Any:  # noqa: N802
        return self._answer("reasons")


def test_a_summary_has_the_least_clocks_and_the_greatest_temperature_and_power() -> None:
    library = Library()
    monitor = ClockMonitor(library, "gpu")
    assert monitor.look()
    library.answers |= {"sm": 1755, "temperature": 55, "power": 700_000, "reasons": 0x4 | 0x1}
    assert monitor.look()
    expected = {"sm_mhz": 1755, "memory_mhz": 3201, "temperature_c": 55, "power_w": 700.0, "slowed_by": "sw_power_cap"}
    assert monitor.summary() == expected
    monitor.clear()
    assert monitor.summary() == {}


@pytest.mark.parametrize(
    ("bits", "undisturbed"),
    [(0x0, True), (0x1, True), (0x2, True), (0x4, True), (0x8, False), (0x20, False), (0x40, False), (0x84, False)],
)
def test_only_faults_of_the_machine_ask_for_a_repetition(bits: int, undisturbed: bool) -> None:
    assert ClockMonitor(Library(reasons=bits), "gpu").look() == undisturbed


def test_a_repeated_block_leaves_no_trace() -> None:
    library = Library(reasons=0x40, sm=300)
    monitor = ClockMonitor(library, "gpu")
    assert not monitor.look()
    monitor.forget()
    library.answers |= {"reasons": 0, "sm": 1980}
    assert monitor.look()
    assert monitor.summary()["sm_mhz"] == 1980
    assert "slowed_by" not in monitor.summary()


def test_what_is_refused_is_unknown_and_not_asked_again() -> None:
    library = Library(power=None, reasons=None)
    monitor = ClockMonitor(library, "gpu")
    assert monitor.look() and monitor.look()
    assert monitor.summary() == {"sm_mhz": 1980, "memory_mhz": 3201, "temperature_c": 41}
    assert library.asked.count("power") == 1
    assert library.asked.count("sm") == 2


def test_without_the_library_everything_is_unknown() -> None:
    monitor = ClockMonitor()
    assert monitor.look()
    assert monitor.summary() == {}


class Blocks(stopwatch.CudaStopwatch):
    """Blocks that take as many ms as there were blocks; no GPU."""

    def __init__(self, monitor: ClockMonitor, reasons: list[int]) -> None:
        self.method = "queue"
        self._monitor = monitor
        self._most_queued = 4
        self._reasons = reasons
        self._blocks = 0

    def _by_queue(self, launches: Sequence[stopwatch.Launch]) -> tuple[list[float], bool]:
        self._monitor._library.answers["reasons"] = self._reasons[self._blocks]  # type: ignore[union-attr]
        self._blocks += 1
        return [float(self._blocks)] * len(launches), self._look()


def launch() -> None:
    """Stands for a launch."""


def test_a_throttled_block_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_REST_S", 0.0)
    monitor = ClockMonitor(Library(), "gpu")
    watch = Blocks(monitor, [0x40, 0x08, 0x04, 0x0])
    assert watch.times_ms([launch] * 6) == [3.0] * 4 + [4.0] * 2
    assert monitor.summary()["slowed_by"] == "sw_power_cap"


def test_a_block_that_stays_throttled_is_kept_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_REST_S", 0.0)
    monitor = ClockMonitor(Library(), "gpu")
    assert Blocks(monitor, [0x40] * 9).times_ms([launch]) == [4.0]  # once, and three times again
    assert monitor.summary()["slowed_by"] == "hw_thermal_slowdown"
