"""The GPU evaluator: what needs no GPU, and, with one, a whole measurement (pytest -m gpu)."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llm_sampler.kernels import H200, find_kernel
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.gpu import GpuEvaluator, usable_cores

pytest.importorskip("triton", reason="compiles with Triton: pip install -e '.[test]'")
MATMUL = find_kernel("matmul")


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuEvaluator]:
    """For an H200 with little shared memory, whether or not there is one: nothing here reaches the GPU."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    device = dataclasses.replace(H200, shared_bytes=64_000)
    problem = MATMUL.problem("64x64x64")
    with contextlib.closing(GpuEvaluator(MATMUL, problem, device=device, compile_workers=1)) as gpu:
        yield gpu


def test_what_the_restrictions_forbid_is_not_compiled(evaluator: GpuEvaluator) -> None:
    measurement = evaluator.evaluate({**MATMUL.defaults[0], "num_stages": 6, "BLOCK_K": 64})
    assert measurement.status == "restricted"
    assert "left side 98304, right side 64000" in measurement.detail
    assert measurement.compile_s is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "status", "words"),
    [
        ("abort", "crashed", "exit code -6"),
        ("hang", "timeout", "longer than 12 s"),
        ("divide", "compile_error", "ZeroDivisionError"),
    ],
)
def test_what_a_compiler_may_do_is_a_status(
    launcher: str, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    launch = getattr(importlib.import_module("faulty_kernels"), launcher)
    spec = dataclasses.replace(MATMUL, launch=launch)
    problem = MATMUL.problem("64x64x64")
    with contextlib.closing(
        GpuEvaluator(spec, problem, device=H200, compile_workers=1, compile_timeout_s=12)
    ) as evaluator:
        measurement = evaluator.evaluate(MATMUL.defaults[0])
    assert measurement.status == status
    assert words in measurement.detail


@pytest.mark.gpu
def test_defaults_and_random_configurations_on_this_gpu() -> None:
    device = detect_device()
    assert device is not None, "needs an NVIDIA GPU"
    for problem in ("512x512x512-fp16", "104x136x72-bf16"):
        with contextlib.closing(GpuEvaluator(MATMUL, MATMUL.problem(problem), device=device)) as evaluator:
            configurations = list(evaluator.space.configurations())[::97]
            with ThreadPoolExecutor(evaluator.parallel) as threads:
                measurements = list(threads.map(evaluator.evaluate, configurations))
            assert [m.detail for m in measurements if not m.ok] == []
            assert all(m.error is not None and m.error <= (m.error_limit or 0) for m in measurements)
            assert evaluator.reference_ms is not None


def test_cores_follow_the_affinity_mask() -> None:
    assert set(usable_cores()) == os.sched_getaffinity(0)


def test_nothing_is_compiled_on_the_measuring_core(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("llm_sampler.objectives.gpu.ParallelProcesses", lambda *_, cores, **__: seen.append(cores))
    for cores in ([0, 1, 4, 5, 6], [0, 1]):
        monkeypatch.setattr("llm_sampler.objectives.gpu.usable_cores", lambda cores=cores: cores)
        GpuEvaluator(MATMUL, MATMUL.problem("64x64x64"), device=H200)
    assert seen == [[4, 5, 6], None]
