"""The `Task` of a kernel's study: all that a sampler may tell an LLM about it, as data."""

from __future__ import annotations

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE
from llm_sampler.objectives.recording import Recording
from llm_sampler.space import Space, Value
from llm_sampler.task import Task

_HOW = "Every configuration is compiled, checked against the reference, and timed: the value is the median of its runs."


def kernel_task(spec: KernelSpec, problem: Problem, device: Device, space: Space | None = None) -> Task:
    """The task of tuning a kernel for a problem on a device.

    Args:
        spec: The kernel.
        problem: Its input.
        device: What runs it, or ran it when it was recorded.
        space: What may be measured; None for the kernel's own space of the problem and device.
    """
    cost = spec.cost(problem)
    facts: dict[str, Value] = {
        **problem.sizes,
        "dtype": problem.dtype,
        "flops": cost.flops,
        "traffic_bytes": cost.traffic_bytes,
    }
    if (roofline_ms := device.roofline_ms(cost.flops, cost.traffic_bytes, problem.dtype)) is not None:
        facts["roofline_ms"] = float(f"{roofline_ms:.4g}")
    return Task(
        title=f"{spec.name} {problem.name} on {device.name}",
        space=space or spec.space(problem, device),
        description=f"{spec.title}. {spec.description} {_HOW}",
        source=spec.source,
        problem=facts,
        device=_device_facts(device),
        objective="median kernel time",
        unit="ms",
        outcome=MEASUREMENT_ATTRIBUTE,
    )


def recording_task(recording: Recording, spec: KernelSpec | None = None) -> Task:
    """The task of a replayed study.

    Args:
        recording: What is replayed: its space counts, not the kernel's of today.
        spec: The recorded kernel; None where it is not one of ours, and there is no source to show.
    """
    device = recording.device
    if spec is not None and recording.problem is not None and isinstance(device, Device):
        return kernel_task(spec, recording.problem, device, recording.space)
    where = f" on {recording.device_name}" if recording.device_name else ""
    return Task(
        title=f"{recording.kernel}{where}",
        space=recording.space,
        description=_HOW,
        problem=dict(recording.problem.sizes) if recording.problem else {},
        device=_device_facts(device) if isinstance(device, Device) else {},
        objective="median kernel time",
        unit="ms",
        outcome=MEASUREMENT_ATTRIBUTE,
    )


def _device_facts(device: Device) -> dict[str, Value]:
    rates = {f"peak_tflops_{dtype}": rate for dtype, rate in device.peak_tflops.items()}
    facts: dict[str, Value] = {"name": device.name, **device.facts(), **rates}
    for name in ("l2_bytes", "memory_bytes", "peak_tbps"):
        if value := getattr(device, name):
            facts[name] = value
    if (limits := device.limits) is not None:
        facts |= {
            "max_warps_per_sm": limits.max_warps,
            "max_blocks_per_sm": limits.max_blocks,
            "shared_bytes_per_sm": limits.shared_bytes,
        }
    return facts
