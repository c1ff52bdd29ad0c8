"""Compile a configuration without a GPU: launches go to a driver that compiles and does nothing else.

Triton compiles when a kernel is launched. Here the launch runs on ``meta`` tensors (shapes and no memory) with a
driver that names a target, loads nothing and launches nothing; what was compiled lies in Triton's disk cache, where
the measuring process finds it under the same key.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives.measurement import Status
from llm_sampler.space import Configuration


@dataclass(frozen=True)
class Compiled:
    """The outcome of compiling one configuration.

    Attributes:
        status: ``ok``, ``compile_error`` or ``out_of_resources``.
        compile_s: Seconds that it took.
        shared_bytes: Shared memory a block, None if nothing was compiled.
        detail: Why it failed, one line.
    """

    status: Status
    compile_s: float
    shared_bytes: int | None = None
    detail: str = ""


class CompileOnlyDriver:
    """A Triton driver for a device that need not be there.

    Args:
        device: Gives the compile target and the limits that Triton checks after compiling.

    Attributes:
        shared_bytes: Shared memory of the last binary that was compiled, in bytes.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.shared_bytes: int | None = None
        # Triton asks its driver's `utils` for limits and for loading: all of it is here.
        self.utils = self

    def get_current_target(self) -> Any:
        """The compile target."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.device.capability, 32)

    def get_current_device(self) -> int:
        """An index of its own: Triton keeps compiled kernels, and their target, per device index."""
        return id(self)

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        del device
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The limit that Triton checks, and what persistent kernels size their grids by."""
        del device
        return {"max_shared_mem": self.device.shared_bytes, "multiprocessor_count": self.device.multiprocessors}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """A launcher that notes the shared memory and launches nothing."""
        del source

        def launch(*arguments: Any) -> None:
            del arguments
            self.shared_bytes = metadata.shared

        self.shared_bytes = metadata.shared
        return launch

    def load_binary(self, name: str, binary: bytes, shared_bytes: int, device: int) -> tuple[int, int, int, int, int]:
        """Handles, registers, spills and threads of a binary that is not loaded: nothing that limits it."""
        del name, binary, shared_bytes, device
        return 1, 1, 0, 0, self.device.max_threads


# One driver per device and process: what it compiled once, Triton does not compile again.
_drivers: dict[str, CompileOnlyDriver] = {}


def compile_configuration(
    spec: KernelSpec, problem: Problem, configuration: Configuration, device: Device, *, thorough: bool = False
) -> Compiled:
    """Compile one configuration, for the problem and those it is checked on; leaves the compile-only driver active.

    Args:
        spec: The kernel.
        problem: Its input: Triton specializes integer arguments for these sizes (divisible by 16, equal to 1).
        configuration: What to compile.
        device: What to compile for; it need not be there.
        thorough: Also for the odd sizes on which one is checked that is handed to someone.
    """
    import triton
    from triton.runtime.errors import OutOfResources

    driver = _drivers.setdefault(repr(device), CompileOnlyDriver(device))
    driver.shared_bytes = None
    triton.runtime.driver.set_active(driver)
    started = time.perf_counter()
    status: Status = "ok"
    detail = ""
    shared_bytes = None
    with _compiler_messages() as messages:
        try:
            checked = (*spec.check_problems(problem), *(spec.odd_problems(problem) if thorough else ()))
            for one in (problem, *(one for one in checked if spec.space(one, device).allows(configuration))):
                inputs = spec.make_inputs(one, 0, "meta")
                spec.launch(inputs, spec.make_output(inputs), configuration)
                shared_bytes = shared_bytes or driver.shared_bytes
        except OutOfResources as error:
            status, detail = "out_of_resources", f"{error.name}: required {error.required}, limit {error.limit}"
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is this configuration's outcome
            status, detail = "compile_error", one_line(error)
        if status == "compile_error":
            detail = "; ".join([detail, *_errors_in(messages)])[:500]
    return Compiled(status, time.perf_counter() - started, shared_bytes or driver.shared_bytes, detail)


@contextlib.contextmanager
def _compiler_messages() -> Iterator[IO[bytes]]:
    """A file that gets what the compiler's C++ side writes to standard error: whole programs, behind an error."""
    with tempfile.TemporaryFile() as messages:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(messages.fileno(), 2)
        try:
            yield messages
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _errors_in(messages: IO[bytes]) -> list[str]:
    """The lines that name an error, at most two."""
    messages.seek(0)
    lines = messages.read().decode("utf-8", "replace").splitlines()
    return [line.partition("error: ")[2] for line in lines if "error: " in line][:2]


def one_line(error: BaseException) -> str:
    """Type and message of what caused an exception, in one line of at most 300 characters."""
    # What came from another process has its traceback there as its cause.
    while error.__cause__ is not None and not type(error.__cause__).__name__.endswith("RemoteTraceback"):
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
