"""`Checker`: is what a configuration computes right, and does it touch nothing else?

Every configuration is run, before it is timed:

* on the problem itself, N(0, 1) inputs of two seeds, the first of them twice: both runs must agree bitwise where the
  kernel claims to be deterministic;
* on the kernel's ``check_problems``, once for each of its value ranges:

  ========== ========================================================================
  normal     as ``make_inputs`` makes them, N(0, 1)
  large      16 times that: sums of squares overflow fp16
  tiny       a 256th of that: epsilons matter, products come near fp16's smallest numbers
  outlier    one element in each input is 1000 (or a quarter of the dtype's largest): exp of it overflows fp32
  infinities row 0 is -inf, row 1 to its middle, row 2 but for its first element
  ========== ========================================================================

Configurations that may be handed to someone are also run on the kernel's ``odd_problems`` and, where it claims so, on
strided and unaligned inputs (``thorough``).

Each run writes a fresh output of NaN between guard zones (see ``guard``); inputs lie between guard zones of NaN, too,
so that what is read past their ends spoils the result. The output must be as close to a float64 reference as PyTorch's
own (see ``verify``), the guard zones as they were, and, unless the kernel works in place, the inputs bitwise unchanged.
After the timing the last output is compared again: it is of a launch among many, not of the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import Inputs, KernelSpec, Problem
from llm_sampler.objectives.guard import Guarded, checksum, guarded_copy, same_bits
from llm_sampler.objectives.verify import deviation, deviation_limit
from llm_sampler.space import Configuration, Space

if TYPE_CHECKING:
    import torch

SEEDS = (1, 2)
_SMALL_SEED = 3
_OUTLIER = 1000.0
_LAYOUTS = ("transposed", "strided")


class CheckError(RuntimeError):
    """A kernel that cannot be checked: a fault of its spec, not of a configuration."""


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        error: Largest deviation from float64 on the problem itself, or that of the run that failed.
        limit: What ``error`` was compared with.
        fault: What is wrong, one line; empty if all is right.
        damaged: Whether the run changed what the checker compares with: this process can judge no more.
    """

    error: float
    limit: float
    fault: str = ""
    damaged: bool = False


@dataclass(frozen=True)
class _Case:
    """Inputs between guard zones, a copy of them, the exact result in float64, and the largest deviation that passes.

    ``checksums`` are those of the copy and of the exact result.
    """

    name: str
    problem: Problem
    inputs: Inputs
    kept: Inputs
    exact: torch.Tensor
    limit: float
    checksums: torch.Tensor


class Checker:
    """Checks configurations of one kernel on one problem.

    Args:
        spec: The kernel.
        problem: The problem that is timed.
        device: The GPU, for restrictions.
        torch_device: Where to run; ``cpu`` is for Triton's interpreter.

    Raises:
        CheckError: PyTorch's own result is not finite where the float64 result is.
    """

    def __init__(self, spec: KernelSpec, problem: Problem, device: Device, *, torch_device: str = "cuda") -> None:
        self._spec = spec
        self._problem = problem
        self._device = device
        self._torch_device = torch_device
        self._main = [
            self._case(f"seed {seed}", problem, self._spec.make_inputs(problem, seed, torch_device)) for seed in SEEDS
        ]
        self._small = [case for small in spec.check_problems(problem) for case in self._ranges(small)]
        self._thorough: list[_Case] | None = None
        self._spaces: dict[str, Space] = {}
        self._timed: Guarded | None = None
        self._expected: torch.Tensor | None = None

    def check_problem(self, configuration: Configuration) -> Verdict:
        """Run it on the problem itself: two seeds, one of them twice."""
        first, second = self._main
        verdicts = []
        for case in (second, first):
            output, verdict = self._run(case, configuration)
            if verdict.fault:
                return verdict
            verdicts.append(verdict)
        self._expected = output.tensor
        _, again = self._run(first, configuration, self._expected_bits(configuration))
        return again if again.fault else max(verdicts, key=lambda verdict: verdict.error)

    def check_small(self, configuration: Configuration, *, thorough: bool = False) -> Verdict:
        """Run it on the small problems.

        Args:
            configuration: What to check.
            thorough: Also on odd sizes and strided inputs, which compiles up to four more binaries.
        """
        cases = self._small
        if thorough:
            if self._thorough is None:
                self._thorough = list(self._thorough_cases())
            cases = [*cases, *self._thorough]
        for case in cases:
            if not self._applies(case, configuration):
                continue
            _, verdict = self._run(case, configuration)
            if verdict.fault:
                return verdict
        return Verdict(0.0, 0.0)

    def prepare_timing(self) -> tuple[Inputs, torch.Tensor]:
        """Inputs and a poisoned output to time with, after `check_problem`."""
        case = self._main[0]
        self._timed = Guarded(self._spec.make_output(case.inputs))
        inputs = tuple(map(guarded_copy, case.inputs)) if self._spec.in_place else case.inputs
        return inputs, self._timed.tensor

    def check_timed(self, configuration: Configuration) -> Verdict:
        """Whether the timed launches, and one more after them, computed what the checked ones did."""
        assert self._timed is not None, "prepare_timing() runs first"
        case, expected = self._main[0], self._expected_bits(configuration)
        if not self._spec.in_place:  # such a kernel computed the last of them from its own results
            verdict = self._judge(case, self._timed, expected)
            if verdict.fault:
                return verdict
        return self._run(case, configuration, expected)[1]

    def _expected_bits(self, configuration: Configuration) -> torch.Tensor | None:
        """What every run on the first inputs must agree with bitwise; None if it need not."""
        deterministic = self._spec.claims(self._spec.deterministic, self._problem, configuration)
        return self._expected if deterministic else None

    def _applies(self, case: _Case, configuration: Configuration) -> bool:
        if case.problem.name not in self._spaces:
            self._spaces[case.problem.name] = self._spec.space(case.problem, self._device)
        if not self._spaces[case.problem.name].allows(configuration):
            return False
        return case.name not in _LAYOUTS or self._spec.claims(self._spec.strided, case.problem, configuration)

    def _run(
        self, case: _Case, configuration: Configuration, expected: torch.Tensor | None = None
    ) -> tuple[Guarded, Verdict]:
        inputs = tuple(map(guarded_copy, case.inputs)) if self._spec.in_place else case.inputs
        output = Guarded(self._spec.make_output(inputs))
        self._spec.launch(inputs, output.tensor, configuration)
        return output, self._judge(case, output, expected)

    def _judge(self, case: _Case, output: Guarded, expected: torch.Tensor | None = None) -> Verdict:
        """Compare an output with what is expected, and all that should not have changed with what it was.

        Args:
            case: What the output is of.
            output: The output.
            expected: What it must agree with bitwise; None: it must be close to the exact result.
        """
        import torch

        error = deviation(output.tensor, case.exact) if expected is None else 0.0
        facts = torch.stack(
            [
                same_bits(output.tensor, output.tensor if expected is None else expected),
                output.intact(),
                torch.stack([same_bits(*pair) for pair in zip(case.inputs, case.kept, strict=True)]).all(),
                (_checksums(case.kept, case.exact) == case.checksums).all(),
            ]
        )
        as_expected, guards, unchanged, undamaged = facts.tolist()
        fault = ""
        if not undamaged:
            fault = "overwrote memory that is not its own"
        elif not unchanged:
            fault = "changed its inputs"
            for tensor, kept in zip(case.inputs, case.kept, strict=True):
                tensor.copy_(kept)
        elif not guards:
            fault = "wrote outside its output"
        elif not as_expected:
            fault = "two runs on the same inputs differ"
        elif error > case.limit:
            fault = f"deviation {error:.3g} from float64, limit {case.limit:.3g}"
        where = f", on {case.problem.short}, {case.name}"
        return Verdict(error, case.limit, fault and fault + where, damaged=not undamaged)

    def _case(self, name: str, problem: Problem, inputs: Inputs, offset: int = 0) -> _Case:
        exact = self._spec.reference(*(t.double() if t.is_floating_point() else t for t in inputs))
        by_torch = self._spec.reference(*inputs)
        own = deviation(by_torch, exact)
        if own == float("inf"):
            raise CheckError(
                f"the reference of {self._spec.name} is not finite on {problem.short}, {name}, where float64 is: "
                "leave the range out of value_ranges or free_inputs"
            )
        kept = tuple(tensor.clone() for tensor in inputs)
        guarded = tuple(guarded_copy(tensor, offset) for tensor in inputs)
        limit = deviation_limit(own, by_torch.dtype)
        return _Case(name, problem, guarded, kept, exact, limit, _checksums(kept, exact))

    def _ranges(self, problem: Problem) -> Iterable[_Case]:
        for name in self._spec.value_ranges:
            inputs = self._spec.make_inputs(problem, _SMALL_SEED, self._torch_device)
            free = self._spec.free_inputs
            yield self._case(
                name,
                problem,
                tuple(
                    in_range(tensor, name) if tensor.is_floating_point() and (free is None or index in free) else tensor
                    for index, tensor in enumerate(inputs)
                ),
            )

    def _thorough_cases(self) -> Iterable[_Case]:
        for problem in self._spec.odd_problems(self._problem):
            yield from self._ranges(problem)
            inputs = self._spec.make_inputs(problem, _SMALL_SEED, self._torch_device)
            for layout in _LAYOUTS:
                yield self._case(layout, problem, tuple(with_layout(t, layout) for t in inputs), offset=1)


def _checksums(kept: Inputs, exact: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.stack([checksum(tensor) for tensor in (*kept, exact)])


def in_range(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """An N(0, 1) tensor's values in a range of `VALUE_RANGES`; see the module's table.

    Args:
        tensor: Floating-point, at least one dimension; may be changed.
        name: Of the range.
    """
    import torch

    if name == "large":
        return (tensor.float() * 16).to(tensor.dtype)
    if name == "tiny":
        return (tensor.float() / 256).to(tensor.dtype)
    if name == "outlier":
        tensor.view(-1)[tensor.numel() // 2] = min(_OUTLIER, torch.finfo(tensor.dtype).max / 4)
    if name == "infinities":
        rows = tensor.view(-1, tensor.shape[-1])
        rows[0] = float("-inf")
        rows[1:2, : rows.shape[1] // 2 + 1] = float("-inf")
        rows[2:3, 1:] = float("-inf")
    return tensor


def with_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in memory of another order.

    Args:
        tensor: Contiguous.
        layout: ``transposed`` exchanges the last two dimensions in memory, ``strided`` leaves a gap after each element.
    """
    import torch

    if layout == "transposed":
        return tensor if tensor.dim() < 2 else tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.stack([tensor, tensor], dim=-1)[..., 0]
