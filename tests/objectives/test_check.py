"""The checker on a kernel in plain PyTorch, y = 2 x: what is right passes, every kind of fault is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="checks tensors: pip install -e '.[test]'")

from llm_sampler.kernels import H200, Cost, KernelSpec, Problem  # noqa: E402
from llm_sampler.kernels.spec import VALUE_RANGES  # noqa: E402
from llm_sampler.kernels.tensors import normal  # noqa: E402
from llm_sampler.objectives import guard  # noqa: E402
from llm_sampler.objectives.check import Checker, CheckError, Verdict, in_range, with_layout  # noqa: E402
from llm_sampler.objectives.guard import Guarded, same_bits  # noqa: E402
from llm_sampler.space import Parameter  # noqa: E402

PROBLEM = Problem({"rows": 8, "columns": 24})


@pytest.fixture(autouse=True)
def short_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard zones that a CPU fills and compares in no time."""
    monkeypatch.setattr(guard, "GUARD_BYTES", 2**15)


def double(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    output.copy_(inputs[0] * 2)


SPEC = KernelSpec(
    name="double",
    title="y = 2 x",
    description="",
    size_names=("rows", "columns"),
    parameters=(Parameter("block", (4, 8)),),
    restrictions=("block <= rows",),
    defaults=({"block": 8},),
    problems=(PROBLEM,),
    source_file=Path(__file__),
    make_inputs=lambda problem, seed, device: (normal(tuple(problem.sizes.values()), problem.dtype, seed, device),),
    make_output=lambda inputs: torch.empty_like(inputs[0]),
    reference=lambda x: x * 2,
    launch=double,
    cost=lambda problem: Cost(1, 1),
    check_problems=lambda problem: (Problem({"rows": 6, "columns": 40}), Problem({"rows": 9, "columns": 7})),
    odd_problems=lambda problem: (Problem({"rows": 11, "columns": 13}),),
    strided="block == 8",
    value_ranges=VALUE_RANGES,
)


def check(launch: Callable[..., None], thorough: bool = False, block: int = 8, **changes: object) -> Verdict:
    """The verdict of all checks, in the order in which a measurement makes them."""
    spec = dataclasses.replace(SPEC, launch=launch, **changes)
    checker = Checker(spec, PROBLEM, H200, torch_device="cpu")
    configuration = {"block": block}
    verdict = checker.check_problem(configuration)
    if not verdict.fault:
        small = checker.check_small(configuration, thorough=thorough)
        verdict = small if small.fault else verdict
    if not verdict.fault:
        inputs, output = checker.prepare_timing()
        for _ in range(3):
            launch(inputs, output, configuration)
        timed = checker.check_timed(configuration)
        verdict = timed if timed.fault else verdict
    return verdict


def test_a_right_kernel_passes_with_its_deviation() -> None:
    # x 2 is exact in fp16
    assert check(double, thorough=True) == Verdict(0.0, 2.0**-11 * 2)


def outside(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, at: int, value: float = 1.0) -> None:
    """Write one element before (negative) or behind the output."""
    double(inputs, output, None)
    offset = output.storage_offset() + (at if at < 0 else output.numel() - 1 + at)
    output.as_strided((1,), (1,), offset).fill_(value)


def first_time_only(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    """Right for its first launches, as a kernel is that looks for work in a buffer it has used up."""
    first_time_only.launches += 1  # type: ignore[attr-defined]
    if first_time_only.launches < 9:  # type: ignore[attr-defined]
        double(inputs, output, configuration)


def noisy(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    """Within the tolerance, and never twice the same."""
    output.copy_(inputs[0].float() * (2 + 6e-4 * torch.rand(inputs[0].shape)))


def accumulate(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    output += inputs[0] * 2


def half(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    output.view(-1)[: output.numel() // 2] = (inputs[0] * 2).reshape(-1)[: output.numel() // 2]


def in_place(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
    output.copy_(inputs[0].mul_(2))


def only_where(condition: Callable[[torch.Tensor], bool]) -> Callable[..., None]:
    def launch(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
        output.copy_(inputs[0] * (2 if condition(inputs[0]) else 3))

    return launch


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        pytest.param(half, "deviation inf", id="writes-half"),
        pytest.param(accumulate, "deviation inf", id="accumulates"),
        pytest.param(lambda *_: None, "deviation inf", id="writes-nothing"),
        pytest.param(lambda x, y, _: y.copy_(x[0] * 2.005), "deviation 0.00", id="wrong-scale"),
        pytest.param(lambda x, y, _: outside(x, y, 1), "wrote outside its output", id="one-element-behind"),
        pytest.param(lambda x, y, _: outside(x, y, -1), "wrote outside its output", id="one-element-before"),
        pytest.param(lambda x, y, _: outside(x, y, 9000), "wrote outside its output", id="far-behind"),
        pytest.param(lambda x, y, _: outside(x, y, 1, torch.nan), "wrote outside its output", id="a-nan-behind"),
        pytest.param(in_place, "changed its inputs", id="in-place"),
        pytest.param(noisy, "two runs on the same inputs differ", id="not-deterministic"),
        pytest.param(first_time_only, "two runs on the same inputs differ", id="right-at-first"),
        pytest.param(only_where(lambda x: len(x) != 9), "9x7-fp16, normal", id="off-size"),
        pytest.param(only_where(lambda x: bool(x[x.isfinite()].abs().max() < 20)), "large", id="large"),
        pytest.param(only_where(lambda x: bool(x[x.isfinite()].abs().max() > 0.1)), "tiny", id="tiny"),
        pytest.param(only_where(lambda x: bool(x[x.isfinite()].abs().max() < 500)), "outlier", id="outlier"),
        pytest.param(only_where(lambda x: bool(x.isfinite().all())), "infinities", id="infinities"),
    ],
)
def test_a_fault_is_found_and_named(launch: Callable[..., None], words: str) -> None:
    first_time_only.launches = 0  # type: ignore[attr-defined]
    assert words in check(launch).fault


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (only_where(lambda x: len(x) != 11), "11x13-fp16, normal"),
        (only_where(lambda x: x.is_contiguous() or x.stride(1) == 2), "11x13-fp16, transposed"),
        (only_where(lambda x: x.stride(1) != 2), "11x13-fp16, strided"),
    ],
)
def test_odd_sizes_and_layouts_are_for_those_that_are_handed_out(launch: Callable[..., None], words: str) -> None:
    assert check(launch).fault == ""
    assert words in check(launch, thorough=True).fault


def test_layouts_are_checked_where_the_kernel_claims_them() -> None:
    assert check(only_where(lambda x: x.is_contiguous()), thorough=True, block=4).fault == ""


def test_problems_whose_restrictions_forbid_a_configuration_are_left_out() -> None:
    small_only = only_where(lambda x: len(x) >= 8)
    assert check(small_only, block=8).fault == ""
    assert "6x40" in check(small_only, block=4).fault


def test_a_kernel_that_claims_no_determinism_may_differ_within_the_limit() -> None:
    assert check(noisy, deterministic="block != 8").fault == ""


def test_a_declared_in_place_kernel_gets_fresh_inputs_each_time() -> None:
    assert check(in_place, in_place=True).fault == ""


def test_changed_inputs_are_restored_for_the_next_configuration() -> None:
    spec = dataclasses.replace(SPEC, launch=lambda x, y, c: (in_place if c["block"] == 4 else double)(x, y, c))
    checker = Checker(spec, PROBLEM, H200, torch_device="cpu")
    assert "changed its inputs" in checker.check_problem({"block": 4}).fault
    assert checker.check_problem({"block": 8}).fault == ""
    assert checker.check_small({"block": 8}).fault == ""


def test_a_kernel_that_overwrites_what_it_is_compared_with_spoils_the_process() -> None:
    exact: list[torch.Tensor] = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        exact.append(x * 2)
        return exact[-1]

    def launch(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
        output.fill_(0.0)
        for tensor in exact:
            tensor.fill_(0.0)

    verdict = check(launch, reference=reference)
    assert verdict.damaged
    assert "memory that is not its own" in verdict.fault


def test_what_is_read_behind_an_input_spoils_the_result() -> None:
    def launch(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
        (x,) = inputs
        behind = x.as_strided((1,), (1,), x.storage_offset() + x.numel())
        output.copy_(x * 2 + 0 * behind)

    assert "deviation inf" in check(launch).fault


def test_inputs_that_belong_together_and_integers_stay_as_they_are() -> None:
    def make_inputs(problem: Problem, seed: int, device: str) -> tuple[torch.Tensor, ...]:
        x = normal(tuple(problem.sizes.values()), problem.dtype, seed, device)
        return x, x.new_ones(3), torch.arange(3)

    def launch(inputs: tuple[torch.Tensor, ...], output: torch.Tensor, configuration: object) -> None:
        x, ones, integers = inputs
        output.copy_(x * 2 * ones.sum() / 3 + (integers.sum() - 3))

    def reference(x: torch.Tensor, ones: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
        assert integers.dtype == torch.int64
        assert bool((ones == 1).all())
        return x * 2

    changes = {"make_inputs": make_inputs, "reference": reference, "free_inputs": (0,)}
    assert check(launch, strided="False", **changes).fault == ""


def test_a_reference_that_overflows_is_the_specs_fault() -> None:
    with pytest.raises(CheckError, match="not finite on 6x40-fp16, outlier"):
        Checker(dataclasses.replace(SPEC, reference=lambda x: x * x / x), PROBLEM, H200, torch_device="cpu")


def test_ranges_and_layouts_are_what_they_say() -> None:
    x = torch.randn(4, 6).half()
    assert in_range(x.clone(), "large").abs().max() > 15
    assert in_range(x.clone(), "tiny").abs().max() < 0.05
    assert (in_range(x.clone(), "outlier") == 1000).sum() == 1
    assert in_range(torch.ones(4).to(torch.float8_e4m3fn), "outlier").float().max() == 112
    rows = in_range(x.clone(), "infinities").isinf().sum(dim=1).tolist()
    assert rows == [6, 4, 5, 0]
    for layout in ("transposed", "strided"):
        assert torch.equal(with_layout(x, layout), x)
        assert not with_layout(x, layout).is_contiguous()


def test_a_guarded_tensor_is_aligned_unless_it_is_not_to_be() -> None:
    like = torch.empty(5, 7, dtype=torch.float16)
    assert Guarded(like).tensor.storage_offset() * 2 == guard.GUARD_BYTES
    assert Guarded(like, 1).tensor.storage_offset() * 2 == guard.GUARD_BYTES + 2
    guarded = Guarded(like.t())
    assert guarded.tensor.shape == (7, 5)
    assert guarded.tensor.stride() == like.t().stride()
    assert guarded.tensor.isnan().all()
    guarded.tensor.fill_(1.0)
    assert bool(guarded.intact())
    guarded.poison()
    assert bool(same_bits(guarded.tensor, Guarded(like.t()).tensor))
