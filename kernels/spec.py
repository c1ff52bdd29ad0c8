"""`KernelSpec`: what a tunable kernel is, readable without torch and triton.

Shapes and dtypes belong to a `Problem`; a configuration says how the kernel computes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from llm_sampler.kernels.device import Device
from llm_sampler.space import Configuration, Parameter, Space, Value, evaluate

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, ...]"
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8": 1}
VALUE_RANGES = ("normal", "large", "tiny", "outlier", "infinities")
"""Values that a kernel may be checked on; see ``KernelSpec.value_ranges``."""


class KernelError(ValueError):
    """A kernel, problem or configuration that does not exist; the message lists what does."""


@dataclass(frozen=True)
class Problem:
    """A kernel's input: sizes by name, and the dtype of its elements.

    Attributes:
        sizes: In the kernel's order, e.g. ``{"M": 4096, "N": 4096, "K": 4096}``.
        dtype: ``fp16``, ``bf16``, ``fp32`` or ``fp8``.
    """

    sizes: Mapping[str, int]
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """E.g. ``M4096-N4096-K4096-fp16``."""
        return "-".join([*(f"{name}{size}" for name, size in self.sizes.items()), self.dtype])

    @property
    def short(self) -> str:
        """E.g. ``4096x4096x4096-fp16``: what the command line takes."""
        return "x".join(str(size) for size in self.sizes.values()) + f"-{self.dtype}"


@dataclass(frozen=True)
class Cost:
    """The work a problem needs, whatever the configuration.

    Attributes:
        flops: Floating-point operations.
        traffic_bytes: Least bytes through device memory: each input read once, each output written once.
    """

    flops: int
    traffic_bytes: int


def no_problems(problem: Problem) -> tuple[Problem, ...]:
    """No further problem."""
    del problem
    return ()


@dataclass(frozen=True)
class KernelSpec:
    """A kernel that can be tuned.

    What is checked, beside the problem that is timed, is the kernel's claim: where it is meant to be right. A problem
    whose restrictions forbid a configuration is not checked with it.

    Attributes:
        name: As the command line knows it.
        title: One line.
        description: What it computes and how its variants differ, for people and prompts.
        size_names: Names of a problem's sizes, in order.
        parameters: Tunable parameters with choices and meanings.
        restrictions: Expressions over parameters, sizes, ``element_bytes``, and the device's facts that must hold.
        defaults: Textbook configurations; the first that a problem's restrictions allow is its study's baseline.
        problems: Problems to start from; any other sizes are possible.
        source_file: The Python file that holds the kernel.
        make_inputs: ``(problem, seed, device) -> inputs`` on that torch device, N(0, 1) values.
        make_output: ``(inputs) -> output``, uninitialized.
        reference: ``(*inputs) -> output`` in plain PyTorch, at the inputs' dtype.
        launch: ``(inputs, output, configuration) -> None`` writes the output.
        cost: ``(problem) -> Cost``.
        flags: Sizes that are 0 or 1.
        dtypes: Dtypes of its problems; the first is meant where a text names none.
        check_problems: ``(problem) -> small problems`` on which every configuration is checked too, with all value
            ranges. Their sizes should be multiples of no block and yet run the binary of the problem, so that they
            cost nothing but their launches: Triton specializes integer arguments that are multiples of 16 or equal
            to 1, and ``tl.constexpr`` arguments must be equal (a size ``small + size % 16`` and an inner size
            ``small + size % largest_block`` do both). Where they need another binary all the same, the compile
            processes make it, which halves the rate of tuning.
        odd_problems: ``(problem) -> small problems`` of truly odd sizes, which need a binary of their own (0.4 s).
            Only configurations that may be handed to someone are checked on them: the finalists of a study, and what
            ``bench`` measures.
        deterministic: An expression over parameters and sizes, as restrictions are: where it holds, two runs on the
            same inputs must agree bitwise.
        strided: An expression over parameters and sizes: where it holds, the kernel claims non-contiguous and unaligned
            inputs, and is checked on transposed ones and on ones with a stride of 2 and an odd offset, on its odd
            problems.
        in_place: Whether it may change its inputs. If not, they must be bitwise the same after a run.
        value_ranges: Of `VALUE_RANGES`; what each does to the inputs: see ``check``. ``infinities`` is for kernels that
            claim to treat -inf as PyTorch does.
        free_inputs: Positions of the inputs whose values a range may change; None: every floating-point one. For
            kernels with inputs that belong together, such as packed weights and their scales.
    """

    name: str
    title: str
    description: str
    size_names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    restrictions: tuple[str, ...]
    defaults: tuple[Configuration, ...]
    problems: tuple[Problem, ...]
    source_file: Path
    make_inputs: Callable[[Problem, int, str], Inputs]
    make_output: Callable[[Inputs], torch.Tensor]
    reference: Callable[..., torch.Tensor]
    launch: Callable[[Inputs, torch.Tensor, Configuration], None]
    cost: Callable[[Problem], Cost]
    flags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    check_problems: Callable[[Problem], tuple[Problem, ...]] = no_problems
    odd_problems: Callable[[Problem], tuple[Problem, ...]] = no_problems
    deterministic: str = "True"
    strided: str = "False"
    in_place: bool = False
    value_ranges: tuple[str, ...] = ("normal", "large", "tiny", "outlier")
    free_inputs: tuple[int, ...] | None = None

    @property
    def source(self) -> str:
        """The kernels (decorated functions) and their launcher, as they stand in the source file."""
        text = self.source_file.read_text(encoding="utf-8")
        lines = text.splitlines()
        pieces = []
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and (node.decorator_list or node.name == self.launch.__name__):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                pieces.append("\n".join(lines[first - 1 : node.end_lineno]))
        return "\n\n\n".join(pieces) + "\n"

    def facts(self, problem: Problem, device: Device) -> dict[str, Value]:
        """What the restrictions may name beside the parameters."""
        return {**problem.sizes, "element_bytes": ELEMENT_BYTES[problem.dtype], **device.facts()}

    def space(self, problem: Problem, device: Device) -> Space:
        """The space of a problem on a device; without a default where the restrictions forbid them all."""
        space = Space(self.parameters, self.restrictions, None, self.facts(problem, device))
        allowed = (default for default in self.defaults if space.allows(default))
        return replace(space, default=next(allowed, None))

    def claims(self, expression: str, problem: Problem, configuration: Configuration) -> bool:
        """Whether ``deterministic`` or ``strided`` holds for a configuration on a problem."""
        return bool(evaluate(expression, {**problem.sizes, **configuration}))

    def problem(self, text: str) -> Problem:
        """The problem that a text names: ``4096x4096x4096``, ``1024x1024x1024-bf16`` or a full name.

        Raises:
            KernelError: The text has another form.
        """
        for problem in self.problems:
            if text in (problem.name, problem.short):
                return problem
        sizes, _, dtype = text.partition("-")
        numbers = sizes.split("x")
        dtype = dtype or self.dtypes[0]
        legal = len(numbers) == len(self.size_names) and all(
            re.fullmatch("[01]" if name in self.flags else r"[1-9]\d{0,9}", number)
            for name, number in zip(self.size_names, numbers, strict=True)
        )
        if not legal or dtype not in self.dtypes:
            raise KernelError(
                f"problem of {self.name} must be {'x'.join(self.size_names)}, optionally with "
                f"{' or '.join(f'-{dtype}' for dtype in self.dtypes)} (e.g. {self.problems[0].short}), got {text!r}"
            )
        return Problem(dict(zip(self.size_names, map(int, numbers), strict=True)), dtype)
