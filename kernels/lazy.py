"""`jit`: `triton.jit` at the first launch, so that a kernel's file is readable where Triton is not installed.

A kernel's file imports ``triton.language as tl`` for type checkers only; before Triton first sees one of its
functions, the real module is put in the file's globals, where Triton looks names up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class LazyKernel:
    """A function that becomes a Triton kernel when it is first launched.

    Args:
        function: The kernel's body; its globals must not hold another ``tl``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    @functools.cached_property
    def kernel(self) -> Any:
        """The Triton kernel (an interpreted one under ``TRITON_INTERPRET=1``)."""
        import triton
        import triton.language

        names = self.function.__globals__
        names["tl"] = triton.language
        kernel = triton.jit(self.function)
        # Triton accepts calls between its own kernels only: what else the file defines or imports must be such, too.
        names[self.function.__name__] = kernel
        for name, value in list(names.items()):
            if isinstance(value, LazyKernel):
                names[name] = value.kernel
        return kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """The launcher for a grid of programs."""
        return self.kernel[grid]

    def __call__(self, *arguments: Any) -> Any:
        """Only kernels may call this; Triton never gets here."""
        raise TypeError(f"{self.function.__name__} is a GPU function: launch it as {self.function.__name__}[grid](...)")


def jit(function: Callable[..., Any]) -> LazyKernel:
    """Decorate a Triton kernel; see `LazyKernel`."""
    return LazyKernel(function)


def multiprocessors() -> int:
    """Streaming multiprocessors of the active device; 4 under Triton's interpreter, which has no device."""
    import triton

    if triton.knobs.runtime.interpret:
        return 4
    return _multiprocessors(triton.runtime.driver.active.get_current_device())


@functools.cache
def _multiprocessors(device: int) -> int:
    """Asked once per device: the driver takes a millisecond to answer, longer than many kernels run."""
    import triton

    return int(triton.runtime.driver.active.utils.get_device_properties(device)["multiprocessor_count"])
