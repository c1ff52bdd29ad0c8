"""Where a model is found, and what never leaves the client."""

from __future__ import annotations

import copy
import pickle

import pytest

from llm_sampler.client import Answer, Endpoint, find_endpoint, redact
from llm_sampler.openai_chat import OpenAIChat

SECRET = "sk-abcdefghijklmnop1234"


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ((None, None, None), {}, "no endpoint"),
        ((None, None, None), {"OPENAI_API_KEY": SECRET}, "no model"),
        (("m", None, None), {}, "no endpoint"),
        (("m", None, SECRET), {}, Endpoint("m", "https://api.openai.com/v1", SECRET)),
        ((None, None, None), {"OPENAI_API_KEY": "k", "LLM_SAMPLER_MODEL": "e"}, "https://api.openai.com/v1"),
        ((None, "http://h/v1", None), {}, Endpoint(None, "http://h/v1", "")),
        (
            ("m", "http://h/v1", "k"),
            {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://y", "LLM_SAMPLER_MODEL": "z"},
            Endpoint("m", "http://h/v1", "k"),
        ),
        ((None, None, None), {"OPENAI_BASE_URL": "http://e/v1"}, Endpoint(None, "http://e/v1", "")),
        ((None, "h:8000", None), {}, "base_url must begin with http:// or https://, got 'h:8000'"),
        ((None, None, None), {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}, "no endpoint"),
    ],
)
def test_arguments_come_before_the_environment(
    arguments: tuple[str | None, ...], environment: dict[str, str], expected: object
) -> None:
    found = find_endpoint(*arguments, environment)
    if isinstance(expected, Endpoint):
        assert found == expected
    else:
        assert str(expected) in (found.base_url if isinstance(found, Endpoint) else found)


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert find_endpoint(None, None, None) == Endpoint(None, "http://localhost:1/v1")


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {SECRET}",
        "Incorrect API key provided: sk-abcd************1234.",
        "header Authorization: Bearer tok_secret123456 refused",
        "cannot reach https://user:passw0rd@host/v1",
        "my-own-secret is wrong",
    ],
)
def test_errors_do_not_show_keys_or_passwords(text: str) -> None:
    shown = redact(text, "my-own-secret")
    for secret in (SECRET, "sk-abcd*", "tok_secret", "passw0rd", "my-own-secret"):
        assert secret not in shown


def test_an_error_is_one_bounded_line() -> None:
    assert redact("a\n  b" + "x" * 1_000).startswith("a bxx")
    assert len(redact("x" * 1_000)) == 300


def test_a_key_is_neither_shown_nor_pickled_and_a_copy_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = OpenAIChat(Endpoint("m", "http://h/v1", SECRET))
    assert SECRET not in repr(chat)
    dumped = pickle.dumps(chat)
    assert SECRET.encode() not in dumped
    assert copy.deepcopy(chat)._endpoint.api_key == SECRET
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    again = pickle.loads(dumped)
    assert again._endpoint == Endpoint("m", "http://h/v1", "from-the-environment")


def test_tokens_are_estimated_where_the_server_does_not_count() -> None:
    assert Answer("x" * 30).tokens == 10
    assert Answer("x" * 30, 5, 6).tokens == 11
