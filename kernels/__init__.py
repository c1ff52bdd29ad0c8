"""Parameterized Triton kernels, and what a kernel is."""

from __future__ import annotations

from llm_sampler.kernels.attention import SPEC as ATTENTION
from llm_sampler.kernels.cross_entropy import SPEC as CROSS_ENTROPY
from llm_sampler.kernels.device import A100, H100, H200, KNOWN_DEVICES, Device
from llm_sampler.kernels.fp8_matmul import SPEC as FP8_MATMUL
from llm_sampler.kernels.int4_matmul import SPEC as INT4_MATMUL
from llm_sampler.kernels.layer_norm import SPEC as LAYER_NORM
from llm_sampler.kernels.matmul import SPEC as MATMUL
from llm_sampler.kernels.rms_norm import SPEC as RMS_NORM
from llm_sampler.kernels.softmax import SPEC as SOFTMAX
from llm_sampler.kernels.spec import Cost, KernelError, KernelSpec, Problem
from llm_sampler.kernels.split_k_matmul import SPEC as SPLIT_K_MATMUL

KERNELS = {
    spec.name: spec
    for spec in (
        ATTENTION,
        CROSS_ENTROPY,
        FP8_MATMUL,
        INT4_MATMUL,
        LAYER_NORM,
        MATMUL,
        RMS_NORM,
        SOFTMAX,
        SPLIT_K_MATMUL,
    )
}

__all__ = [
    "A100",
    "H100",
    "H200",
    "KERNELS",
    "KNOWN_DEVICES",
    "Cost",
    "Device",
    "KernelError",
    "KernelSpec",
    "Problem",
    "find_kernel",
]


def find_kernel(name: str) -> KernelSpec:
    """The kernel of that name.

    Raises:
        KernelError: There is none; the message lists those there are.
    """
    if name not in KERNELS:
        raise KernelError(f"kernel must be one of {', '.join(sorted(KERNELS))}, got {name!r}")
    return KERNELS[name]
