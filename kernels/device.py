"""`Device`: the facts of a GPU that restrictions, prompts and rooflines use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from llm_sampler.space import Value


@dataclass(frozen=True)
class MultiprocessorLimits:
    """What one multiprocessor holds at a time.

    Attributes:
        max_warps: Most warps, of 32 threads each.
        max_blocks: Most blocks.
        shared_bytes: Shared memory of all blocks together.
        reserved_bytes: Shared memory that the system takes for each block.
    """

    max_warps: int
    max_blocks: int
    shared_bytes: int
    reserved_bytes: int


# By compute capability times ten. CUDA C++ Programming Guide, table "Technical specifications per compute capability"
# (warps, blocks and shared memory of a multiprocessor); from 8.0 on 1 KiB is reserved a block (section on 8.x).
LIMITS = {
    70: MultiprocessorLimits(64, 32, 96 * 1024, 0),
    75: MultiprocessorLimits(32, 16, 64 * 1024, 0),
    80: MultiprocessorLimits(64, 32, 164 * 1024, 1024),
    86: MultiprocessorLimits(48, 16, 100 * 1024, 1024),
    87: MultiprocessorLimits(48, 16, 164 * 1024, 1024),
    89: MultiprocessorLimits(48, 24, 100 * 1024, 1024),
    90: MultiprocessorLimits(64, 32, 228 * 1024, 1024),
    100: MultiprocessorLimits(64, 32, 228 * 1024, 1024),
    103: MultiprocessorLimits(64, 32, 228 * 1024, 1024),
    120: MultiprocessorLimits(48, 24, 100 * 1024, 1024),
}


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: As the driver gives it, e.g. ``NVIDIA H200``.
        capability: Compute capability times ten (90 for 9.0).
        multiprocessors: Number of streaming multiprocessors.
        shared_bytes: Most shared memory a block may have.
        max_threads: Most threads a block may have.
        registers: Registers of a multiprocessor.
        l2_bytes: Size of the L2 cache.
        memory_bytes: Size of device memory.
        peak_tflops: Dense matrix rate in TFLOP/s by dtype name, from the vendor's datasheet; empty if unknown.
        peak_tbps: Memory rate in TB/s, from the vendor's datasheet; None if unknown.
    """

    name: str
    capability: int
    multiprocessors: int
    shared_bytes: int
    max_threads: int = 1024
    registers: int = 65536
    l2_bytes: int = 0
    memory_bytes: int = 0
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    peak_tbps: float | None = None

    @property
    def limits(self) -> MultiprocessorLimits | None:
        """What one multiprocessor holds; None for a compute capability that is not known here."""
        return LIMITS.get(self.capability)

    def facts(self) -> dict[str, Value]:
        """What restrictions may name: capability, multiprocessors, shared_bytes, max_threads, registers."""
        names = ("capability", "multiprocessors", "shared_bytes", "max_threads", "registers")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {**asdict(self), "peak_tflops": dict(self.peak_tflops)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """A device from what ``to_json`` gave; unknown names are ignored."""
        return cls(**{name: value for name, value in data.items() if name in cls.__dataclass_fields__})

    def roofline_ms(self, flops: float, traffic_bytes: float, dtype: str) -> float | None:
        """The least time in ms that the datasheet's rates allow; None where they are unknown."""
        if self.peak_tbps is None:
            return None
        memory_ms = traffic_bytes / (self.peak_tbps * 1e9)
        rate = self.peak_tflops.get(dtype)
        return max(memory_ms, flops / (rate * 1e9)) if rate else memory_ms


# NVIDIA's datasheets (dense rates, SXM parts) and the CUDA C++ programming guide's table of technical specifications.
A100 = Device(
    "NVIDIA A100-SXM4-80GB",
    capability=80,
    multiprocessors=108,
    shared_bytes=166_912,
    l2_bytes=41_943_040,
    memory_bytes=85_899_345_920,
    peak_tflops={"fp16": 312.0, "bf16": 312.0, "fp32": 19.5},
    peak_tbps=2.039,
)
H100 = Device(
    "NVIDIA H100 80GB HBM3",
    capability=90,
    multiprocessors=132,
    shared_bytes=232_448,
    l2_bytes=52_428_800,
    memory_bytes=85_899_345_920,
    peak_tflops={"fp8": 1978.9, "fp16": 989.4, "bf16": 989.4, "fp32": 66.9},
    peak_tbps=3.35,
)
H200 = Device(
    "NVIDIA H200",
    capability=90,
    multiprocessors=132,
    shared_bytes=232_448,
    l2_bytes=62_914_560,
    memory_bytes=150_754_820_096,
    peak_tflops={"fp8": 1978.9, "fp16": 989.4, "bf16": 989.4, "fp32": 66.9},
    peak_tbps=4.8,
)
KNOWN_DEVICES = {device.name: device for device in (A100, H100, H200)}
