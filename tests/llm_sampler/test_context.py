"""Models with little room or speed: what is too long for them is made shorter, and what takes too long smaller."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from chat_models import batch
from chat_server import ChatServer, Handler, chat_server
from four_numbers import OPENING, SPACE, point, proposed_by, run

from llm_sampler.attributes import CALLS
from llm_sampler.prompt import CHARACTERS_PER_TOKEN, Briefing
from llm_sampler.sampler import LLMSampler
from llm_sampler.task import Task

SOURCE = "\n".join(f"def part{i}(x):\n    return p0 * {i} + x\n" for i in range(400))
LONG = Task("four numbers", SPACE, source=SOURCE)


def told(server: ChatServer) -> list[int]:
    """Characters of the requests."""
    return [sum(len(message["content"]) for message in chat.body["messages"]) for chat in server.chats]


def room_for(characters: int, reply: str) -> Callable[[Handler], None]:
    def respond(request: Handler) -> None:
        if sum(len(message["content"]) for message in request.body["messages"]) > characters:
            request.send_error_text(400, "This model's maximum context length is 2048 tokens, you requested more")
        else:
            request.send_text(reply)

    return respond


def test_a_model_with_a_short_context_gets_short_requests_from_then_on() -> None:
    with chat_server(room_for(9_000, batch(*OPENING))) as server:
        study = run(LLMSampler(base_url=server.url, seed=0, wait="always"), 20, task=LONG)
    assert proposed_by(study)[:4] == ["default", "llm", "llm", "llm"]
    lengths = told(server)
    found = next(index for index, length in enumerate(lengths) if length <= 9_000)
    assert 0 < found <= 4
    assert len(lengths) > found + 1
    assert max(lengths[found:]) <= 9_000


def test_a_context_that_is_too_short_for_anything_is_a_recorded_reason() -> None:
    with chat_server(room_for(10, "")) as server:
        study = run(LLMSampler(base_url=server.url, seed=0, wait="always"), 3, task=LONG)
    assert set(proposed_by(study)) == {"tpe"}
    assert "maximum context length is 2048" in study.trials[0].user_attrs[CALLS][0]["error"]
    assert len(server.chats) <= 8


def test_a_prompt_of_ones_own_that_cannot_be_shortened_is_not_asked_again() -> None:
    def builder(briefing: Briefing) -> list[dict[str, str]]:
        return [{"role": "user", "content": "x" * 1_000}]

    with chat_server(room_for(10, "")) as server:
        run(LLMSampler(base_url=server.url, seed=0, prompt=builder), 2, task=LONG)  # type: ignore[arg-type]
    assert len(server.chats) == 2


def test_a_reply_that_was_cut_off_for_lack_of_room_shortens_the_next_request() -> None:
    def respond(request: Handler) -> None:
        length = sum(len(message["content"]) for message in request.body["messages"])
        if length > 12_000:
            completion = {"role": "assistant", "content": '{"proposals": [{"config'}
            choices = [{"index": 0, "finish_reason": "length", "message": completion}]
            usage = {"prompt_tokens": 8_000, "completion_tokens": 92, "total_tokens": 8_092}
            request.send(json.dumps({"object": "chat.completion", "model": "m", "choices": choices, "usage": usage}))
        else:
            request.send_text(batch(*OPENING))

    with chat_server(respond) as server:
        study = run(LLMSampler(base_url=server.url, seed=0, wait="always"), 4, task=LONG)
    assert proposed_by(study) == ["default", "llm", "llm", "llm"]
    assert [call["kind"] for call in study.trials[0].user_attrs[CALLS]] == ["opening", "follow-up"]


@pytest.mark.parametrize("size", [100, 40_000])
def test_a_follow_up_stays_under_the_limit_of_tokens(size: int) -> None:
    poor = batch(*(point(i % 5, 0, 0, 9 + i) | {"no": i} for i in range(12))) + " " * size + "end"
    with chat_server(lambda request: request.send_text(poor)) as server:
        run(LLMSampler(base_url=server.url, seed=0, max_prompt_tokens=3_000), 2, task=LONG)
    assert len(server.chats) == 2
    assert "unknown parameter 'no'" in server.chats[1].body["messages"][-1]["content"]
    assert max(told(server)) <= 3_000 * CHARACTERS_PER_TOKEN


def test_a_model_that_is_too_slow_for_a_batch_is_asked_for_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sampler.breaker._FIRST_PAUSE_S", 0.0)

    def respond(request: Handler) -> None:
        time.sleep(0.1 * wanted_of(request.body))
        request.send_text(batch(*OPENING))

    with chat_server(respond) as server:
        study = run(LLMSampler(base_url=server.url, seed=0, wait="always", timeout_s=0.5), 6)
    assert [wanted_of(chat.body) for chat in server.chats][:3] == [12, 6, 3]
    assert proposed_by(study).count("llm") == 3


def wanted_of(body: dict[str, object]) -> int:
    return int(re.findall(r"Propose (\d+)", str(body["messages"]))[-1])
