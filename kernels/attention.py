"""Attention of each head: O = softmax(Q K^T / sqrt(D)) V, computed block by block without the N x N matrix.

Shapes: Q, K, V and O [BATCH, HEADS, N, D], fp16 or bf16, sums in fp32; any N, D a power of two; any strides for the
pointer variant. With CAUSAL = 1, query n sees the keys 0 to n. A program holds BLOCK_M queries, a running maximum m
and sum of each row of exp(scores - m), and walks along the keys in blocks of BLOCK_N.

References: Dao, "FlashAttention-2", arXiv:2307.08691 (the algorithm and its order of loops); Shah et al.,
"FlashAttention-3", arXiv:2407.08608, section 3.2 (the next scores are
computed during the softmax of these).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit
from llm_sampler.kernels.spec import ELEMENT_BYTES, Cost, Inputs, KernelError, KernelSpec, Problem
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl


@jit
def load_rows(  # type: ignore[no-untyped-def]
    source,  # of one head [N, D]: a pointer; or of all, [BATCH, HEADS, N, D]: a descriptor
    batch,
    head,
    first,
    N,
    strides,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
):
    """Rows [ROWS, D] from the first on; those from N on read as 0, if MASKED or by descriptor."""
    if DESCRIPTOR:
        block = tl.reshape(source.load([batch, head, first, 0]), (ROWS, D))
    else:
        row = first + tl.arange(0, ROWS)
        pointers = source + row[:, None] * strides[2] + tl.arange(0, D)[None, :] * strides[3]
        if MASKED:
            block = tl.load(pointers, mask=row[:, None] < N, other=0.0)
        else:
            block = tl.load(pointers)
    return block


@jit
def softmax_step(  # type: ignore[no-untyped-def]
    scores, maximum, total, query, key, N, scale, MASKED: tl.constexpr, CAUSAL: tl.constexpr
):
    """Weights of a block of scores, the factor for what was summed before, and the new maximum and sum.

    scale is log2(e) / sqrt(D), so that powers of two do for exp.
    """
    if MASKED:
        seen = key[None, :] < N
        if CAUSAL:
            seen = seen & (key[None, :] <= query[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    # Never -inf: the first block of keys has key 0, which every query sees.
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_maximum[:, None])
    factor = tl.exp2(maximum - new_maximum)
    return weights, factor, new_maximum, total * factor + tl.sum(weights, axis=1)


@jit
def attend(  # type: ignore[no-untyped-def]
    sums,
    maximum,
    total,
    q,
    k_source,
    v_source,
    batch,
    head,
    query,
    first,
    last,
    N,
    scale,
    k_strides,
    v_strides,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
):
    """Add the keys from first to last, in blocks."""
    for start in tl.range(first, last, BLOCK_N):
        k = load_rows(k_source, batch, head, start, N, k_strides, BLOCK_N, D, MASKED, DESCRIPTOR)
        scores = tl.dot(q, k.T)
        key = start + tl.arange(0, BLOCK_N)
        weights, factor, maximum, total = softmax_step(scores, maximum, total, query, key, N, scale, MASKED, CAUSAL)
        v = load_rows(v_source, batch, head, start, N, v_strides, BLOCK_N, D, MASKED, DESCRIPTOR)
        sums = tl.dot(weights.to(v.dtype), v, sums * factor[:, None])
    return sums, maximum, total


@jit
def attend_ahead(  # type: ignore[no-untyped-def]
    sums,
    maximum,
    total,
    weights,
    scores,
    q,
    k_source,
    v_source,
    batch,
    head,
    query,
    first,
    last,
    N,
    scale,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The same by descriptors, one block ahead: takes and gives the weights of a block and the scores of the next."""
    for start in tl.range(first, last, BLOCK_N):
        v = tl.reshape(v_source.load([batch, head, start - BLOCK_N, 0]), (BLOCK_N, D))
        sums = tl.dot(weights.to(v.dtype, bitcast=True), v, sums)
        # Runs during the softmax of the scores at hand. Past the last block, where nothing uses it, keys read as 0.
        k = tl.reshape(k_source.load([batch, head, start + BLOCK_N, 0]), (BLOCK_N, D))
        next_scores = tl.dot(q, k.T)
        key = start + tl.arange(0, BLOCK_N)
        exact, factor, maximum, total = softmax_step(scores, maximum, total, query, key, N, scale, MASKED, CAUSAL)
        # As integers: Triton would take what a loop carries through shared memory to the product, but not a cast of it.
        weights = exact.to(v.dtype).to(tl.int16, bitcast=True)
        sums = sums * factor[:, None]
        scores = next_scores
    return sums, maximum, total, weights, scores


@jit
def attention(  # type: ignore[no-untyped-def]
    q_source,  # [BATCH, HEADS, N, D], as k_source, v_source and o_source: pointers, or descriptors if DESCRIPTOR
    k_source,
    v_source,
    o_source,
    HEADS,
    N,
    scale,
    q_strides,  # elements between batches, heads, rows and columns
    k_strides,
    v_strides,
    o_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
    AHEAD: tl.constexpr,
    LONGEST_FIRST: tl.constexpr,
):
    """One program computes BLOCK_M rows of one head; RAGGED if BLOCK_N does not divide N."""
    blocks = tl.cdiv(N, BLOCK_M)
    block = tl.program_id(0) % blocks
    if LONGEST_FIRST:
        block = blocks - 1 - block
    head = tl.program_id(0) // blocks % HEADS
    batch = tl.program_id(0) // blocks // HEADS
    row = block * BLOCK_M
    query = row + tl.arange(0, BLOCK_M)
    if not DESCRIPTOR:
        q_source += batch.to(tl.int64) * q_strides[0] + head.to(tl.int64) * q_strides[1]
        k_source += batch.to(tl.int64) * k_strides[0] + head.to(tl.int64) * k_strides[1]
        v_source += batch.to(tl.int64) * v_strides[0] + head.to(tl.int64) * v_strides[1]
        o_source += batch.to(tl.int64) * o_strides[0] + head.to(tl.int64) * o_strides[1]
    q = load_rows(q_source, batch, head, row, N, q_strides, BLOCK_M, D, True, DESCRIPTOR)
    maximum = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    # First the keys in blocks that every query sees whole, then the blocks that need a mask.
    if CAUSAL:
        whole = row // BLOCK_N * BLOCK_N
        last = tl.minimum(N, row + BLOCK_M)
    else:
        whole = N // BLOCK_N * BLOCK_N
        last = N
    if AHEAD:
        k = tl.reshape(k_source.load([batch, head, 0, 0]), (BLOCK_N, D))
        first_scores = tl.dot(q, k.T)
        k = tl.reshape(k_source.load([batch, head, BLOCK_N, 0]), (BLOCK_N, D))
        scores = tl.dot(q, k.T)
        key = tl.arange(0, BLOCK_N)
        exact, _, maximum, total = softmax_step(first_scores, maximum, total, query, key, N, scale, True, CAUSAL)
        weights = exact.to(k.dtype).to(tl.int16, bitcast=True)
        sums, maximum, total, weights, scores = attend_ahead(
            sums, maximum, total, weights, scores, q, k_source, v_source, batch, head, query,
            BLOCK_N, whole, N, scale, BLOCK_N, D, False, CAUSAL,
        )  # fmt: skip
        if CAUSAL or RAGGED:
            sums, maximum, total, weights, scores = attend_ahead(
                sums, maximum, total, weights, scores, q, k_source, v_source, batch, head, query,
                tl.maximum(whole, BLOCK_N), last, N, scale, BLOCK_N, D, True, CAUSAL,
            )  # fmt: skip
        v = tl.reshape(v_source.load([batch, head, (last - 1) // BLOCK_N * BLOCK_N, 0]), (BLOCK_N, D))
        sums = tl.dot(weights.to(v.dtype, bitcast=True), v, sums)
    else:
        sums, maximum, total = attend(
            sums, maximum, total, q, k_source, v_source, batch, head, query, 0, whole, N, scale,
            k_strides, v_strides, BLOCK_N, D, False, CAUSAL, DESCRIPTOR,
        )  # fmt: skip
        if CAUSAL or RAGGED:
            sums, maximum, total = attend(
                sums, maximum, total, q, k_source, v_source, batch, head, query, whole, last, N, scale,
                k_strides, v_strides, BLOCK_N, D, True, CAUSAL, DESCRIPTOR,
            )  # fmt: skip
    output = sums / total[:, None]
    if DESCRIPTOR:
        o_source.store([batch, head, row, 0], tl.reshape(output.to(o_source.dtype), (1, 1, BLOCK_M, D)))
    else:
        o_ptrs = o_source + query[:, None] * o_strides[2] + tl.arange(0, D)[None, :] * o_strides[3]
        tl.store(o_ptrs, output.to(o_source.dtype.element_ty), mask=query[:, None] < N)


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write the attention of each head to the output.

    Args:
        inputs: Q, K and V [BATCH, HEADS, N, D]; and a tensor [CAUSAL], whose shape says whether there is a mask.
        output: O [BATCH, HEADS, N, D].
        configuration: See `SPEC`.

    Raises:
        KernelError: A descriptor variant on a tensor whose rows are not contiguous or not aligned to 16 bytes.
    """
    q, k, v, causal = inputs
    batch, heads, n, d = q.shape
    block_m, block_n = int(configuration["BLOCK_M"]), int(configuration["BLOCK_N"])
    sources = (q, k, v, output)
    strides = [tensor.stride() for tensor in sources]
    by_descriptor = configuration["variant"] != "pointer"
    if by_descriptor:
        from triton.tools.tensor_descriptor import TensorDescriptor

        for tensor in sources:
            starts = [stride * tensor.element_size() for stride in tensor.stride()[:3]]
            if tensor.stride(3) != 1 or any(start % 16 for start in [*starts, tensor.data_ptr()]):
                raise KernelError(
                    f"variant {configuration['variant']} needs contiguous rows that start at multiples of 16 bytes, "
                    f"got strides {tensor.stride()}; use variant pointer"
                )
        rows = (block_m, block_n, block_n, block_m)
        sources = tuple(
            TensorDescriptor.from_tensor(tensor, [1, 1, count, d]) for tensor, count in zip(sources, rows, strict=True)
        )
    attention[(batch * heads * -(-n // block_m),)](
        *sources,
        heads,
        n,
        math.log2(math.e) / math.sqrt(d),
        *strides,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        D=d,
        CAUSAL=bool(causal.numel()),
        RAGGED=n % block_n != 0,
        DESCRIPTOR=by_descriptor,
        AHEAD=configuration["variant"] == "ahead",
        LONGEST_FIRST=bool(configuration["LONGEST_FIRST"]),
        num_warps=configuration["num_warps"],
        num_stages=configuration["num_stages"],
    )


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make Q, K, V [BATCH, HEADS, N, D], N(0, 1); and a tensor [CAUSAL] whose shape is all that matters."""
    import torch

    *shape, causal = (problem.sizes[name] for name in ("BATCH", "HEADS", "N", "D", "CAUSAL"))
    q, k, v = (normal(tuple(shape), problem.dtype, seed + part * 1_000_003, device) for part in range(3))
    return q, k, v, torch.zeros(causal, dtype=torch.uint8, device=device)


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make O [BATCH, HEADS, N, D], uninitialized."""
    import torch

    return torch.empty_like(inputs[0])


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch, which picks FlashAttention or cuDNN on a GPU."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal.numel() > 0)


def cost(problem: Problem) -> Cost:
    """2 N^2 D operations a head for each of two products, half of that if causal; Q, K, V read and O written once."""
    batch, heads, n, d, causal = (problem.sizes[name] for name in ("BATCH", "HEADS", "N", "D", "CAUSAL"))
    flops = 4 * batch * heads * n * n * d // (2 if causal else 1)
    return Cost(flops=flops, traffic_bytes=4 * batch * heads * n * d * ELEMENT_BYTES[problem.dtype])


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """One batch of a short sequence, as divisible by blocks as the problem's."""
    return (
        replace(
            problem, sizes={**problem.sizes, "BATCH": 1, "N": min(problem.sizes["N"], 512 + problem.sizes["N"] % 256)}
        ),
    )


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """Three heads of an odd length."""
    return (replace(problem, sizes={**problem.sizes, "BATCH": 2, "HEADS": 3, "N": 333}),)


def _problem(batch: int, heads: int, n: int, d: int, causal: int) -> Problem:
    return Problem({"BATCH": batch, "HEADS": heads, "N": n, "D": d, "CAUSAL": causal})


SPEC = KernelSpec(
    name="attention",
    title="Attention forward O = softmax(Q K^T / sqrt(D)) V, causal or not, fp16 or bf16 with fp32 sums",
    description=(
        "A program computes BLOCK_M rows of O for one head and walks along the keys in blocks of BLOCK_N; with CAUSAL "
        "= 1 only as far as its queries see. Variant pointer loads through pointers. Variant descriptor moves blocks "
        "with tensor descriptors (TMA, compute capability 9.0 or later); variant ahead is the same and computes the "
        "scores of the next block during the softmax of this one, for which it needs registers for two blocks of "
        "scores."
    ),
    size_names=("BATCH", "HEADS", "N", "D", "CAUSAL"),
    parameters=(
        Parameter("variant", ("pointer", "descriptor", "ahead"), "pointers, TMA, or TMA with the scores a block ahead"),
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "queries per program"),
        Parameter("BLOCK_N", (16, 32, 64, 128, 256), "keys per step"),
        Parameter("num_warps", (2, 4, 8, 16), "warps per program; 4 make a warpgroup"),
        Parameter("num_stages", (1, 2, 3, 4), "steps whose loads are in flight"),
        Parameter("LONGEST_FIRST", (0, 1), "1: the last rows of a head, which see most keys, start first"),
    ),
    restrictions=(
        # the copy engine
        "variant == 'pointer' or capability >= 90",
        "variant == 'pointer' or D * element_bytes % 16 == 0",
        "next_power_of_2(D) == D and D >= 16",
        # each warp has 16 rows; wgmma, which computes 64 rows, needs four warps
        "BLOCK_M >= 16 * num_warps",
        "num_warps >= 4 or BLOCK_M < 64",
        # registers: fp32 sums and scores (two blocks of them in ahead), and the weights at the inputs' dtype
        "BLOCK_M * (D + (2 if variant == 'ahead' else 1) * BLOCK_N + BLOCK_N * element_bytes // 4)"
        " <= 224 * 32 * num_warps",
        # queries, keys and values in flight, in ahead the first two blocks of keys, too, and barriers for descriptors
        "(BLOCK_M + 2 * BLOCK_N * (num_stages + (1 if variant == 'ahead' else 0))) * D * element_bytes"
        " + (0 if variant == 'pointer' else 1024) <= shared_bytes",
        # the order of programs matters where their lengths differ
        "LONGEST_FIRST == 0 or CAUSAL",
        # blocks far larger than the problem
        "BLOCK_M <= 64 or BLOCK_M < 2 * N",
        "BLOCK_N <= 64 or BLOCK_N < 2 * N",
    ),
    defaults=(
        {"variant": "pointer", "BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2, "LONGEST_FIRST": 0},
        {"variant": "pointer", "BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, "num_stages": 2, "LONGEST_FIRST": 0},
    ),
    problems=(
        _problem(4, 16, 4096, 128, 1),
        _problem(4, 16, 4096, 128, 0),
        _problem(4, 32, 2048, 64, 1),
        _problem(2, 32, 1000, 128, 1),
    ),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    flags=("CAUSAL",),
    dtypes=("fp16", "bf16"),
    check_problems=check_problems,
    odd_problems=odd_problems,
    strided="variant == 'pointer'",
)
