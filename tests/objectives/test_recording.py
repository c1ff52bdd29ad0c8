from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_sampler.kernels.device import H200
from llm_sampler.kernels.spec import Problem
from llm_sampler.objectives.measurement import STATUSES, Measurement
from llm_sampler.objectives.recording import (
    Recorded,
    Recording,
    RecordingError,
    read_header,
    read_recording,
    write_recording,
)
from llm_sampler.objectives.shipped import find_recording, shipped_recordings
from llm_sampler.objectives.t4 import INVALIDITIES
from llm_sampler.space import Parameter, Space

SPACE = Space(
    (Parameter("BLOCK", (16, 32, 64, 128), "tile"), Parameter("fast", (False, True)), Parameter("mode", ("a", "b"))),
    ("not fast or BLOCK * element_bytes >= 64",),
    {"BLOCK": 32, "fast": False, "mode": "a"},
    {"element_bytes": 2},
)
PROBLEM = Problem({"M": 4096, "N": 8}, "bf16")
SHARED: dict[str, Any] = {"device": "NVIDIA H200", "versions": {"torch": "2.11", "triton": "3.6"}}


def measurement(number: int) -> Measurement:
    status = STATUSES[number % len(STATUSES)]
    if status != "ok":
        return Measurement(status, detail=f"required {number} of 7 bytes", compile_s=0.25, **SHARED)
    return Measurement(
        "ok",
        median_ms=round(0.2 + number / 100, 5),
        p20_ms=0.19,
        p80_ms=0.31,
        samples=(0.2, 0.21, 1.234),
        reference_ms=0.18,
        method="queue",
        stopped="precise",
        sm_mhz=1755.0,
        memory_mhz=3201.0,
        temperature_c=41.0,
        power_w=612.5,
        slowed_by="sw_power_cap",
        compile_s=0.4321,
        measure_s=0.05,
        error=1.5e-3,
        error_limit=2e-3,
        registers=255,
        spills=4,
        shared_bytes=98_304,
        **SHARED,
    )


def recording(**changes: Any) -> Recording:
    results = tuple(Recorded(c, measurement(i)) for i, c in enumerate(SPACE.configurations()))
    whole = Recording(
        "matmul",
        SPACE,
        results,
        PROBLEM,
        H200,
        reference_ms=0.18,
        versions=SHARED["versions"],
        date="2025-11-30T12:00:00+00:00",
        method={"repetitions": 3},
    )
    return dataclasses.replace(whole, **changes)


def by_key(one: Recording) -> Recording:
    return dataclasses.replace(one, results=tuple(sorted(one.results, key=lambda result: result.key)))


@pytest.mark.parametrize("name", ["r.json", "r.json.gz"])
def test_a_recording_survives_a_round_trip_with_every_status(tmp_path: Path, name: str) -> None:
    before = recording()
    assert {result.measurement.status for result in before.results} == set(STATUSES)
    write_recording(tmp_path / name, before)
    assert read_recording(tmp_path / name) == by_key(before)


def test_equal_recordings_make_equal_bytes_in_whatever_order(tmp_path: Path) -> None:
    one = recording()
    other = dataclasses.replace(one, results=one.results[::-1])
    write_recording(tmp_path / "1.json.gz", one)
    write_recording(tmp_path / "2.json.gz", other)
    write_recording(tmp_path / "3.json.gz", read_recording(tmp_path / "1.json.gz"))
    first, second, third = ((tmp_path / f"{i}.json.gz").read_bytes() for i in (1, 2, 3))
    assert first == second == third
    assert one.digest() == other.digest()


def test_a_recording_that_was_interrupted_at_once_is_read(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.json.gz", recording(results=()))
    assert read_recording(tmp_path / "r.json.gz") == recording(results=())


def test_samples_keep_four_digits_and_medians_five(tmp_path: Path) -> None:
    exact = Measurement("ok", median_ms=1.23456789, samples=(1.23456789, 0.000123456789))
    configuration = {"BLOCK": 64, "fast": True, "mode": "a"}
    write_recording(tmp_path / "r.json", recording(results=(Recorded(configuration, exact),)))
    (read,) = read_recording(tmp_path / "r.json").results
    assert read.measurement.median_ms == 1.2346
    assert read.measurement.samples == (1.235, 0.0001235)


def test_an_infinite_error_of_a_wrong_result_survives(tmp_path: Path) -> None:
    wrong = Measurement("wrong_result", error=float("inf"), error_limit=1e-3, detail="inf")
    configuration = {"BLOCK": 64, "fast": True, "mode": "a"}
    write_recording(tmp_path / "r.json", recording(results=(Recorded(configuration, wrong),)))
    assert read_recording(tmp_path / "r.json").results[0].measurement.error == float("inf")


def test_what_is_written_obeys_the_t4_schema(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.json", recording())
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema_version"] == "1.0.0"
    assert len(document["results"]) == len(recording().results)
    words = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for result in document["results"]:
        assert isinstance(result["timestamp"], str)
        assert isinstance(result["configuration"], dict)
        assert isinstance(result["correctness"], int)
        assert result["invalidity"] in words
        assert (result["invalidity"] == "correct") == (result["correctness"] == 1)
        times = result["times"]
        assert all(isinstance(times[n], int | float) for n in ("search_algorithm", "validation"))
        assert all(isinstance(m["value"], int | float | str) for m in result["measurements"])
        names = [m["name"] for m in result["measurements"]]
        assert len(names) == len(set(names))
        assert set(result["objectives"]) <= set(names)
    assert set(INVALIDITIES) == set(STATUSES)
    assert set(INVALIDITIES.values()) == words


def test_a_large_recording_is_small(tmp_path: Path) -> None:
    space = Space(tuple(Parameter(f"p{i}", tuple(range(j))) for i, j in enumerate((10, 10, 30))))
    results = []
    for i, configuration in enumerate(space.configurations()):
        samples = tuple(0.2 + ((i * 7919 + k * 104729) % 10007) / 1e5 for k in range(10))
        one = Measurement("ok", median_ms=samples[4], p20_ms=samples[1], p80_ms=samples[7], samples=samples,
                          reference_ms=samples[2], compile_s=samples[3], measure_s=samples[5], error=samples[6] / 1e3,
                          error_limit=2e-3, registers=i % 255, spills=0, shared_bytes=i % 64 * 1024)  # fmt: skip
        results.append(Recorded(configuration, one))
    write_recording(tmp_path / "r.json.gz", recording(space=space, results=tuple(results)))
    assert len(results) == 3000
    assert (tmp_path / "r.json.gz").stat().st_size < 400_000


def test_the_header_is_read_without_the_results(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.json.gz", recording())
    whole = gzip.decompress((tmp_path / "r.json.gz").read_bytes())
    cut = whole[: whole.index(b'"results"')]
    (tmp_path / "cut.json").write_bytes(cut)
    header, summary = read_header(tmp_path / "cut.json")
    assert header == recording(results=())
    assert summary["configurations"] == len(recording().results)
    assert summary["by_status"] == dict(recording().by_status)
    assert summary["best_ms"] == 0.2


def test_a_recording_knows_its_best_default_and_file_name() -> None:
    one = recording()
    assert one.best is not None
    assert one.best.measurement.median_ms == min(r.measurement.median_ms or 9 for r in one.results)
    default = next(r for r in one.results if r.configuration == SPACE.default)
    assert one.default_ms == default.measurement.median_ms
    assert one.file_name == "matmul-4096x8-bf16-NVIDIA-H200.json.gz"
    failed = tuple(Recorded(r.configuration, Measurement("crashed")) for r in one.results)
    assert recording(results=failed).best is None
    assert recording(results=failed).digest() != one.digest()


def test_a_configuration_recorded_twice_is_refused() -> None:
    first = recording().results[0]
    with pytest.raises(RecordingError, match="recorded once"):
        recording(results=(first, first))


def test_shipped_recordings_are_found_by_kernel_and_problem(tmp_path: Path) -> None:
    other = Problem({"M": 16, "N": 8}, "bf16")
    write_recording(tmp_path / "a.json.gz", recording())
    write_recording(tmp_path / "b.json.gz", recording(problem=other))
    assert [s.header.problem for s in shipped_recordings(tmp_path)] == [PROBLEM, other]
    assert find_recording("matmul", folder=tmp_path) == by_key(recording())
    assert find_recording("matmul", other, folder=tmp_path).problem == other
    with pytest.raises(RecordingError, match="recorded problems: 4096x8-bf16, 16x8-bf16"):
        find_recording("matmul", Problem({"M": 1, "N": 1}), folder=tmp_path)
    with pytest.raises(RecordingError, match="no recording of softmax; recorded kernels: matmul"):
        find_recording("softmax", folder=tmp_path)
    assert shipped_recordings(tmp_path / "none") == []
