"""The real openai client against a real server on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import ChatServer, Handler, chat_server

from llm_sampler.client import ChatError, Endpoint, NoAnswerError, RefusedError, TooLongError, UnreachableError
from llm_sampler.openai_chat import FORMS, OpenAIChat

MESSAGES: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"minimum": {"type": "integer", "minimum": 3}}}


def chat(server: ChatServer, **endpoint: Any) -> OpenAIChat:
    return OpenAIChat(Endpoint(**{"model": "m", "base_url": server.url, "api_key": "key-1234"} | endpoint))


def test_an_answer_has_text_usage_and_time() -> None:
    with chat_server(lambda request: request.send_text("hi")) as server:
        answer = chat(server).complete(MESSAGES, schema=SCHEMA)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("hi", 120, 30)
    assert (answer.finish, answer.model) == ("stop", "test-model-1")
    assert 0 < answer.seconds < 5
    body = server.chats[0].body
    assert body["messages"] == MESSAGES
    assert body["model"] == "m"
    assert "temperature" not in body
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert server.chats[0].headers["authorization"] == "Bearer key-1234"


def test_without_a_key_no_key_is_sent() -> None:
    with chat_server(lambda request: request.send_text("hi")) as server:
        chat(server, api_key="").complete(MESSAGES)
    assert "authorization" not in server.chats[0].headers


def test_the_only_model_of_a_server_is_used_and_asked_for_once() -> None:
    with chat_server(lambda request: request.send_text("hi"), models=("only",)) as server:
        client = chat(server, model=None)
        client.complete(MESSAGES)
        client.complete(MESSAGES)
    assert client.name == "only"
    assert [request.path for request in server.requests] == ["/v1/models", *["/v1/chat/completions"] * 2]
    assert server.chats[0].body["model"] == "only"


@pytest.mark.parametrize("models", [(), ("a", "b")])
def test_a_server_with_another_number_of_models_needs_a_name(models: tuple[str, ...]) -> None:
    with chat_server(lambda request: request.send_text("hi"), models=models) as server:
        with pytest.raises(RefusedError, match=f"the server has {len(models)} models"):
            chat(server, model=None).complete(MESSAGES)


def supports(*forms: str, status: int = 400) -> Callable[[Handler], None]:
    """A server that knows these response formats only."""

    def respond(request: Handler) -> None:
        described = request.body.get("response_format", {"type": "text"})
        form = described["type"] + (" with schema" if "schema" in described else "")
        if form == "json_schema":
            properties = described["json_schema"]["schema"]["properties"]
            assert list(properties) == ["minimum"]
            form += "" if "minimum" in properties["minimum"] else " without numbers"
        if form in forms:
            request.send_text("{}")
        else:
            request.send_error_text(status, f"response_format {form} is not supported")

    return respond


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("rung", range(len(FORMS)))
def test_the_ladder_of_response_formats_is_climbed_down_once(rung: int, status: int) -> None:
    with chat_server(supports(FORMS[rung], status=status)) as server:
        client = chat(server)
        client.complete(MESSAGES, schema=SCHEMA)
        assert len(server.chats) == rung + 1
        assert client.form == FORMS[rung]
        client.complete(MESSAGES, schema=SCHEMA)
        assert len(server.chats) == rung + 2


def test_without_a_schema_none_is_asked_for() -> None:
    with chat_server(supports("text")) as server:
        client = chat(server)
        client.complete(MESSAGES)
        assert client.form == FORMS[0]


@pytest.mark.parametrize("known", ["max_tokens", "max_completion_tokens"])
def test_the_name_of_the_limit_is_learned(known: str) -> None:
    def respond(request: Handler) -> None:
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[known]
        if other in request.body:
            request.send_error_text(400, f"Unsupported parameter: '{other}'. Use '{known}' instead.")
        else:
            request.send_text("hi")

    with chat_server(respond) as server:
        client = chat(server)
        client.complete(MESSAGES, schema=SCHEMA)
        first = len(server.chats)
        client.complete(MESSAGES, schema=SCHEMA)
    assert first <= 2
    assert len(server.chats) == first + 1
    assert server.chats[-1].body[known] == 8_000
    assert client.form == FORMS[0]


def test_a_context_that_is_too_short_for_the_limit_drops_the_limit() -> None:
    def respond(request: Handler) -> None:
        if "max_tokens" in request.body:
            request.send_error_text(400, "This model's maximum context length is 8192 tokens, you requested 9000")
        else:
            request.send_text("hi")

    with chat_server(respond) as server:
        assert chat(server).complete(MESSAGES).text == "hi"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 512 tokens. However, you requested 3046 tokens"),
        (400, "the request exceeds the available context size, try increasing it"),
        (413, "prompt is too long"),
        (500, "Requested tokens (3046) exceed context window of 512"),
    ],
)
def test_a_request_that_is_too_long_is_said_to_be_after_two_attempts(status: int, message: str) -> None:
    with chat_server(lambda request: request.send_error_text(status, message)) as server:
        with pytest.raises(TooLongError, match=f"HTTP {status}"):
            chat(server).complete(MESSAGES, schema=SCHEMA)
    assert ["max_tokens" in request.body for request in server.chats] == [True, False]


def test_too_many_requests_are_tried_again_when_the_server_says() -> None:
    def respond(request: Handler) -> None:
        if len(server.chats) == 1:
            request.send_error_text(429, "slow down", {"Retry-After": "0.2"})
        else:
            request.send_text("hi")

    with chat_server(respond) as server:
        answer = chat(server).complete(MESSAGES, timeout_s=10)
    assert answer.text == "hi"
    assert 0.2 <= answer.seconds < 2


def test_a_wait_beyond_the_deadline_is_not_waited() -> None:
    with chat_server(lambda r: r.send_error_text(429, "slow down", {"Retry-After": "60"})) as server:
        start = time.monotonic()
        with pytest.raises(UnreachableError, match="HTTP 429: slow down") as caught:
            chat(server).complete(MESSAGES, timeout_s=5)
    assert time.monotonic() - start < 1
    assert caught.value.retry_after_s == 60
    assert len(server.chats) == 1


def test_a_server_error_is_tried_three_times() -> None:
    with chat_server(lambda request: request.send_error_text(503, "overloaded")) as server:
        with pytest.raises(UnreachableError, match="HTTP 503: overloaded"):
            chat(server).complete(MESSAGES, timeout_s=10)
    assert len(server.chats) == 3


def test_a_slow_server_is_left_at_the_deadline() -> None:
    def respond(request: Handler) -> None:
        time.sleep(3)

    with chat_server(respond) as server:
        start = time.monotonic()
        with pytest.raises(UnreachableError, match="no reply in time"):
            chat(server).complete(MESSAGES, timeout_s=0.5)
        assert time.monotonic() - start < 1.5


def test_nobody_listening_costs_less_than_a_second() -> None:
    with chat_server(lambda request: None) as server:
        pass
    start = time.monotonic()
    with pytest.raises(UnreachableError, match="no connection"):
        chat(server).complete(MESSAGES, timeout_s=30)
    assert time.monotonic() - start < 1


BODIES: dict[str, tuple[Callable[[Handler], None], type[ChatError], str]] = {
    "html": (lambda r: r.send("<html>hi</html>", kind="text/html"), NoAnswerError, "something else"),
    "no json": (lambda r: r.send("{not json"), NoAnswerError, "cannot be read"),
    "empty body": (lambda r: r.send(""), NoAnswerError, "cannot be read"),
    "json of another kind": (lambda r: r.send('{"hello": 1}'), NoAnswerError, "something else"),
    "a list": (lambda r: r.send("[1]"), NoAnswerError, "something else"),
    "no choices": (lambda r: r.send('{"choices": []}'), NoAnswerError, "no choices"),
    "null choices": (lambda r: r.send('{"choices": null}'), NoAnswerError, "something else"),
    "no message": (lambda r: r.send('{"choices": [{"index": 0}]}'), NoAnswerError, "no text"),
    "null content": (lambda r: r.send_text(None), NoAnswerError, "no text"),
    "blank content": (lambda r: r.send_text("  \n"), NoAnswerError, "no text"),
    "refusal": (lambda r: r.send_text(None, refusal="I cannot"), NoAnswerError, "refused: I cannot"),
    "hidden reasoning": (lambda r: r.send_text("", reasoning_content="hm"), NoAnswerError, "only hidden reasoning"),
    "cut body": (lambda r: r.send('{"choices": [', length=5_000), UnreachableError, "no connection"),
    "401": (lambda r: r.send_error_text(401, "Incorrect API key provided: key-1234"), RefusedError, "HTTP 401"),
    "403": (lambda r: r.send_error_text(403, "no"), RefusedError, "HTTP 403: no"),
    "404": (lambda r: r.send_error_text(404, "no model m"), RefusedError, "HTTP 404: no model m"),
    "500 html": (lambda r: r.send("<h1>oops</h1>", status=500, kind="text/html"), UnreachableError, "HTTP 500"),
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_a_server_sends_is_a_chat_error_without_the_key(name: str) -> None:
    respond, kind, message = BODIES[name]
    with chat_server(respond) as server:
        with pytest.raises(kind, match=message) as caught:
            chat(server).complete(MESSAGES, timeout_s=2)
    assert "key-1234" not in str(caught.value)


def test_content_in_parts_is_joined() -> None:
    with chat_server(lambda r: r.send_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) as server:  # type: ignore[arg-type]
        assert chat(server).complete(MESSAGES).text == "ab"


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://h:99999/v1"])
def test_a_malformed_address_is_a_chat_error(url: str) -> None:
    with pytest.raises(ChatError):
        OpenAIChat(Endpoint("m", url, "k")).complete(MESSAGES, timeout_s=2)
