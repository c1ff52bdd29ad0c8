"""`llm-sampler tune` with a real HTTP endpoint on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import optuna
import pytest

Run = Callable[..., tuple[int, str, str]]
KEY = "sk-secret-4711"


class Endpoint(ThreadingHTTPServer):
    """Answers each request with the same batch, or with 500."""

    daemon_threads = True

    def __init__(self, batch: list[dict[str, Any]] | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.batch = batch
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.keys.add(str(self.headers.get("Authorization")))
        reply: dict[str, Any] = {"error": {"message": f"broken, with {KEY}"}}
        if self.server.batch is not None:
            text = json.dumps([{"rationale": "wide tiles", "configuration": c} for c in self.server.batch])
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 234, "total_tokens": 1234},
            }
        data = json.dumps(reply).encode()
        self.send_response(200 if self.server.batch is not None else 500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[[list[dict[str, Any]] | None], Endpoint]]:
    servers: list[Endpoint] = []

    def start(batch: list[dict[str, Any]] | None) -> Endpoint:
        servers.append(Endpoint(batch))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_an_llms_proposals_are_measured_and_counted(
    package: Path, run: Run, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8}
    batch = [{**shape, "BLOCK_K": k, "num_stages": stages} for k in (32, 64) for stages in (2, 3, 4)]
    endpoint = serve(batch)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    status, out, err = run(
        "tune", "matmul", "--trials", "12", "--base-url", endpoint.url, "--model", "toy-1", "--seed", "1"
    )
    assert (status, err) == (0, "")
    assert endpoint.requests
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert KEY not in out
    assert endpoint.requests[0]["model"] == "toy-1"
    prompt = json.dumps(endpoint.requests[0]["messages"])
    assert "def matmul_pointer" in prompt
    assert "NVIDIA H200" in prompt
    assert "BLOCK_M * BLOCK_N <= 128 * 32 * num_warps" in prompt

    (name,) = optuna.get_all_study_names("sqlite:///llm-sampler.db")
    trials = optuna.load_study(study_name=name, storage="sqlite:///llm-sampler.db").get_trials()
    by_llm = [t for t in trials if t.user_attrs["llm_sampler:proposed_by"] == "llm"]
    assert by_llm
    assert all(t.params in batch for t in by_llm)
    calls = sum(len(t.user_attrs.get("llm_sampler:calls", [])) for t in trials)
    assert f"LLM: {calls} calls, {1234 * calls:,} tokens." in out
    assert "TPE did the work" not in out
    best = min(trials, key=lambda t: t.value or 1e9)
    assert best.params in batch
    assert f"Best, trial {best.number} (by llm): wide tiles" in out


def test_a_broken_endpoint_never_ends_a_study_and_is_said_plainly(
    package: Path, run: Run, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = serve(None)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    status, out, err = run("tune", "matmul", "--trials", "8", "--base-url", endpoint.url, "--model", "toy-1")
    assert (status, err) == (0, "")
    assert endpoint.requests
    assert "Stopped after 8 trials" in out
    assert "TPE did the work: no proposal of the LLM was measured." in out
    assert "TPE stood in for the LLM" in out
    assert KEY not in out
    kept = [path for path in Path().rglob("*") if path.is_file()]
    assert any(path.parent.name == "llm-sampler-artifacts" for path in kept)  # the requests
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


def test_without_a_key_tpe_does_the_work_and_it_says_how_to_give_one(package: Path, run: Run) -> None:
    status, out, err = run("tune", "matmul", "--trials", "5")
    assert (status, err) == (0, "")
    assert "Proposed by: tpe 4, default 1." in out
    assert "TPE did the work: no LLM was asked" in out
    assert "OPENAI_API_KEY" in out
    assert "LLM_SAMPLER_MODEL" in out
    assert "--base-url and --model" in out
