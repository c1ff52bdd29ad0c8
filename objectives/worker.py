"""The measuring process: loads a compiled configuration, checks it against float64, and times it.

One process owns the GPU. It may crash or hang: whoever started it (see `gpu`) kills it and starts another, and
nothing is lost but the configuration at hand. Functions here run in that process; its state is the module's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives.check import Checker, Verdict
from llm_sampler.objectives.clocks import open_monitor
from llm_sampler.objectives.compile import one_line
from llm_sampler.objectives.device import driver_version
from llm_sampler.objectives.measurement import Measurement, Status
from llm_sampler.objectives.roofline import impossible, timing_method
from llm_sampler.objectives.stopwatch import CudaStopwatch
from llm_sampler.objectives.timing import TimingSettings, time_beside_reference
from llm_sampler.space import Configuration


@dataclass(frozen=True)
class Measured:
    """What the worker sends back.

    Attributes:
        measurement: The outcome.
        poisoned: Whether this process must be replaced: its CUDA context is lost, or what it compares with changed.
    """

    measurement: Measurement
    poisoned: bool = False


class _Bench:
    """A kernel's problem on this process's GPU."""

    def __init__(self, spec: KernelSpec, problem: Problem, device: Device, settings: TimingSettings) -> None:
        import torch
        import triton

        self.spec = spec
        self.settings = settings
        self.checker = Checker(spec, problem, device)
        self.cost, self.dtype, self.facts = spec.cost(problem), problem.dtype, device
        self.monitor = open_monitor()
        method = timing_method(self.cost, device, problem.dtype)
        self.stopwatch = CudaStopwatch(method=method, monitor=self.monitor)
        versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}
        versions["driver"] = driver_version()
        self.versions = {name: version for name, version in versions.items() if version}
        self.device = torch.cuda.get_device_name()
        # Triton tells whoever loads a binary its registers and spills, and whoever asks which binary is launched.
        self.binaries: dict[int, tuple[int, int, int]] = {}
        self.launched: set[int] = set()
        utils = triton.runtime.driver.active.utils
        load: Callable[..., Any] = utils.load_binary

        def load_and_note(name: str, binary: bytes, shared_bytes: int, device: int) -> Any:
            loaded = load(name, binary, shared_bytes, device)
            _, function, registers, spills, *_ = loaded
            self.binaries[function] = (registers, spills, shared_bytes)
            return loaded

        utils.load_binary = load_and_note

    def _note_launch(self, metadata: Any) -> None:
        self.launched.add(metadata.get()["function"])

    def measure(self, configuration: Configuration, *, thorough: bool, incumbent_ms: float | None) -> Measured:
        """Check, time, and check what the last timed launch wrote."""
        import triton

        started = time.perf_counter()
        self.launched.clear()
        triton.knobs.runtime.launch_enter_hook.add(self._note_launch)
        try:
            verdict = self.checker.check_problem(configuration)
        finally:
            triton.knobs.runtime.launch_enter_hook.remove(self._note_launch)
        binaries = [self.binaries[function] for function in self.launched]
        # What launches no Triton kernel has none of these.
        registers, spills, shared_bytes = (
            (max(column) for column in zip(*binaries, strict=True)) if binaries else (None, None, None)
        )
        facts: dict[str, Any] = {
            "error": verdict.error,
            "error_limit": verdict.limit,
            "registers": registers,
            "spills": spills,
            "shared_bytes": shared_bytes,
        }
        if not verdict.fault:
            verdict = self.checker.check_small(configuration, thorough=thorough)
        if verdict.fault:
            return self._wrong(verdict, started, facts)
        inputs, output = self.checker.prepare_timing()
        self.monitor.clear()
        timing = time_beside_reference(
            lambda: self.spec.launch(inputs, output, configuration),
            lambda: self.spec.reference(*inputs),
            stopwatch=self.stopwatch,
            settings=self.settings,
            incumbent_ms=incumbent_ms,
        )
        facts |= {
            "samples": timing.samples,
            "reference_ms": timing.reference_ms,
            "method": timing.method,
            "stopped": timing.stopped,
            "settings": self.settings.text,
            **self.monitor.summary(),
        }
        verdict = self.checker.check_timed(configuration)
        if verdict.fault:
            return self._wrong(verdict, started, facts)
        if detail := impossible(timing.median_ms, self.cost, self.facts, self.dtype):
            return Measured(self._measurement("too_fast", started, detail=detail, **facts))
        return Measured(
            self._measurement(
                "ok",
                started,
                median_ms=timing.median_ms,
                p20_ms=timing.percentile_ms(20),
                p80_ms=timing.percentile_ms(80),
                **facts,
            )
        )

    def _wrong(self, verdict: Verdict, started: float, facts: dict[str, Any]) -> Measured:
        facts = {**facts, "error": verdict.error, "error_limit": verdict.limit}
        return Measured(self._measurement("wrong_result", started, detail=verdict.fault, **facts), verdict.damaged)

    def _measurement(self, status: Status, started: float, **fields: Any) -> Measurement:
        return Measurement(
            status, measure_s=time.perf_counter() - started, device=self.device, versions=self.versions, **fields
        )


_bench: _Bench | None = None


def start(spec: KernelSpec, problem: Problem, device: Device, settings: TimingSettings) -> None:
    """Prepare this process: inputs and exact results on the GPU. Runs once, before the first measurement."""
    global _bench  # noqa: PLW0603 - the state of a worker process is its module's
    _bench = _Bench(spec, problem, device, settings)


def measure(configuration: Configuration, thorough: bool = False, incumbent_ms: float | None = None) -> Measured:
    """Measure one configuration; what it does wrong is a status.

    Args:
        configuration: What to measure.
        thorough: Check it as one that is handed to someone: see ``check``.
        incumbent_ms: Least time known of the problem: what is clearly worse is timed less; None if there is none.
    """
    import torch
    from triton.runtime.errors import OutOfResources

    assert _bench is not None, "start() runs first"
    try:
        return _bench.measure(configuration, thorough=thorough, incumbent_ms=incumbent_ms)
    except OutOfResources as error:
        detail = f"{error.name}: required {error.required}, limit {error.limit}"
        return Measured(Measurement("out_of_resources", detail=detail))
    except torch.OutOfMemoryError as error:
        return Measured(Measurement("out_of_resources", detail=one_line(error)))
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is this configuration's outcome
        return Measured(Measurement("runtime_error", detail=one_line(error)), poisoned=_is_poisoned())


def _is_poisoned() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").sum().item()
    except RuntimeError:
        return True
    return False
