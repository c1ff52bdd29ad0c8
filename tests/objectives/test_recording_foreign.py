"""Foreign T4 files with their T1 files, and files that are broken or crafted."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording, RecordingError, read_recording, write_recording
from llm_sampler.space import Parameter, Space

T1 = {
    "General": {"BenchmarkName": "toy"},
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "block", "Type": "int", "Values": "[32 * i for i in range(1, 4)]", "Default": 96},
            {"Name": "scale", "Type": "float", "Values": "[1.0, 2.5]", "Default": 1.0},
        ],
        "Conditions": [{"Expression": "block * scale <= 100", "Parameters": ["block", "scale"]}],
    },
}


def result(block: int, scale: float, value: Any, **changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "timestamp": "2024-01-01",
        "configuration": {"block": block, "scale": scale},
        "times": {"compilation": 250.0, "framework": 10, "search_algorithm": 0, "validation": 20, "runtimes": [5, 7]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "power", "value": 99, "unit": "W"}, {"name": "t", "value": value, "unit": ""}],
        "objectives": ["t"],
    }
    return {**entry, **changes}


def document() -> dict[str, Any]:
    failed = {"invalidity": "runtime", "correctness": 0, "times": {"compilation": 3.0}}
    return {
        "metadata": {"timeunit": "miliseconds"},
        "results": [
            result(32, 1, 4.5),
            result(32, 2.5, "RuntimeFailedConfig", **failed),
            result(64, 1.0, 3.25),
            result(96, 1.0, "CompilationFailedConfig", **{**failed, "invalidity": "compile"}),
            result(96, 2.5, "InvalidConfig", **{**failed, "invalidity": "constraints"}),
        ],
    }


def write(folder: Path, t4: Any, t1: Any = T1) -> tuple[Path, Path]:
    paths = folder / "toy_RTX_3090_T4.json.gz", folder / "toy_T1.json"
    paths[0].write_bytes(gzip.compress(json.dumps(t4).encode(), mtime=0))
    paths[1].write_text(json.dumps(t1))
    return paths


def test_a_foreign_recording_is_read_with_its_space(tmp_path: Path) -> None:
    read = read_recording(*write(tmp_path, document()))
    assert (read.kernel, read.device, read.problem) == ("toy", "RTX 3090", None)
    assert [p.choices for p in read.space.parameters] == [(32, 64, 96), (1.0, 2.5)]
    assert read.space.default == {"block": 96, "scale": 1.0}
    statuses = {(r.configuration["block"], r.configuration["scale"]): r.measurement.status for r in read.results}
    assert statuses == {(32, 1.0): "ok", (32, 2.5): "runtime_error", (64, 1.0): "ok", (96, 1.0): "compile_error"}
    first = read.results[0].measurement
    # The objective, not the mean of the runtimes; the percentiles are of the runtimes.
    assert (first.median_ms, first.samples) == (4.5, (5, 7))
    assert (first.p20_ms, first.p80_ms) == pytest.approx((5.4, 6.6))
    assert first.compile_s == 0.25
    assert first.measure_s == pytest.approx(0.042)
    assert read.results[1].measurement.detail == "RuntimeFailedConfig"
    # The tool wrote 1 where the space says 1.0: the space's own choice counts.
    assert [type(r.configuration["scale"]) for r in read.results] == [float] * 4


@pytest.mark.parametrize(
    ("unit", "timeunit", "factor"),
    [("", "", 1), ("", "miliseconds", 1), ("ms", "s", 1), ("", "s", 1e3), ("s", "", 1e3), ("us", "", 1e-3)],
)
def test_units_of_times(tmp_path: Path, unit: str, timeunit: str, factor: float) -> None:
    t4 = document()
    t4["metadata"]["timeunit"] = timeunit
    t4["results"][0]["measurements"][1]["unit"] = unit
    assert read_recording(*write(tmp_path, t4)).results[0].measurement.median_ms == pytest.approx(4.5 * factor)


@pytest.mark.parametrize("default", [None, 64, 33])
def test_a_missing_or_forbidden_default_is_none(tmp_path: Path, default: int | None) -> None:
    t1 = copy.deepcopy(T1)
    parameters: list[dict[str, Any]] = t1["ConfigurationSpace"]["TuningParameters"]  # type: ignore[assignment]
    parameters[0]["Default"] = default
    parameters[1]["Default"] = 2.5
    if default is None:
        del parameters[0]["Default"]
    assert read_recording(*write(tmp_path, document(), t1)).space.default is None


def test_an_entry_called_correct_with_a_text_for_a_time_is_a_failure(tmp_path: Path) -> None:
    t4 = document()
    t4["results"][0] = result(32, 1, "RuntimeFailedConfig")
    assert read_recording(*write(tmp_path, t4)).results[0].measurement.status == "runtime_error"


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets ``results.0.invalidity`` and the like; deletes where the value is `...`."""

    def change(data: Any) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in way:
            data = data[part]
        if value is ...:
            del data[last]
        else:
            data[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("results", ...), "must be a T4 file"),
        (edit("results", []), "must be a T4 file"),
        (edit("results", {"a": 1}), "must be a T4 file"),
        (edit("metadata", [1]), "must be a T4 file"),
        (edit("results.0", 7), "result 0: a result must be an object, got int"),
        (edit("results.0.configuration", ...), "configuration must be an object"),
        (edit("results.0.configuration.block", [1]), "block must be a bool, int, float or str, got list"),
        (edit("results.0.configuration.block", 33), "block must be one of (32, 64, 96), got 33"),
        (edit("results.0.configuration", {"block": 32}), "scale is missing"),
        (edit("results.3.configuration.scale", 2.5), "outside the space: block * scale <= 100"),
        (edit("results.2.configuration.block", 32), "recorded once"),
        (edit("results.0.times", ...), "times must be an object"),
        (edit("results.0.times.runtimes", 5), "runtimes must be an array"),
        (edit("results.0.times.runtimes.1", "x"), "a runtime must be a number, got 'x'"),
        (edit("results.0.times.compilation", "long"), "a time must be a number"),
        (edit("results.0.invalidity", "maybe"), "invalidity must be one of correct, constraints, compile"),
        (edit("results.0.measurements", ...), "measurements must be an array"),
        (edit("results.0.measurements.1.name", "u"), "objective 't' must be among the measurements (power, u)"),
        (edit("results.0.measurements.1.value", ...), "must have a name and a value"),
        (edit("results.0.measurements.1.value", -1.0), "positive and finite, got -1.0"),
        (edit("results.0.measurements.1.value", True), "the objective must be a number, got True"),
        (edit("results.0.measurements.1.value", [1.0]), "must be a number, got [1.0]"),
        (edit("results.0.measurements.1.unit", "fortnights"), "must be s, ms, us or ns, got 'fortnights'"),
    ],
)
def test_a_crafted_recording_is_one_clear_error(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    t4 = document()
    change(t4)
    with pytest.raises(RecordingError) as caught:
        read_recording(*write(tmp_path, t4))
    assert message in str(caught.value)
    assert str(caught.value).startswith("toy_RTX_3090_T4.json.gz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("ConfigurationSpace", ...), "must have ConfigurationSpace"),
        (edit("ConfigurationSpace.TuningParameters.0.Values", ...), "must have ConfigurationSpace"),
        (edit("ConfigurationSpace.TuningParameters.0.Values", "range(10**9)"), "1 to 10000 choices"),
        (edit("ConfigurationSpace.TuningParameters.0.Values", "__import__('os')"), "cannot evaluate"),
        (edit("ConfigurationSpace.TuningParameters.0.Values", "7"), "must be a list"),
        (edit("ConfigurationSpace.TuningParameters.0.Values", "[[1]]"), "must be a bool, int, float or str"),
        (edit("ConfigurationSpace.Conditions.0.Expression", "block <"), "not an expression"),
        (edit("ConfigurationSpace.Conditions.0.Expression", "blok < 4"), "names blok"),
        (edit("ConfigurationSpace.Conditions.0.Expression", "block // 0 == 1"), "cannot evaluate"),
    ],
)
def test_a_crafted_space_is_one_clear_error(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    t1 = copy.deepcopy(T1)
    change(t1)
    with pytest.raises(RecordingError) as caught:
        read_recording(*write(tmp_path, document(), t1))
    assert message in str(caught.value)


def test_a_foreign_recording_without_its_space_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="give the T1 file"):
        read_recording(write(tmp_path, document())[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be JSON"),
        (b"not json", "must be JSON"),
        (b"[1, 2]", "must hold a JSON object"),
        (b"\xff\xfe\x00", "must be JSON"),
        (b"\x1f\x8b rubbish", "cannot read"),
        (gzip.compress(b'{"metadata": {}, "results": [1]}', mtime=0)[:-12], "is damaged"),
        (b"[" * 100_000, "must be JSON"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "r.json.gz").write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        read_recording(tmp_path / "r.json.gz")


def test_a_missing_file_and_a_folder_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        read_recording(tmp_path / "none.json.gz")
    with pytest.raises(RecordingError, match="Is a directory"):
        read_recording(tmp_path)
    with pytest.raises(RecordingError, match="cannot write"):
        ok = Recorded({"a": 1}, Measurement("ok", median_ms=1.0))
        write_recording(tmp_path / "none" / "r.json", Recording("k", Space((Parameter("a", (1,)),)), (ok,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit("metadata.kernel", ...), "its metadata must have kernel"),
        (edit("metadata.space", 3), "its metadata must have"),
        (edit("metadata.space.restrictions", ["a <"]), "not an expression"),
        (edit("metadata.problem", {"sizes": 3}), "its metadata must have"),
        (edit("metadata.device", {"name": "x"}), "its metadata must have"),
        (edit("metadata.reference_ms", "fast"), "its metadata must have"),
    ],
)
def test_crafted_metadata_of_our_own_is_one_clear_error(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    ok = Recorded({"a": 1}, Measurement("ok", median_ms=1.0))
    write_recording(tmp_path / "r.json", Recording("k", Space((Parameter("a", (1,)),)), (ok,)))
    data = json.loads((tmp_path / "r.json").read_text())
    change(data)
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / "r.json")
    assert message in str(caught.value)
