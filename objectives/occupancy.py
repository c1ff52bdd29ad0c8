"""How many blocks and warps of a kernel a multiprocessor holds at a time, from what the compiled kernel says.

Notation: with R registers a thread, S bytes of shared memory a block and W warps a block, a multiprocessor holds the
least of

* registers: of its four parts each has a quarter of the registers, given out 256 at a time to whole warps;
* shared memory: given out 128 bytes at a time, S and what the system reserves for each block;
* warps, and blocks.

It is the arithmetic of CUDA's ``cuda_occupancy.h``, with the largest carve-out of shared memory. Low occupancy is no
fault: products run best with one or two blocks that keep all they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_sampler.kernels.device import LIMITS
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration

_PARTS = 4
_REGISTER_UNIT = 256
_SHARED_UNIT = 128
_WARP = 32
_REGISTERS = 65536  # of a multiprocessor, of every compute capability since 5.0


@dataclass(frozen=True)
class Occupancy:
    """What a multiprocessor holds of a kernel.

    Attributes:
        blocks: Blocks at a time; 0: it cannot be launched.
        warps: Their warps.
        share: Of the most warps that it could hold.
        limit: What allows no more: ``registers``, ``shared memory``, ``warps`` or ``blocks``.
    """

    blocks: int
    warps: int
    share: float
    limit: str

    @property
    def text(self) -> str:
        """E.g. ``2 blocks, 16 warps (25 %), limited by registers``."""
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        return f"{blocks}, {self.warps} warps ({100 * self.share:.0f} %), limited by {self.limit}"


def occupancy(capability: int, *, registers: int, shared_bytes: int, warps: int) -> Occupancy | None:
    """Blocks and warps that a multiprocessor holds; None for a compute capability that is not known here.

    Args:
        capability: Compute capability times ten.
        registers: Registers a thread.
        shared_bytes: Shared memory a block.
        warps: Warps a block.
    """
    limits = LIMITS.get(capability)
    if limits is None or warps < 1:
        return None
    per_warp = _up(max(1, registers) * _WARP, _REGISTER_UNIT)
    by = {
        "warps": limits.max_warps // warps,
        "blocks": limits.max_blocks,
        "registers": _REGISTERS // _PARTS // per_warp * _PARTS // warps,
    }
    if taken := _up(shared_bytes + limits.reserved_bytes, _SHARED_UNIT):
        by["shared memory"] = limits.shared_bytes // taken
    limit = min(by, key=lambda name: by[name])
    blocks = by[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.max_warps, limit)


def occupancy_of(
    measurement: Measurement | None, configuration: Configuration, facts: Mapping[str, Any]
) -> Occupancy | None:
    """Occupancy of what was measured; None where the record lacks registers, shared memory, warps or the device.

    Args:
        measurement: With ``registers`` and ``shared_bytes``; a configuration with several kernels has the most of each.
        configuration: With ``num_warps``.
        facts: With ``capability``, as a `Space` of a kernel has them.
    """
    capability, warps = facts.get("capability"), configuration.get("num_warps")
    if measurement is None or measurement.registers is None or measurement.shared_bytes is None:
        return None
    if not isinstance(capability, int) or not isinstance(warps, int):
        return None
    return occupancy(capability, registers=measurement.registers, shared_bytes=measurement.shared_bytes, warps=warps)


def with_occupancy(measurement: Measurement, configuration: Configuration, facts: Mapping[str, Any]) -> Measurement:
    """The measurement with its occupancy, as far as known; arguments as `occupancy_of` has them."""
    found = occupancy_of(measurement, configuration, facts)
    return measurement if found is None else measurement.with_(blocks_per_sm=found.blocks, warps_per_sm=found.warps)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
