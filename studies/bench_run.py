"""Running a bench on this machine's GPU: which configuration is the tuned one, and a measuring process for the rows."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from llm_sampler.kernels.device import Device
from llm_sampler.objectives.compile import one_line
from llm_sampler.objectives.device_lock import device_lock, gpu_identifier
from llm_sampler.objectives.gpu import EvaluatorError
from llm_sampler.objectives.isolation import CallError, PreparedProcess
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.objectives.side_by_side import SideBySide, prepare, time_side_by_side, versions
from llm_sampler.studies.bench import DEFAULT, TUNED, Row, Target, Tuned, failed_row, make_row

if TYPE_CHECKING:
    import sqlalchemy

# torch.compile with max-autotune takes minutes for a product.
_ROW_TIMEOUT_S = 600.0


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


class BenchRun:
    """Measures rows one after the other; a row whose process is lost costs only itself.

    Args:
        device: The GPU.
        archive: The database where tuned configurations may be; None for no archive.
        rounds: Timed rounds of each row.
        compile_mode: Mode of `torch.compile`; None leaves it out.
    """

    def __init__(
        self, device: Device, archive: sqlalchemy.Engine | None, *, rounds: int, compile_mode: str | None
    ) -> None:
        self.versions: dict[str, str] = {}
        self.date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._device = device
        self._archive = archive
        self._rounds = rounds
        self._compile_mode = compile_mode

    def rows(self, targets: Sequence[Target]) -> Iterator[Row]:
        """The rows, as they are measured.

        Raises:
            DeviceBusyError: Another process measures on the GPU all the time.
            EvaluatorError: The measuring process cannot start.
        """
        gpu = gpu_identifier()
        with contextlib.closing(PreparedProcess(prepare, timeout_s=_ROW_TIMEOUT_S)) as process:
            for target in targets:
                tuned = find_tuned(target, self._device, self._archive)
                try:
                    self.versions.update(process.call(versions))
                except Exception as error:  # noqa: BLE001 - torch and the driver raise many kinds
                    raise EvaluatorError(
                        f"the measuring process cannot start on {self._device.name}: {error}"
                    ) from None
                with device_lock(gpu):
                    times = self._times(process, target, tuned)
                if isinstance(times, str):
                    yield failed_row(target, self._device, tuned, times)
                else:
                    yield make_row(target, self._device, tuned, times)

    def _times(self, process: PreparedProcess, target: Target, tuned: Tuned) -> SideBySide | str:
        """Times, or why there are none."""
        default = target.spec.space(target.problem, self._device).default
        named = {DEFAULT: default, TUNED: tuned.configuration}
        configurations = {name: one for name, one in named.items() if one is not None}
        measure = functools.partial(time_side_by_side, rounds=self._rounds, compile_mode=self._compile_mode)
        try:
            times: SideBySide = process.call(measure, target.spec, target.problem, self._device, configurations)
        except CallError as error:
            return f"measuring {error}"
        except Exception as error:  # noqa: BLE001 - whatever this problem's measurement raises costs only its row
            process.replace()  # the CUDA context may be lost
            return one_line(error)
        return times
