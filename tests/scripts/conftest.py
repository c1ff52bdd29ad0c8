from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_sampler.kernels import H200, Problem, find_kernel
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording, write_recording
from llm_sampler.scripts.main import main
from llm_sampler.space import Parameter, Space

sys.path.append(str(Path(__file__).parents[1] / "llm_sampler" / "support"))

# Exit status, standard output, standard error.
Outcome = tuple[int, str, str]


SPACE = Space(
    (
        Parameter("BLOCK_M", (16, 32, 64, 128, 256), "rows of C per tile"),
        Parameter("BLOCK_N", (32, 64, 128, 256), "columns of C per tile"),
        Parameter("BLOCK_K", (32, 64), "elements of K per step"),
        Parameter("num_warps", (2, 4, 8)),
        Parameter("num_stages", (2, 3, 4)),
    ),
    ("BLOCK_M * BLOCK_N <= 128 * 32 * num_warps",),
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
)


def matmul_recording(problem: Problem, reference_ms: float | None = 0.2) -> Recording:
    """A synthetic recording of a space like matmul's, 0.1 ms at its fastest; two warps fail."""
    results = []
    for c in SPACE.configurations():
        ms = 0.1 * (
            1 + abs(int(c["BLOCK_M"]) - 128) / 64 + abs(int(c["BLOCK_N"]) - 256) / 128 + 4 - int(c["num_stages"])
        )
        failed = Measurement("out_of_resources", detail="required 262144 of 232448 bytes", compile_s=0.3)
        ok = Measurement("ok", median_ms=ms, samples=(ms,), reference_ms=reference_ms, compile_s=0.4)
        ok = ok.with_(registers=128, shared_bytes=49_152)
        results.append(Recorded(c, failed if c["num_warps"] == 2 else ok))
    return Recording("matmul", SPACE, tuple(results), problem, H200, reference_ms, date="2025-11-30T12:00:00+00:00")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package's recordings: matmul 4096³ and 16×8192×8192; and a machine without a GPU."""
    folder = tmp_path / "package" / "recordings"
    folder.mkdir(parents=True)
    spec = find_kernel("matmul")
    for text in ("16x8192x8192", "4096x4096x4096"):
        recording = matmul_recording(spec.problem(text))
        write_recording(folder / recording.file_name, recording)
    monkeypatch.setattr("llm_sampler.objectives.shipped.files", lambda _: folder.parent)
    monkeypatch.setattr("llm_sampler.objectives.device.detect_device", lambda *_: None)
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> tuple[Path, Path]:
    """A foreign T4 file of 20 configurations, one of them failed, and its T1 file."""
    t1 = {
        "General": {"BenchmarkName": "blur"},
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block", "Type": "int", "Values": "[32 * i for i in range(1, 11)]", "Default": 32},
                {"Name": "unroll", "Type": "int", "Values": "[0, 1]", "Default": 1},
            ],
            "Conditions": [],
        },
    }
    results = [
        {
            "configuration": {"block": 32 * i, "unroll": unroll},
            "times": {"runtimes": [1.0 + i]},
            "invalidity": "runtime" if i == 3 else "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": "RuntimeFailedConfig" if i == 3 else 1.0 + i, "unit": ""}],
            "objectives": ["time"],
        }
        for i in range(1, 11)
        for unroll in (0, 1)
    ]
    paths = tmp_path / "blur_A4000_T4.json", tmp_path / "blur_T1.json"
    paths[0].write_text(json.dumps({"metadata": {"timeunit": "miliseconds"}, "results": results}))
    paths[1].write_text(json.dumps(t1))
    return paths


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs the command line in an empty folder and without a key."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LLM_SAMPLER_MODEL"):
        monkeypatch.delenv(name, raising=False)

    def run_main(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run_main
