"""`llm-sampler record`: measure a kernel's every allowed configuration on this machine's GPU, kept as T4 JSON."""

from __future__ import annotations

import datetime
import os
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from llm_sampler.kernels import Device, KernelSpec, Problem, find_kernel
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.gpu import GpuEvaluator
from llm_sampler.objectives.recording import (
    EXHAUSTIVE,
    Recorded,
    Recording,
    RecordingError,
    read_recording,
    write_recording,
)
from llm_sampler.objectives.timing import TimingSettings
from llm_sampler.space import Configuration, configuration_key


def record(
    kernel: Annotated[str, typer.Argument(help="Name of the kernel: see `llm-sampler kernels`.")],
    problem: Annotated[
        list[str] | None, typer.Option(help="Sizes, e.g. 4096x4096x4096-fp16; repeatable. Default: the kernel's first.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the recordings.")] = Path(),
    limit: Annotated[
        int | None, typer.Option(min=1, help="Measure only so many allowed configurations, drawn at random.")
    ] = None,
    samples: Annotated[int, typer.Option(min=6, help="Timed launches per configuration at most.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the order of measurement, and of the draw with --limit.")] = 0,
) -> None:
    """Measure every allowed configuration on this machine's GPU, failures included, and write T4 JSON.

    What a file in the output folder already holds of the same space and device is kept and not measured again, so that
    an interrupted recording goes on where it stopped.
    """
    spec = find_kernel(kernel)
    problems = [spec.problem(text) for text in problem or [spec.problems[0].short]]
    device = detect_device()
    if device is None:
        raise RecordingError("record needs an NVIDIA GPU, and the CUDA driver shows none; without one, tune replays")
    console = Console()
    settings = TimingSettings(most_samples=samples)
    for item in problems:
        _record_problem(spec, item, device, settings, output, limit, seed, console)


def _record_problem(
    spec: KernelSpec,
    problem: Problem,
    device: Device,
    settings: TimingSettings,
    output: Path,
    limit: int | None,
    seed: int,
    console: Console,
) -> None:
    space = spec.space(problem, device)
    wanted = list(space.configurations())
    random.Random(seed).shuffle(wanted)  # neighbours far apart in time: drift does not look like a parameter's effect
    chosen = EXHAUSTIVE
    if limit is not None and limit < len(wanted):
        chosen = f"{limit} of {len(wanted)} allowed configurations, drawn at random with seed {seed}"
        wanted = wanted[:limit]
    recording = Recording(spec.name, space, (), problem, device, chosen=chosen)
    path = output / recording.file_name
    kept = _kept(path, recording)
    results = {result.key: result for result in kept}
    todo = [configuration for configuration in wanted if configuration_key(configuration) not in results]
    console.print(f"{spec.name} {problem.short} on {device.name}: {len(wanted)} configurations, {len(kept)} kept")
    if not todo:
        return
    versions: dict[str, str] = {}
    with _fresh_triton_cache():
        evaluator = GpuEvaluator(spec, problem, device=device, settings=settings)
        try:
            for result in _measure_all(evaluator, todo, console):
                results[result.key] = result
                versions.update(result.measurement.versions)
        except KeyboardInterrupt:
            chosen = f"interrupted after {len(results)} of {len(wanted)} allowed configurations"
            console.print(f"{chosen}: the same command goes on from there")
        finally:
            reference_ms = evaluator.reference_ms
            evaluator.close()
            finished = Recording(
                kernel=spec.name,
                space=space,
                results=tuple(_without_versions(result) for result in results.values()),
                problem=problem,
                device=device,
                reference_ms=reference_ms,
                versions=versions,
                date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                chosen=chosen,
                method={**settings.to_json(), "timer": "CUDA events, by queue or graph, reference interleaved"},
            )
            output.mkdir(parents=True, exist_ok=True)
            write_recording(path, finished)
            counts = ", ".join(f"{count} {status}" for status, count in sorted(finished.by_status.items()))
            best = finished.best
            times = f"; best {best.measurement.median_ms:.4f} ms, PyTorch {reference_ms:.4f} ms" if best else ""
            console.print(f"{path}: {counts}{times}")


def _kept(path: Path, recording: Recording) -> tuple[Recorded, ...]:
    """What an earlier run measured of the same space on the same device."""
    if not path.exists():
        return ()
    earlier = read_recording(path)
    same = earlier.space.digest() == recording.space.digest() and earlier.device_name == recording.device_name
    if not same:
        raise RecordingError(f"{path} holds another space or device: move it away, or choose another --output")
    return earlier.results


def _measure_all(evaluator: GpuEvaluator, todo: list[Configuration], console: Console) -> Iterator[Recorded]:
    columns = (TextColumn("measuring"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(evaluator.parallel) as threads:
        bar = progress.add_task("", total=len(todo))
        futures = {threads.submit(evaluator.evaluate, configuration): configuration for configuration in todo}
        try:
            for future in as_completed(futures):
                yield Recorded(futures[future], future.result())
                progress.advance(bar)
        finally:
            threads.shutdown(cancel_futures=True)


def _without_versions(result: Recorded) -> Recorded:
    """Device and versions stand once in the recording's head, not with each configuration."""
    return Recorded(result.configuration, result.measurement.with_(versions={}, device=""))


@contextmanager
def _fresh_triton_cache() -> Iterator[None]:
    """An empty compile cache for the time of a recording, so that compile times are those of compiling."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="llm-sampler-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before
