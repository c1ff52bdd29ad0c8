"""The GPU of this machine, asked through the CUDA driver: no torch, no context, a few milliseconds."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from llm_sampler.kernels.device import KNOWN_DEVICES, Device

# CUdevice_attribute in cuda.h of the CUDA driver API.
_MULTIPROCESSORS, _L2_BYTES, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 38, 75, 76
_MAX_THREADS, _REGISTERS, _SHARED_OPTIN = 1, 82, 97


def detect_device(index: int = 0) -> Device | None:
    """The visible CUDA device of that index, None if there is none (``CUDA_VISIBLE_DEVICES`` counts)."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGet(ctypes.byref(handle), index) != 0:
        return None

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle) == 0 else 0

    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, handle)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    text = name.value.decode("utf-8", "replace")
    known = KNOWN_DEVICES.get(text)
    return Device(
        name=text,
        capability=10 * attribute(_CAPABILITY_MAJOR) + attribute(_CAPABILITY_MINOR),
        multiprocessors=attribute(_MULTIPROCESSORS),
        shared_bytes=attribute(_SHARED_OPTIN),
        max_threads=attribute(_MAX_THREADS),
        registers=attribute(_REGISTERS),
        l2_bytes=attribute(_L2_BYTES),
        memory_bytes=memory.value,
        peak_tflops=known.peak_tflops if known else {},
        peak_tbps=known.peak_tbps if known else None,
    )


def driver_version() -> str:
    """Version of the NVIDIA kernel driver, e.g. ``575.57.08``; empty where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build ..."
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found[1] if found else ""
