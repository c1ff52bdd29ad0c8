from __future__ import annotations

from llm_sampler.kernels import H200, find_kernel
from llm_sampler.objectives.recording import Recording
from llm_sampler.studies.tasks import kernel_task, recording_task
from llm_sampler.task import Task


def test_a_kernels_task_tells_all_that_the_prompt_needs() -> None:
    spec = find_kernel("matmul")
    problem = spec.problem("4096x4096x4096")
    task = kernel_task(spec, problem, H200)
    assert task.title == "matmul M4096-N4096-K4096-fp16 on NVIDIA H200"
    assert task.space == spec.space(problem, H200)
    assert task.source == spec.source
    assert task.problem["flops"] == 2 * 4096**3
    assert task.problem["dtype"] == "fp16"
    assert task.problem["roofline_ms"] == 0.1389
    assert task.device["shared_bytes"] == 232_448
    assert task.device["peak_tflops_fp16"] == 989.4
    assert (task.objective, task.unit, task.outcome) == ("median kernel time", "ms", "kernel:measurement")
    assert Task.from_json(task.to_json()) == task


def test_a_recordings_task_has_the_recordings_space_and_the_kernels_source(recording: Recording) -> None:
    import dataclasses

    spec = find_kernel("matmul")
    ours = dataclasses.replace(recording, kernel="matmul", problem=spec.problems[0], device=H200)
    task = recording_task(ours, spec)
    assert task.space == recording.space
    assert task.source == spec.source


def test_a_foreign_recordings_task_has_no_source(recording: Recording) -> None:
    task = recording_task(recording)
    assert (task.title, task.source, task.device) == ("toy on Toy GPU", "", {})
    assert task.space == recording.space
