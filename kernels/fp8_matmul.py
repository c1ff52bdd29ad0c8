"""Matrix product of 8-bit floats, y = (x W^T) * scales: e4m3 x and W, fp32 accumulation, fp16 y.

Shapes: x [M, K], W [N, K] (K runs fastest in both, as the 8-bit matrix instruction wants it), y [M, N]; scale of row m
of y: x_scales [M], of column n: w_scales [N], fp32. One scale for a whole tensor is the case of equal scales.

References: Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433 (e4m3); DeepSeek-AI, "DeepSeek-V3
technical report", arXiv:2412.19437, section 3.3.2 (compute capability 9.0 adds 8-bit products with about 14 bits, so
that sums over more than 128 elements must be continued in fp32).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit
from llm_sampler.kernels.matmul import tile_origin
from llm_sampler.kernels.spec import Cost, Inputs, KernelError, KernelSpec, Problem
from llm_sampler.kernels.split_k import sum_parts, workspace
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl

GROUP_M = 8
_LARGEST = 448.0  # of e4m3


@jit
def bits_to_half(bits):  # type: ignore[no-untyped-def]
    """e4m3 numbers, given as uint8, in fp16, divided by 256; exact but for NaN.

    Sign and exponent move to fp16's places; its exponents count from -15 where e4m3's count from -7.
    """
    wide = bits.to(tl.int16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@jit
def fp8_matmul(  # type: ignore[no-untyped-def]
    x,  # [M, K]: pointer, or descriptor in blocks [BLOCK_M, BLOCK_K]
    w,  # [N, K]: pointer, or descriptor in blocks [BLOCK_N, BLOCK_K]
    x_scales_ptr,  # [M]
    w_scales_ptr,  # [N]
    y_ptr,  # [M, N]
    parts_ptr,  # see sum_parts
    arrivals_ptr,  # see sum_parts
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRODUCT: tl.constexpr,  # fp8, convert, or bits
):
    """One program sums one of SPLIT_K ranges of K for one tile of y."""
    tile, part = tl.program_id(0), tl.program_id(1)
    row, column = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    steps = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K)
    first = part * steps * BLOCK_K
    end = min(K, first + steps * BLOCK_K)
    ROWS: tl.constexpr = BLOCK_N if TRANSPOSED else BLOCK_M
    COLUMNS: tl.constexpr = BLOCK_M if TRANSPOSED else BLOCK_N
    # Tensor cores' sums of 8-bit products lose bits: after so many elements of K they are added to fp32 sums.
    PRECISE_K: tl.constexpr = min(BLOCK_K, 128) if PRODUCT == "fp8" else 0
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    if not DESCRIPTORS:
        # Rows past the edge wrap around: their loads stay inside x and W, their results are not stored.
        x_rows = x + (rows % M).to(tl.int64)[:, None] * K
        w_rows = w + (columns % N).to(tl.int64)[:, None] * K
    accumulator = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(first, end, BLOCK_K):
        if DESCRIPTORS:
            # Elements outside the tensors read as zero.
            x_block = x.load([row, start])
            w_block = w.load([column, start])
        else:
            k = start + inner
            if EVEN_K:
                x_block = tl.load(x_rows + k[None, :])
                w_block = tl.load(w_rows + k[None, :])
            else:
                x_block = tl.load(x_rows + k[None, :], mask=k[None, :] < K, other=0.0)
                w_block = tl.load(w_rows + k[None, :], mask=k[None, :] < K, other=0.0)
        if PRODUCT == "convert":
            x_block = x_block.to(tl.float16)
            w_block = w_block.to(tl.float16)
        elif PRODUCT == "bits":
            x_block = bits_to_half(x_block)
            w_block = bits_to_half(w_block)
        if TRANSPOSED:
            accumulator = tl.dot(w_block, tl.trans(x_block), accumulator, max_num_imprecise_acc=PRECISE_K)
        else:
            accumulator = tl.dot(x_block, tl.trans(w_block), accumulator, max_num_imprecise_acc=PRECISE_K)
    last, accumulator = sum_parts(accumulator, parts_ptr, arrivals_ptr, tile, part, ROWS, COLUMNS, SPLIT_K)
    if last:
        x_scales = tl.load(x_scales_ptr + rows, mask=rows < M, other=0.0)
        w_scales = tl.load(w_scales_ptr + columns, mask=columns < N, other=0.0)
        if PRODUCT == "bits":
            x_scales *= 65536.0
        if TRANSPOSED:
            m, n = rows[None, :], columns[:, None]
            y = accumulator * w_scales[:, None] * x_scales[None, :]
        else:
            m, n = rows[:, None], columns[None, :]
            y = accumulator * x_scales[:, None] * w_scales[None, :]
        y_ptrs = y_ptr + m.to(tl.int64) * N + n
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write the scaled product to the output.

    Args:
        inputs: x [M, K] and W [N, K] e4m3, x_scales [M], w_scales [N] fp32, and x and W in fp16, which are not read;
            all contiguous.
        output: y [M, N].
        configuration: See `SPEC`.

    Raises:
        KernelError: Descriptors for tensors whose rows are not aligned to 16 bytes.
    """
    import torch

    x, w, x_scales, w_scales, _, _ = inputs
    (m, k), n = x.shape, w.shape[0]
    block_m, block_n, block_k, split_k = (
        int(configuration[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K")
    )
    tiles = -(-m // block_m) * -(-n // block_n)
    parts, arrivals = workspace(x, tiles, block_m * block_n, split_k)
    variant = str(configuration["variant"])
    x_argument, w_argument = (x, w) if variant != "bits" else (x.view(torch.uint8), w.view(torch.uint8))
    by_descriptor = configuration["LOADS"] == "descriptor"
    if by_descriptor:
        from triton.tools.tensor_descriptor import TensorDescriptor

        if k % 16 or x.data_ptr() % 16 or w.data_ptr() % 16:
            raise KernelError(
                f"LOADS descriptor needs rows that start at multiples of 16 bytes, got K={k}; use LOADS pointer"
            )
        x_argument = TensorDescriptor.from_tensor(x_argument, [block_m, block_k])
        w_argument = TensorDescriptor.from_tensor(w_argument, [block_n, block_k])
    fp8_matmul[(tiles, split_k)](
        x_argument,
        w_argument,
        x_scales,
        w_scales,
        output,
        parts,
        arrivals,
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=GROUP_M,
        SPLIT_K=split_k,
        EVEN_K=k % block_k == 0,
        TRANSPOSED=configuration["product"] == "transposed",
        DESCRIPTORS=by_descriptor,
        PRODUCT=variant,
        num_warps=configuration["num_warps"],
        num_stages=configuration["num_stages"],
    )


def quantized(shape: tuple[int, int], seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """N(0, 1) values in e4m3 [rows, K], a scale for each row [rows], and their product in fp16 [rows, K], exact.

    Scales have four significant bits, so that the product with e4m3's four fits fp16.
    """
    import torch

    if device == "meta":
        values = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
        return values, values.new_empty(shape[0], dtype=torch.float32), values.new_empty(shape, dtype=torch.float16)
    generator = torch.Generator(device).manual_seed(seed)
    exact = torch.randn(shape, generator=generator, device=device)
    least = exact.abs().amax(dim=1).clamp_min(1e-3) / _LARGEST
    exponents = torch.floor(torch.log2(least)) - 3
    scales = torch.ceil(least / torch.exp2(exponents)) * torch.exp2(exponents)
    values = (exact / scales[:, None]).to(torch.float8_e4m3fn)
    return values, scales, (values.float() * scales[:, None]).half()


def make_inputs(problem: Problem, seed: int, device: str) -> Inputs:
    """Make x [M, K] and W [N, K] in e4m3 with their scales, and both in fp16 as the reference multiplies them."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    x, x_scales, x_half = quantized((m, k), seed, device)
    w, w_scales, w_half = quantized((n, k), seed + 1_000_003, device)
    return x, w, x_scales, w_scales, x_half, w_half


def make_output(inputs: Inputs) -> torch.Tensor:
    """Make y [M, N], uninitialized."""
    x_half, w_half = inputs[4:]
    return x_half.new_empty((x_half.shape[0], w_half.shape[0]))


def reference(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    x_half: torch.Tensor,
    w_half: torch.Tensor,
) -> torch.Tensor:
    """The product of the same numbers in fp16 (cuBLAS on a GPU)."""
    del x, w, x_scales, w_scales
    return x_half @ w_half.T


def cost(problem: Problem) -> Cost:
    """2 M N K operations; x, W and scales read and fp16 y written once."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    return Cost(flops=2 * m * n * k, traffic_bytes=m * k + n * k + 4 * (m + n) + 2 * m * n)


def check_problems(problem: Problem) -> tuple[Problem, ...]:
    """Columns that no block (but 16) divides; M's and K's remainders, which decide the binary, are kept."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    small = {"M": m if m <= 16 else min(m, 272 + m % 16), "N": min(n, 304 + n % 16), "K": min(k, 1536 + k % 512)}
    return (Problem(small, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """One with odd sizes, and one whose rows descriptors can address."""
    m = max(1, problem.sizes["M"] - 3) if problem.sizes["M"] <= 16 else 133
    return tuple(Problem({"M": m, "N": 333, "K": k}, problem.dtype) for k in (1345, 1360))


def _problem(m: int, n: int, k: int) -> Problem:
    return Problem({"M": m, "N": n, "K": k}, "fp8")


_DEFAULT: Configuration = {
    "BLOCK_M": 16,
    "BLOCK_N": 64,
    "BLOCK_K": 128,
    "SPLIT_K": 1,
    "num_warps": 4,
    "num_stages": 3,
    "variant": "convert",
    "product": "direct",
    "LOADS": "pointer",
}
SPEC = KernelSpec(
    name="fp8_matmul",
    title="Matrix product of 8-bit floats (e4m3) with scales, y = (x W^T) * scales, fp32 accumulation, fp16 out",
    description=(
        "Variant fp8 multiplies 8-bit blocks (compute capability 8.9 or later). The others multiply fp16 blocks: "
        "convert by the conversion instruction of 8.9 and later, bits by shifting bits, on any GPU. The product is "
        "computed as x W^T or transposed as W x^T (rows of W are rows of the matrix instruction, which suits few rows "
        "of x and the 64-row instruction of compute capability 9.0). SPLIT_K programs share a tile: each sums a range "
        "of K, the last to finish adds their parts. Blocks are loaded through pointers or by descriptor (TMA, compute "
        "capability 9.0 or later). PyTorch's time is that of the product of the same numbers in fp16."
    ),
    size_names=("M", "N", "K"),
    parameters=(
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "rows of x per tile"),
        Parameter("BLOCK_N", (32, 64, 128, 256), "rows of W (columns of y) per tile"),
        Parameter("BLOCK_K", (64, 128, 256, 512), "elements of K per step of the inner loop"),
        Parameter("SPLIT_K", (1, 2, 4, 8), "programs that share a tile's sum over K"),
        Parameter("num_warps", (2, 4, 8), "warps per program; 4 make a warpgroup"),
        Parameter("num_stages", (2, 3, 4, 5, 6), "steps of the inner loop whose loads are in flight"),
        Parameter("variant", ("fp8", "convert", "bits"), "multiply 8-bit blocks, or convert them to fp16 before"),
        Parameter("product", ("direct", "transposed"), "compute x W^T, or W x^T"),
        Parameter("LOADS", ("pointer", "descriptor"), "load blocks through pointers or by TMA"),
    ),
    restrictions=(
        # 8-bit instructions and conversions; the copy engine, and its blocks of at most 256 elements a side
        "variant == 'bits' or capability >= 89",
        "LOADS == 'pointer' or capability >= 90",
        "LOADS == 'pointer' or (K % 16 == 0 and BLOCK_K <= 256)",
        # tiles no larger than the problem
        "BLOCK_M == 16 or BLOCK_M < 2 * M",
        "BLOCK_M >= 64 or M < 64",
        "BLOCK_N <= 64 or BLOCK_N < 2 * N",
        "BLOCK_N >= 64 or M < 64",
        # accumulators: at most 128 of a thread's 255 registers, half of that where sums are continued in fp32
        "BLOCK_M * BLOCK_N * (2 if variant == 'fp8' else 1) <= 128 * 32 * num_warps",
        # matrix instructions: 16x8 of the result per warp at least; 64 rows, as 8-bit blocks need, take four warps
        "BLOCK_M * BLOCK_N >= 256 * num_warps",
        "product == 'direct' or (BLOCK_N >= 64 and num_warps >= 4)",
        "product == 'transposed' or variant != 'fp8' or BLOCK_M >= 64",
        # where both are 64-row instructions, transposing changes nothing but the order of registers
        "product == 'direct' or BLOCK_M < 64",
        # blocks in flight: all that fits, but not so few that the loads of a multiprocessor cannot hide their latency
        "(BLOCK_M + BLOCK_N) * BLOCK_K * num_stages <= shared_bytes",
        "(BLOCK_M + BLOCK_N) * BLOCK_K * num_stages >= 24576",
        "(BLOCK_M + BLOCK_N) * BLOCK_K >= 2048 * num_warps",
        # numbers that a thread converts at once: more make the compiler take minutes and spill
        "variant == 'fp8' or BLOCK_N * BLOCK_K <= 8192 * num_warps",
        # as many programs as keep all multiprocessors busy, and at least two steps for each
        "SPLIT_K == 1 or cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N) * SPLIT_K <= 8 * multiprocessors",
        "SPLIT_K == 1 or 2 * BLOCK_K * SPLIT_K <= K",
        "BLOCK_K <= 64 or BLOCK_K < 2 * K",
    ),
    defaults=(
        _DEFAULT,
        {**_DEFAULT, "variant": "bits"},
        {**_DEFAULT, "BLOCK_M": 64, "BLOCK_K": 64},
        {**_DEFAULT, "BLOCK_M": 64, "BLOCK_K": 64, "variant": "bits"},
    ),
    problems=(
        _problem(16, 8192, 8192),
        _problem(1, 4096, 4096),
        _problem(16, 14336, 4096),
        _problem(4, 28672, 8192),
        _problem(8, 4096, 14336),
        _problem(4096, 4096, 4096),
    ),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    dtypes=("fp8",),
    check_problems=check_problems,
    odd_problems=odd_problems,
    value_ranges=("normal",),
    free_inputs=(),
)
