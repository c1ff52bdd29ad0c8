"""`GpuEvaluator`: compile in parallel processes, check and time in one process that may crash, hang or be killed."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives import worker
from llm_sampler.objectives.compile import Compiled, compile_configuration
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.timing import TimingSettings
from llm_sampler.space import Configuration, Space

if TYPE_CHECKING:
    from pebble import ProcessPool


class EvaluatorError(RuntimeError):
    """The machine cannot measure at all (not one configuration's fault)."""


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask, not the machine's count."""
    return len(os.sched_getaffinity(0))


class GpuEvaluator:
    """Measures configurations of one kernel and problem on one GPU; an `Evaluator`.

    Args:
        spec: The kernel.
        problem: Its input.
        device: The GPU, from `detect_device`.
        compile_workers: Compile processes; by default all usable cores but two, which the measuring process and the
            study keep.
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
        self._workers = compile_workers or max(1, usable_cores() - 2)
        self._compile_timeout_s = compile_timeout_s
        self._measure_timeout_s = measure_timeout_s
        self._settings = settings or TimingSettings()
        self._compile_pool = self._pool(self._workers)
        self._measure_pool: ProcessPool | None = None
        self._measure_lock = threading.Lock()
        self._reference_ms: deque[float] = deque(maxlen=1000)

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
        compiled = self._compile(configuration)
        if isinstance(compiled, Measurement):
            return compiled
        if compiled.status != "ok":
            return Measurement(
                compiled.status,
                compile_s=compiled.compile_s,
                shared_bytes=compiled.shared_bytes,
                detail=compiled.detail,
                device=self._device.name,
            )
        with self._measure_lock:
            measurement = self._measure(configuration)
        if measurement.reference_ms is not None:
            self._reference_ms.append(measurement.reference_ms)
        return measurement.with_(compile_s=compiled.compile_s, device=self._device.name)

    def _compile(self, configuration: Configuration) -> Compiled | Measurement:
        from pebble import ProcessExpired

        arguments = [self._spec, self._problem, configuration, self._device]
        future = self._compile_pool.schedule(compile_configuration, args=arguments, timeout=self._compile_timeout_s)
        try:
            compiled: Compiled = future.result()
        except FutureTimeoutError:
            return self._failed("timeout", f"compiling took longer than {self._compile_timeout_s:g} s")
        except ProcessExpired as error:
            return self._failed("crashed", f"the compiler ended its process with exit code {error.exitcode}")
        return compiled

    def _measure(self, configuration: Configuration) -> Measurement:
        from pebble import ProcessExpired

        pool = self._started_measure_pool()
        future = pool.schedule(worker.measure, args=[configuration], timeout=self._measure_timeout_s)
        try:
            measured: worker.Measured = future.result()
        except FutureTimeoutError:
            self._stop_measure_pool()
            return self._failed("timeout", f"checking and timing took longer than {self._measure_timeout_s:g} s")
        except ProcessExpired as error:
            self._stop_measure_pool()
            return self._failed("crashed", f"the measuring process ended with exit code {error.exitcode}")
        if measured.poisoned:
            self._stop_measure_pool()
        return measured.measurement

    def _failed(self, status: str, detail: str) -> Measurement:
        return Measurement.from_json({"status": status, "detail": detail, "device": self._device.name})

    def _started_measure_pool(self) -> ProcessPool:
        """The measuring process, with inputs and exact results on the GPU."""
        from pebble import ProcessExpired

        if self._measure_pool is None:
            pool = self._pool(1)
            arguments = [self._spec, self._problem, self._settings]
            try:
                pool.schedule(worker.start, args=arguments, timeout=300).result()
            except (Exception, ProcessExpired) as error:
                pool.stop()
                pool.join()
                raise EvaluatorError(f"the measuring process cannot start on {self._device.name}: {error}") from error
            self._measure_pool = pool
        return self._measure_pool

    def _stop_measure_pool(self) -> None:
        if self._measure_pool is not None:
            self._measure_pool.stop()
            self._measure_pool.join()
            self._measure_pool = None

    @staticmethod
    def _pool(workers: int) -> ProcessPool:
        from pebble import ProcessPool

        # Processes that use CUDA must be spawned, not forked.
        return ProcessPool(max_workers=workers, context=multiprocessing.get_context("spawn"))

    def close(self) -> None:
        """End all worker processes; the GPU's memory is free afterwards."""
        self._compile_pool.stop()
        self._compile_pool.join()
        with self._measure_lock:
            self._stop_measure_pool()
