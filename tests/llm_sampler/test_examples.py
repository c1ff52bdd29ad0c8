"""The examples run as they stand: without an endpoint, and with a server on loopback."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from chat_server import ChatServer, Handler, chat_server

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.py"))
# The optimum of each, as the model would propose it; what it leaves out has its default value.
PROPOSALS = {
    "plain_study": {"learning_rate": 0.003, "layers": 4, "optimizer": "adam"},
    "kernel_study": {
        "BLOCK_M": 128,
        "BLOCK_N": 256,
        "BLOCK_K": 64,
        "EPILOGUE_PARTS": 2,
        "GROUP_M": 16,
        "num_stages": 4,
        "num_warps": 8,
        "variant": "descriptor_flat",
    },
    "local_server": {"block": 128, "warps": 8, "stages": 3},
    "custom_prompt": {"width": 3, "height": 1},
}


def run(example: Path, server: ChatServer | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # A port on which nobody listens: connections are refused at once.
    base_url = server.url if server else "http://127.0.0.1:9/v1"
    arguments = [base_url] if example.stem == "local_server" else []
    monkeypatch.setattr(sys, "argv", [str(example), *arguments])
    if server and not arguments:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_without_an_endpoint(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example, None, monkeypatch)
    assert re.search(r"best \d|ms, \d", capsys.readouterr().out)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_with_a_server(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Handler) -> None:
        proposal = {"rationale": "known to be best", "configuration": PROPOSALS[example.stem]}
        request.send_text(json.dumps({"proposals": [proposal]}))

    with chat_server(answer, models=("only-one",)) as server:
        run(example, server, monkeypatch)
        # The server's only model, found by asking.
        assert {chat.body["model"] for chat in server.chats} == {"only-one"}
        told = "\n".join(str(message["content"]) for message in server.chats[0].body["messages"])
    out = capsys.readouterr().out
    if example.stem == "kernel_study":
        assert "def matmul_pointer" in told
        assert "by llm: known to be best" in out
        return
    # The proposal is the optimum.
    assert all(f"'{name}': {value!r}" in out for name, value in PROPOSALS[example.stem].items())
    assert ("From earlier work" in told) == (example.stem == "custom_prompt")
