"""The seam to a language model: `ChatModel`, what it answers, how it fails, and where one is found.

This is the only place that reads the environment: OPENAI_API_KEY, OPENAI_BASE_URL, LLM_SAMPLER_MODEL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

_KEY_FORM = re.compile(r"\b(sk|gsk|hf|xai|pk)[-_][\w*-]{6,}")
_BEARER_FORM = re.compile(r"(?i)\b(bearer\s+)[\w.~+/*-]{6,}=*")
_URL_PASSWORD_FORM = re.compile(r"(?<=//)[^/@\s]+(?=@)")
_MOST_REASON = 300


class Message(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Attributes:
        text: The reply.
        prompt_tokens: Tokens of the request, None if the server does not say.
        completion_tokens: Tokens of the reply, hidden reasoning included; None if the server does not say.
        seconds: From request to reply, retries included.
        finish: Why the reply ended: ``stop``, ``length`` (cut off), or whatever the server says.
        model: The model that the server says has answered.
    """

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    finish: str = "stop"
    model: str = ""

    @property
    def tokens(self) -> int:
        """All tokens; a token per 3 characters of reply where the server does not count."""
        counted = (self.prompt_tokens or 0) + (self.completion_tokens or 0)
        return counted or len(self.text) // 3

    @property
    def lacked_room(self) -> bool:
        """Whether the reply was cut off while shorter than the request: a shorter request leaves it more room."""
        return self.finish == "length" and (self.completion_tokens or 0) < (self.prompt_tokens or 0)


class ChatError(Exception):
    """A model did not answer; the message is one line without secrets.

    ```
    ChatError
    ├── UnreachableError   no connection, too slow, too busy, a fault of the server: may pass
    ├── RefusedError       the server does not want this request or this caller: will not pass by itself
    │   └── TooLongError   the request does not fit into the model's context
    └── NoAnswerError      a reply without usable text
    ```
    """


class UnreachableError(ChatError):
    """No connection, no reply in time, 429, or a fault of the server.

    Args:
        reason: One line.
        retry_after_s: When the server wants to be asked again, None if it does not say.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RefusedError(ChatError):
    """The server refuses the request (400, 404, 422) or the caller (401, 403)."""


class TooLongError(RefusedError):
    """The request is longer than the model's context: a shorter one may pass."""


class NoAnswerError(ChatError):
    """The reply holds no text: empty, a refusal, only hidden reasoning, or no chat completion at all."""


class ChatModel(Protocol):
    """A language model that chats; safe to call from several threads.

    Attributes:
        name: For records; may be known only after the first answer.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """The model's reply.

        Args:
            messages: The conversation.
            schema: JSON schema that the reply should follow; a model may ignore it.
            timeout_s: Seconds that all attempts together may take.

        Raises:
            ChatError: It did not answer. A sampler survives any other exception as well.
        """
        ...


@dataclass(frozen=True)
class Endpoint:
    """Where an OpenAI-compatible server is.

    Attributes:
        model: Name of the model, None to use the only one that the server has.
        base_url: E.g. ``http://localhost:8000/v1``.
        api_key: Empty for a server that wants none. Never shown.
    """

    model: str | None
    base_url: str
    api_key: str = field(default="", repr=False)


OPENAI_URL = "https://api.openai.com/v1"


def find_endpoint(
    model: str | None, base_url: str | None, api_key: str | None, environment: Mapping[str, str] | None = None
) -> Endpoint | str:
    """The endpoint that arguments and environment name, or one line that says what is missing.

    An argument comes before its environment variable. A local server needs ``base_url`` alone; OpenAI's own needs a
    key and a model. An empty value counts as not given.

    Args:
        model: Instead of LLM_SAMPLER_MODEL.
        base_url: Instead of OPENAI_BASE_URL.
        api_key: Instead of OPENAI_API_KEY.
        environment: Instead of the process's.
    """
    variables = os.environ if environment is None else environment
    model = model or variables.get("LLM_SAMPLER_MODEL") or None
    base_url = base_url or variables.get("OPENAI_BASE_URL") or None
    api_key = api_key or variables.get("OPENAI_API_KEY") or ""
    if base_url is None and not api_key:
        return "no endpoint: set OPENAI_API_KEY and LLM_SAMPLER_MODEL, or base_url (OPENAI_BASE_URL) for a local server"
    if base_url is None and model is None:
        return "no model: set model or LLM_SAMPLER_MODEL"
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        return f"base_url must begin with http:// or https://, got {redact(base_url)!r}"
    return Endpoint(model, base_url or OPENAI_URL, api_key)


def redact(text: str, secret: str = "") -> str:
    """One line of at most 300 characters without keys and passwords."""
    if len(secret) >= 4:
        text = text.replace(secret, "…")
    text = _KEY_FORM.sub(r"\1-…", text)
    text = _BEARER_FORM.sub(r"\1…", text)
    text = _URL_PASSWORD_FORM.sub("…", text)
    line = " ".join(text.split())
    return line if len(line) <= _MOST_REASON else line[: _MOST_REASON - 1] + "…"
