"""Matrix product C = A B: fp16 or bf16 in and out, fp32 accumulation.

Shapes: A [M, K], B [K, N], C [M, N]; any sizes and, for the pointer variant, any strides. Programs are ordered in
groups of GROUP_M tile rows, so that programs that run together share rows of A and columns of B in L2.

References: Triton's tutorials on matrix multiplication and persistent matmul (the algorithms); NVIDIA, CUDA C++
programming guide, "Tensor Memory Access" (alignment of descriptors: base and rows at multiples of 16 bytes).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llm_sampler.kernels.lazy import jit, multiprocessors
from llm_sampler.kernels.spec import ELEMENT_BYTES, Cost, Inputs, KernelError, KernelSpec, Problem
from llm_sampler.kernels.tensors import normal
from llm_sampler.space import Configuration, Parameter

if TYPE_CHECKING:
    import torch
    import triton.language as tl


@jit
def tile_origin(  # type: ignore[no-untyped-def]
    tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr
):
    """First row and column of a tile of C, in grouped order."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * tiles_n)
    rows_in_group = min(tiles_m - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m = group * GROUP_M + within % rows_in_group
    tile_n = within // rows_in_group
    return tile_m * BLOCK_M, tile_n * BLOCK_N


@jit
def matmul_pointer(  # type: ignore[no-untyped-def]
    a_ptr,  # [M, K]
    b_ptr,  # [K, N]
    c_ptr,  # [M, N]
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """One program computes one tile of C through pointers."""
    row, column = tile_origin(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    # Rows and columns past the edge wrap around: their loads stay inside A and B, their results are not stored.
    rows = ((row + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    columns = ((column + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + inner[None, :] * stride_ak
    b_ptrs = b_ptr + inner[:, None] * stride_bk + columns[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=inner[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=inner[:, None] < left, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    rows_c = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns_c = (column + tl.arange(0, BLOCK_N)).to(tl.int64)
    c_ptrs = c_ptr + rows_c[:, None] * stride_cm + columns_c[None, :] * stride_cn
    inside = (rows_c[:, None] < M) & (columns_c[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=inside)


@jit
def matmul_descriptor(  # type: ignore[no-untyped-def]
    a_desc,  # [M, K] in blocks [BLOCK_M, BLOCK_K]
    b_desc,  # [K, N] in blocks [BLOCK_K, BLOCK_N]
    c_desc,  # [M, N] in blocks [BLOCK_M, BLOCK_N / EPILOGUE_PARTS]
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EPILOGUE_PARTS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """One program computes every PROGRAMS-th tile; the copy engine (TMA) moves the blocks."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=FLATTEN):
        row, column = tile_origin(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(0, tl.cdiv(K, BLOCK_K)):
            # Elements outside the tensors read as zero and are not written.
            a = a_desc.load([row, step * BLOCK_K])
            b = b_desc.load([step * BLOCK_K, column])
            accumulator = tl.dot(a, b, accumulator)
        if EPILOGUE_PARTS == 1:
            c_desc.store([row, column], accumulator.to(c_desc.dtype))
        else:
            halves = tl.permute(tl.reshape(accumulator, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c_desc.store([row, column], left.to(c_desc.dtype))
            c_desc.store([row, column + BLOCK_N // 2], right.to(c_desc.dtype))


def launch(inputs: Inputs, output: torch.Tensor, configuration: Configuration) -> None:
    """Write A B to the output.

    Args:
        inputs: A [M, K] and B [K, N] of one dtype.
        output: C [M, N].
        configuration: See `SPEC`.

    Raises:
        KernelError: A descriptor variant on a tensor whose rows are not contiguous or not aligned to 16 bytes.
    """
    a, b = inputs
    (m, k), n = a.shape, b.shape[1]
    block_m, block_n, block_k = (int(configuration[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    tiles = -(-m // block_m) * -(-n // block_n)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": configuration["GROUP_M"]}
    options = {"num_warps": configuration["num_warps"], "num_stages": configuration["num_stages"]}
    if configuration["variant"] == "pointer":
        strides = (*a.stride(), *b.stride(), *output.stride())
        matmul_pointer[(tiles,)](a, b, output, m, n, k, *strides, **blocks, EVEN_K=k % block_k == 0, **options)
        return
    from triton.tools.tensor_descriptor import TensorDescriptor

    for tensor, shape in ((a, (m, k)), (b, (k, n)), (output, (m, n))):
        if tensor.stride() != (shape[1], 1) or shape[1] * tensor.element_size() % 16 or tensor.data_ptr() % 16:
            raise KernelError(
                f"variant {configuration['variant']} needs contiguous rows that start at multiples of 16 bytes, "
                f"got shape {shape} with strides {tensor.stride()}; use variant pointer"
            )
    # As few programs as need no more rounds than one a multiprocessor: 512 tiles on 132 take four rounds of 128.
    rounds = -(-tiles // multiprocessors())
    programs = -(-tiles // rounds)
    parts = int(configuration["EPILOGUE_PARTS"])
    matmul_descriptor[(programs,)](
        TensorDescriptor.from_tensor(a, [block_m, block_k]),
        TensorDescriptor.from_tensor(b, [block_k, block_n]),
        TensorDescriptor.from_tensor(output, [block_m, block_n // parts]),
        m,
        n,
        k,
        **blocks,
        EPILOGUE_PARTS=parts,
        PROGRAMS=programs,
        FLATTEN=configuration["variant"] == "descriptor_flat",
        **options,
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
    """Rows and columns that no block (but 16) divides; K keeps its remainder, which decides EVEN_K."""
    m, n, k = (problem.sizes[name] for name in ("M", "N", "K"))
    sizes = {"M": min(m, 272 + m % 16), "N": min(n, 304 + n % 16), "K": min(k, 512 + k % 256)}
    return (Problem(sizes, problem.dtype),)


def odd_problems(problem: Problem) -> tuple[Problem, ...]:
    """One with odd sizes, and one whose rows descriptors can address."""
    odd, aligned = {"M": 323, "N": 333, "K": 345}, {"M": 323, "N": 328, "K": 344}
    return Problem(odd, problem.dtype), Problem(aligned, problem.dtype)


def _cube(size: int) -> Problem:
    return Problem({"M": size, "N": size, "K": size})


SPEC = KernelSpec(
    name="matmul",
    title="Matrix product C = A B, fp16 or bf16 with fp32 accumulation",
    description=(
        "Variant pointer computes one tile of C per program through pointers. Variant descriptor is persistent (at "
        "most one program a multiprocessor) and moves blocks with tensor descriptors (TMA, compute capability 9.0 or "
        "later); descriptor_flat is the same with the loops over tiles and over K flattened into one, so that the "
        "loads of the next tile overlap the end of this one."
    ),
    size_names=("M", "N", "K"),
    parameters=(
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "rows of C per tile"),
        Parameter("BLOCK_N", (32, 64, 128, 256), "columns of C per tile"),
        Parameter("BLOCK_K", (32, 64, 128, 256), "elements of K per step of the inner loop"),
        Parameter("GROUP_M", (8, 16), "tile rows that are visited together, for reuse in L2"),
        Parameter("num_warps", (2, 4, 8), "warps per program; 4 make a warpgroup"),
        Parameter("num_stages", (2, 3, 4, 5, 6), "steps of the inner loop whose loads are in flight"),
        Parameter("EPILOGUE_PARTS", (1, 2), "parts in which descriptor variants store a tile of C; 1 for pointer"),
        Parameter("variant", ("pointer", "descriptor", "descriptor_flat"), "pointers, or persistent with TMA"),
    ),
    restrictions=(
        # the copy engine
        "variant == 'pointer' or capability >= 90",
        "variant == 'pointer' or (N * element_bytes % 16 == 0 and K * element_bytes % 16 == 0)",
        # accumulators: at most 128 of a thread's 255 registers; at least one 16x8 fragment of C per warp; wgmma, which
        # computes 64 rows, needs four warps
        "BLOCK_M * BLOCK_N <= 128 * 32 * num_warps",
        "BLOCK_M * BLOCK_N >= 128 * num_warps",
        "num_warps >= 4 or BLOCK_M < 64",
        # blocks in flight (one less where mma instead of wgmma reads them from registers), and, for descriptors, the
        # part of C that is stored and a barrier per stage: what Triton 3.6 and 3.9 allocate, but for a few small
        # pipelines whose scratch for splitting C is larger
        "(BLOCK_M + BLOCK_N) * BLOCK_K * element_bytes"
        " * (num_stages if BLOCK_M >= 64 and num_warps >= 4 and capability >= 90 else num_stages - 1)"
        " + (0 if variant == 'pointer' else BLOCK_M * BLOCK_N * element_bytes // EPILOGUE_PARTS + 8 * num_stages)"
        " <= shared_bytes",
        # small tiles, and long steps along K, only where large tiles would leave multiprocessors idle
        "min(BLOCK_M, BLOCK_N) >= 64 or M * N <= 4 * 4096 * multiprocessors",
        "BLOCK_K <= 128 or BLOCK_M < 64",
        # blocks far larger than the problem
        "BLOCK_M <= 64 or BLOCK_M < 2 * M",
        "BLOCK_N <= 64 or BLOCK_N < 2 * N",
        "BLOCK_K <= 64 or BLOCK_K < 2 * K",
        # choices that change nothing: a group larger than the grid, parts where nothing is stored by descriptor
        "GROUP_M == 8 or BLOCK_M < M",
        "EPILOGUE_PARTS == 1 or variant != 'pointer'",
    ),
    defaults=(
        {
            "BLOCK_M": 64,
            "BLOCK_N": 64,
            "BLOCK_K": 32,
            "GROUP_M": 8,
            "num_warps": 4,
            "num_stages": 3,
            "EPILOGUE_PARTS": 1,
            "variant": "pointer",
        },
    ),
    problems=(
        _cube(4096),
        _cube(1024),
        _cube(8192),
        Problem({"M": 16, "N": 8192, "K": 8192}),
        _cube(1000),
    ),
    source_file=Path(__file__),
    make_inputs=make_inputs,
    make_output=make_output,
    reference=reference,
    launch=launch,
    cost=cost,
    check_problems=check_problems,
    odd_problems=odd_problems,
    strided="variant == 'pointer'",
)
