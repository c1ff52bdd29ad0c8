"""One configuration at a time on a GPU, over all processes of a host: what runs beside a measurement disturbs it.

The lock is a file named after the GPU, so that it holds however ``CUDA_VISIBLE_DEVICES`` numbers it, and the system
releases it when its holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_STEP_S = 0.002


class DeviceBusyError(RuntimeError):
    """Another process has kept the GPU for longer than a measurement takes."""


@contextlib.contextmanager
def device_lock(device: str, *, timeout_s: float = 600.0, folder: Path | None = None) -> Iterator[float]:
    """Holds a GPU for the duration of the block, which gets the seconds that it waited.

    Threads of one process exclude each other as processes do. Containers share the lock if they share the folder.

    Args:
        device: What tells the GPU from others of this host, see `gpu_identifier`.
        timeout_s: How long to wait for other holders. Each of them may take the time limit of a measurement.
        folder: Where the lock files lie; None: the system's folder for temporary files.

    Raises:
        DeviceBusyError: It was held all the time.
    """
    name = re.sub(r"[^\w.-]+", "-", device)
    path = (folder or Path(tempfile.gettempdir())) / f"llm-sampler-{name}.lock"
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Who waits for the GPU holds the queue: a process with much to measure cannot take its own GPU again and again.
        with _held(path.with_suffix(".queue"), started + timeout_s, device):
            stack.enter_context(_held(path, started + timeout_s, device))
        yield time.monotonic() - started


@contextlib.contextmanager
def _held(path: Path, until: float, device: str) -> Iterator[None]:
    descriptor = _open(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise DeviceBusyError(
                        f"other processes have measured on {device} all the time: end them (fuser {path} names them), "
                        "or give each worker its own GPU"
                    ) from None
                time.sleep(_STEP_S)
        yield
    finally:
        os.close(descriptor)


def gpu_identifier(index: int = 0) -> str:
    """The visible CUDA device's UUID (a MIG slice has its own), ``no-gpu`` where there is none; makes no context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no-gpu"
    handle, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGet(ctypes.byref(handle), index) != 0:
        return "no-gpu"
    ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid  # since CUDA 11.4, with MIG
    return bytes(uuid).hex() if ask(uuid, handle) == 0 else f"gpu-{index}"


def _open(path: Path) -> int:
    """A descriptor of the lock file, which every user of the host can lock."""
    try:
        # An existing file first: in a sticky folder Linux refuses O_CREAT on another user's file (protected_regular).
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
