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
from llm_sampler.space import Configuration, Parameter, Space, Value

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, ...]"
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


class KernelError(ValueError):
    """A kernel, problem or configuration that does not exist; the message lists what does."""


@dataclass(frozen=True)
class Problem:
    """A kernel's input: sizes by name, and the dtype of its elements.

    Attributes:
        sizes: In the kernel's order, e.g. ``{"M": 4096, "N": 4096, "K": 4096}``.
        dtype: ``fp16``, ``bf16`` or ``fp32``.
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


@dataclass(frozen=True)
class KernelSpec:
    """A kernel that can be tuned.

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
        dtype = dtype or "fp16"
        legal = len(numbers) == len(self.size_names) and all(re.fullmatch(r"[1-9]\d{0,9}", n) for n in numbers)
        if not legal or dtype not in ELEMENT_BYTES:
            raise KernelError(
                f"problem of {self.name} must be {'x'.join(self.size_names)}, optionally -fp16, -bf16 or -fp32 "
                f"(e.g. {self.problems[0].short}), got {text!r}"
            )
        return Problem(dict(zip(self.size_names, map(int, numbers), strict=True)), dtype)
