"""What `llm-sampler tune` tunes: the machine's GPU, a shipped recording, or a T4 file."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_sampler.kernels import KernelSpec, Problem
    from llm_sampler.objectives.evaluate import Evaluator
    from llm_sampler.objectives.recording import Recording
    from llm_sampler.task import Task

GPU_PACKAGES = ("torch", "triton", "pebble")


class OptionError(ValueError):
    """Options that do not go together; the message says which do."""


@dataclass(frozen=True)
class Setup:
    """What is tuned.

    Attributes:
        evaluator: What measures, or looks up.
        task: What the sampler may tell an LLM.
        headline: The first line of the output.
        spec: The kernel; None for a recording of something else.
        problem: Its input; None where a recording does not say.
        recording: What is replayed; None when live.
    """

    evaluator: Evaluator
    task: Task
    headline: str
    spec: KernelSpec | None
    problem: Problem | None
    recording: Recording | None

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self.spec.name if self.spec else self.recording.kernel if self.recording else ""


def find_setup(kernel: str, problem: str | None, replay: str | None, space: Path | None) -> Setup:
    """What the options name: a recording, the machine's GPU, or without one a shipped recording.

    Raises:
        KernelError: The kernel or the problem does not exist.
        RecordingError: The recording cannot be used, or none fits.
        OptionError: The options contradict each other.
    """
    from llm_sampler.kernels import find_kernel
    from llm_sampler.objectives.device import detect_device

    if space is not None and replay in (None, "shipped"):
        raise OptionError("--space describes a replayed T4 file: give --replay FILE as well")
    if replay not in (None, "shipped"):
        assert replay is not None
        return _from_file(kernel, problem, Path(replay), space)
    spec = find_kernel(kernel)
    wanted = spec.problem(problem) if problem is not None else None
    if replay == "shipped":
        return _from_package(spec, wanted, "Replaying")
    device = detect_device()
    if device is None:
        return _from_package(spec, wanted, "No NVIDIA GPU here: replaying")
    if missing := [name for name in GPU_PACKAGES if importlib.util.find_spec(name) is None]:
        why = f"{device.name} is here, but not {', '.join(missing)} (pip install 'optuna-llm-sampler[gpu]'): replaying"
        return _from_package(spec, wanted, why)
    from llm_sampler.objectives.gpu import GpuEvaluator
    from llm_sampler.studies.tasks import kernel_task

    wanted = wanted or spec.problems[0]
    headline = f"Tuning {spec.name} {wanted.short} live on {device.name}"
    evaluator = GpuEvaluator(spec, wanted, device=device)
    return Setup(evaluator, kernel_task(spec, wanted, device, evaluator.space), headline, spec, wanted, None)


def _from_package(spec: KernelSpec, problem: Problem | None, why: str) -> Setup:
    from llm_sampler.objectives.recording import RecordingError
    from llm_sampler.objectives.shipped import find_recording, shipped_recordings

    if problem is None:
        shipped = [one.header.problem for one in shipped_recordings() if one.header.kernel == spec.name]
        problem = next((one for one in spec.problems if one in shipped), None)
    try:
        recording = find_recording(spec.name, problem)
    except RecordingError as error:
        raise RecordingError(f"{error}; anything else needs an NVIDIA GPU, or --replay FILE") from None
    return _from_recording(recording, spec, why)


def _from_file(kernel: str, problem: str | None, path: Path, space: Path | None) -> Setup:
    from llm_sampler.kernels import KERNELS, find_kernel
    from llm_sampler.objectives.recording import RecordingError, read_recording

    recording = read_recording(path, space)
    if recording.problem is None:  # a foreign file: the kernel's name is its title, and may be ours by chance
        if problem is not None:
            raise OptionError(f"{path.name} does not say which problem it records: leave --problem out")
        return _from_recording(recording, None, "Replaying", title=kernel)
    spec = KERNELS.get(recording.kernel)
    if kernel != recording.kernel:
        find_kernel(kernel)
        raise RecordingError(f"{path.name} records {recording.kernel}, not {kernel}")
    if problem is not None and spec is not None and spec.problem(problem) != recording.problem:
        raise RecordingError(f"{path.name} records {kernel} {recording.problem.short}, not {problem}")
    return _from_recording(recording, spec, "Replaying")


def _from_recording(recording: Recording, spec: KernelSpec | None, why: str, title: str = "") -> Setup:
    from llm_sampler.objectives.replay import ReplayEvaluator
    from llm_sampler.studies.tasks import recording_task

    what = " ".join(filter(None, [title or recording.kernel, recording.problem.short if recording.problem else ""]))
    where = f"on {recording.device_name}" if recording.device_name else "on a device that the file does not name"
    when = f", {recording.date[:10]}" if recording.date else ""
    headline = f"{why} {what}, {len(recording.results):,} configurations recorded {where}{when}"
    task = recording_task(recording, spec)
    return Setup(ReplayEvaluator(recording), task, headline, spec, recording.problem, recording)
