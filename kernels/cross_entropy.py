"""Cross entropy of each row: loss[r] = log sum_c exp(x[r, c]) - x[r, label[r]]; 0 where label[r] is IGNORED.

Shapes: logits x [rows, columns], any strides; labels [rows], int64; loss [rows], fp32. The columns are a vocabulary.
Nothing of the size of the logits is written: a running maximum m and sum of exp(x - m) are kept instead.

References: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867; PyTorch's
documentation of ``cross_entropy`` (labels that are ignored).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit
from llm_sampler.kernels.spec import ELEMENT_BYTES, VALUE_RANGES, Cost, Inputs, KernelSpec, Problem
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl

IGNORED = -100  # PyTorch's ignore_index
COMBINE_ROWS = 16


@jit
def finite(maximum):  # type: ignore[no-untyped-def]
    """What to subtract: 0 while there was only -inf, because -inf - -inf would be NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@jit
def exp_difference(x, maximum):  # type: ignore[no-untyped-def]
    """Natural exp(x - maximum) in two instructions an element, a fused multiply-add and a power of two."""
    return tl.exp2(x * 1.4426950408889634 - finite(maximum) * 1.4426950408889634)


@jit
def store_loss(  # type: ignore[no-untyped-def]
    logits_ptr, labels_ptr, loss_ptr, row, rows, maximum, total, stride_xr, stride_xc, stride_l, stride_o, IGNORED
):
    """Write the loss of some rows, given the maximum of each and its sum of exp(x - maximum)."""
    label = tl.load(labels_ptr + row * stride_l, mask=row < rows, other=IGNORED)
    kept = label != IGNORED
    x = tl.load(logits_ptr + row * stride_xr + label * stride_xc, mask=(row < rows) & kept, other=0.0)
    loss = tl.where(kept, tl.log(total) + finite(maximum) - x.to(tl.float32), 0.0)
    tl.store(loss_ptr + row * stride_o, loss, mask=row < rows)


@jit
def cross_entropy(  # type: ignore[no-untyped-def]
    logits_ptr,  # [rows, columns]
    labels_ptr,  # [rows]
    loss_ptr,  # [rows]
    parts_ptr,  # [2, SPLITS, rows]: maxima and sums, unused if SPLITS is 1
    rows,
    columns,
    part_columns,  # a multiple of BLOCK_N
    stride_xr,
    stride_xc,
    stride_l,
    stride_o,
    IGNORED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LANES: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    ONCE: tl.constexpr,
):
    """One program walks along ROWS rows, or a part of part_columns of them, in blocks of BLOCK_N columns.

    LANES running maxima a row, each over every LANES-th column; 1 for a maximum of the whole block.
    """
    row = (tl.program_id(0) // SPLITS * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    part = tl.program_id(0) % SPLITS
    maximum = tl.full((ROWS, LANES), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    x_rows = logits_ptr + row[:, None] * stride_xr
    last = tl.minimum(part * part_columns + part_columns, columns)
    for start in tl.range(part * part_columns, last, BLOCK_N, num_stages=STAGES):
        column = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x_ptrs = x_rows + column[None, :] * stride_xc
        x = tl.load(x_ptrs, mask=inside, other=float("-inf"), eviction_policy=ONCE).to(tl.float32)
        x = tl.reshape(x, (ROWS, BLOCK_N // LANES, LANES))
        new_maximum = tl.maximum(maximum, tl.max(x, axis=1))
        total *= exp_difference(maximum, new_maximum)
        total += tl.sum(exp_difference(x, new_maximum[:, None, :]), axis=1)
        maximum = new_maximum
    row_maximum = tl.max(maximum, axis=1)
    row_total = tl.sum(total * exp_difference(maximum, row_maximum[:, None]), axis=1)
    if SPLITS == 1:
        store_loss(
            logits_ptr,
            labels_ptr,
            loss_ptr,
            row,
            rows,
            row_maximum,
            row_total,
            stride_xr,
            stride_xc,
            stride_l,
            stride_o,
            IGNORED,
        )
    else:
        tl.store(parts_ptr + part * rows + row, row_maximum, mask=row < rows)
        tl.store(parts_ptr + (SPLITS + part) * rows + row, row_total, mask=row < rows)


@jit
def combine_parts(  # type: ignore[no-untyped-def]
    logits_ptr,  # [rows, columns]
    labels_ptr,  # [rows]
    loss_ptr,  # [rows]
    parts_ptr,  # [2, SPLITS, rows]: maxima and sums
    rows,
    stride_xr,
    stride_xc,
    stride_l,
    stride_o,
    IGNORED: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One program combines the parts of ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    part = tl.arange(0, SPLITS)
    parts = parts_ptr + part[:, None] * rows + row[None, :]
    maximum = tl.load(parts, mask=row[None, :] < rows, other=float("-inf"))
    total = tl.load(parts + SPLITS * rows, mask=row[None, :] < rows, other=0.0)
    row_maximum = tl.max(maximum, axis=0)
    row_total = tl.sum(total * exp_difference(maximum, row_maximum[None, :]), axis=0)
    store_loss(
        logits_ptr,
        labels_ptr,
        loss_ptr,
        row,
        rows,
        row_maximum,
        row_total,
        stride_xr,
        stride_xc,
        stride_l,
        stride_o,
        IGNORED,
    )


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write the loss of each row to the output.

    Args:
        inputs: Logits [rows, columns] and labels [rows], int64.
        output: Loss [rows], fp32.
        configuration: See `SPEC`.
    """
    import torch

    logits, labels = inputs
    rows, columns = logits.shape
    row_tile, block, splits, warps = (int(configuration[name]) for name in ("ROWS", "BLOCK_N", "SPLITS", "num_warps"))
    strides = (*logits.stride(), *labels.stride(), *output.stride())
    # Lanes as many as one load of all threads brings: a thread then has every element of its lanes.
    lanes = min(block, 32 * warps * 16 // logits.element_size()) if configuration["variant"] == "lanes" else 1
    parts = logits.new_empty((2, splits, rows) if splits > 1 else (1,), dtype=torch.float32)
    cross_entropy[(-(-rows // row_tile) * splits,)](
        logits,
        labels,
        output,
        parts,
        rows,
        columns,
        -(-columns // (block * splits)) * block,
        *strides,
        IGNORED=IGNORED,
        ROWS=row_tile,
        BLOCK_N=block,
        LANES=lanes,
        SPLITS=splits,
        STAGES=configuration["num_stages"],
        ONCE="evict_first" if configuration["HINTS"] else "",
        num_warps=warps,
    )
    if splits > 1:
        combine_parts[(-(-rows // COMBINE_ROWS),)](
            logits, labels, output, parts, rows, *strides, IGNORED=IGNORED, ROWS=COMBINE_ROWS, SPLITS=splits
        )


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make logits [rows, columns], N(0, 16), and labels [rows], uniform; every 16th is ignored.

    With that spread a few of a row's columns make up its sum, as a language model's do, and no block can be skipped
    without notice.
    """
    import torch

    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    logits = normal((rows, columns), problem.dtype, seed, device).mul_(4.0)
    if device == "meta":
        return logits, torch.empty(rows, dtype=torch.int64, device=device)
    generator = torch.Generator(device).manual_seed(seed + 1_000_003)
    labels = torch.randint(columns, (rows,), generator=generator, device=device)
    labels[15::16] = IGNORED
    return logits, labels


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make the loss [rows], uninitialized."""
    import torch

    logits, _ = inputs
    return logits.new_empty(logits.shape[0], dtype=torch.float32)


def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch, which gives the loss at the logits' dtype."""
    import torch

    return torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)


def cost(problem: Problem) -> Cost:
    """Five operations an element (compare, subtract, multiply, exp, add); logits and labels read, loss written."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    return Cost(flops=5 * rows * columns, traffic_bytes=rows * (columns * ELEMENT_BYTES[problem.dtype] + 8 + 4))


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Few rows, and 16 columns fewer, so that the last block is not full."""
    rows, columns = problem.sizes["rows"], problem.sizes["columns"]
    fewer = columns - 16 if columns > 16 else columns
    return (Problem({"rows": min(rows, 48 + rows % 16), "columns": fewer}, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """Rows and columns that are odd."""
    return (Problem({"rows": 37, "columns": (problem.sizes["columns"] - 1) | 1}, problem.dtype),)


def _problem(rows: int, columns: int) -> Problem:
    return Problem({"rows": rows, "columns": columns})


SPEC = KernelSpec(
    name="cross_entropy",
    title="Cross entropy of each row of logits, fp16, bf16 or fp32, computed in fp32",
    description=(
        "One program walks along ROWS rows in blocks of BLOCK_N columns. Variant block keeps a running maximum a row, "
        "which takes a reduction over the program at every step. Variant lanes keeps one for every lane of a load and "
        "combines them at the end: no reduction, but for each lane and step a rescaling of its sum. With SPLITS above "
        "1, for few rows, so many programs share a row and a second kernel combines their parts."
    ),
    size_names=("rows", "columns"),
    parameters=(
        Parameter("variant", ("block", "lanes"), "one running maximum a row, or one for every lane of a load"),
        Parameter("ROWS", (1, 2, 4), "rows per program"),
        Parameter("BLOCK_N", (1024, 2048, 4096, 8192, 16384, 32768), "columns per step"),
        Parameter("SPLITS", (1, 2, 4, 8, 16, 32), "programs that share a row"),
        Parameter("num_warps", (1, 2, 4, 8, 16, 32), "warps per program"),
        Parameter("num_stages", (1, 2, 3, 4), "steps whose loads are in flight"),
        Parameter("HINTS", (0, 1), "1: tell the caches that nothing is read again"),
    ),
    restrictions=(
        "ROWS <= rows",
        "BLOCK_N < 2 * columns",
        "32 * num_warps <= max_threads",
        # elements of a step: one load of 16 bytes to 64 elements a thread; at least two loads in lanes
        "ROWS * BLOCK_N * element_bytes >= 16 * 32 * num_warps",
        "ROWS * BLOCK_N <= 64 * 32 * num_warps",
        "variant == 'block' or BLOCK_N * element_bytes >= 2 * 16 * 32 * num_warps",
        # loads in flight, and a partial result per row and warp
        "ROWS * BLOCK_N * element_bytes * (num_stages - 1) + 4 * ROWS * num_warps <= shared_bytes",
        # parts of a row at least a step long, and only where there would be fewer than two programs a multiprocessor
        "SPLITS == 1 or SPLITS * BLOCK_N < 2 * columns",
        "SPLITS == 1 or SPLITS * cdiv(rows, ROWS) <= 16 * multiprocessors",
    ),
    defaults=(
        {
            "variant": "block",
            "ROWS": 1,
            "BLOCK_N": 1024,
            "SPLITS": 1,
            "num_warps": 4,
            "num_stages": 1,
            "HINTS": 0,
        },
    ),
    problems=(_problem(8192, 128256), _problem(4096, 32000), _problem(16, 128256), _problem(4096, 50257)),
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
