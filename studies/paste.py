"""A configuration in the forms that people paste: JSON, a ``triton.Config`` line, Python."""

from __future__ import annotations

import json

from llm_sampler.kernels import KERNELS
from llm_sampler.kernels.spec import Problem
from llm_sampler.space import Configuration

_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def json_line(configuration: Configuration) -> str:
    """As a JSON object."""
    return json.dumps(configuration)


def triton_line(configuration: Configuration) -> str:
    """For ``@triton.autotune``: warps and stages are options of the launch, all else its constants."""
    options = {name: value for name, value in configuration.items() if name in _LAUNCH_OPTIONS}
    constants = {name: value for name, value in configuration.items() if name not in options}
    return f"triton.Config({', '.join([repr(constants), *(f'{n}={v!r}' for n, v in options.items())])})"


def python_line(configuration: Configuration) -> str:
    """As a Python statement."""
    return f"configuration = {configuration!r}"


def python_launch(configuration: Configuration, kernel: str, problem: Problem | None) -> str:
    """As Python; with a launch, where the kernel is one of ours and the problem is known."""
    pairs = "".join(f"    {name!r}: {value!r},\n" for name, value in configuration.items())
    lines = f"configuration = {{\n{pairs}}}"
    if kernel not in KERNELS or problem is None:
        return lines
    return (
        "from llm_sampler.kernels import find_kernel\n\n"
        f"{lines}\n"
        f"kernel = find_kernel({kernel!r})\n"
        f'inputs = kernel.make_inputs(kernel.problem({problem.short!r}), 0, "cuda")  # or your own\n'
        "output = kernel.make_output(inputs)\n"
        "kernel.launch(inputs, output, configuration)"
    )
