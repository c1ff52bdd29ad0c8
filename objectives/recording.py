"""`Recording`: everything that was measured of one space on one device, kept in a T4 JSON file.

Our facts (kernel, problem, device, space, versions) stand under the file's ``metadata``; a foreign T4 file has none of
them and needs its T1 file for the space. Times in ms (``_ms``). Equal recordings make equal files.

Exceptions: ``ValueError`` <- `RecordingError`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from llm_sampler.kernels.device import Device
from llm_sampler.kernels.spec import Problem
from llm_sampler.objectives.measurement import Measurement, MeasurementError
from llm_sampler.objectives.t1 import name_from_t1, space_from_t1
from llm_sampler.objectives.t4 import SUMMARY_DIGITS, ResultError, from_result, rounded, to_result
from llm_sampler.space import Configuration, Space, SpaceError, Value, configuration_key

EXHAUSTIVE = "every allowed configuration"
# The largest published T4 files unpack to about 100 MB; more is an accident or an attack.
_MOST_BYTES = 512 * 2**20
_MOST_MESSAGE = 600


class RecordingError(ValueError):
    """A file that is no usable recording, or a recording that lacks what was asked; the message says the remedy."""


@dataclass(frozen=True)
class Recorded:
    """One configuration and what came of it."""

    configuration: Configuration
    measurement: Measurement

    @functools.cached_property
    def key(self) -> str:
        """The configuration's key."""
        return configuration_key(self.configuration)


@dataclass(frozen=True)
class Recording:
    """All measurements of one space on one device.

    Attributes:
        kernel: Name of the kernel, or of the benchmark where the file is foreign.
        space: What could be measured.
        results: Configurations, all different, with their measurements, failures included.
        problem: The kernel's input, None where the file does not say.
        device: The device with its facts, or only its name; empty where the file does not say.
        reference_ms: Median time of the PyTorch reference over the whole recording, None where there was none.
        versions: What made it, e.g. torch, triton, driver.
        date: When it was recorded, ISO 8601; empty where the file does not say.
        chosen: How the configurations were chosen: ``EXHAUSTIVE`` or a sentence about the sample.
        method: Settings of the measurement, e.g. repetitions.
    """

    kernel: str
    space: Space
    results: tuple[Recorded, ...]
    problem: Problem | None = None
    device: Device | str = ""
    reference_ms: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    chosen: str = EXHAUSTIVE
    method: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that no configuration occurs twice."""
        if len(self.by_key) != len(self.results):
            twice = Counter(result.key for result in self.results).most_common(1)[0][0]
            raise RecordingError(f"every configuration must be recorded once, got {twice} twice: keep one of them")

    @functools.cached_property
    def by_key(self) -> Mapping[str, Measurement]:
        """The measurements by configuration key."""
        return {result.key: result.measurement for result in self.results}

    @property
    def device_name(self) -> str:
        """Name of the device; empty where the file does not say."""
        return self.device.name if isinstance(self.device, Device) else self.device

    @functools.cached_property
    def best(self) -> Recorded | None:
        """The fastest configuration, None if all failed."""
        timed = [(r.measurement.median_ms, r.key, r) for r in self.results if r.measurement.median_ms is not None]
        return min(timed)[2] if timed else None

    @functools.cached_property
    def by_status(self) -> Mapping[str, int]:
        """How many measurements have each status."""
        return Counter(result.measurement.status for result in self.results)

    @property
    def default_ms(self) -> float | None:
        """Median time of the default configuration, None where it was not measured."""
        default = self.by_key.get(configuration_key(self.space.default)) if self.space.default else None
        return default.median_ms if default else None

    def digest(self) -> str:
        """Eight hexadecimal digits that change when a configuration, a status or a time does."""
        times = sorted((r.key, r.measurement.status, r.measurement.median_ms) for r in self.results)
        return hashlib.sha256(json.dumps(times).encode()).hexdigest()[:8]

    @property
    def file_name(self) -> str:
        """E.g. ``matmul-4096x4096x4096-fp16-NVIDIA-H200.json.gz``."""
        parts = [self.kernel, self.problem.short if self.problem else "", self.device_name]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(part for part in parts if part)) + ".json.gz"


def write_recording(path: Path | str, recording: Recording) -> None:
    """Write a T4 file; gzip if the name ends in ``.gz``. Equal recordings make equal bytes.

    Raises:
        RecordingError: The file cannot be written.
    """
    target = Path(path)
    try:
        target.write_bytes(t4_bytes(t4_document(recording), packed=target.suffix == ".gz"))
    except OSError as error:
        raise RecordingError(f"cannot write {target}: {error.strerror}") from None


def t4_document(recording: Recording) -> dict[str, Any]:
    """The content of a T4 file: ``metadata``, ``results`` in the order of their configurations' keys, version."""
    best = recording.best
    metadata = {
        "kernel": recording.kernel,
        "problem": None
        if recording.problem is None
        else {
            "sizes": [[name, size] for name, size in recording.problem.sizes.items()],
            "dtype": recording.problem.dtype,
        },
        "device": recording.device.to_json() if isinstance(recording.device, Device) else recording.device,
        "space": recording.space.to_json(),
        "reference_ms": None if recording.reference_ms is None else rounded(recording.reference_ms, SUMMARY_DIGITS),
        "versions": dict(recording.versions),
        "date": recording.date,
        "chosen": recording.chosen,
        "method": dict(recording.method),
        "summary": {
            "configurations": len(recording.results),
            "by_status": dict(recording.by_status),
            "best_ms": best and rounded(best.measurement.median_ms or 0.0, SUMMARY_DIGITS),
        },
        "timeunit": "ms",
    }
    ordered = sorted(recording.results, key=lambda result: result.key)
    results = [to_result(result.configuration, result.measurement, recording.date) for result in ordered]
    return {"metadata": metadata, "results": results, "schema_version": "1.0.0"}


def t4_bytes(document: Mapping[str, Any], *, packed: bool) -> bytes:
    """The bytes of a T4 file, gzip if ``packed``; equal documents make equal bytes."""
    # Sorted keys put "metadata" first, which `read_header` relies on.
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = text.encode("ascii")
    return gzip.compress(data, compresslevel=9, mtime=0) if packed else data


def read_recording(path: Path | str, space_path: Path | str | None = None) -> Recording:
    """The recording in a T4 file, plain or gzip.

    Args:
        path: The T4 file: one of ours, or a foreign one.
        space_path: The T1 file of a foreign recording; None for ours, which hold their space.

    Raises:
        RecordingError: A file cannot be read, is no T4 or T1, or the two do not fit together.
    """
    file = Path(path)
    return recording_of(load_t4(file), file, space_path)


def recording_of(data: Mapping[str, Any], file: Path, space_path: Path | str | None = None) -> Recording:
    """The recording in a T4 file's content.

    Args:
        data: See `load_t4`.
        file: Where it came from: for messages, and for a foreign file's device.
        space_path: See `read_recording`.

    Raises:
        RecordingError: See `read_recording`.
    """
    results, metadata = data.get("results"), data.get("metadata") or {}
    ours = isinstance(metadata, dict) and "space" in metadata
    # Only one of ours may be empty: a recording that was interrupted at once.
    if not isinstance(results, list) or not isinstance(metadata, dict) or not (results or ours):
        raise RecordingError(f"{file.name} must be a T4 file with metadata and results; it is something else")
    if not ours and space_path is None:
        raise RecordingError(f"{file.name} does not hold its space: give the T1 file that describes it as well")
    try:
        if space_path is None:
            header = _header(metadata)
        else:
            header = _foreign_header(file, load_t4(Path(space_path)))
        return _with_results(header, results, time_unit=str(metadata.get("timeunit", "")), ours=ours)
    except (SpaceError, MeasurementError, RecordingError, ResultError) as error:
        raise RecordingError(f"{file.name}: {_shortened(str(error))}") from None
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        # What a crafted file can hold where a number, a name or a list should stand has no end.
        raise RecordingError(f"{file.name} holds a value of another kind than T4 has there: {error!r:.200}") from None


def read_header(path: Path | str) -> tuple[Recording, Mapping[str, Any]]:
    """One of our recordings without its results, and its summary (configurations, by_status, best_ms).

    It unpacks only the beginning of the file.

    Raises:
        RecordingError: The file cannot be read or is none of ours.
    """
    file = Path(path)
    with _opened(file) as stream:
        start = stream.read(256 * 1024).decode("utf-8", errors="replace")
        if not start.startswith('{"metadata":'):
            raise RecordingError(f"{file.name} is no recording that this program wrote")
        metadata, _ = json.JSONDecoder().raw_decode(start, len('{"metadata":'))
    try:
        return _header(metadata), metadata.get("summary", {})
    except (SpaceError, RecordingError, AttributeError) as error:
        raise RecordingError(f"{file.name}: {error}") from None


def _shortened(message: str) -> str:
    """A message that may quote a file: whoever crafted it chose the length."""
    return message if len(message) <= _MOST_MESSAGE else message[:_MOST_MESSAGE] + "…"


def _header(metadata: Mapping[str, Any]) -> Recording:
    try:
        problem, device = metadata.get("problem"), metadata.get("device", "")
        if not isinstance(device, str) and not isinstance(device["name"], str):
            raise TypeError(f"device name {device['name']!r:.80}")
        reference_ms = metadata.get("reference_ms")
        if not isinstance(metadata["space"].get("restrictions", []), list):
            raise TypeError("restrictions must be an array")
        return Recording(
            kernel=str(metadata["kernel"]),
            space=Space.from_json(metadata["space"]),
            results=(),
            problem=Problem({str(n): int(s) for n, s in problem["sizes"]}, str(problem["dtype"])) if problem else None,
            device=Device.from_json(device) if isinstance(device, Mapping) else str(device),
            reference_ms=None if reference_ms is None else float(reference_ms),
            versions={str(name): str(version) for name, version in metadata.get("versions", {}).items()},
            date=str(metadata.get("date", "")),
            chosen=str(metadata.get("chosen", "")),
            method=dict(metadata.get("method", {})),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, SpaceError):
            raise
        raise RecordingError(
            f"its metadata must have kernel, problem, device and space as written: {error!r}"
        ) from None


def _foreign_header(file: Path, t1: Any) -> Recording:
    """What a T1 file tells; the device from the hub's way to name files, ``<benchmark>_<device>_T4.json.gz``."""
    stem = re.sub(r"(_T4)?\.json(\.gz)?$", "", file.name)
    kernel = name_from_t1(t1) or stem
    device = stem.removeprefix(f"{kernel}_") if stem.startswith(f"{kernel}_") else ""
    return Recording(kernel, space_from_t1(t1), (), device=device.replace("_", " "), chosen="not said in the file")


def _with_results(header: Recording, results: list[Any], *, time_unit: str, ours: bool) -> Recording:
    recorded = []
    for number, result in enumerate(results):
        try:
            configuration, measurement = from_result(result, time_unit=time_unit, ours=ours)
        except (ResultError, MeasurementError) as error:
            raise RecordingError(f"result {number}: {error}") from None
        configuration = _typed(configuration, header.space)
        if faults := header.space.faults(configuration):
            if measurement.status == "restricted":
                continue  # Foreign files may list what their restrictions forbid.
            raise RecordingError(f"result {number} is outside the space: {'; '.join(faults)}")
        shared = {"device": header.device_name, "versions": header.versions}
        recorded.append(Recorded(configuration, measurement.with_(**shared)))
    fields = {name: getattr(header, name) for name in header.__dataclass_fields__}
    return Recording(**{**fields, "results": tuple(recorded)})


def _typed(configuration: Configuration, space: Space) -> Configuration:
    """The configuration with the space's own choices: one tool writes 1 where another's space says 1.0 or True."""
    typed = dict(configuration)
    for parameter in space.parameters:
        value = configuration.get(parameter.name)
        equal = [choice for choice in parameter.choices if choice == value]
        if equal and not any(type(choice) is type(value) for choice in equal):
            typed[parameter.name] = equal[0]
    return typed


def load_t4(file: Path) -> dict[str, Any]:
    """The JSON object in a file, plain or gzip.

    Raises:
        RecordingError: The file cannot be read, is too large, or holds something else.
    """
    with _opened(file) as stream:
        text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise RecordingError(f"{file.name} must unpack to at most {_MOST_BYTES >> 20} MiB; it is larger")
        data = json.loads(text)
    if not isinstance(data, dict):
        raise RecordingError(f"{file.name} must hold a JSON object, got {type(data).__name__}")
    return data


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The unpacked bytes of a file; whatever reading and parsing them may raise becomes the one error."""
    try:
        with file.open("rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield raw
    except OSError as error:  # gzip.BadGzipFile is one
        raise RecordingError(f"cannot read {file}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise RecordingError(f"{file.name} is damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{file.name} must be JSON: {error}") from None
