"""Sums over K that several programs share: each stores its part, and the last to arrive adds them up.

A product of few rows has fewer tiles than a GPU has multiprocessors; dividing K among SPLIT_K programs a tile keeps
all of them loading. The parts are added in the same order whoever comes last, so that results do not vary.

Reference: NVIDIA, CUDA C++ programming guide, "Memory Fence Functions" (the sum by the last block to arrive).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit

if TYPE_CHECKING:
    import torch
    import triton.language as tl


@jit
def sum_parts(  # type: ignore[no-untyped-def]
    accumulator,  # [ROWS, COLUMNS], this program's part
    parts_ptr,  # [tiles, SPLIT_K, ROWS, COLUMNS] fp32
    arrivals_ptr,  # [tiles] int32, zeros before and after
    tile,
    part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    """Whether this program came last to its tile, and the sum of the tile's parts if so."""
    last = True
    if SPLIT_K > 1:
        within = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        tile_ptrs = parts_ptr + tile.to(tl.int64) * (SPLIT_K * ROWS * COLUMNS) + within
        tl.store(tile_ptrs + part * (ROWS * COLUMNS), accumulator)
        # All threads' stores come before the arrival, which releases them to the other programs.
        tl.debug_barrier()
        last = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1
        if last:
            tl.debug_barrier()
            accumulator = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
            for index in range(SPLIT_K):
                # From L2: the other programs' stores are not in this multiprocessor's L1.
                accumulator += tl.load(tile_ptrs + index * (ROWS * COLUMNS), cache_modifier=".cg")
            tl.store(arrivals_ptr + tile, 0)
    return last, accumulator


_arrivals: dict[torch.device, torch.Tensor] = {}


def workspace(like: torch.Tensor, tiles: int, tile_elements: int, split_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts [tiles, split_k, tile_elements] fp32, and arrivals [tiles] int32, all zero.

    Arrivals are kept from launch to launch, since each launch leaves them zero and clearing them would cost as much as
    a short product. So launches on one device must follow each other, as on one stream they do.

    Args:
        like: A tensor on the device.
        tiles: Tiles of the output.
        tile_elements: Elements of a tile.
        split_k: Programs a tile.
    """
    import torch

    if split_k == 1:
        tiles, tile_elements = 1, 1
    parts = like.new_empty(tiles * split_k * tile_elements, dtype=torch.float32)
    arrivals = _arrivals.get(like.device)
    if arrivals is None or arrivals.numel() < tiles:
        arrivals = like.new_zeros(max(tiles, 65_536), dtype=torch.int32)
        _arrivals[like.device] = arrivals
    return parts, arrivals
