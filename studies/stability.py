"""How a study's winner does on the kernel's other problems: from recordings, or measured live. Times in ms.

The score is the geometric mean, over the other problems on which the winner runs, of the least time that is known there
over the winner's: 1 means that nothing better is known anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives.evaluate import Evaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.space import Configuration, configuration_key
from llm_sampler.studies.query import same_device

_ROBUST, _USABLE = 0.95, 0.8


@dataclass(frozen=True)
class SizeResult:
    """The winner on another problem.

    Attributes:
        problem: Short name of the problem.
        source: Where the times come from.
        winner: ``ok``; why it has no time: a measurement's status, ``not allowed`` or ``not recorded``.
        winner_ms: The winner's median time; None if it has none.
        default_ms: The problem's default configuration's; None if it has none.
        reference_ms: PyTorch's; None if it was not timed.
        least_ms: Least time known there, of the recording or of default and winner; None if there is none.
        detail: Why the winner has no time, one line.
    """

    problem: str
    source: Literal["recording", "live"]
    winner: str
    winner_ms: float | None
    default_ms: float | None
    reference_ms: float | None
    least_ms: float | None
    detail: str = ""

    @property
    def share(self) -> float | None:
        """Least known time over the winner's, at most 1; None if the winner has none."""
        return self.least_ms / self.winner_ms if self.least_ms is not None and self.winner_ms is not None else None


@dataclass(frozen=True)
class Stability:
    """The winner on all other problems.

    Attributes:
        results: One for each problem.
        score: See the module; None if the winner ran on none.
        verdict: In words.
    """

    results: tuple[SizeResult, ...]
    score: float | None
    verdict: str

    @classmethod
    def of(cls, results: Sequence[SizeResult], *, why_none: str = "") -> Stability:
        """The score and the verdict of results.

        Args:
            results: One for each other problem.
            why_none: Why there are none.
        """
        shares = [result.share for result in results if result.share is not None]
        score = math.exp(sum(math.log(share) for share in shares) / len(shares)) if shares else None
        return cls(tuple(results), score, _verdict(results, shares, score, why_none))


def stability_from_recordings(
    kernel: str, problem: Problem | None, device: str, winner: Configuration | None, recordings: Iterable[Recording]
) -> Stability:
    """The winner as it is in recordings of the kernel's other problems on the device."""
    if winner is None:
        return Stability.of((), why_none="no configuration has a time yet")
    results = [
        _recorded(recording, recording.problem, winner)
        for recording in recordings
        if recording.kernel == kernel
        and recording.problem is not None
        and recording.problem != problem
        and same_device(recording.device_name, device)
    ]
    return Stability.of(results, why_none=f"no other problem of {kernel} is recorded on {device or 'its device'}")


def shipped_recordings_of(kernel: str) -> list[Recording]:
    """The recordings of a kernel that come with the package."""
    return [one.read() for one in shipped_recordings() if one.header.kernel == kernel]


def stability_live(evaluators: Iterable[tuple[Problem, Evaluator]], winner: Configuration | None) -> Stability:
    """The winner and each problem's default, measured now.

    Args:
        evaluators: For each other problem what measures it; each is closed when it has.
        winner: The winner; None if nothing has a time.
    """
    if winner is None:
        return Stability.of((), why_none="no configuration has a time yet")
    results = []
    for problem, evaluator in evaluators:
        try:
            results.append(_measured(problem, evaluator, winner))
        finally:
            evaluator.close()
    return Stability.of(results, why_none="the kernel has no other problem")


def gpu_evaluators(spec: KernelSpec, problem: Problem | None, device: Device) -> Iterable[tuple[Problem, Evaluator]]:
    """Evaluators of a kernel's other problems on this machine's GPU, each made when its turn comes."""
    from llm_sampler.objectives.gpu import GpuEvaluator

    for other in spec.problems:
        if other != problem:
            yield other, GpuEvaluator(spec, other, device=device)


def _recorded(recording: Recording, problem: Problem, winner: Configuration) -> SizeResult:
    faults = recording.space.faults(winner)
    found = recording.by_key.get(configuration_key(winner))
    if faults:
        status, detail = "not allowed", "; ".join(faults)
    elif found is None:
        status, detail = "not recorded", "the recording is a sample that lacks it"
    else:
        status, detail = found.status, found.detail
    best = recording.best
    return SizeResult(
        problem=problem.short,
        source="recording",
        winner=status,
        winner_ms=found.median_ms if found is not None and not faults else None,
        default_ms=recording.default_ms,
        reference_ms=recording.reference_ms,
        least_ms=best.measurement.median_ms if best else None,
        detail=detail,
    )


def _measured(problem: Problem, evaluator: Evaluator, winner: Configuration) -> SizeResult:
    space = evaluator.space
    faults = space.faults(winner)
    default = evaluator.evaluate(space.default) if space.default is not None else None
    found = Measurement("restricted", detail="; ".join(faults)) if faults else evaluator.evaluate(winner)
    times = [one.median_ms for one in (default, found) if one is not None and one.median_ms is not None]
    return SizeResult(
        problem=problem.short,
        source="live",
        winner="not allowed" if faults else found.status,
        winner_ms=found.median_ms,
        default_ms=default.median_ms if default else None,
        reference_ms=evaluator.reference_ms,
        least_ms=min(times, default=None),
        detail=found.detail,
    )


def _verdict(results: Sequence[SizeResult], shares: Sequence[float], score: float | None, why_none: str) -> str:
    if not results:
        return f"Unknown: {why_none}."
    refused = [result.problem for result in results if result.winner_ms is None]
    if score is None:
        return f"Bound to its size: the winner does not run on {', '.join(refused)}. Tune each size by itself."
    worst = f"at worst {1 / min(shares):.2f}x the least time known there"
    tail = f" It does not run on {', '.join(refused)}." if refused else ""
    if score >= _ROBUST:
        head = f"Robust: near the best known time on the other sizes where it runs, {worst}."
    elif score >= _USABLE:
        head = f"Usable: it loses some time on other sizes, {worst}."
    else:
        head = f"Specialised: it loses much on other sizes, {worst}. Tune each by itself."
    return head + tail
