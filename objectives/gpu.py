"""`GpuEvaluator`: compile in parallel processes, check and time in one process that may crash, hang or be killed."""

from __future__ import annotations

import os
import statistics
import threading
from collections import deque
from typing import Any

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives import worker
from llm_sampler.objectives.compile import Compiled, compile_configuration
from llm_sampler.objectives.device_lock import DeviceBusyError, device_lock, gpu_identifier
from llm_sampler.objectives.isolation import CallError, CallTimeout, ParallelProcesses, PreparedProcess
from llm_sampler.objectives.measurement import Measurement, Status
from llm_sampler.objectives.timing import TimingSettings
from llm_sampler.space import Configuration, Space


class EvaluatorError(RuntimeError):
    """The machine cannot measure at all (not one configuration's fault)."""


# Cores on which nothing is compiled: the measuring process and the study have them.
_KEPT_CORES = 2


def usable_cores() -> list[int]:
    """Cores that this process may use: its affinity mask, not all of the machine's."""
    return sorted(os.sched_getaffinity(0))


class GpuEvaluator:
    """Measures configurations of one kernel and problem on one GPU; an `Evaluator`.

    Args:
        spec: The kernel.
        problem: Its input.
        device: The GPU, from `detect_device`.
        compile_workers: Compile processes; by default as many as usable cores but two, which the measuring process
            and the study keep.
        compile_timeout_s: Time limit for compiling one configuration.
        measure_timeout_s: Time limit for loading, checking and timing one configuration.
        settings: How long to time.

    Raises:
        EvaluatorError: The extra ``gpu`` is not installed.
    """

    def __init__(
        self,
        spec: KernelSpec,
        problem: Problem,
        *,
        device: Device,
        compile_workers: int | None = None,
        compile_timeout_s: float = 60.0,
        measure_timeout_s: float = 30.0,
        settings: TimingSettings | None = None,
    ) -> None:
        try:
            import pebble  # noqa: F401
            import torch  # noqa: F401
            import triton  # noqa: F401
        except ImportError as error:
            raise EvaluatorError(
                f"measuring needs {error.name}: pip install 'optuna-llm-sampler[gpu]', or replay a recording"
            ) from None
        self._spec = spec
        self._problem = problem
        self._device = device
        self._space = spec.space(problem, device)
        cores = usable_cores()
        self._workers = compile_workers or max(1, len(cores) - _KEPT_CORES)
        # A compiler on the core of the measuring process would delay its launches.
        others = cores[_KEPT_CORES:] if len(cores) > _KEPT_CORES else None
        self._compilers = ParallelProcesses(self._workers, timeout_s=compile_timeout_s, cores=others)
        self._bench = PreparedProcess(
            worker.start, spec, problem, device, settings or TimingSettings(), timeout_s=measure_timeout_s
        )
        self._reference_ms: deque[float] = deque(maxlen=1000)
        self._incumbent_ms: float | None = None
        self._gpu = gpu_identifier()
        self._turn = threading.Lock()  # of this process's threads one waits for the GPU

    @property
    def space(self) -> Space:
        """What may be measured."""
        return self._space

    @property
    def parallel(self) -> int:
        """As many calls as keep the compile processes busy while one configuration is timed."""
        return self._workers + 2

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self._device.name

    @property
    def reference_ms(self) -> float | None:
        """Median of the reference's times that were interleaved with the last thousand measurements."""
        return statistics.median(self._reference_ms) if self._reference_ms else None

    def evaluate(self, configuration: Configuration) -> Measurement:
        """Measure one configuration; what it does wrong is a status.

        Raises:
            EvaluatorError: The measuring process cannot start.
        """
        if faults := self._space.faults(configuration):
            return Measurement("restricted", detail="; ".join(faults))
        try:
            compiled: Compiled = self._compilers.call(
                compile_configuration, self._spec, self._problem, configuration, self._device
            )
        except CallError as error:
            return self._failed(_status(error), f"compiling {error}")
        if compiled.status != "ok":
            return self._failed(
                compiled.status, compiled.detail, compile_s=compiled.compile_s, shared_bytes=compiled.shared_bytes
            )
        measurement = self._measure(configuration)
        if measurement.reference_ms is not None:
            self._reference_ms.append(measurement.reference_ms)
        return measurement.with_(compile_s=compiled.compile_s, device=self._device.name)

    def _measure(self, configuration: Configuration) -> Measurement:
        try:
            # Around the call: waiting for another worker's measurement takes nothing of this one's time limit.
            with self._turn, device_lock(self._gpu):
                measured: worker.Measured = self._bench.call(worker.measure, configuration, False, self._incumbent_ms)
        except CallError as error:
            return self._failed(_status(error), f"checking and timing {error}")
        except DeviceBusyError as error:
            raise EvaluatorError(str(error)) from None
        except Exception as error:
            raise EvaluatorError(f"the measuring process cannot start on {self._device.name}: {error}") from error
        if measured.poisoned:
            self._bench.replace()
        if (median_ms := measured.measurement.median_ms) is not None:
            self._incumbent_ms = min(median_ms, self._incumbent_ms or median_ms)
        return measured.measurement

    def _failed(self, status: Status, detail: str, **fields: Any) -> Measurement:
        return Measurement(status, detail=detail, device=self._device.name, **fields)

    def close(self) -> None:
        """End all worker processes; the GPU's memory is free afterwards."""
        self._compilers.close()
        self._bench.close()


def _status(error: CallError) -> Status:
    return "timeout" if isinstance(error, CallTimeout) else "crashed"
