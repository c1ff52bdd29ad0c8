"""Matrix product of few rows, C = A B with M <= 64: fp16 or bf16 in and out, fp32 accumulation, K split.

Shapes: A [M, K], B [K, N], C [M, N]; for pointer loads any strides. It is a reading of B: what counts is that all
multiprocessors load all the time. SPLIT_K programs share a tile's sum over K (see `split_k`).

References: NVIDIA, PTX ISA, "wgmma.mma_async" (it computes 64 rows, of which few rows of A fill a part; the transposed
product C^T = B^T A^T puts the columns of B there).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit
from llm_sampler.kernels.spec import ELEMENT_BYTES, Cost, Inputs, KernelError, KernelSpec, Problem
from llm_sampler.kernels.split_k import sum_parts, workspace
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl


@jit
def split_k_matmul(  # type: ignore[no-untyped-def]
    a,  # [M, K]: pointer, or descriptor in blocks [BLOCK_M, BLOCK_K]
    b,  # [K, N]: pointer, or descriptor in blocks [BLOCK_K, BLOCK_N]
    c_ptr,  # [M, N]
    parts_ptr,  # see sum_parts
    arrivals_ptr,  # see sum_parts
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,  # at least M
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """One program sums one of SPLIT_K ranges of K for BLOCK_N columns of C."""
    tile, part = tl.program_id(0), tl.program_id(1)
    steps = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K)
    first = part * steps * BLOCK_K
    end = min(K, first + steps * BLOCK_K)
    ROWS: tl.constexpr = BLOCK_N if TRANSPOSED else BLOCK_M
    COLUMNS: tl.constexpr = BLOCK_M if TRANSPOSED else BLOCK_N
    rows = tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    if not DESCRIPTORS:
        # Rows and columns past the edge wrap around: their loads stay inside A and B, their results are not stored.
        a_rows = a + (rows % M).to(tl.int64)[:, None] * stride_am
        b_columns = b + (columns % N).to(tl.int64)[None, :] * stride_bn
    accumulator = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(first, end, BLOCK_K):
        if DESCRIPTORS:
            # Elements outside the tensors read as zero.
            a_block = a.load([0, start])
            b_block = b.load([start, tile * BLOCK_N])
        else:
            k = (start + inner).to(tl.int64)
            a_ptrs = a_rows + k[None, :] * stride_ak
            b_ptrs = b_columns + k[:, None] * stride_bk
            if EVEN_K:
                a_block = tl.load(a_ptrs)
                b_block = tl.load(b_ptrs, eviction_policy="evict_first")
            else:
                a_block = tl.load(a_ptrs, mask=k[None, :] < K, other=0.0)
                b_block = tl.load(b_ptrs, mask=k[:, None] < K, other=0.0, eviction_policy="evict_first")
        if TRANSPOSED:
            accumulator = tl.dot(tl.trans(b_block), tl.trans(a_block), accumulator)
        else:
            accumulator = tl.dot(a_block, b_block, accumulator)
    last, accumulator = sum_parts(accumulator, parts_ptr, arrivals_ptr, tile, part, ROWS, COLUMNS, SPLIT_K)
    if last:
        m, n = rows[:, None], columns[None, :]
        if TRANSPOSED:
            m, n = rows[None, :], columns[:, None]
        c_ptrs = c_ptr + m.to(tl.int64) * stride_cm + n.to(tl.int64) * stride_cn
        tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write A B to the output.

    Args:
        inputs: A [M, K] and B [K, N] of one dtype.
        output: C [M, N].
        configuration: See `SPEC`.

    Raises:
        KernelError: Descriptors for a tensor whose rows are not contiguous or not aligned to 16 bytes.
    """
    a, b = inputs
    (m, k), n = a.shape, b.shape[1]
    block_m = max(16, 1 << (m - 1).bit_length())
    block_n, block_k, split_k = (int(configuration[name]) for name in ("BLOCK_N", "BLOCK_K", "SPLIT_K"))
    tiles = -(-n // block_n)
    parts, arrivals = workspace(a, tiles, block_m * block_n, split_k)
    by_descriptor = configuration["LOADS"] == "descriptor"
    a_argument, b_argument = a, b
    if by_descriptor:
        from triton.tools.tensor_descriptor import TensorDescriptor

        for tensor in (a, b):
            if tensor.stride(1) != 1 or tensor.stride(0) * tensor.element_size() % 16 or tensor.data_ptr() % 16:
                raise KernelError(
                    "LOADS descriptor needs contiguous rows that start at multiples of 16 bytes, got shape "
                    f"{tuple(tensor.shape)} with strides {tensor.stride()}; use LOADS pointer"
                )
        a_argument = TensorDescriptor.from_tensor(a, [block_m, block_k])
        b_argument = TensorDescriptor.from_tensor(b, [block_k, block_n])
    split_k_matmul[(tiles, split_k)](
        a_argument,
        b_argument,
        output,
        parts,
        arrivals,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        *output.stride(),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SPLIT_K=split_k,
        EVEN_K=k % block_k == 0,
        TRANSPOSED=configuration["product"] == "transposed",
        DESCRIPTORS=by_descriptor,
        num_warps=configuration["num_warps"],
        num_stages=configuration["num_stages"],
    )


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """A [M, K] and B [K, N], both N(0, 1)."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    return normal((m, k), problem.dtype, seed, device), normal((k, n), problem.dtype, seed + 1_000_003, device)


def make_output(inputs: Inputs) -> torch.Tensor:
    """C [M, N], uninitialized."""
    a, b = inputs
    return a.new_empty((a.shape[0], b.shape[1]))


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch (cuBLAS on a GPU)."""
    return a @ b


def cost(problem: Problem) -> Cost:
    """2 M N K operations; A, B read and C written once."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    return Cost(flops=2 * m * n * k, traffic_bytes=(m * k + k * n + m * n) * ELEMENT_BYTES[problem.dtype])


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Columns that no block (but 16) divides; M and the remainder of K, which decide the binary, are kept."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    return (Problem({"M": m, "N": min(n, 304 + n % 16), "K": min(k, 1536 + k % 512)}, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """One with odd sizes, and one whose rows descriptors can address."""
    m = max(1, problem.sizes["M"] - 3)
    return tuple(Problem({"M": m, "N": n, "K": k}, problem.dtype) for n, k in ((333, 1345), (328, 1352)))


def _problem(m: int, n: int, k: int, dtype: str = "fp16") -> Problem:
    return Problem({"M": m, "N": n, "K": k}, dtype)


_BLOCK_M = "max(16, next_power_of_2(M))"
_STAGE_BYTES = f"({_BLOCK_M} + BLOCK_N) * BLOCK_K * element_bytes"
SPEC = KernelSpec(
    name="split_k_matmul",
    title="Matrix product of at most 64 rows, C = A B, fp16 or bf16 with fp32 accumulation, K split among programs",
    description=(
        "One tile of C holds all M rows (padded to a power of two, at least 16) and BLOCK_N columns. SPLIT_K programs "
        "share a tile: each sums a range of K, the last to finish adds their parts. The product is computed as A B "
        "(rows of A are the rows of the matrix instruction) or transposed as B^T A^T (columns of B are its rows, which "
        "suits the 64-row instruction of compute capability 9.0). Blocks are loaded through pointers or by descriptor "
        "(TMA, compute capability 9.0 or later). The time is that of reading B once."
    ),
    size_names=("M", "N", "K"),
    parameters=(
        Parameter("BLOCK_N", (32, 64, 128, 256), "columns of C per tile"),
        Parameter("BLOCK_K", (64, 128, 256, 512), "elements of K per step of the inner loop"),
        Parameter("SPLIT_K", (1, 2, 4, 8, 16), "programs that share a tile's sum over K"),
        Parameter("num_warps", (1, 2, 4, 8), "warps per program; 4 make a warpgroup"),
        Parameter("num_stages", (2, 3, 4, 5, 6), "steps of the inner loop whose loads are in flight"),
        Parameter("product", ("direct", "transposed"), "compute A B, or B^T A^T"),
        Parameter("LOADS", ("pointer", "descriptor"), "load blocks through pointers or by TMA"),
    ),
    restrictions=(
        "M <= 64",
        # the copy engine, and its blocks of at most 256 elements a side
        "LOADS == 'pointer' or capability >= 90",
        "LOADS == 'pointer' or (N * element_bytes % 16 == 0 and K * element_bytes % 16 == 0)",
        "LOADS == 'pointer' or BLOCK_K <= 256",
        # matrix instructions: 16x8 of the result per warp at least; 64 rows need four warps
        "product == 'transposed' or BLOCK_N >= 16 * num_warps",
        "product == 'direct' or BLOCK_N >= 64",
        "product == 'direct' or num_warps >= 4",
        f"{_BLOCK_M} * BLOCK_N <= 64 * 32 * num_warps",
        # blocks in flight: all that fits, but not so few that the loads of a multiprocessor cannot hide their latency
        f"{_STAGE_BYTES} * num_stages <= shared_bytes",
        f"{_STAGE_BYTES} * num_stages >= 32768",
        f"{_STAGE_BYTES} >= 4096 * num_warps",
        # as many programs as keep all multiprocessors busy, and at least two steps for each
        "SPLIT_K == 1 or cdiv(N, BLOCK_N) * SPLIT_K <= 8 * multiprocessors",
        "SPLIT_K == 1 or 2 * BLOCK_K * SPLIT_K <= K",
        "BLOCK_K <= 64 or BLOCK_K < 2 * K",
        "BLOCK_N <= 64 or BLOCK_N < 2 * N",
    ),
    defaults=(
        {
            "BLOCK_N": 64,
            "BLOCK_K": 128,
            "SPLIT_K": 1,
            "num_warps": 4,
            "num_stages": 3,
            "product": "direct",
            "LOADS": "pointer",
        },
    ),
    problems=(
        _problem(16, 8192, 8192),
        _problem(16, 4096, 4096),
        _problem(1, 4096, 14336),
        _problem(8, 28672, 8192, "bf16"),
        _problem(5, 1000, 1000),
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
    strided="LOADS == 'pointer'",
)
