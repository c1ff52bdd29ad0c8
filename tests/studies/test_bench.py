"""A bench's numbers, tables, page and picture, from times that are made up."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import slow_references

from llm_sampler.kernels import H200, KERNELS, KernelError, find_kernel
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.objectives.side_by_side import COMPILED, COPY, EAGER, Contestant, SideBySide
from llm_sampler.studies import bench_run
from llm_sampler.studies.bench import (
    DEFAULT,
    TUNED,
    Bench,
    BenchError,
    Row,
    Target,
    Tuned,
    failed_row,
    find_targets,
    geometric_means,
    make_row,
    with_verdict,
)
from llm_sampler.studies.bench_page import cells, faults, markdown, summary_lines
from llm_sampler.studies.bench_picture import groups, picture
from llm_sampler.studies.bench_run import BenchRun, find_tuned

SOFTMAX, MATMUL = find_kernel("softmax"), find_kernel("matmul")
CONFIGURATION = {**SOFTMAX.defaults[0], "num_warps": 8}


def row(kernel: str, problem: str, times_ms: dict[str, float], *, drift: float = 0.1, noise: float = 0.002) -> Row:
    """A hundred rounds in which clocks drift."""
    generator = np.random.default_rng(0)
    slow = 1 + drift * np.sin(np.linspace(0, 6, 100))
    contestants = []
    for name, ms in times_ms.items():
        samples = tuple(float(x) for x in ms * slow * (1 + noise * generator.standard_normal(100)))
        contestants.append(Contestant(name, samples, 4e-4, 1e-3))
    state = {"sm_mhz": 1980, "power_w": 512.3}
    spec = find_kernel(kernel)
    times = SideBySide(tuple(contestants), "queue", state)
    return make_row(Target(spec, spec.problem(problem)), H200, Tuned(CONFIGURATION, "archive"), times)


FASTER = {DEFAULT: 0.09, TUNED: 0.07, EAGER: 0.26, COMPILED: 0.08, COPY: 0.5}
SLOWER = {DEFAULT: 4.0, TUNED: 1.7, EAGER: 1.6, COMPILED: 1.701, COPY: 0.5}


def bench(*rows: Row) -> Bench:
    versions = {"torch": "2.11.0", "triton": "3.6.0"}
    return Bench("NVIDIA H200", versions, "2026-12-01T12:00:00+00:00", "llm-sampler bench", 100, "default", rows)


def both() -> Bench:
    return bench(row("softmax", "8192x8192", FASTER), row("matmul", "8192x8192x8192", SLOWER))


def test_ratios_come_from_the_rounds_and_hold_in_spite_of_drift() -> None:
    one = row("softmax", "8192x8192", FASTER)
    assert one.ours == TUNED
    assert one.against[EAGER].value == pytest.approx(0.26 / 0.07, rel=2e-3)
    assert one.against[EAGER].high - one.against[EAGER].low < 0.01 * one.against[EAGER].value
    tuned = one.columns[TUNED]
    assert tuned.low_ms is not None and tuned.high_ms is not None
    assert tuned.high_ms - tuned.low_ms > 0.02 * 0.07  # the medians themselves do not know that well


def test_verdicts_are_slower_faster_or_no_difference() -> None:
    rows = both().rows
    assert [one.kernel for one in with_verdict(rows, EAGER, "faster")] == ["softmax"]
    assert [one.kernel for one in with_verdict(rows, EAGER, "slower")] == ["matmul"]
    even = row("softmax", "4096x4096", {**FASTER, EAGER: 0.07})
    assert even.against[EAGER].verdict == "no difference"


def test_shares_of_roofline_and_copy() -> None:
    memory, arithmetic = both().rows
    assert memory.bound == "memory"
    assert memory.copy_tbps == pytest.approx(2 * 2**30 / 0.5e9, rel=0.1)
    traffic_tbps = memory.traffic_bytes / (memory.our_ms or 0) / 1e9
    assert memory.copy_share == pytest.approx(traffic_tbps / (memory.copy_tbps or 0))
    assert memory.roofline_share == pytest.approx(traffic_tbps / 4.8)
    assert arithmetic.bound == "arithmetic"
    assert arithmetic.copy_share is None
    assert arithmetic.roofline_share == pytest.approx(2 * 8192**3 / 989.4e9 / (arithmetic.our_ms or 0))


def test_without_a_tuned_configuration_the_default_is_compared() -> None:
    one = row("softmax", "8192x8192", {DEFAULT: 0.2, EAGER: 0.1, COPY: 0.5})
    assert one.ours == DEFAULT
    assert list(one.against) == [EAGER]
    assert one.against[EAGER].verdict == "slower"


def test_what_fails_has_no_time_and_says_why() -> None:
    target = Target(SOFTMAX, SOFTMAX.problem("8192x8192"))
    lost = failed_row(target, H200, Tuned(None, "not tuned"), "measuring took longer than 600 s")
    assert (lost.ours, lost.our_ms, lost.roofline_share, dict(lost.against)) == ("", None, None, {})
    assert faults(lost) == ["softmax 8192x8192-fp16, default: measuring took longer than 600 s"]
    assert "failed" in cells(lost)
    wrong = SideBySide(
        (Contestant(DEFAULT, (0.2,) * 6), Contestant(TUNED, fault="deviation 0.3 from float64")), "queue"
    )
    assert make_row(target, H200, Tuned(CONFIGURATION, "archive"), wrong).ours == DEFAULT


def test_json_survives_a_round_trip() -> None:
    before = both()
    assert Bench.from_json(json.loads(json.dumps(before.to_json()))) == before
    for damaged in ({}, {"rows": [{}]}, [], {**before.to_json(), "rows": [1]}):
        with pytest.raises(BenchError, match="llm-sampler bench"):
            Bench.from_json(damaged)


def test_the_summary_names_every_loss() -> None:
    lines = summary_lines(both())
    assert "Slower than PyTorch on: matmul 8192x8192x8192-fp16 (0.941x)." in lines
    assert "No different from torch.compile on: matmul 8192x8192x8192-fp16 (1.000x)." in lines
    assert any(line.startswith("Geometric mean against PyTorch: softmax 3.7") for line in lines)
    assert geometric_means(both().rows, EAGER)["matmul"][1] == 1


def test_the_page_has_device_versions_date_command_table_and_losses() -> None:
    page = markdown(both(), picture="images/results.svg")
    for words in (
        "NVIDIA H200",
        "torch 2.11.0, triton 3.6.0",
        "2026-12-01",
        "`llm-sampler bench`",
        "](images/results.svg)",
        "Slower than PyTorch on: matmul",
        "archive",
        "num_warps=8",
        "1980 MHz",
        "| unknown |",
    ):
        assert words in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert any(line.startswith("| 8192x8192-fp16 | 0.09") and "3.713x ±0.1%" in line for line in tables)


def test_the_picture_is_a_drawing_of_times_relative_to_pytorch() -> None:
    first, second = groups(both().rows)
    assert [bar.name for bar in first.bars] == [TUNED, DEFAULT, COMPILED]
    assert first.bars[0].time == pytest.approx(0.07 / 0.26, rel=0.01)
    assert second.roofline == pytest.approx(2 * 8192**3 / 989.4e9 / 1.6, rel=0.1)
    root = ET.fromstring(picture(both()))
    assert root.tag.endswith("svg")
    bars = [float(e.attrib["width"]) for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.find("*") is not None]
    assert len(bars) == 6
    assert max(bars) < 860


def test_targets_are_kernels_or_problems_each_once() -> None:
    every = find_targets([])
    assert len(every) == sum(len(spec.problems) for spec in KERNELS.values())
    chosen = find_targets(["softmax:96x128-bf16", "softmax", "softmax:8192x8192"])
    assert [target.problem.short for target in chosen][:2] == ["96x128-bf16", SOFTMAX.problems[0].short]
    assert len(chosen) == 1 + len(SOFTMAX.problems)
    with pytest.raises(KernelError, match="must be one of"):
        find_targets(["relu"])


def test_tuned_comes_from_the_shipped_recording_of_this_device() -> None:
    target = Target(SOFTMAX, SOFTMAX.problem("8192x8192"))
    recording: Recording = find_recording("softmax", target.problem)
    tuned = find_tuned(target, H200, None)
    assert recording.best is not None
    assert tuned.configuration == recording.best.configuration
    assert "recording of" in tuned.source
    unknown = find_tuned(Target(SOFTMAX, SOFTMAX.problem("96x128")), H200, None)
    assert unknown.configuration is None
    assert "not tuned" in unknown.source


def test_a_reference_that_hangs_or_crashes_while_it_is_compiled_costs_only_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_run, "compile_reference", slow_references.compile_reference)
    targets = [Target(SOFTMAX, SOFTMAX.problem(f"{rows}x64")) for rows in (1, 2, 3, 4)]
    run = BenchRun(H200, None, rounds=10, compile_mode="default", compile_limit_s=3)
    assert run.compile_references(targets) == {
        "softmax 1x64-fp16": "not compiled: took longer than 3 s",
        "softmax 2x64-fp16": "not compiled: ended its process with exit code -6",
        "softmax 3x64-fp16": "not compiled: ValueError: no such operation",
    }
    late = run.compile_references(targets[3:], until=time.monotonic() - 1)
    assert late == {"softmax 4x64-fp16": "not compiled: the time is used up"}
    assert BenchRun(H200, None, rounds=10, compile_mode=None).compile_references(targets) == {}
