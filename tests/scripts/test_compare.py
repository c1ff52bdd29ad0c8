"""`llm-sampler compare`: output, resuming, a language model on loopback and its transcript."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import optuna
import pytest

Run = Callable[..., tuple[int, str, str]]
KEY = "sk-secret-4711"
MATMUL = "matmul-4096x4096x4096-fp16-NVIDIA-H200"


class Handler(BaseHTTPRequestHandler):
    """Answers with random configurations: the same question twice has two answers."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rng: random.Random = self.server.rng  # type: ignore[attr-defined]
        asked = re.search(r"Propose (\d+)", body["messages"][-1]["content"])
        batch = [
            {
                "BLOCK_M": rng.choice([16, 32, 64, 128, 256]),
                "BLOCK_N": rng.choice([32, 64, 128, 256]),
                "BLOCK_K": rng.choice([32, 64]),
                "num_warps": 8,
                "num_stages": rng.choice([2, 3, 4]),
            }
            for _ in range(int(asked[1]) if asked else 1)
        ]
        text = json.dumps({"proposals": [{"rationale": "why not", "configuration": c} for c in batch]})
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 1000, "completion_tokens": 234, "total_tokens": 1234},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.rng = random.Random(1)  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_it_compares_says_how_and_takes_up_what_was_finished(package: Path, run: Run) -> None:
    command = ("compare", "matmul", "--samplers", "random,exhaustive", "--trials", "12", "--jobs", "1")
    status, out, err = run(*command, "--seeds", "2")
    assert (status, err) == (0, "")
    assert "2 arms on 2 recorded spaces, 2 seeds, 12 measurements a run; every run begins with the default" in out
    assert f"{MATMUL}: " in out
    assert re.search(r"random, exact +(\d+\.\d{3} +){3}", out)
    assert re.search(r"exhaustive is .* random after 12 measurements", out)
    assert "Continuing" not in out
    lines = Path("comparison/runs.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 2 * 2
    page = Path("comparison/comparison.md").read_text()
    assert "llm-sampler compare matmul --samplers random,exhaustive --trials 12 --seeds 2 --baseline random" in page
    assert "| random | RandomSampler, categorical |" in page
    assert "There is no arm with a language model" in page
    html = Path("comparison/comparison.html").read_text()
    assert "http://" not in re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert len(re.findall(r"data-plot=\"plot-(curves|reach|edf|cost)\"", html)) == 4

    before = {name: Path(f"comparison/comparison.{name}").read_bytes() for name in ("json", "html", "md")}
    _, out, _ = run(*command, "--seeds", "2")
    assert "Continuing: 8 of 8 runs were finished before." in out
    assert Path("comparison/runs.jsonl").read_text().splitlines() == lines
    assert {name: Path(f"comparison/comparison.{name}").read_bytes() for name in before} == before

    _, out, _ = run(*command, "--seeds", "3", "--page", "docs/page.md", "--storage", "sqlite:///kept.db")
    assert "Continuing: 8 of 12 runs were finished before." in out
    assert Path("comparison/runs.jsonl").read_text().splitlines()[:8] == lines
    assert Path("docs/page.md").read_text() == Path("comparison/comparison.md").read_text()
    assert len(optuna.get_all_study_names("sqlite:///kept.db")) == 4


def test_a_transcript_replays_to_the_same_bytes_elsewhere_and_without_the_model(
    package: Path, run: Run, endpoint: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["compare", MATMUL, "--samplers", "llm,random,llm/renamed", "--trials", "16", "--transcript", "t.jsonl"]
    url = f"http://127.0.0.1:{endpoint.server_address[1]}/v1"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    status, out, err = run(*command, "--seeds", "2", "--model", "toy-1", "--base-url", url)
    assert (status, err) == (0, "")
    assert "Failed" not in out
    runs = json.loads(Path("comparison/comparison.json").read_text())["runs"]
    asked = [one for one in runs if one["arm"].startswith("llm")]
    assert all(one["model"] == "toy-1" and one["llm_tokens"] == 1234 * one["llm_calls"] > 0 for one in asked)
    # The renamed arm is answered with the parameters' true names, which it does not have.
    assert all((one["proposed_by"].get("llm", 0) >= 8) == (one["arm"] == "llm") for one in asked)
    entries = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert KEY not in Path("t.jsonl").read_text()
    assert url not in Path("t.jsonl").read_text()
    opening = {entry["run"]: entry for entry in entries if entry["call"] == 0 and "/llm/seed" in entry["run"]}
    # The two seeds asked the same question and have answers of their own.
    assert len({entry["key"] for entry in opening.values()}) == 1
    assert len({entry["answer"]["text"] for entry in opening.values()}) == 2
    # Later ones repeat what the model said, which knows the names from elsewhere.
    first = [entry["messages"] for entry in entries if "renamed" in entry["run"] and entry["call"] == 0]
    hidden = json.dumps(first)
    assert "p1 * p2 <= 128 * 32 * p4" in hidden
    assert not any(word in hidden for word in ("BLOCK", "num_warps", "matmul", "tl.dot"))

    monkeypatch.delenv("OPENAI_API_KEY")
    endpoint.shutdown()
    endpoint.server_close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy("t.jsonl", elsewhere)
    here = Path.cwd()
    monkeypatch.chdir(elsewhere)
    status, _, err = run(*command, "--seeds", "2", "--jobs", "1")
    assert (status, err) == (0, "")
    for name in ("json", "html"):
        ours, theirs = (folder / "comparison" / f"comparison.{name}" for folder in (here, elsewhere))
        assert ours.read_bytes() == theirs.read_bytes()

    # What the transcript lacks is a recorded failure of that run; the others go on.
    _, out, _ = run(*command, "--seeds", "3", "--output", "more")
    assert f"Failed: llm on {MATMUL}: 1 of 3 runs: the transcript has no reply to call 0 of {MATMUL}/llm/seed-2" in out
    assert len(Path("more/runs.jsonl").read_text().splitlines()) == 9


def test_a_foreign_file_with_its_source_is_compared(run: Run, foreign: tuple[Path, Path], tmp_path: Path) -> None:
    source = tmp_path / "blur.cu"
    source.write_text("__global__ void blur() {}")
    command = (
        "compare",
        str(foreign[0]),
        "--samplers",
        "random,llm/simulated=decile",
        "--trials",
        "12",
        "--seeds",
        "2",
    )
    status, out, err = run(*command, "--source", str(source), "--noise", "bootstrap", "--baseline", "random")
    assert (status, err) == (0, "")
    assert "blur_A4000: 20 configurations, 2 fail" in out
    assert "drawn with replacement" in out


def test_live_records_the_whole_space_first(run: Run, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_sampler.kernels import H200

    asked: list[dict[str, Any]] = []

    def record(kernel: str, **options: Any) -> None:
        asked.append({"kernel": kernel, **options})
        options["output"].mkdir(parents=True)
        shutil.copy(package / f"{MATMUL}.json.gz", options["output"])

    monkeypatch.setattr("llm_sampler.objectives.device.detect_device", lambda *_: H200)
    monkeypatch.setattr("llm_sampler.scripts.record.record", record)
    live = ("compare", "matmul:4096x4096x4096", "--live", "--samplers", "random", "--trials", "5", "--seeds", "1")
    status, out, err = run(*live)
    assert (status, err) == (0, "")
    assert [(one["kernel"], one["problem"]) for one in asked] == [("matmul", ["4096x4096x4096-fp16"])]
    assert f"{MATMUL}: " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samplers", "best"], "a sampler must be one of llm, tpe"),
        (["--samplers", ","], "must name at least one arm"),
        (
            ["--samplers", "tpe,random", "--baseline", "gp"],
            "--baseline must be one of the arms (tpe, random), got 'gp'",
        ),
        (["--noise", "loud"], "--noise must be one of mean, bootstrap, got 'loud'"),
        (["--samplers", "llm"], "arm llm needs a model, or a --transcript FILE to replay: no endpoint"),
        (["--samplers", "tpe", "--transcript", "t"], "are for arm llm, and there is none"),
        (["--samplers", "tpe/n_startup=3"], "sampler tpe: "),
        (["--samplers", "hub:auto_sampler"], "needs optunahub: pip install optunahub"),
        (["--storage", "nowhere"], "storage must be a database URL"),
        (["matmul", "--live"], "--live needs an NVIDIA GPU"),
        (["nowhere"], "a space must be a T4 file or one of"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    arguments: list[str], message: str, package: Path, run: Run
) -> None:
    status, _, err = run("compare", *arguments)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not Path("comparison").exists()


def test_what_a_comparison_needs_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sampler.studies.compare_pool.importlib.util.find_spec", lambda _: None)
    status, _, err = run("compare")
    assert (status, err) == (
        2,
        "llm-sampler: a comparison needs scipy and pebble: pip install 'optuna-llm-sampler[compare]'\n",
    )


def test_the_page_of_results_covers_every_shipped_recording_and_names_its_command() -> None:
    from llm_sampler.objectives.shipped import shipped_recordings
    from llm_sampler.studies.compare_arms import parse_arm

    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    for one in shipped_recordings():
        assert f"## {one.path.name.removesuffix('.json.gz')}: {one.summary['configurations']:,} configurations" in page
    command = re.search(r"^llm-sampler compare --samplers (\S+) --trials \d+ --seeds \d+", page, re.MULTILINE)
    assert command is not None
    for text in command[1].split(","):
        assert f"| {text} | {parse_arm(text).description} |" in page
