"""Configurations, PyTorch and `torch.compile` on one problem, checked and then timed together in rounds.

It runs in a measuring process of its own (see ``isolation.PreparedProcess``), which may crash or be killed. Beside
them a device-to-device copy is timed, so that bandwidths can be compared with what this GPU reaches in the same
minute. Times in ms.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import Inputs, KernelSpec, Problem
from llm_sampler.space import Configuration

if TYPE_CHECKING:
    import torch

    from llm_sampler.objectives.stopwatch import Launch

EAGER = "PyTorch"
COMPILED = "torch.compile"
COPY = "copy"
# Source and target together are far larger than any L2, and the copy takes half a millisecond on an H200.
COPY_BYTES = 2**30


@dataclass(frozen=True)
class Contestant:
    """One that was to be timed.

    Attributes:
        name: ``default``, ``tuned``, `EAGER`, `COMPILED` or `COPY`.
        samples: A time a round; empty if there is a fault.
        error: Largest deviation from the float64 result, relative to its scale (see ``verify``); None for the copy.
        limit: What ``error`` must not exceed: a small multiple of PyTorch's own, or of one rounding.
        fault: Why it was not timed, one line.
    """

    name: str
    samples: tuple[float, ...] = ()
    error: float | None = None
    limit: float | None = None
    fault: str = ""


@dataclass(frozen=True)
class SideBySide:
    """All contestants of a problem; sample i of each is of round i.

    Attributes:
        contestants: In the order of the request.
        method: How they were timed: see ``stopwatch``.
        state: Of the device meanwhile: see `ClockMonitor.summary`.
    """

    contestants: tuple[Contestant, ...]
    method: str
    state: Mapping[str, Any] = field(default_factory=dict)


def prepare() -> None:
    """Prepare a measuring process: what takes long and needs no problem."""
    # Compile processes of torch.compile would outlive a killed parent.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import triton  # noqa: F401

    torch.cuda.init()


def time_side_by_side(
    spec: KernelSpec,
    problem: Problem,
    device: Device,
    configurations: Mapping[str, Configuration],
    *,
    rounds: int,
    compile_mode: str | None,
) -> SideBySide:
    """Check and time; a contestant that fails is left out and says why.

    Args:
        spec: The kernel.
        problem: Its input.
        device: The GPU, for restrictions.
        configurations: By name, e.g. ``default`` and ``tuned``.
        rounds: Timed rounds.
        compile_mode: Mode of `torch.compile`; None leaves it out.

    Raises:
        TimingError: See ``stopwatch``.
    """
    import torch

    from llm_sampler.objectives.check import Checker
    from llm_sampler.objectives.clocks import open_monitor
    from llm_sampler.objectives.roofline import timing_method
    from llm_sampler.objectives.stopwatch import CudaStopwatch
    from llm_sampler.objectives.timing import time_rounds

    torch.cuda.empty_cache()
    checker = Checker(spec, problem, device)
    found: dict[str, Contestant] = {}
    launches: dict[str, Launch] = {}
    for name, configuration in configurations.items():
        found[name], launch = _configuration(spec, checker, name, configuration)
        if launch is not None:
            launches[name] = launch
    inputs, _ = checker.prepare_timing()
    for name, compute in _references(spec, compile_mode).items():
        found[name] = _reference(spec, inputs, name, compute)
        if not found[name].fault:
            launches[name] = _bound(compute, inputs)
    source = torch.empty(COPY_BYTES // 4, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    launches[COPY] = lambda: target.copy_(source)
    found[COPY] = Contestant(COPY)
    monitor = open_monitor()
    watch = CudaStopwatch(method=timing_method(spec.cost(problem), device, problem.dtype), monitor=monitor)
    times = time_rounds(list(launches.values()), rounds=rounds, stopwatch=watch)
    for index, name in enumerate(launches):
        samples = tuple(float(ms) for ms in times[:, index])
        contestant = found[name]
        found[name] = Contestant(name, samples, contestant.error, contestant.limit)
    for name, configuration in configurations.items():
        if name in launches and (fault := checker.check_problem(configuration).fault):
            found[name] = Contestant(name, fault=f"after the timing: {fault}")
    return SideBySide(tuple(found.values()), watch.method, monitor.summary())


def _configuration(
    spec: KernelSpec, checker: Any, name: str, configuration: Configuration
) -> tuple[Contestant, Launch | None]:
    from llm_sampler.objectives.compile import one_line

    try:
        verdict = checker.check_problem(configuration)
        small = checker.check_small(configuration, thorough=True) if not verdict.fault else verdict
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is its result here
        return Contestant(name, fault=one_line(error)), None
    if fault := verdict.fault or small.fault:
        return Contestant(name, fault=fault), None
    inputs, output = checker.prepare_timing()
    return Contestant(name, (), verdict.error, verdict.limit), lambda: spec.launch(inputs, output, configuration)


def _references(spec: KernelSpec, compile_mode: str | None) -> dict[str, Callable[..., torch.Tensor]]:
    compiled = {} if compile_mode is None else {COMPILED: _compiled(spec, compile_mode)}
    return {EAGER: spec.reference, **compiled}


def _compiled(spec: KernelSpec, mode: str) -> Callable[..., torch.Tensor]:
    import torch
    import torch._inductor.config

    # What it times while it compiles, it times again in this process, which has the GPU for itself.
    torch._inductor.config.autotune_local_cache = False
    torch._dynamo.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(spec.reference, mode=mode, dynamic=False)
    return compiled


def compile_reference(spec: KernelSpec, problem: Problem, mode: str) -> None:
    """Compile the reference with `torch.compile` and run it once: its files are in the cache afterwards.

    It runs beside others of its kind, each in a process of its own; `time_side_by_side` finds what they compiled.

    Args:
        spec: The kernel.
        problem: Its input.
        mode: Of `torch.compile`.
    """
    import torch

    prepare()
    inputs = spec.make_inputs(problem, 1, "cuda")
    _compiled(spec, mode)(*inputs)
    torch.cuda.synchronize()
    del inputs
    torch.cuda.empty_cache()


def _reference(spec: KernelSpec, inputs: Inputs, name: str, compute: Callable[..., torch.Tensor]) -> Contestant:
    """PyTorch's own result, judged as a kernel's is."""
    from llm_sampler.objectives.compile import one_line
    from llm_sampler.objectives.verify import deviation, deviation_limit

    exact = spec.reference(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs))
    eager = spec.reference(*inputs)
    limit = deviation_limit(deviation(eager, exact), eager.dtype)
    try:
        error = deviation(compute(*inputs), exact)
    except Exception as error_:  # noqa: BLE001 - a compiler may raise anything
        return Contestant(name, fault=one_line(error_))
    fault = f"deviation {error:.3g} from float64, limit {limit:.3g}" if error > limit else ""
    return Contestant(name, (), error, limit, fault)


def _bound(compute: Callable[..., torch.Tensor], inputs: Inputs) -> Launch:
    return lambda: compute(*inputs)


def versions() -> dict[str, str]:
    """Of what makes times in this process: torch, triton, cuda, driver."""
    import torch
    import triton

    from llm_sampler.objectives.device import driver_version

    found = {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}
    found["driver"] = driver_version()
    return {name: version for name, version in found.items() if version}
