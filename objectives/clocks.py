"""`ClockMonitor`: clocks, temperature, power and slowdowns of the GPU while something is timed, through NVML.

Units: clocks in MHz, temperature in °C, power in W. What the driver does not tell, or this user may not read, is None:
a measurement never fails for it. Source of names and bits: NVIDIA, NVML API reference, "clocks event reasons".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons that lower clocks.
_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
# Faults of the machine: a block that ran under one is repeated. The power cap is no fault: large products on an H200
# run at it always, and any repetition would as well.
_FAULTS = frozenset(_REASONS.values()) - {"sw_power_cap"}


@dataclass(frozen=True)
class DeviceState:
    """The GPU at one moment; None: unknown.

    Attributes:
        sm_mhz: Clock of the multiprocessors.
        memory_mhz: Clock of the memory.
        temperature_c: Temperature.
        power_w: Power.
        reasons: Why clocks are lower than they could be, of those that matter.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: frozenset[str] = frozenset()

    @property
    def faulty(self) -> bool:
        """Whether what runs now should be timed again."""
        return bool(self.reasons & _FAULTS)


class ClockMonitor:
    """Notes the state of one GPU in each block that is timed; implements `stopwatch.Monitor`.

    Args:
        library: The module ``pynvml`` after ``nvmlInit``; None if there is none: everything is unknown.
        handle: Its handle of the GPU.
    """

    def __init__(self, library: Any = None, handle: Any = None) -> None:
        self._library = library
        self._handle = handle
        self._refused: set[str] = set()
        self._states: list[DeviceState] = []

    def clear(self) -> None:
        """Begin another measurement."""
        self._states.clear()

    def look(self) -> bool:
        """See `stopwatch.Monitor`."""
        state = self._read()
        self._states.append(state)
        return not state.faulty

    def forget(self) -> None:
        """See `stopwatch.Monitor`."""
        self._states.pop()

    def summary(self) -> dict[str, Any]:
        """Least clocks, greatest temperature and power, and all reasons since `clear`; without what is unknown.

        Names are those of `Measurement`.
        """
        found: dict[str, Any] = {}
        for name, choose in (("sm_mhz", min), ("memory_mhz", min), ("temperature_c", max), ("power_w", max)):
            values = [value for state in self._states if (value := getattr(state, name)) is not None]
            if values:
                found[name] = choose(values)
        if reasons := sorted(frozenset().union(*(state.reasons for state in self._states))):
            found["slowed_by"] = " ".join(reasons)
        return found

    def _read(self) -> DeviceState:
        library, handle = self._library, self._handle
        if library is None:
            return DeviceState()
        bits = self._ask("reasons", lambda: _reasons_function(library)(handle))
        power_mw = self._ask("power", lambda: library.nvmlDeviceGetPowerUsage(handle))
        return DeviceState(
            sm_mhz=self._ask("sm", lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
            memory_mhz=self._ask("memory", lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)),
            temperature_c=self._ask(
                "temperature", lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
            ),
            power_w=None if power_mw is None else round(power_mw / 1e3, 1),
            reasons=frozenset(name for bit, name in _REASONS.items() if int(bits or 0) & bit),
        )

    def _ask(self, name: str, question: Callable[[], float]) -> float | None:
        """An answer; None, and the question is not asked again, where it is refused."""
        if name in self._refused:
            return None
        try:
            return question()
        except self._library.NVMLError:
            self._refused.add(name)
            return None


def _reasons_function(library: Any) -> Callable[[Any], int]:
    """Drivers before 535 know only the older name."""
    newer: Callable[[Any], int] | None = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
    older: Callable[[Any], int] = library.nvmlDeviceGetCurrentClocksThrottleReasons
    if newer is None:
        return older

    def ask(handle: Any) -> int:
        try:
            return newer(handle)
        except library.NVMLError_FunctionNotFound:
            return older(handle)

    return ask


def open_monitor() -> ClockMonitor:
    """A monitor of torch's current CUDA device; one that knows nothing where NVML is missing or refuses."""
    import torch

    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return ClockMonitor()
    try:
        library.nvmlInit()
        # By UUID: NVML counts all GPUs of the machine, CUDA only the visible ones.
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        return ClockMonitor(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except (library.NVMLError, AttributeError):
        return ClockMonitor()
