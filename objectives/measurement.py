"""`Measurement`: what came of one configuration, timed or failed.

Units: times in ms (``_ms``) or seconds (``_s``), sizes in bytes (``_bytes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

Status = Literal[
    "ok",
    "restricted",
    "compile_error",
    "out_of_resources",
    "wrong_result",
    "runtime_error",
    "too_fast",
    "timeout",
    "crashed",
]
STATUSES: tuple[Status, ...] = get_args(Status)


class MeasurementError(ValueError):
    """Data that is no measurement."""


@dataclass(frozen=True)
class Measurement:
    """The outcome of compiling, checking and timing one configuration.

    Attributes:
        status: ``ok`` or the reason why there is no time.
        median_ms: Median of the samples; None unless ``ok``. A time that no such GPU can reach has the status
            ``too_fast`` (see ``roofline``).
        p20_ms: 20th percentile of the samples.
        p80_ms: 80th percentile of the samples.
        samples: Times in ms, in the order they were taken.
        reference_ms: Median time of the PyTorch reference, timed interleaved with these samples.
        method: How launches were timed: ``queue`` or ``graph`` (see ``stopwatch``); empty if unknown.
        stopped: Why there are no more samples: ``worse``, ``precise``, ``samples`` or ``time`` (see ``timing``).
        settings: How long was timed, in words: see ``TimingSettings``.
        sm_mhz: Least clock of the multiprocessors seen between samples; None if unknown.
        memory_mhz: Least clock of the memory; None if unknown.
        temperature_c: Greatest temperature of the GPU; None if unknown.
        power_w: Greatest power; None if unknown.
        slowed_by: Why clocks were lower than they could be, NVML's words; a fault among them (anything but
            ``sw_power_cap``) was there in three repetitions as well.
        compile_s: Seconds spent compiling.
        measure_s: Seconds spent loading, checking and timing.
        error: Largest deviation from the float64 reference, relative to its scale (see ``verify``).
        error_limit: What ``error`` was compared with.
        registers: Registers a thread.
        spills: Spilled registers a thread.
        shared_bytes: Shared memory a block.
        blocks_per_sm: Blocks that a multiprocessor holds at a time (see ``occupancy``).
        warps_per_sm: Their warps.
        detail: Why it failed, one line; ``required`` and ``limit`` numbers where there are some.
        versions: Versions that made it, e.g. torch, triton, driver.
    """

    status: Status
    median_ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    samples: tuple[float, ...] = ()
    reference_ms: float | None = None
    method: str = ""
    stopped: str = ""
    settings: str = ""
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    slowed_by: str = ""
    compile_s: float | None = None
    measure_s: float | None = None
    error: float | None = None
    error_limit: float | None = None
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    blocks_per_sm: int | None = None
    warps_per_sm: int | None = None
    detail: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that a time is there exactly if the status says so."""
        if self.status not in STATUSES:
            raise MeasurementError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if (self.status == "ok") != (self.median_ms is not None):
            raise MeasurementError(
                f"a measurement has median_ms exactly if it is ok, got {self.status}, {self.median_ms}"
            )
        if self.median_ms is not None and not 0 < self.median_ms < float("inf"):
            raise MeasurementError(f"median_ms must be positive and finite, got {self.median_ms}")

    @property
    def ok(self) -> bool:
        """Whether there is a verified time."""
        return self.status == "ok"

    def with_(self, **changes: Any) -> Measurement:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """As JSON types, without what is None or empty."""
        data = asdict(self)
        data["samples"] = list(self.samples)
        data["versions"] = dict(self.versions)
        return {name: value for name, value in data.items() if value not in (None, [], {}, "")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """A measurement from what ``to_json`` gave; unknown names are ignored (a newer version wrote them).

        Raises:
            MeasurementError: The data has another form.
        """
        known = {f.name for f in fields(cls)}
        try:
            values = {name: value for name, value in data.items() if name in known}
            if "samples" in values:
                values["samples"] = tuple(float(sample) for sample in values["samples"])
            return cls(**values)
        except (TypeError, AttributeError, ValueError) as error:
            raise MeasurementError(f"not a measurement: {error}") from None
