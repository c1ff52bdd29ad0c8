"""Kernels against PyTorch: what to measure, what came of it, and as JSON. Times in ms.

Everything of a row was timed in the same rounds, so that a ratio is the median of the rounds' ratios: clocks that drift
reach both sides of each. Intervals hold the median with 95 % confidence (see ``intervals``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from llm_sampler.kernels import KERNELS, find_kernel
from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import KernelSpec, Problem
from llm_sampler.objectives.intervals import median_interval
from llm_sampler.objectives.side_by_side import COMPILED, COPY, COPY_BYTES, EAGER, Contestant, SideBySide
from llm_sampler.space import Configuration

DEFAULT, TUNED = "default", "tuned"
Verdict = Literal["faster", "no difference", "slower"]


class BenchError(ValueError):
    """A request or a file that cannot be one; the message says what is allowed."""


@dataclass(frozen=True)
class Target:
    """A kernel and one of its problems."""

    spec: KernelSpec
    problem: Problem

    @property
    def title(self) -> str:
        """E.g. ``matmul 4096x4096x4096-fp16``."""
        return f"{self.spec.name} {self.problem.short}"


@dataclass(frozen=True)
class Tuned:
    """A tuned configuration.

    Attributes:
        configuration: None if there is none.
        source: Where it comes from, or why there is none.
    """

    configuration: Configuration | None
    source: str


@dataclass(frozen=True)
class Column:
    """One contestant's time on a problem.

    Attributes:
        name: ``default``, ``tuned``, ``PyTorch`` or ``torch.compile``.
        median_ms: None if it failed.
        low_ms: Where the interval of the median begins; None for fewer than six rounds.
        high_ms: Where it ends.
        error: Largest deviation from float64; None if unknown.
        limit: What ``error`` must not exceed.
        fault: Why there is no time; empty if there is one.
    """

    name: str
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    error: float | None = None
    limit: float | None = None
    fault: str = ""


@dataclass(frozen=True)
class Ratio:
    """How many times faster ours is than another: the median over the rounds and its interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """``no difference`` where the interval holds 1."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference"


@dataclass(frozen=True)
class Row:
    """A problem's contestants.

    Attributes:
        kernel: Name of the kernel.
        problem: Short name of the problem.
        columns: By name, in order.
        ours: The column that is compared: ``tuned`` if it has a time, else ``default``; empty if neither has.
        against: By the other column's name, how many times faster ours is.
        roofline_ms: The least time by the datasheet's rates; None if unknown.
        bound: Which of those rates is the slower one; empty if unknown.
        flops: Of the problem.
        traffic_bytes: Of the problem.
        copy_tbps: Read and written by the copy that was timed in the same rounds, TB/s.
        configuration: What ``tuned`` is; None if there is none.
        source: Where it comes from.
        method: How everything was timed.
        state: Of the device meanwhile.
    """

    kernel: str
    problem: str
    columns: Mapping[str, Column]
    ours: str
    against: Mapping[str, Ratio]
    roofline_ms: float | None
    bound: Literal["arithmetic", "memory", ""]
    flops: int
    traffic_bytes: int
    copy_tbps: float | None
    configuration: Configuration | None
    source: str
    method: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """E.g. ``matmul 4096x4096x4096-fp16``."""
        return f"{self.kernel} {self.problem}"

    @property
    def our_ms(self) -> float | None:
        """Time of the column that is compared."""
        return self.columns[self.ours].median_ms if self.ours else None

    @property
    def roofline_share(self) -> float | None:
        """Least time over ours; above 1 where a GPU's clocks exceed its datasheet's."""
        return self.roofline_ms / self.our_ms if self.roofline_ms and self.our_ms else None

    @property
    def copy_share(self) -> float | None:
        """Our bandwidth over the copy's; None where arithmetic bounds the problem."""
        if self.bound != "memory" or not self.our_ms or not self.copy_tbps:
            return None
        return self.traffic_bytes / (self.our_ms * 1e9) / self.copy_tbps


@dataclass(frozen=True)
class Bench:
    """A whole run.

    Attributes:
        device: Name of the GPU.
        versions: torch, triton, cuda, driver.
        date: ISO 8601.
        command: What was typed.
        rounds: Timed rounds of each row.
        compile_mode: Of `torch.compile`; empty if it was left out.
        rows: In order.
    """

    device: str
    versions: Mapping[str, str]
    date: str
    command: str
    rounds: int
    compile_mode: str
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Bench:
        """A run from what ``to_json`` gave.

        Raises:
            BenchError: It is something else.
        """
        try:
            rows = tuple(
                Row(
                    **{
                        **row,
                        "columns": {name: Column(**column) for name, column in row["columns"].items()},
                        "against": {name: Ratio(**ratio) for name, ratio in row["against"].items()},
                    }
                )
                for row in data["rows"]
            )
            return cls(**{**data, "rows": rows})
        except (KeyError, TypeError, AttributeError) as error:
            raise BenchError(f"it must be what `llm-sampler bench --format json` wrote: {error!r}") from None


def find_targets(texts: Sequence[str]) -> list[Target]:
    """What ``KERNEL`` or ``KERNEL:PROBLEM`` texts name; without any, every kernel on all its problems.

    Raises:
        KernelError: A kernel or a problem does not exist.
    """
    targets = []
    for text in texts or list(KERNELS):
        kernel, separator, problem = text.partition(":")
        spec = find_kernel(kernel)
        targets += [Target(spec, one) for one in ([spec.problem(problem)] if separator else spec.problems)]
    return list({(target.spec.name, target.problem.name): target for target in targets}.values())


def make_row(target: Target, device: Device, tuned: Tuned, times: SideBySide) -> Row:
    """What a measuring process found, in numbers that can be shown.

    Args:
        target: What was measured.
        device: The GPU.
        tuned: The tuned configuration.
        times: See `time_side_by_side`.
    """
    by_name = {one.name: one for one in times.contestants}
    columns = {one.name: _column(one) for one in times.contestants if one.name != COPY}
    ours = next((name for name in (TUNED, DEFAULT) if name in by_name and by_name[name].samples), "")
    against = {
        other: _ratio(by_name[other].samples, by_name[ours].samples)
        for other in (DEFAULT, EAGER, COMPILED)
        if ours and other != ours and other in by_name and by_name[other].samples
    }
    cost, dtype = target.spec.cost(target.problem), target.problem.dtype
    roofline_ms = device.roofline_ms(cost.flops, cost.traffic_bytes, dtype)
    memory_ms = device.roofline_ms(0, cost.traffic_bytes, dtype)
    copy = by_name[COPY].samples if COPY in by_name else ()
    return Row(
        kernel=target.spec.name,
        problem=target.problem.short,
        columns=columns,
        ours=ours,
        against=against,
        roofline_ms=roofline_ms,
        bound="" if roofline_ms is None else "memory" if roofline_ms == memory_ms else "arithmetic",
        flops=cost.flops,
        traffic_bytes=cost.traffic_bytes,
        copy_tbps=2 * COPY_BYTES / (statistics.median(copy) * 1e9) if copy else None,
        configuration=tuned.configuration,
        source=tuned.source,
        method=times.method,
        state=dict(times.state),
    )


def failed_row(target: Target, device: Device, tuned: Tuned, fault: str) -> Row:
    """The row of a problem that could not be measured."""
    return make_row(target, device, tuned, SideBySide((Contestant(DEFAULT, fault=fault),), ""))


def _column(one: Contestant) -> Column:
    if not one.samples:
        return Column(one.name, error=one.error, limit=one.limit, fault=one.fault)
    low, high = median_interval(one.samples) or (None, None)
    return Column(one.name, statistics.median(one.samples), low, high, one.error, one.limit)


def _ratio(other: Sequence[float], ours: Sequence[float]) -> Ratio:
    ratios = [theirs / own for theirs, own in zip(other, ours, strict=True)]
    low, high = median_interval(ratios) or (min(ratios), max(ratios))
    return Ratio(statistics.median(ratios), low, high)


def geometric_means(rows: Sequence[Row], other: str) -> dict[str, tuple[float, int]]:
    """By kernel, the geometric mean of the ratios against a column, and over how many problems."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if other in row.against:
            found.setdefault(row.kernel, []).append(row.against[other].value)
    return {kernel: (statistics.geometric_mean(values), len(values)) for kernel, values in found.items()}


def with_verdict(rows: Sequence[Row], other: str, verdict: Verdict) -> list[Row]:
    """The rows whose comparison with a column ends so."""
    return [row for row in rows if other in row.against and row.against[other].verdict == verdict]
