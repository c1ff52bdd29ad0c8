"""`llm-sampler bench` where there is no GPU: what it refuses, and how it shows an earlier run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_sampler.studies.bench import Bench, Column, Ratio, Row

Outcome = tuple[int, str, str]


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    columns = {
        "default": Column("default", 0.4, 0.399, 0.401, 4e-4, 1e-3),
        "PyTorch": Column("PyTorch", 0.2, 0.199, 0.201, 5e-4, 1e-3),
    }
    against = {"PyTorch": Ratio(0.5, 0.498, 0.502)}
    row = Row(
        "softmax", "64x64-fp16", columns, "default", against, 0.1, "memory", 10, 10**9, 4.2, None, "not tuned", "queue"
    )
    versions = {"triton": "3.6.0"}
    run = Bench("NVIDIA H200", versions, "2026-12-01T12:00:00+00:00", "llm-sampler bench", 100, "", (row,))
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(run.to_json()))
    return path


def test_without_a_gpu_it_says_what_it_needs_in_one_line(package: Path, run: Callable[..., Outcome]) -> None:
    status, out, err = run("bench", "softmax")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "needs an NVIDIA GPU" in err
    assert "--from FILE" in err


def test_an_earlier_run_becomes_table_page_and_picture(earlier: Path, run: Callable[..., Outcome]) -> None:
    arguments = ("--from", str(earlier), "--report", "results.md", "--picture", "results.svg")
    status, out, err = run("bench", *arguments)
    assert (status, err) == (0, "")
    assert "64x64-fp16" in out
    assert "0.500x ±0.4%" in out
    assert "Slower than PyTorch on: softmax 64x64-fp16 (0.500x)." in out
    page = Path("results.md").read_text()
    assert "](results.svg)" in page
    assert "Slower than PyTorch on: softmax" in page
    assert Path("results.svg").read_text().startswith("<svg")
    status, out, _ = run("bench", "--from", str(earlier), "--format", "json")
    assert json.loads(out) == json.loads(earlier.read_text())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--picture", "a.png"), "must end in .svg, got a.png"),
        (("--compile-mode", "fast"), "must be one of default, max-autotune-no-cudagraphs, got 'fast'"),
        (("relu",), "kernel must be one of"),
        (("softmax:1x2x3",), "problem of softmax must be"),
        (("--from", "missing.json"), "cannot read missing.json"),
        (("--storage", "sqlite:///missing.db", "--from", "setup.cfg"), "cannot read setup.cfg"),
    ],
)
def test_mistakes_are_one_line(
    package: Path, run: Callable[..., Outcome], arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = run("bench", *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err
