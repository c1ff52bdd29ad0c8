"""Is an output right? Its deviation from a float64 reference, judged by PyTorch's own at the same dtype.

Notation: for an output y, the exact result r (float64) and rms(r) = sqrt(mean r^2), the deviation is
max |y - r| / (|r| + rms(r)) over all elements; NaN where r is finite counts as infinite. With u the dtype's unit
roundoff (2^-11 for fp16), an output passes if its deviation is at most FACTOR * max(PyTorch's deviation, u).
A tolerance relative to PyTorch's own error needs no constant per kernel, size or dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FACTOR = 2.0


def deviation(output: torch.Tensor, exact: torch.Tensor) -> float:
    """The deviation of an output from the exact result, both of one shape; infinite where only the output is NaN.

    Args:
        output: Any dtype.
        exact: float64.
    """
    import torch

    scale = exact[exact.isfinite()].square().mean().sqrt() if exact.isfinite().any() else exact.new_zeros(())
    wide = output.double()
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    # What overflows the output's dtype should be infinite there.
    rounded = exact.to(output.dtype).double()
    same |= rounded.isinf() & (wide == rounded)
    error = (wide - exact).abs() / (exact.abs() + scale)
    error = torch.where(same, 0.0, error)
    return float(error.where(~error.isnan(), torch.inf).max())


def deviation_limit(reference_deviation: float, dtype: torch.dtype) -> float:
    """The largest deviation that passes, given that of PyTorch's own result.

    Args:
        reference_deviation: Deviation of the reference computed at ``dtype``.
        dtype: Of the output.
    """
    import torch

    return FACTOR * max(reference_deviation, float(torch.finfo(dtype).eps) / 2)
