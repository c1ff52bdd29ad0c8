"""`FaultError`: what the openai package raises, in terms of what to do about it.

Reference: openai-python, "Handling errors"; RFC 9110, section 10.2.3 (Retry-After).
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from llm_sampler.client import ChatError, NoAnswerError, RefusedError, TooLongError, UnreachableError

# Too early, too busy, or a fault of the server.
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
# What servers answer to a form they do not know; llama.cpp's Python server answers 500 with a validation text.
_FORM = (400, 415, 422, 500, 501)
_ABOUT_REQUEST = re.compile(
    r"response_format|json_schema|json_object|schema|validation|max_(completion_)?tokens|context"
)
# OpenAI, vLLM and llama-cpp-python: "maximum context length is N tokens"; llama.cpp: "exceeds the available context
# size"; others: "prompt is too long", "exceed context window".
_ABOUT_CONTEXT = re.compile(r"(?i)context[ _](length|size|window)|(prompt|input|request) is too long|too many tokens")
Result = TypeVar("Result")


class FaultError(Exception):
    """A request failed.

    Attributes:
        reason: One line; may hold secrets until it is redacted.
        status: HTTP status, None if there was no complete response.
        retry_after_s: When the server wants to be asked again, None if it does not say.
        slow: Whether time ran out.
    """

    def __init__(
        self, reason: str, *, status: int | None = None, retry_after_s: float | None = None, slow: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s
        self.slow = slow

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed in a moment."""
        if self.slow or self.blames_context or (self.status == 500 and self.blames_request):
            return False
        return self.status is None or self.status in _PASSING

    @property
    def may_be_form(self) -> bool:
        """Whether the server may have refused how it was asked, not what."""
        return self.status in _FORM

    @property
    def blames_request(self) -> bool:
        """Whether the server says that it is about a part of the request that can be left out."""
        return self.may_be_form and bool(_ABOUT_REQUEST.search(self.reason))

    @property
    def blames_limit(self) -> bool:
        """Whether the server does not like the limit of the reply."""
        return "max_tokens" in self.reason or "max_completion_tokens" in self.reason

    @property
    def blames_context(self) -> bool:
        """Whether request and limit together are too long for the model."""
        return self.status in (*_FORM, 413) and bool(_ABOUT_CONTEXT.search(self.reason))

    def as_chat_error(self) -> ChatError:
        """The error that callers know."""
        if self.blames_context:
            return TooLongError(self.reason)
        if self.status is None or self.status in _PASSING:
            return UnreachableError(self.reason, self.retry_after_s)
        return RefusedError(self.reason)


def guarded(request: Callable[[], Result]) -> Result:
    """The result of a request.

    Raises:
        FaultError: It failed.
        NoAnswerError: The response is not what the package can read.
    """
    import openai

    try:
        return request()
    except openai.APITimeoutError:
        raise FaultError("no reply in time", slow=True) from None
    except openai.APIConnectionError as error:
        raise FaultError(f"no connection: {_root(error)}") from None
    except openai.APIStatusError as error:
        text = _body_text(error)
        raise FaultError(
            f"HTTP {error.status_code}: {text}",
            status=error.status_code,
            retry_after_s=_retry_after_s(error.response.headers),
        ) from None
    except openai.OpenAIError as error:
        raise NoAnswerError(f"{type(error).__name__}: {error}") from None
    except Exception as error:  # noqa: BLE001 - JSON that is none, and whatever else a server can provoke
        raise NoAnswerError(f"the reply cannot be read ({type(error).__name__}: {error})") from None


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _body_text(error: Any) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if message:
            return str(message)
        return str(body)
    return str(body or error.message)


def _retry_after_s(headers: Any) -> float | None:
    """Seconds from the header, which holds seconds or a date."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
