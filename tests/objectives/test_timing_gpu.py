"""Timing on a real GPU: run with  pytest -m gpu."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import statistics
from pathlib import Path

import numpy as np
import pytest

from llm_sampler.kernels import Device, KernelSpec, Problem, find_kernel
from llm_sampler.objectives.clocks import open_monitor
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.gpu import GpuEvaluator
from llm_sampler.objectives.intervals import median_interval
from llm_sampler.objectives.isolation import PreparedProcess
from llm_sampler.objectives.side_by_side import COMPILED, COPY, EAGER, prepare, time_side_by_side
from llm_sampler.objectives.stopwatch import CudaStopwatch, Launch, TimingError
from llm_sampler.objectives.timing import TimingSettings, time_beside_reference, time_rounds

pytestmark = pytest.mark.gpu
SOFTMAX, MATMUL = find_kernel("softmax"), find_kernel("matmul")


def this_device() -> Device:
    device = detect_device()
    assert device is not None, "needs an NVIDIA GPU"
    return device


def launches(spec: KernelSpec, problem: Problem) -> tuple[Launch, Launch]:
    """The default configuration and PyTorch, both warm."""
    import torch

    inputs = spec.make_inputs(problem, 1, "cuda")
    output = spec.make_output(inputs)
    default = spec.space(problem, this_device()).default
    assert default is not None

    def kernel() -> None:
        spec.launch(inputs, output, default)

    def reference() -> object:
        return spec.reference(*inputs)

    kernel()
    reference()
    torch.cuda.synchronize()
    return kernel, reference


def test_queue_and_graph_agree_and_both_flush() -> None:
    import torch

    source = torch.empty(8 * 2**20, device="cuda").normal_()  # 32 MiB, which L2 would keep
    target = torch.empty_like(source)
    medians = {}
    for method in ("queue", "graph"):
        watch = CudaStopwatch(method=method)  # type: ignore[arg-type]
        watch.times_ms([lambda: target.copy_(source)] * 10)
        medians[method] = statistics.median(watch.times_ms([lambda: target.copy_(source)] * 60))
        assert watch.method == method
    assert medians["graph"] == pytest.approx(medians["queue"], rel=0.15)
    peak_tbps = this_device().peak_tbps
    if peak_tbps is not None:  # from L2 it would be read in half the time
        assert 2**26 / (medians["graph"] * 1e9) < 1.05 * peak_tbps


def test_the_same_kernel_twice_differs_less_than_its_intervals_say() -> None:
    kernel, reference = launches(MATMUL, MATMUL.problem("2048x2048x2048"))
    watch = CudaStopwatch(monitor=open_monitor())
    timings = [time_beside_reference(kernel, reference, stopwatch=watch, settings=TimingSettings()) for _ in range(40)]
    within = 0
    for one, other in zip(timings[::2], timings[1::2], strict=True):
        intervals = [median_interval(timing.samples) or (0.0, 0.0) for timing in (one, other)]
        within += intervals[0][0] <= intervals[1][1] and intervals[1][0] <= intervals[0][1]
    assert within >= 18
    rounds = time_rounds([kernel, kernel], rounds=100, stopwatch=watch)
    low, high = median_interval((rounds[:, 0] / rounds[:, 1]).tolist()) or (0.0, 0.0)
    assert low <= 1.002
    assert high >= 0.998


def test_launches_of_many_kernels_do_not_overflow_the_queue() -> None:
    kernel, _ = launches(SOFTMAX, SOFTMAX.problem("256x1024"))

    def many() -> None:
        for _ in range(12):
            kernel()

    watch = CudaStopwatch()
    many_ms, one_ms = (np.median(watch.times_ms([launch] * 200)) for launch in (many, kernel))
    assert 3 < many_ms / one_ms < 13


def test_a_launch_that_waits_for_the_gpu_cannot_be_timed() -> None:
    import torch

    with pytest.raises(TimingError, match="must not wait for the GPU"):
        CudaStopwatch().times_ms([torch.cuda.synchronize] * 3)


def test_a_launch_that_cannot_be_captured_is_timed_by_queue() -> None:
    import torch

    numbers = torch.ones(1024, device="cuda")
    watch = CudaStopwatch(method="graph")
    host = torch.empty(1024).pin_memory()

    def kernel() -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not in a graph")
        host.copy_(numbers, non_blocking=True)

    assert len(watch.times_ms([kernel] * 20)) == 20
    assert watch.method == "queue"
    assert len(watch.times_ms([kernel] * 20)) == 20


def test_a_kernel_that_remembers_results_is_too_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    launch = importlib.import_module("cheating_kernel").launch
    spec = dataclasses.replace(MATMUL, launch=launch)
    device = this_device()
    if not device.peak_tflops:
        pytest.skip("the peak rate of this GPU is unknown")
    evaluator = GpuEvaluator(spec, spec.problem("8192x8192x8192"), device=device, compile_workers=1)
    with contextlib.closing(evaluator):
        measurement = evaluator.evaluate(MATMUL.defaults[0])
    assert measurement.status == "too_fast", measurement
    assert "is below the" in measurement.detail
    assert measurement.median_ms is None


@pytest.mark.slow
def test_everything_is_timed_side_by_side_in_a_process_of_its_own() -> None:
    problem = SOFTMAX.problem("1000x777")
    default = SOFTMAX.space(problem, this_device()).default
    assert default is not None
    names = {"default": default, "tuned": {**default, "num_warps": 1}}
    with contextlib.closing(PreparedProcess(prepare, timeout_s=120)) as process:
        measure = functools.partial(time_side_by_side, rounds=10, compile_mode="default")
        times = process.call(measure, SOFTMAX, problem, this_device(), names)
    assert [one.name for one in times.contestants] == ["default", "tuned", EAGER, COMPILED, COPY]
    assert [len(one.samples) for one in times.contestants] == [10] * 5, times
    assert all(one.error is not None and one.error <= (one.limit or 0) for one in times.contestants[:4])
