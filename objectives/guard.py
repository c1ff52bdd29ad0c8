"""Tensors between guard zones, and comparisons of bits: what a kernel touched that is not its own.

Every byte of a guard zone is 0xFF, which is NaN in all floating-point dtypes and -1 in signed integers: what is read
there spoils the result, and what is written there is seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 2 * 2**20
"""Length of each zone: 256 rows of 4,096 fp16 elements, a whole tile past the last row."""
_POISON = 0xFF
_ALIGNMENT_BYTES = 512


class Guarded:
    """A tensor of given shape and strides in a buffer of its own, all of it poisoned, zones before and behind it.

    Args:
        like: Gives shape, strides, dtype and device.
        offset: Elements by which it starts behind a multiple of 512 bytes; 0 keeps what allocators promise.

    Attributes:
        tensor: The tensor; its elements, and those that its strides skip, are poisoned.
    """

    def __init__(self, like: torch.Tensor, offset: int = 0) -> None:
        import torch

        extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
        self._first = GUARD_BYTES + offset * like.element_size()
        self._end = self._first + extent * like.element_size()
        size = math.ceil((self._end + GUARD_BYTES) / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._buffer = torch.full((size,), _POISON, dtype=torch.uint8, device=like.device)
        self.tensor = self._buffer.view(like.dtype).as_strided(
            like.shape, like.stride(), self._first // like.element_size()
        )

    def poison(self) -> None:
        """Poison the tensor and its zones again."""
        self._buffer.fill_(_POISON)

    def intact(self) -> torch.Tensor:
        """Whether nothing was written into the zones: one bool on the device."""
        before, behind = self._buffer[: self._first], self._buffer[self._end :]
        return before.eq(_POISON).all() & behind.eq(_POISON).all()


def guarded_copy(tensor: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """The same values, shape and strides, between guard zones; see `Guarded`."""
    guarded = Guarded(tensor, offset)
    guarded.tensor.copy_(tensor)
    return guarded.tensor


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits as integers of the same size; a view."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether two tensors agree bitwise, NaNs included: one bool on the device."""
    return bits(a).eq(bits(b)).all()


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the elements' bits, modulo 2**64: one integer on the device."""
    import torch

    return bits(tensor).sum(dtype=torch.int64)
