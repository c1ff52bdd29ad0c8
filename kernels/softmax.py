"""Softmax of each row: y[r, c] = exp(x[r, c] - max_c x[r, c]) / sum_c exp(x[r, c] - max_c x[r, c]).

Shapes: x and y [rows, columns], any sizes and strides; computed in fp32.

References: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867 (the online
variant); Triton's tutorial on fused softmax (one row at a time by resident programs).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit, multiprocessors
from llm_sampler.kernels.spec import ELEMENT_BYTES, VALUE_RANGES, Cost, Inputs, KernelSpec, Problem
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl


@jit
def softmax_tile(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    tile,
    rows,
    columns,
    stride_xr,
    stride_xc,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """ROWS whole rows, each in one block of BLOCK_N >= columns elements."""
    row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, BLOCK_N)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * stride_xr + column[None, :] * stride_xc, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    weights = tl.exp(x - tl.max(x, axis=1)[:, None])
    y = weights / tl.sum(weights, axis=1)[:, None]
    y_ptrs = y_ptr + row[:, None] * stride_yr + column[None, :] * stride_yc
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask=inside)


@jit
def softmax_one_pass(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, columns]
    y_ptr,  # [rows, columns]
    rows,
    columns,
    stride_xr,
    stride_xc,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program computes ROWS rows."""
    softmax_tile(
        x_ptr, y_ptr, tl.program_id(0), rows, columns, stride_xr, stride_xc, stride_yr, stride_yc, ROWS, BLOCK_N
    )


@jit
def softmax_persistent(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, columns]
    y_ptr,  # [rows, columns]
    rows,
    columns,
    stride_xr,
    stride_xc,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Resident programs take tiles of ROWS rows in turn; STAGES of them have their loads in flight."""
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        softmax_tile(x_ptr, y_ptr, tile, rows, columns, stride_xr, stride_xc, stride_yr, stride_yc, ROWS, BLOCK_N)


@jit
def softmax_online(  # type: ignore[no-untyped-def]
    x_ptr,  # [rows, columns]
    y_ptr,  # [rows, columns]
    rows,
    columns,
    stride_xr,
    stride_xc,
    stride_yr,
    stride_yc,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program computes ROWS rows in blocks of BLOCK_N columns: running maximum and sum, then a second reading."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    x_rows = x_ptr + row[:, None] * stride_xr
    y_rows = y_ptr + row[:, None] * stride_yr
    maximum = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in tl.range(0, columns, BLOCK_N, num_stages=STAGES):
        column = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(x_rows + column[None, :] * stride_xc, mask=inside, other=float("-inf")).to(tl.float32)
        new_maximum = tl.maximum(maximum, tl.max(x, axis=1))
        # While a row has shown only -inf there is nothing to subtract: -inf - -inf would be NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift[:, None]), axis=1)
        maximum = new_maximum
    for start in tl.range(0, columns, BLOCK_N, num_stages=STAGES):
        column = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(x_rows + column[None, :] * stride_xc, mask=inside, other=float("-inf")).to(tl.float32)
        y = tl.exp(x - maximum[:, None]) / total[:, None]
        tl.store(y_rows + column[None, :] * stride_yc, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write the softmax of each row to the output.

    Args:
        inputs: x [rows, columns].
        output: y [rows, columns].
        configuration: See `SPEC`.
    """
    (x,) = inputs
    rows, columns = x.shape
    row_tile = int(configuration["ROWS"])
    tiles = -(-rows // row_tile)
    arguments = (x, output, rows, columns, *x.stride(), *output.stride())
    options = {"num_warps": configuration["num_warps"]}
    whole_row = 1 << (columns - 1).bit_length()
    if configuration["variant"] == "one_pass":
        softmax_one_pass[(tiles,)](*arguments, ROWS=row_tile, BLOCK_N=whole_row, **options)
        return
    stages = configuration["num_stages"]
    if configuration["variant"] == "persistent":
        programs = min(tiles, multiprocessors() * int(configuration["PROGRAMS"]))
        softmax_persistent[(programs,)](*arguments, ROWS=row_tile, BLOCK_N=whole_row, STAGES=stages, **options)
        return
    softmax_online[(tiles,)](*arguments, ROWS=row_tile, BLOCK_N=configuration["BLOCK_N"], STAGES=stages, **options)


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make x [rows, columns], N(0, 1)."""
    return (normal((problem.sizes["rows"], problem.sizes["columns"]), problem.dtype, seed, device),)


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make y [rows, columns], uninitialized."""
    import torch

    return torch.empty_like(inputs[0])


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch."""
    import torch

    return torch.softmax(x, dim=-1)


def cost(problem: Problem) -> Cost:
    """Five operations an element (compare, subtract, exp, add, divide); x read and y written once."""
    elements = problem.sizes["rows"] * problem.sizes["columns"]
    return Cost(flops=5 * elements, traffic_bytes=2 * elements * ELEMENT_BYTES[problem.dtype])


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Few rows, and columns that no block divides but whose next power of two (a block of whole rows) is the same."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    shorter = columns - 16 if 2 * (columns - 16) > 1 << (columns - 1).bit_length() else columns
    return (Problem({"rows": min(rows, 48 + rows % 16), "columns": shorter}, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """Rows and columns that are odd."""
    return (Problem({"rows": 37, "columns": (problem.sizes["columns"] - 1) | 1}, problem.dtype),)


def _problem(rows: int, columns: int) -> Problem:
    return Problem({"rows": rows, "columns": columns})


_ELEMENTS = "ROWS * (BLOCK_N or next_power_of_2(columns))"
SPEC = KernelSpec(
    name="softmax",
    title="Softmax of each row, fp16, bf16 or fp32, computed in fp32",
    description=(
        "Variant one_pass holds ROWS whole rows in registers, one tile per program. Variant persistent does the same "
        "with PROGRAMS programs a multiprocessor that take tiles in turn, loads of num_stages tiles in flight. "
        "Variant online walks along its rows in blocks of BLOCK_N columns and reads them twice; it is for rows too "
        "long for one block."
    ),
    size_names=("rows", "columns"),
    parameters=(
        Parameter("variant", ("one_pass", "persistent", "online"), "whole rows, resident programs, or two readings"),
        Parameter("ROWS", (1, 2, 4, 8, 16), "rows per tile"),
        Parameter("BLOCK_N", (0, 512, 1024, 2048, 4096, 8192), "columns per step of online; 0: the whole row at once"),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warps per program"),
        Parameter("num_stages", (1, 2, 3, 4), "tiles or steps whose loads are in flight; 1 for one_pass"),
        Parameter("PROGRAMS", (1, 2, 4, 8), "programs a multiprocessor of persistent; 1 for the others"),
    ),
    restrictions=(
        "(variant == 'online') == (BLOCK_N > 0)",
        "BLOCK_N < columns",
        "ROWS <= rows",
        "variant != 'one_pass' or num_stages == 1",
        "variant == 'persistent' or PROGRAMS == 1",
        "32 * num_warps <= max_threads",
        # programs that a multiprocessor can hold at once
        "PROGRAMS * 32 * num_warps <= 2048",
        # elements of a tile: one to 128 per thread (255 registers), at most 2**20 (Triton's limit)
        f"{_ELEMENTS} >= 32 * num_warps",
        f"{_ELEMENTS} <= 128 * 32 * num_warps",
        f"{_ELEMENTS} <= 1048576",
        # tiles in flight, and a partial result per row and warp
        f"{_ELEMENTS} * element_bytes * (num_stages - 1) + 4 * ROWS * num_warps <= shared_bytes",
    ),
    defaults=(
        {"variant": "one_pass", "ROWS": 1, "BLOCK_N": 0, "num_warps": 4, "num_stages": 1, "PROGRAMS": 1},
        {"variant": "online", "ROWS": 1, "BLOCK_N": 1024, "num_warps": 4, "num_stages": 1, "PROGRAMS": 1},
    ),
    problems=(_problem(8192, 8192), _problem(4096, 4096), _problem(131072, 1024), _problem(1000, 777)),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    check_problems=check_problems,
    odd_problems=odd_problems,
    strided="True",
    value_ranges=VALUE_RANGES,
)
