"""Matrix product with 4-bit weights, y = x W: fp16 or bf16 x and y, fp32 accumulation, one scale for 128 weights.

Shapes: x [M, K], W [K, N], y [M, N]; W[k, n] = (q[k, n] - 8) * scale[k // 128, n] with q in 0..15.

Packing: eight weights of a column to an int32. K (padded to a multiple of 1024 with q = 8, which is zero) is cut into
runs of 1024 rows, and word [128 b + r, n] holds rows 1024 b + 128 i + r of the column in its bits 4 i to 4 i + 3,
i = 0..7. So neighbouring words are neighbouring columns, the i-th fields of a block of words are a block of W with one
scale a column, and unpacking moves nothing between threads.

References: Frantar et al., "GPTQ", arXiv:2210.17323 (4-bit weights in groups of 128); Kim et al., "Who Says Elephants
Can't Run", arXiv:2211.10017 (integers become floating-point numbers by setting mantissa bits).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit
from llm_sampler.kernels.spec import ELEMENT_BYTES, Cost, Inputs, KernelSpec, Problem
from llm_sampler.kernels.split_k import sum_parts, workspace
from llm_sampler.kernels.tensors import normal, torch_dtype
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl

FIELDS = 8
GROUP = 128
RUN = FIELDS * GROUP
ZERO = 8


@jit
def field_values(words, index: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The index-th 4-bit fields of words, minus 8, in fp16 or bf16; exact."""
    # 1024 + q has the bits 0x6400 | q in fp16; 128 + q has 0x4300 | q in bf16.
    fields = (words >> (4 * index)) & 0xF
    if dtype == tl.float16:
        values = (fields | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1032.0
    else:
        values = (fields | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - 136.0
    return values


@jit
def int4_matmul(  # type: ignore[no-untyped-def]
    x_ptr,  # [M, K]
    words_ptr,  # [K / 8, N] int32, K padded to a multiple of 1024
    scales_ptr,  # [K / 128, N], K padded likewise
    y_ptr,  # [M, N]
    parts_ptr,  # see sum_parts
    arrivals_ptr,  # see sum_parts
    M,
    N,
    K,
    runs,  # of 1024 rows of W
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # rows of words, at most 128: 8 blocks of W
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    SCALE_SUMS: tl.constexpr,
):
    """One program sums one of SPLIT_K ranges of K for one tile of y."""
    tile, part = tl.program_id(0), tl.program_id(1)
    # Programs that run together share columns of W: of many rows of x, the tiles of one column are neighbours.
    tiles_m = tl.cdiv(M, BLOCK_M)
    rows = (tile % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (tile // tiles_m) * BLOCK_N + tl.arange(0, BLOCK_N)
    ROWS: tl.constexpr = BLOCK_N if TRANSPOSED else BLOCK_M
    COLUMNS: tl.constexpr = BLOCK_M if TRANSPOSED else BLOCK_N
    STEPS_IN_RUN: tl.constexpr = 128 // BLOCK_K
    all_steps = runs * STEPS_IN_RUN
    steps = tl.cdiv(all_steps, SPLIT_K)
    first = part * steps
    # Rows and columns past the edge wrap around: their loads stay inside, their results are not stored.
    x_rows = x_ptr + (rows % M).to(tl.int64)[:, None] * K
    wrapped = columns % N
    inner = tl.arange(0, BLOCK_K)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    accumulator = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(first, min(all_steps, first + steps)):
        word_rows = (step * BLOCK_K + inner).to(tl.int64)
        words = tl.load(words_ptr + word_rows[:, None] * N + wrapped[None, :], eviction_policy="evict_first")
        run = step // STEPS_IN_RUN
        k = run * 1024 + (step % STEPS_IN_RUN) * BLOCK_K + inner
        for index in tl.static_range(8):
            scales = tl.load(scales_ptr + (run * 8 + index).to(tl.int64) * N + wrapped)
            if EVEN_K:
                x = tl.load(x_rows + (k + 128 * index)[None, :])
            else:
                x = tl.load(x_rows + (k + 128 * index)[None, :], mask=(k + 128 * index)[None, :] < K, other=0.0)
            weights = field_values(words, index, dtype)
            if SCALE_SUMS:
                if TRANSPOSED:
                    accumulator += tl.dot(tl.trans(weights), tl.trans(x)) * scales.to(tl.float32)[:, None]
                else:
                    accumulator += tl.dot(x, weights) * scales.to(tl.float32)[None, :]
            else:
                weights *= scales[None, :]
                if TRANSPOSED:
                    accumulator = tl.dot(tl.trans(weights), tl.trans(x), accumulator)
                else:
                    accumulator = tl.dot(x, weights, accumulator)
    last, accumulator = sum_parts(accumulator, parts_ptr, arrivals_ptr, tile, part, ROWS, COLUMNS, SPLIT_K)
    if last:
        m, n = rows[:, None], columns[None, :]
        if TRANSPOSED:
            m, n = rows[None, :], columns[:, None]
        tl.store(y_ptr + m.to(tl.int64) * N + n, accumulator.to(dtype), mask=(m < M) & (n < N))


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write x W to the output.

    Args:
        inputs: x [M, K], packed weights, scales, and W [K, N], which is not read; all contiguous.
        output: y [M, N].
        configuration: See `SPEC`.
    """
    x, words, scales, _ = inputs
    (m, k), n = x.shape, words.shape[1]
    block_m, block_n, block_k, split_k = (
        int(configuration[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K")
    )
    tiles = -(-m // block_m) * -(-n // block_n)
    parts, arrivals = workspace(x, tiles, block_m * block_n, split_k)
    int4_matmul[(tiles, split_k)](
        x,
        words,
        scales,
        output,
        parts,
        arrivals,
        m,
        n,
        k,
        words.shape[0] // GROUP,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SPLIT_K=split_k,
        EVEN_K=k % RUN == 0,
        TRANSPOSED=configuration["product"] == "transposed",
        SCALE_SUMS=configuration["SCALE"] == "sums",
        num_warps=configuration["num_warps"],
        num_stages=configuration["num_stages"],
    )


def pack(fields: torch.Tensor) -> torch.Tensor:
    """Words [K / 8, N] int32 of 4-bit fields [K, N]; K must be a multiple of 1024.

    Args:
        fields: Integers in 0..15.
    """
    import torch

    k, n = fields.shape
    grouped = fields.to(torch.int32).view(k // RUN, FIELDS, GROUP, n)
    words = torch.zeros((k // RUN, GROUP, n), dtype=torch.int32, device=fields.device)
    for index in range(FIELDS):
        words |= grouped[:, index] << (4 * index)
    return words.view(k // FIELDS, n)


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make x [M, K] N(0, 1); packed random weights; scales; and W [K, N] as the reference multiplies it.

    Scales have five significant bits, so that W is exact in fp16 and bf16: kernel and reference multiply the same
    numbers.
    """
    import torch

    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    dtype = torch_dtype(problem.dtype)
    padded = -(-k // RUN) * RUN
    x = normal((m, k), problem.dtype, seed, device)
    if device == "meta":
        words = torch.empty((padded // FIELDS, n), dtype=torch.int32, device=device)
        return x, words, x.new_empty((padded // GROUP, n)), x.new_empty((k, n))
    generator = torch.Generator(device).manual_seed(seed + 1_000_003)
    fields = torch.randint(0, 16, (padded, n), generator=generator, device=device, dtype=torch.int8)
    fields[k:] = ZERO
    mantissas = torch.randint(16, 32, (padded // GROUP, n), generator=generator, device=device)
    scales = (mantissas / 128.0).to(dtype)
    weights = (fields - ZERO).to(dtype) * scales.repeat_interleave(GROUP, dim=0)
    return x, pack(fields), scales, weights[:k].contiguous()


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make y [M, N], uninitialized."""
    x, words, _, _ = inputs
    return x.new_empty((x.shape[0], words.shape[1]))


def reference(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The product with the unpacked weights, which PyTorch keeps in 16 bits (cuBLAS on a GPU)."""
    del words, scales
    return x @ weights


def cost(problem: Problem) -> Cost:
    """2 M N K operations; x, packed weights and scales read and y written once."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    traffic_bytes = (m * k + m * n + k * n // GROUP) * ELEMENT_BYTES[problem.dtype] + k * n // 2
    return Cost(flops=2 * m * n * k, traffic_bytes=traffic_bytes)


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Columns that no block (but 16) divides; M's and K's remainders, which decide the binary, are kept."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    small = {"M": m if m <= 16 else min(m, 272 + m % 16), "N": min(n, 304 + n % 16), "K": min(k, 2 * RUN + k % RUN)}
    return (Problem(small, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """Odd sizes, K no multiple of a group."""
    m = problem.sizes["M"]
    return (Problem({"M": max(1, m - 3) if m <= 16 else 133, "N": 333, "K": 2 * RUN + 345}, problem.dtype),)


def _problem(m: int, n: int, k: int, dtype: str = "fp16") -> Problem:
    return Problem({"M": m, "N": n, "K": k}, dtype)


SPEC = KernelSpec(
    name="int4_matmul",
    title="Matrix product with 4-bit weights in groups of 128, y = x W, fp16 or bf16 with fp32 accumulation",
    description=(
        "A step loads BLOCK_K rows of int32 words, each of which holds 8 weights, and unpacks them in registers into 8 "
        "blocks of W, each multiplied with its own block of x. Weights are scaled before the product or the products' "
        "sums after it (fewer multiplications where there are few rows of x). The product is computed as x W or "
        "transposed as W^T x^T (columns of W are rows of the matrix instruction, which suits the 64-row instruction of "
        "compute capability 9.0, whose first operand may come from registers). SPLIT_K programs share a tile: each "
        "sums a range of K, the last to finish adds their parts. PyTorch's time is that of the product with W in fp16."
    ),
    size_names=("M", "N", "K"),
    parameters=(
        Parameter("BLOCK_M", (16, 32, 64, 128), "rows of x per tile"),
        Parameter("BLOCK_N", (32, 64, 128, 256), "columns of W per tile"),
        Parameter("BLOCK_K", (16, 32, 64, 128), "rows of words per step; each is 8 rows of W"),
        Parameter("SPLIT_K", (1, 2, 4, 8), "programs that share a tile's sum over K"),
        Parameter("num_warps", (1, 2, 4, 8), "warps per program; 4 make a warpgroup"),
        Parameter("num_stages", (1, 2, 3, 4, 5), "steps of the inner loop whose loads are in flight"),
        Parameter("product", ("direct", "transposed"), "compute x W, or W^T x^T"),
        Parameter("SCALE", ("weights", "sums"), "scale the weights, or the sums over a group"),
    ),
    restrictions=(
        # tiles: no larger than the problem; accumulators at most 128 of a thread's 255 registers
        "BLOCK_M == 16 or BLOCK_M < 2 * M",
        "BLOCK_M >= 64 or M < 64",
        "BLOCK_N <= 64 or BLOCK_N < 2 * N",
        "BLOCK_M * BLOCK_N * (2 if SCALE == 'sums' else 1) <= 128 * 32 * num_warps",
        # matrix instructions: 16x8 of the result per warp at least; 64 rows need four warps
        "BLOCK_M * BLOCK_N >= 256 * num_warps",
        "product == 'direct' or (BLOCK_N >= 64 and num_warps >= 4)",
        # words of a step: 4 to 32 a thread, each 8 weights
        "BLOCK_K * BLOCK_N >= 128 * num_warps",
        "BLOCK_K * BLOCK_N <= 1024 * num_warps",
        # blocks in flight: words, and eight blocks of x
        "(4 * BLOCK_K * BLOCK_N + 8 * element_bytes * BLOCK_M * BLOCK_K) * num_stages <= shared_bytes",
        # as many programs as keep all multiprocessors busy
        "SPLIT_K == 1 or cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K <= 8 * multiprocessors",
        "SPLIT_K == 1 or 1024 * SPLIT_K <= K",
    ),
    defaults=(
        {
            "BLOCK_M": 16,
            "BLOCK_N": 64,
            "BLOCK_K": 32,
            "SPLIT_K": 1,
            "num_warps": 4,
            "num_stages": 3,
            "product": "direct",
            "SCALE": "weights",
        },
        {
            "BLOCK_M": 64,
            "BLOCK_N": 64,
            "BLOCK_K": 32,
            "SPLIT_K": 1,
            "num_warps": 4,
            "num_stages": 2,
            "product": "direct",
            "SCALE": "weights",
        },
    ),
    problems=(
        _problem(16, 8192, 8192),
        _problem(1, 4096, 4096),
        _problem(16, 14336, 4096),
        _problem(4, 28672, 8192, "bf16"),
        _problem(8, 4096, 14336),
        _problem(4096, 4096, 4096),
    ),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    dtypes=("fp16", "bf16"),
    check_problems=check_problems,
    odd_problems=odd_problems,
    free_inputs=(0,),
)
