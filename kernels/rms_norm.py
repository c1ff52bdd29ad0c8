"""Root mean square normalization of each row: y[r, c] = x[r, c] / sqrt(mean_r + EPSILON) * weight[c].

Shapes: x and y [rows, columns], weight [columns], any sizes and strides; computed in fp32. mean_r is the mean of x^2
over the columns of a row.

Reference: Zhang and Sennrich, "Root mean square layer normalization", arXiv:1910.07467.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit, multiprocessors
from llm_sampler.kernels.spec import ELEMENT_BYTES, Cost, Inputs, KernelSpec, Problem
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl

EPSILON = 1e-5


@jit
def rms_norm_whole(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, columns]
    weight_ptr,  # [columns]
    y_ptr,  # [rows, columns]
    rows,
    columns,
    epsilon,
    stride_xr,
    stride_xc,
    stride_w,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    ONCE: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Tiles of ROWS whole rows in blocks of BLOCK_N >= columns; KEEP weight in registers for all tiles."""
    column = tl.arange(0, BLOCK_N).to(tl.int64)
    if KEEP:
        weight = tl.load(weight_ptr + column * stride_w, mask=column < columns, other=0.0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x_ptrs = x_ptr + row[:, None] * stride_xr + column[None, :] * stride_xc
        x = tl.load(x_ptrs, mask=inside, other=0.0, eviction_policy=ONCE).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / columns + epsilon)
        if not KEEP:
            weight = tl.load(weight_ptr + column * stride_w, mask=column < columns, other=0.0)
        y = x * scale[:, None] * weight[None, :].to(tl.float32)
        y_ptrs = y_ptr + row[:, None] * stride_yr + column[None, :] * stride_yc
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=ONCE)


@jit
def rms_norm_looped(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, columns]
    weight_ptr,  # [columns]
    y_ptr,  # [rows, columns]
    rows,
    columns,
    epsilon,
    stride_xr,
    stride_xc,
    stride_w,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    ONCE: tl.constexpr,
    AGAIN: tl.constexpr,
):
    """ROWS rows in blocks of BLOCK_N columns, read twice: for the mean, then, backwards, for the result."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    x_rows = x_ptr + row[:, None] * stride_xr
    y_rows = y_ptr + row[:, None] * stride_yr
    # Each lane has the sum of the squares of every BLOCK_N-th element.
    lane_squares = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    steps = tl.cdiv(columns, BLOCK_N)
    for step in tl.range(0, steps, num_stages=STAGES):
        column = (step * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x_ptrs = x_rows + column[None, :] * stride_xc
        x = tl.load(x_ptrs, mask=inside, other=0.0, eviction_policy=AGAIN).to(tl.float32)
        lane_squares += x * x
    scale = tl.rsqrt(tl.sum(lane_squares, axis=1) / columns + epsilon)
    for step in tl.range(0, steps, num_stages=STAGES):
        column = ((steps - 1 - step) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x_ptrs = x_rows + column[None, :] * stride_xc
        x = tl.load(x_ptrs, mask=inside, other=0.0, eviction_policy=ONCE).to(tl.float32)
        weight = tl.load(weight_ptr + column * stride_w, mask=column < columns, other=0.0).to(tl.float32)
        y = x * scale[:, None] * weight[None, :]
        y_ptrs = y_rows + column[None, :] * stride_yc
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=ONCE)


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write the normalized rows to the output.

    Args:
        inputs: x [rows, columns] and weight [columns].
        output: y [rows, columns].
        configuration: See `SPEC`.
    """
    x, weight = inputs
    rows, columns = x.shape
    row_tile = int(configuration["ROWS"])
    tiles = -(-rows // row_tile)
    strides = (*x.stride(), *weight.stride(), *output.stride())
    arguments = (x, weight, output, rows, columns, EPSILON, *strides)
    options = {"ROWS": row_tile, "STAGES": configuration["num_stages"], "num_warps": configuration["num_warps"]}
    once, again = ("evict_first", "evict_last") if configuration["HINTS"] else ("", "")
    if configuration["variant"] == "looped":
        block = configuration["BLOCK_N"]
        rms_norm_looped[(tiles,)](*arguments, BLOCK_N=block, ONCE=once, AGAIN=again, **options)
        return
    whole_row = 1 << (columns - 1).bit_length()
    keep = configuration["variant"] == "persistent"
    programs = min(tiles, multiprocessors() * int(configuration["PROGRAMS"])) if keep else tiles
    rms_norm_whole[(programs,)](*arguments, BLOCK_N=whole_row, ONCE=once, KEEP=keep, **options)


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make x [rows, columns] and weight [columns], both N(0, 1)."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    x = normal((rows, columns), problem.dtype, seed, device)
    return x, normal((columns,), problem.dtype, seed + 1_000_003, device)


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make y [rows, columns], uninitialized."""
    import torch

    return torch.empty_like(inputs[0])


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch."""
    import torch

    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPSILON)


def cost(problem: Problem) -> Cost:
    """Four operations an element (square, sum, two products); x read and y written once."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    return Cost(flops=4 * rows * columns, traffic_bytes=(2 * rows + 1) * columns * ELEMENT_BYTES[problem.dtype])


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Few rows, and columns that no block divides but whose next power of two (a block of whole rows) is the same."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    fewer = columns - 16 if 2 * (columns - 16) > 1 << (columns - 1).bit_length() else columns
    return (Problem({"rows": min(rows, 48 + rows % 16), "columns": fewer}, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """Rows and columns that are odd."""
    return (Problem({"rows": 37, "columns": (problem.sizes["columns"] - 1) | 1}, problem.dtype),)


def _problem(rows: int, columns: int) -> Problem:
    return Problem({"rows": rows, "columns": columns})


_ELEMENTS = "ROWS * (BLOCK_N or next_power_of_2(columns))"
SPEC = KernelSpec(
    name="rms_norm",
    title="Root mean square normalization of each row, fp16, bf16 or fp32, computed in fp32",
    description=(
        "Variant one_pass holds ROWS whole rows in registers, one tile per program. Variant persistent does the same "
        "with PROGRAMS programs a multiprocessor that take tiles in turn, keep weight in registers, and have "
        "the loads of num_stages tiles in flight. Variant looped walks along its rows in blocks of BLOCK_N columns, "
        "twice: the second reading finds them in a cache."
    ),
    size_names=("rows", "columns"),
    parameters=(
        Parameter("variant", ("one_pass", "persistent", "looped"), "whole rows, resident programs, or two readings"),
        Parameter("ROWS", (1, 2, 4, 8, 16), "rows per tile"),
        Parameter(
            "BLOCK_N", (0, 1024, 2048, 4096, 8192, 16384), "columns per step of looped; 0: the whole row at once"
        ),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warps per program"),
        Parameter("num_stages", (1, 2, 3), "tiles or steps whose loads are in flight; 1 for one_pass"),
        Parameter("PROGRAMS", (1, 2, 4, 8), "programs a multiprocessor of persistent; 1 for the others"),
        Parameter("HINTS", (0, 1), "1: tell the caches what is read again and what is not"),
    ),
    restrictions=(
        "(variant == 'looped') == (BLOCK_N > 0)",
        "BLOCK_N < columns",
        "ROWS <= rows",
        "variant != 'one_pass' or num_stages == 1",
        "variant == 'persistent' or PROGRAMS == 1",
        "32 * num_warps <= max_threads",
        # programs that a multiprocessor can hold at once
        "PROGRAMS * 32 * num_warps <= 2048",
        # elements of a tile: at least four per thread where there are as many; at most 64, because weight is in
        # registers, too, or 32 in looped, which has the sum of squares beside the element; 32,768 in all, half of the
        # registers
        f"{_ELEMENTS} >= min(4 * 32 * num_warps, next_power_of_2(columns))",
        f"{_ELEMENTS} <= (32 if variant == 'looped' else 64) * 32 * num_warps",
        f"{_ELEMENTS} <= registers // 2",
        # loads in flight (of weight, too, in looped), and a partial result per row and warp
        f"({_ELEMENTS} + BLOCK_N) * element_bytes * (num_stages - 1) + 4 * ROWS * num_warps <= shared_bytes",
    ),
    defaults=(
        {"variant": "one_pass", "ROWS": 1, "BLOCK_N": 0, "num_warps": 4, "num_stages": 1, "PROGRAMS": 1, "HINTS": 0},
        {"variant": "one_pass", "ROWS": 1, "BLOCK_N": 0, "num_warps": 8, "num_stages": 1, "PROGRAMS": 1, "HINTS": 0},
        {"variant": "looped", "ROWS": 1, "BLOCK_N": 2048, "num_warps": 8, "num_stages": 1, "PROGRAMS": 1, "HINTS": 0},
    ),
    problems=(
        _problem(8192, 8192),
        _problem(16384, 8192),
        _problem(4096, 4096),
        _problem(8192, 50257),
        _problem(16, 8192),
    ),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    check_problems=check_problems,
    odd_problems=odd_problems,
    strided="True",
)
