"""What no GPU can beat: a time below it is a fault of the measurement or of the kernel, never a record.

The datasheet's rates are not that limit: `Device.roofline_ms` is what reports show, and a good kernel may pass it.

* Arithmetic: rates are given at a boost clock below the highest one. An H200 has 132 multiprocessors of 4,096 fp16
  operations a cycle; its 989 TFLOP/s are those at 1,830 MHz, and its clock goes to 1,980 MHz: 8 % more. Allowed: 15 %.
* Memory: an H200's 4.8 TB/s on paper are 6,144 bits at 2 x 3,201 MHz, which make 4.92. Allowed: 5 %.
* Traffic: L2 is flushed before each launch, so inputs come from memory; but the end of the output may stay in L2 when
  the timer stops. As many bytes as L2 holds do not count, and with a problem smaller than L2 none.
"""

from __future__ import annotations

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import Cost
from llm_sampler.objectives.stopwatch import Method

SHORT_MS = 0.025

_ARITHMETIC_MARGIN = 1.15
_MEMORY_MARGIN = 1.05


def least_possible_ms(cost: Cost, device: Device, dtype: str) -> float:
    """A time in ms that no kernel with this cost can go below; 0 where the device's rates are unknown."""
    memory_ms = arithmetic_ms = 0.0
    if device.peak_tbps is not None:
        moved = max(0, cost.traffic_bytes - device.l2_bytes)
        memory_ms = moved / (device.peak_tbps * 1e9 * _MEMORY_MARGIN)
    if rate := device.peak_tflops.get(dtype):
        arithmetic_ms = cost.flops / (rate * 1e9 * _ARITHMETIC_MARGIN)
    return max(memory_ms, arithmetic_ms)


def impossible(median_ms: float, cost: Cost, device: Device, dtype: str) -> str:
    """Why a time cannot be, in one line; empty if it can."""
    least_ms = least_possible_ms(cost, device, dtype)
    if median_ms >= least_ms:
        return ""
    rates = f"{cost.flops / median_ms / 1e9:.4g} TFLOP/s, {cost.traffic_bytes / median_ms / 1e9:.4g} TB/s"
    return (
        f"{median_ms:.4g} ms ({rates}) is below the {least_ms:.4g} ms that an {device.name} needs at its highest "
        "rates: the kernel cannot have done its work, or the timer failed"
    )


def timing_method(cost: Cost, device: Device, dtype: str) -> Method:
    """How a problem's launches are timed: short ones by graph replay (see ``stopwatch``).

    It depends on the problem alone, so that all its configurations, in all processes, are timed alike.
    """
    least_ms = device.roofline_ms(cost.flops, cost.traffic_bytes, dtype)
    return "graph" if least_ms is not None and least_ms < SHORT_MS else "queue"
