"""The recordings in the package hold what a replay needs."""

from __future__ import annotations

import pytest

from llm_sampler.kernels import Device, find_kernel
from llm_sampler.objectives.recording import EXHAUSTIVE
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import Shipped, find_recording, shipped_recordings

SHIPPED = shipped_recordings()


def test_each_kernel_is_recorded_for_two_problems_and_matmul_well() -> None:
    recorded = {(s.header.kernel, s.header.problem.short): s for s in SHIPPED if s.header.problem}
    expected = {
        ("matmul", "4096x4096x4096-fp16"),
        ("matmul", "16x8192x8192-fp16"),
        ("softmax", "8192x8192-fp16"),
        ("softmax", "131072x1024-fp16"),
    }
    assert expected <= recorded.keys()
    counts = [s.summary["configurations"] for s in SHIPPED if s.header.kernel == "matmul"]
    assert all(count >= 1500 for count in counts)
    assert sum(s.path.stat().st_size for s in SHIPPED) <= 2 * 10**6


@pytest.mark.parametrize("shipped", SHIPPED, ids=[s.path.name for s in SHIPPED])
def test_a_shipped_recording_replays_completely(shipped: Shipped) -> None:
    recording = shipped.read()
    evaluator = ReplayEvaluator(recording)  # refuses a gap
    assert recording.chosen == EXHAUSTIVE
    assert evaluator.space.size == len(recording.results) == shipped.summary["configurations"]
    assert dict(recording.by_status) == shipped.summary["by_status"]
    assert recording.best is not None
    assert recording.best.measurement.median_ms == shipped.summary["best_ms"]
    assert recording.reference_ms is not None
    assert recording.default_ms is not None
    assert recording.default_ms > recording.best.measurement.median_ms
    assert isinstance(recording.device, Device)
    assert {"torch", "triton"} <= recording.versions.keys()
    assert recording.date
    assert shipped.path.name == recording.file_name
    assert find_kernel(recording.kernel)
    assert all(r.measurement.samples and r.measurement.reference_ms for r in recording.results if r.measurement.ok)
    assert find_recording(recording.kernel, recording.problem) == recording
