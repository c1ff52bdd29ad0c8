"""Running a bench on this machine's GPU: which configuration is the tuned one, and a measuring process for the rows."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from llm_sampler.kernels.device import Device
from llm_sampler.objectives.compile import Compiled, compile_configuration, one_line
from llm_sampler.objectives.device_lock import device_lock, gpu_identifier
from llm_sampler.objectives.gpu import EvaluatorError, usable_cores
from llm_sampler.objectives.isolation import CallError, ParallelProcesses, PreparedProcess
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.objectives.side_by_side import (
    COMPILED,
    Contestant,
    SideBySide,
    compile_reference,
    prepare,
    time_side_by_side,
    versions,
)
from llm_sampler.studies.bench import DEFAULT, TUNED, Row, Target, Tuned, failed_row, make_row

if TYPE_CHECKING:
    import sqlalchemy

    from llm_sampler.space import Configuration

# Checking and timing; a compiled reference comes from the cache, or is left out.
_ROW_TIMEOUT_S = 180.0
# Beside others; the inputs of a problem and what the reference makes of them take up to 10 GB.
_MOST_REFERENCES = 12


def find_tuned(target: Target, device: Device, archive: sqlalchemy.Engine | None) -> Tuned:
    """The best configuration known for a problem on a device: the archive's, else the shipped recordings'.

    What the kernel's space of today does not allow is passed over.

    Args:
        target: The kernel and the problem.
        device: The GPU.
        archive: The database with studies; None for no archive.
    """
    from llm_sampler.studies.archive import ArchiveError
    from llm_sampler.studies.query import find_best, same_device

    spec, problem = target.spec, target.problem
    space = spec.space(problem, device)
    if archive is not None:
        with contextlib.suppress(ArchiveError):
            answer = find_best(archive, spec.name, problem, device.name, allows=space.allows)
            if answer.match == "exact":
                return Tuned(answer.configuration, f"archive, {answer.measured:,} configurations measured")
    for one in shipped_recordings():
        header = one.header
        if header.kernel != spec.name or header.problem != problem or not same_device(header.device_name, device.name):
            continue
        timed = [result for result in one.read().results if result.measurement.median_ms is not None]
        for result in sorted(timed, key=lambda result: result.measurement.median_ms or 0.0):
            if space.allows(result.configuration):
                when = f", {header.date[:10]}" if header.date else ""
                return Tuned(result.configuration, f"recording of {len(timed):,} configurations{when}")
    return Tuned(None, "not tuned: neither the archive nor a recording has this problem on this device")


def _compilers() -> int:
    return max(1, len(usable_cores()) - 2)


class BenchRun:
    """Measures rows one after the other; a row whose process is lost costs only itself.

    Args:
        device: The GPU.
        archive: The database where tuned configurations may be; None for no archive.
        rounds: Timed rounds of each row.
        compile_mode: Mode of `torch.compile`; None leaves it out.
        compile_limit_s: Most seconds for compiling one reference; one that takes longer is not compiled.
    """

    def __init__(
        self,
        device: Device,
        archive: sqlalchemy.Engine | None,
        *,
        rounds: int,
        compile_mode: str | None,
        compile_limit_s: float = 120.0,
    ) -> None:
        self.versions: dict[str, str] = {}
        self.date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._device = device
        self._archive = archive
        self._rounds = rounds
        self._compile_mode = compile_mode
        self._compile_limit_s = compile_limit_s

    def rows(self, targets: Sequence[Target], *, until: float = math.inf) -> Iterator[Row]:
        """The rows, as they are measured; what is to be compiled is compiled before the first.

        Args:
            targets: Their kernels and problems.
            until: Value of ``time.monotonic()`` after which no row is begun.

        Raises:
            DeviceBusyError: Another process measures on the GPU all the time.
            EvaluatorError: The measuring process cannot start.
        """
        gpu = gpu_identifier()
        found = [find_tuned(target, self._device, self._archive) for target in targets]
        self._compile_kernels(targets, found)
        with device_lock(gpu):
            uncompiled = self.compile_references(targets, until=until)
        with contextlib.closing(PreparedProcess(prepare, timeout_s=_ROW_TIMEOUT_S)) as process:
            for target, tuned in zip(targets, found, strict=True):
                if time.monotonic() > until:
                    return
                try:
                    self.versions.update(process.call(versions))
                except Exception as error:  # noqa: BLE001 - torch and the driver raise many kinds
                    raise EvaluatorError(
                        f"the measuring process cannot start on {self._device.name}: {error}"
                    ) from None
                with device_lock(gpu):
                    times = self._times(process, target, tuned, uncompiled.get(target.title, ""))
                if isinstance(times, str):
                    yield failed_row(target, self._device, tuned, times)
                else:
                    yield make_row(target, self._device, tuned, times)

    def _compile_kernels(self, targets: Sequence[Target], found: Sequence[Tuned]) -> None:
        """Fill Triton's cache; what does not compile here does not either where it is measured, which says why."""
        calls = [
            functools.partial(compile_configuration, target.spec, target.problem, one, self._device, thorough=True)
            for target, tuned in zip(targets, found, strict=True)
            for one in self._configurations(target, tuned).values()
        ]
        count = min(_compilers(), max(1, len(calls)))

        def call(one: Callable[[], Compiled]) -> None:
            with contextlib.suppress(CallError):
                processes.call(one)

        with (
            contextlib.closing(ParallelProcesses(count, timeout_s=self._compile_limit_s)) as processes,
            ThreadPoolExecutor(count) as threads,
        ):
            list(threads.map(call, calls))

    def _configurations(self, target: Target, tuned: Tuned) -> dict[str, Configuration]:
        default = target.spec.space(target.problem, self._device).default
        named = {DEFAULT: default, TUNED: tuned.configuration}
        return {name: one for name, one in named.items() if one is not None}

    def compile_references(self, targets: Sequence[Target], *, until: float = math.inf) -> dict[str, str]:
        """Fill the cache of `torch.compile`; by title, why a target's reference is not compiled."""
        mode = self._compile_mode
        if mode is None:
            return {}
        # In these modes candidates are timed: beside others, the times would be wrong.
        count = 1 if "autotune" in mode else min(_compilers(), _MOST_REFERENCES, len(targets))

        def fault(target: Target) -> str:
            limit_s = min(self._compile_limit_s, until - time.monotonic())
            if limit_s <= 0:
                return "not compiled: the time is used up"
            try:
                processes.call(compile_reference, target.spec, target.problem, mode, timeout_s=limit_s)
            except CallError as error:
                return f"not compiled: {error}"
            except Exception as error:  # noqa: BLE001 - a compiler may raise anything
                return f"not compiled: {one_line(error)}"
            return ""

        with (
            contextlib.closing(ParallelProcesses(count, timeout_s=self._compile_limit_s)) as processes,
            ThreadPoolExecutor(count) as threads,
        ):
            return {target.title: why for target, why in zip(targets, threads.map(fault, targets), strict=True) if why}

    def _times(self, process: PreparedProcess, target: Target, tuned: Tuned, uncompiled: str) -> SideBySide | str:
        """Times, or why there are none."""
        configurations = self._configurations(target, tuned)
        mode = None if uncompiled else self._compile_mode
        measure = functools.partial(time_side_by_side, rounds=self._rounds, compile_mode=mode)
        try:
            times: SideBySide = process.call(measure, target.spec, target.problem, self._device, configurations)
        except CallError as error:
            if mode is None:
                return f"measuring {error}"
            return self._times(process, target, tuned, f"not timed: with it measuring {error}")
        except Exception as error:  # noqa: BLE001 - whatever this problem's measurement raises costs only its row
            process.replace()  # the CUDA context may be lost
            return one_line(error)
        if uncompiled:
            return dataclasses.replace(times, contestants=(*times.contestants, Contestant(COMPILED, fault=uncompiled)))
        return times
