"""One result of a T4 file, to and from a `Measurement`.

T4 is the autotuning community's format for measured configurations (schema: ``results-schema.json`` of Kernel Tuner's
``schema/T4/1.0.0``). Its times are in ms; a failed configuration has a text where its time would stand, and one of six
words in ``invalidity``. We write our exact status as that text, and what T4 has no field for as further
``measurements``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_sampler.objectives.measurement import STATUSES, Measurement, Status
from llm_sampler.space import Configuration, Value

OBJECTIVE = "time"
SAMPLE_DIGITS = 4
SUMMARY_DIGITS = 5
# T4 has six words for our nine statuses.
INVALIDITIES: dict[Status, str] = {
    "ok": "correct",
    "restricted": "constraints",
    "compile_error": "compile",
    "out_of_resources": "runtime",
    "wrong_result": "correctness",
    "runtime_error": "runtime",
    "too_fast": "correctness",
    "timeout": "timeout",
    "crashed": "runtime",
}
_STATUS_OF: dict[str, Status] = {
    "constraints": "restricted",
    "compile": "compile_error",
    "correctness": "wrong_result",
    "runtime": "runtime_error",
    "timeout": "timeout",
}
# The spelling "miliseconds" is in published files; an empty unit leaves the word to the file's `timeunit`.
_UNITS_MS = {
    "ms": 1.0,
    "millisecond": 1.0,
    "milliseconds": 1.0,
    "miliseconds": 1.0,
    "s": 1e3,
    "sec": 1e3,
    "second": 1e3,
    "seconds": 1e3,
    "us": 1e-3,
    "µs": 1e-3,
    "microseconds": 1e-3,
    "ns": 1e-6,
    "nanoseconds": 1e-6,
}
# Field of a measurement -> name and unit of the T4 measurement that carries it.
_EXTRAS = {
    "p20_ms": ("time_p20", "ms"),
    "p80_ms": ("time_p80", "ms"),
    "reference_ms": ("reference_time", "ms"),
    "method": ("timing_method", ""),
    "stopped": ("timing_stopped", ""),
    "settings": ("timing_settings", ""),
    "sm_mhz": ("sm_clock", "MHz"),
    "memory_mhz": ("memory_clock", "MHz"),
    "temperature_c": ("temperature", "C"),
    "power_w": ("power", "W"),
    "slowed_by": ("slowed_by", ""),
    "error": ("error", ""),
    "error_limit": ("error_limit", ""),
    "registers": ("registers", ""),
    "spills": ("spills", ""),
    "shared_bytes": ("shared_memory", "B"),
    "blocks_per_sm": ("blocks_per_sm", ""),
    "warps_per_sm": ("warps_per_sm", ""),
    "detail": ("detail", ""),
}
_WHOLE_NUMBERS = {"registers", "spills", "shared_bytes", "blocks_per_sm", "warps_per_sm"}
_TEXTS = {"method", "stopped", "settings", "slowed_by", "detail"}


class ResultError(ValueError):
    """An entry of ``results`` that is no result; the message says what is wrong with it."""


def rounded(value: float, digits: int) -> float:
    """The value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def to_result(configuration: Configuration, measurement: Measurement, timestamp: str) -> dict[str, Any]:
    """The T4 result of a measurement: samples to 4 significant digits, all else to 5."""
    median_ms = measurement.median_ms
    value = measurement.status if median_ms is None else rounded(median_ms, SUMMARY_DIGITS)
    measurements: list[dict[str, Any]] = [{"name": OBJECTIVE, "value": value, "unit": "ms"}]
    for field, (name, unit) in _EXTRAS.items():
        extra = getattr(measurement, field)
        if extra is not None and extra != "":
            number = rounded(extra, SUMMARY_DIGITS) if isinstance(extra, float) and math.isfinite(extra) else extra
            # JSON has no infinity: a wrong result may be infinitely wrong.
            text = str(number) if isinstance(number, float) and not math.isfinite(number) else number
            measurements.append({"name": name, "value": text, "unit": unit})
    times: dict[str, Any] = {"search_algorithm": 0, "validation": 0}
    if measurement.compile_s is not None:
        times["compilation"] = rounded(measurement.compile_s * 1e3, SUMMARY_DIGITS)
    if measurement.measure_s is not None:
        times["framework"] = rounded(measurement.measure_s * 1e3, SUMMARY_DIGITS)
    if measurement.samples:
        times["runtimes"] = [rounded(sample, SAMPLE_DIGITS) for sample in measurement.samples]
    return {
        "timestamp": timestamp,
        "configuration": dict(configuration),
        "times": times,
        "invalidity": INVALIDITIES[measurement.status],
        "correctness": int(measurement.ok),
        "measurements": measurements,
        "objectives": [OBJECTIVE],
    }


def from_result(result: Any, *, time_unit: str, ours: bool) -> tuple[Configuration, Measurement]:
    """The configuration and the measurement of a T4 result.

    Args:
        result: An entry of ``results``.
        time_unit: The file's ``metadata.timeunit``, for measurements whose unit is empty.
        ours: Whether ``to_result`` wrote it; elsewhere the percentiles come from the samples.

    Raises:
        ResultError: It lacks a field or has a value of another kind.
    """
    entry = _mapping(result, "a result")
    configuration = _configuration(entry.get("configuration"))
    times = _mapping(entry.get("times"), "times")
    values = _values(entry.get("measurements"))
    value, unit = _objective(entry.get("objectives"), values)
    status = _status(entry.get("invalidity"), value)
    samples = tuple(_number(sample, "a runtime") for sample in _sequence(times.get("runtimes") or (), "runtimes"))
    fields: dict[str, Any] = {"compile_s": _seconds(times.get("compilation", times.get("compilation_time")))}
    if ours:
        fields["measure_s"] = _seconds(times.get("framework"))
        for field, (name, _) in _EXTRAS.items():
            if name in values:
                fields[field] = _extra(field, values[name][0])
    else:
        parts = [times.get("framework"), times.get("validation"), sum(samples)]
        fields["measure_s"] = sum(_seconds(part) or 0.0 for part in parts)
        if samples and status == "ok":
            import numpy as np  # a tenth of a second that no other use of recordings needs

            fields["p20_ms"], fields["p80_ms"] = (float(p) for p in np.percentile(samples, (20, 80)))
        if status != "ok" and isinstance(value, str) and value not in STATUSES:
            fields["detail"] = value
    if status == "ok":
        fields["median_ms"] = _number(value, "the objective") * _factor(unit or time_unit)
    return configuration, Measurement(status, samples=samples, **fields)


def _objective(objectives: Any, values: Mapping[str, tuple[Any, str]]) -> tuple[Any, str]:
    """What the study minimizes: the measurement that ``objectives`` names, which need not be the mean of runtimes."""
    names = [str(name) for name in _sequence(objectives or (OBJECTIVE,), "objectives")]
    if names[0] not in values:
        raise ResultError(f"objective {names[0]!r} must be among the measurements ({', '.join(values) or 'none'})")
    return values[names[0]]


def _values(measurements: Any) -> dict[str, tuple[Any, str]]:
    found = {}
    for item in _sequence(measurements, "measurements"):
        measurement = _mapping(item, "a measurement")
        if "name" not in measurement or "value" not in measurement:
            raise ResultError("a measurement must have a name and a value")
        found[str(measurement["name"])] = (measurement["value"], str(measurement.get("unit") or ""))
    return found


def _status(invalidity: Any, value: Any) -> Status:
    if isinstance(value, str) and value in STATUSES and value != "ok":
        return value
    if invalidity == "correct":
        # Some tools mark an entry correct and leave the name of an error where its time should be.
        failed = isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value))
        return "runtime_error" if failed else "ok"
    if not isinstance(invalidity, str) or invalidity not in _STATUS_OF:
        raise ResultError(f"invalidity must be one of {', '.join(('correct', *_STATUS_OF))}, got {invalidity!r}")
    return _STATUS_OF[invalidity]


def _configuration(data: Any) -> Configuration:
    configuration: dict[str, Value] = {}
    for name, value in _mapping(data, "configuration").items():
        if not isinstance(value, bool | int | float | str):
            raise ResultError(f"{name} must be a bool, int, float or str, got {type(value).__name__}")
        configuration[str(name)] = value
    return configuration


def _extra(field: str, value: Any) -> Any:
    if field in _TEXTS:
        return str(value)
    number = float(value) if value in ("inf", "nan") else _number(value, field, finite=False)
    return int(number) if field in _WHOLE_NUMBERS else number


def _factor(unit: str) -> float:
    try:
        return _UNITS_MS[unit.strip().lower() or "ms"]
    except KeyError:
        raise ResultError(f"the unit of a time must be s, ms, us or ns, got {unit!r}") from None


def _seconds(value_ms: Any) -> float | None:
    # Twelve digits: 432.1 / 1e3 is 0.43210000000000004, and what was written must be what is read.
    return None if value_ms is None else rounded(_number(value_ms, "a time") / 1e3, 12)


def _number(value: Any, what: str, *, finite: bool = True) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or (finite and not math.isfinite(value)):
        raise ResultError(f"{what} must be a number, got {value!r}")
    return value


def _mapping(data: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ResultError(f"{what} must be an object, got {type(data).__name__}")
    return data


def _sequence(data: Any, what: str) -> Sequence[Any]:
    if not isinstance(data, list | tuple):
        raise ResultError(f"{what} must be an array, got {type(data).__name__}")
    return data
