"""The verifier's measure of error: what must pass, and faults that must not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="verifies tensors: pip install -e '.[test]'")

from llm_sampler.objectives.verify import FACTOR, deviation, deviation_limit  # noqa: E402


@pytest.fixture
def product() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator).half() for _ in range(2))
    return (a.double() @ b.double()), (a.float() @ b.float()).half()


def test_pytorchs_own_result_passes(product: tuple[torch.Tensor, torch.Tensor]) -> None:
    exact, rounded = product
    error = deviation(rounded, exact)
    assert 0 < error <= deviation_limit(error, torch.float16)
    assert error < torch.finfo(torch.float16).eps, "an error of fp16 rounding"


@pytest.mark.parametrize(
    "fault",
    [
        lambda y: y * 1.01,
        lambda y: y + 0.3,
        lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 77, 0.0, y),
        lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 77, torch.nan, y),
        lambda y: torch.where(torch.arange(y.numel()).reshape(y.shape) == 77, torch.inf, y),
        lambda y: y.flip(0),
        lambda y: (y / 16).half() * 16 + y.abs().mean() * 0.005,
    ],
)
def test_a_fault_does_not_pass(product: tuple[torch.Tensor, torch.Tensor], fault: object) -> None:
    exact, rounded = product
    limit = deviation_limit(deviation(rounded, exact), torch.float16)
    assert callable(fault)
    assert not deviation(fault(rounded), exact) <= limit


def test_nan_passes_only_where_the_exact_result_is_nan() -> None:
    exact = torch.tensor([1.0, torch.nan, torch.inf], dtype=torch.float64)
    assert deviation(exact.half(), exact) == 0
    assert deviation(torch.tensor([torch.nan, torch.nan, torch.inf]), exact) == float("inf")
    assert deviation(torch.tensor([1.0, 2.0, torch.inf]), exact) == float("inf")
    assert deviation(torch.tensor([1.0, torch.nan, 5.0]), exact) == float("inf")


def test_the_limit_follows_pytorch_and_never_falls_below_rounding() -> None:
    assert deviation_limit(0.01, torch.float16) == FACTOR * 0.01
    assert deviation_limit(0.0, torch.bfloat16) == FACTOR * 2.0**-8
