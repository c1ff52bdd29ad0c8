"""`OpenAIChat`: a `ChatModel` over any server that speaks OpenAI's chat completions.

Servers differ in how a JSON schema is asked for and in what the limit of the reply is called. What one refuses is asked
for differently, and what worked is remembered for the endpoint:
``json_schema`` -> the same without numbers (how many, from, to: strict modes of some servers know none) ->
``json_object`` with the schema beside it (llama-cpp-python) -> ``json_object`` -> plain text.

Reference: OpenAI, API reference, "Create chat completion"; llama-cpp-python, "JSON and JSON schema mode".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from llm_sampler.client import Answer, ChatError, Endpoint, Message, NoAnswerError, RefusedError, find_endpoint, redact
from llm_sampler.faults import FaultError, guarded

if TYPE_CHECKING:
    import openai

FORMS = ("json_schema", "json_schema without numbers", "json_object with schema", "json_object", "text")
_TEXT = len(FORMS) - 1
_NUMBERS = ("minItems", "maxItems", "minimum", "maximum")
_LIMITS = ("max_completion_tokens", "max_tokens", None)
_NO_LIMIT = len(_LIMITS) - 1
_MOST_ATTEMPTS = 3
# Nobody listening: one more attempt, or a dead endpoint costs a study seconds.
_CONNECT_ATTEMPTS = 2
_FIRST_PAUSE_S = 0.4
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Manner:
    """How an endpoint is asked: indices into FORMS and _LIMITS."""

    form: int
    limit: int


class OpenAIChat:
    """Chats with an OpenAI-compatible server; implements `ChatModel`.

    The connection is made on the first call, so that instances can be pickled; a pickle does not hold the key, which is
    read from the environment again.

    Args:
        endpoint: Where it is.
        max_reply_tokens: Limit of one reply; models that reason need room for it.
    """

    def __init__(self, endpoint: Endpoint, *, max_reply_tokens: int = 8_000) -> None:
        self._endpoint = endpoint
        self._max_reply_tokens = max_reply_tokens
        # OpenAI's reasoning models refuse max_tokens; older servers of others know only that.
        self._manner = _Manner(form=0, limit=0 if "openai.com" in endpoint.base_url else 1)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._client: openai.OpenAI | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in ("_lock", "_client")}
        return {**kept, "_endpoint": replace(self._endpoint, api_key="")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        found = find_endpoint(self._endpoint.model, self._endpoint.base_url, None)
        if isinstance(found, Endpoint):
            self._endpoint = found
        self._start()

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenAIChat:
        return OpenAIChat(self._endpoint, max_reply_tokens=self._max_reply_tokens)

    def __repr__(self) -> str:
        return f"OpenAIChat({self._endpoint!r})"

    @property
    def name(self) -> str:
        """The model's name; empty while it is the server's only one and the server has not been asked."""
        return self._endpoint.model or ""

    @property
    def form(self) -> str:
        """How the endpoint is asked for JSON, as learned so far; one of ``FORMS``."""
        return FORMS[self._manner.form]

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """The reply; passing faults are tried again within ``timeout_s`` seconds.

        Raises:
            ChatError: There is none.
        """
        start = time.monotonic()
        deadline = start + timeout_s
        try:
            client = self._connect()
            model = self._find_model(client, deadline)
            answer = self._ask(client, model, list(messages), schema, deadline)
        except FaultError as fault:
            raise self._clean(fault.as_chat_error()) from None
        except ChatError as error:
            raise self._clean(error) from None
        return replace(answer, seconds=time.monotonic() - start)

    def _ask(
        self,
        client: openai.OpenAI,
        model: str,
        messages: list[Message],
        schema: Mapping[str, Any] | None,
        deadline: float,
    ) -> Answer:
        """The answer, asked for in ever simpler manners as long as the server refuses the last one."""
        manner = self._manner if schema is not None else replace(self._manner, form=_TEXT)
        tried = {manner}
        learn = True
        while True:
            arguments = {**_form(manner.form, schema), **self._limit(manner.limit), **self._headers()}

            def send(arguments: dict[str, Any] = arguments) -> Answer:
                return _send(client, model, messages, arguments, deadline)

            try:
                answer = _persist(send, deadline)
            except FaultError as fault:
                simpler = _simpler(manner, fault, tried)
                if simpler is None:
                    raise
                learn &= fault.blames_request
                manner = simpler
                tried.add(manner)
                continue
            if learn:
                self._manner = manner if schema is not None else replace(manner, form=self._manner.form)
            return answer

    def _limit(self, limit: int) -> dict[str, int]:
        name = _LIMITS[limit]
        return {} if name is None else {name: self._max_reply_tokens}

    def _connect(self) -> openai.OpenAI:
        with self._lock:
            if self._client is None:
                import openai  # takes half a second, which a study without a model need not spend

                try:
                    self._client = openai.OpenAI(
                        api_key=self._endpoint.api_key or "none",
                        base_url=self._endpoint.base_url,
                        max_retries=0,  # tried again here, within one deadline
                    )
                except Exception as error:  # noqa: BLE001 - a malformed address, however the library says so
                    raise RefusedError(f"no client for {self._endpoint.base_url}: {error}") from None
            return self._client

    def _headers(self) -> dict[str, Any]:
        """Without a key no Authorization header is sent: some servers refuse any key that is not theirs."""
        import openai

        return {} if self._endpoint.api_key else {"extra_headers": {"Authorization": openai.Omit()}}

    def _find_model(self, client: openai.OpenAI, deadline: float) -> str:
        """The model's name, asked of a server that has only one."""
        if self._endpoint.model is None:

            def ask() -> list[str]:
                page = guarded(lambda: client.models.list(timeout=_left(deadline), **self._headers()))
                return [str(model.id) for model in getattr(page, "data", None) or []]

            names = _persist(ask, deadline)
            if len(names) != 1:
                shown = ", ".join(names[:10]) or "none"
                raise RefusedError(f"the server has {len(names)} models ({shown}): set model or LLM_SAMPLER_MODEL")
            self._endpoint = replace(self._endpoint, model=names[0])
        assert self._endpoint.model is not None
        return self._endpoint.model

    def _clean(self, error: ChatError) -> ChatError:
        error.args = (redact(str(error), self._endpoint.api_key), *error.args[1:])
        return error


def _form(form: int, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if schema is None or form == _TEXT:
        return {}
    if form in (0, 1):
        told = dict(schema) if form == 0 else _without_numbers(schema)
        described = {"name": "proposals", "schema": told, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": described}}
    if form == 2:
        return {"response_format": {"type": "json_object", "schema": dict(schema)}}
    return {"response_format": {"type": "json_object"}}


def _without_numbers(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        # A parameter may be called like a keyword: its value is a schema then, no number.
        kept = {name: part for name, part in schema.items() if name not in _NUMBERS or isinstance(part, Mapping)}
        return {name: _without_numbers(part) for name, part in kept.items()}
    return schema


def _simpler(manner: _Manner, fault: FaultError, tried: set[_Manner]) -> _Manner | None:
    """Another manner that may mend the fault and was not tried, None if there is none."""
    if fault.blames_context:  # servers add the limit of the reply to the request
        without = replace(manner, limit=_NO_LIMIT)
        return None if without in tried else without
    if not fault.may_be_form:
        return None
    candidates = []
    if fault.blames_limit:
        candidates += [replace(manner, limit=limit) for limit in range(len(_LIMITS))]
    candidates += [replace(manner, form=form) for form in range(manner.form + 1, len(FORMS))]
    return next((candidate for candidate in candidates if candidate not in tried), None)


def _persist(send: Callable[[], Result], deadline: float) -> Result:
    """The result of ``send``; passing faults are tried again while there is time."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return send()
        except FaultError as fault:
            pause_s = _FIRST_PAUSE_S * 2 ** (attempt - 1) if fault.retry_after_s is None else fault.retry_after_s
            most = _CONNECT_ATTEMPTS if fault.status is None else _MOST_ATTEMPTS
            if not fault.passes or attempt >= most or time.monotonic() + pause_s >= deadline:
                raise
            time.sleep(pause_s)


def _send(
    client: openai.OpenAI, model: str, messages: list[Message], arguments: Mapping[str, Any], deadline: float
) -> Answer:
    """One request.

    Raises:
        FaultError: The request failed.
        NoAnswerError: The reply holds no text.
    """
    completion: Any = guarded(
        lambda: client.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            timeout=_left(deadline),
            **arguments,
        )
    )
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list):
        raise NoAnswerError(f"the server answered with something else than a chat completion: {str(completion)[:100]}")
    if not choices:
        raise NoAnswerError("the reply has no choices")
    message = getattr(choices[0], "message", None)
    text = _text(getattr(message, "content", None))
    finish = str(getattr(choices[0], "finish_reason", None) or "stop")
    if not text.strip():
        refusal = getattr(message, "refusal", None)
        hidden = getattr(message, "reasoning_content", None)
        what = f"refused: {refusal}" if refusal else "only hidden reasoning" if hidden else "no text"
        raise NoAnswerError(f"the reply holds {what} (finish reason {finish})")
    usage = getattr(completion, "usage", None)
    return Answer(
        text=text,
        prompt_tokens=_count(getattr(usage, "prompt_tokens", None)),
        completion_tokens=_count(getattr(usage, "completion_tokens", None)),
        finish=finish,
        model=str(getattr(completion, "model", None) or model),
    )


def _text(content: Any) -> str:
    """The text of a message's content, which some servers give as a list of parts."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content)
        return "".join(str(part) for part in parts if part)
    return content if isinstance(content, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
