"""One call to a language model, from briefing to checked proposals; it touches no storage, so any thread may run it.

Whatever a model raises becomes a record with an error. A call that does not return in time is abandoned: its thread
ends whenever the model returns. A request that is too long for the model's context is made again, half as long.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_sampler.budget import CallRecord
from llm_sampler.client import Answer, ChatModel, Message, TooLongError, UnreachableError, redact
from llm_sampler.pairs import completed
from llm_sampler.prompt import CHARACTERS_PER_TOKEN, Briefing, PromptBuilder, follow_up, reply_schema
from llm_sampler.reply import Proposal, Rejection, Reply, read_reply
from llm_sampler.transcript import TranscriptError

_GRACE_S = 0.5
_MOST_REASONS = 5
_SHOWN_REASON = 200
_MOST_SHORTENINGS = 3
_SLOW = 0.95  # of the time limit
# Of a poor reply, what a follow-up shows at least and at most, in characters.
_SHOWN_REPLY = (500, 8_000)


@dataclass(frozen=True)
class Call:
    """A call that can be made.

    Attributes:
        id: Identifier.
        kind: ``opening``, ``refinement`` or ``follow-up``.
        messages: The conversation.
        briefing: What it was made of.
        builder: What made it.
        wanted: How many proposals are asked for.
    """

    id: str
    kind: str
    messages: tuple[Message, ...]
    briefing: Briefing
    builder: PromptBuilder
    wanted: int

    @property
    def tokens(self) -> int:
        """Estimate of the tokens that it will take, request and reply."""
        return _length(self.messages) // CHARACTERS_PER_TOKEN + 150 * self.wanted

    def within(self, tokens: int) -> Call:
        """The call with a first message to the model of at most so many tokens, as far as that can be shortened."""
        briefing = replace(self.briefing, max_tokens=tokens)
        return replace(self, messages=tuple(self.builder(briefing)), briefing=briefing)


@dataclass(frozen=True)
class Batch:
    """What came of a call.

    Attributes:
        record: For the study.
        proposals: Checked, in order of merit.
        follow_up: The call to make next, None if the reply was good enough or absent.
        retry_after_s: When the server wants to be asked again, None if it does not say.
        answered: Whether there was a reply, of whatever use.
        most_tokens: Limit of later requests, None if this one was not too long.
        slow: Whether the time limit ended it.
        fatal: What must end the study: a replay that lacks the reply would silently become another study.
    """

    record: CallRecord
    proposals: tuple[Proposal, ...] = ()
    follow_up: Call | None = None
    retry_after_s: float | None = None
    answered: bool = True
    most_tokens: int | None = None
    slow: bool = False
    fatal: TranscriptError | None = None


def first_call(call: str, briefing: Briefing, builder: PromptBuilder) -> Call:
    """The call for a batch."""
    kind = "opening" if briefing.opening else "refinement"
    return Call(call, kind, tuple(builder(briefing)), briefing, builder, briefing.batch_size)


def fetch(
    model: ChatModel,
    call: Call,
    *,
    timeout_s: float,
    taken: Callable[[Mapping[str, Any]], str],
) -> Batch:
    """Make a call and check the reply.

    Args:
        model: The model.
        call: The call.
        timeout_s: Seconds it may take.
        taken: Says why a configuration is not wanted, empty if it is.
    """
    start = time.monotonic()
    record = CallRecord(call.id, call.kind, _name(model))
    given = call
    try:
        call, answer = _ask(model, call, start + timeout_s)
    except TranscriptError as error:
        return Batch(replace(record, error=str(error)), answered=False, fatal=error)
    except Exception as error:  # noqa: BLE001 - whatever a provider raises becomes a fallback
        reason = redact(str(error) or type(error).__name__)
        seconds = time.monotonic() - start
        failed = replace(record, error=reason, seconds=seconds, conversation=_conversation(call, "no reply", reason))
        retry_after_s = getattr(error, "retry_after_s", None)
        return Batch(failed, retry_after_s=retry_after_s, answered=False, slow=seconds >= _SLOW * timeout_s)
    briefing = call.briefing
    reply = read_reply(
        answer.text, briefing.space, call=call.id, default=briefing.default, partial=briefing.partial, taken=taken
    )
    proposals = reply.proposals
    if briefing.opening and not briefing.partial:
        proposals = _with_pairs(call, proposals, taken)
    answered = replace(_record(record, answer, reply), conversation=_conversation(call, "reply", answer.text))
    most_tokens = None if call is given else briefing.max_tokens
    if answer.lacked_room and not reply.proposals:
        most_tokens = _length(call.messages) // CHARACTERS_PER_TOKEN // 2
        call = replace(call, briefing=replace(briefing, max_tokens=most_tokens))
    return Batch(answered, proposals, _next_call(call, answer, reply), most_tokens=most_tokens)


def _ask(model: ChatModel, call: Call, deadline: float) -> tuple[Call, Answer]:
    """The call as it was answered, and the answer: shortened for a model that finds it too long."""
    schema = reply_schema(call.briefing, call.wanted)
    shortenings = 0
    while True:
        left_s = deadline - time.monotonic()
        complete = functools.partial(model.complete, call.messages, schema=schema, timeout_s=left_s)
        try:
            return call, _in_time(complete, left_s)
        except TooLongError:
            before = _length(call.messages)
            shorter = call.within(before // CHARACTERS_PER_TOKEN // 2)
            shortenings += 1
            if shortenings > _MOST_SHORTENINGS or _length(shorter.messages) >= before:
                raise
            call = shorter


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)


def _with_pairs(
    call: Call, proposals: tuple[Proposal, ...], taken: Callable[[Mapping[str, Any]], str]
) -> tuple[Proposal, ...]:
    """The batch with the pairs of two-valued parameters that it lacks."""
    batch = [proposal.configuration for proposal in proposals]
    space = call.briefing.space
    added = [
        Proposal(
            configuration,
            rationale=f"completes the batch: no other member has {pair.text(space)}",
            family="pairs",
            call=call.id,
            changes=(f"added by program: {pair.text(space)}",),
        )
        for configuration, pair in completed(
            space, batch, most=max(1, call.wanted // 3), wanted=lambda candidate: not taken(candidate)
        )
    ]
    return (*proposals, *added)


def _record(record: CallRecord, answer: Answer, reply: Reply) -> CallRecord:
    reasons = [rejection.reason[:_SHOWN_REASON] for rejection in reply.rejections]
    return replace(
        record,
        model=answer.model or record.model,
        prompt_tokens=answer.prompt_tokens or 0,
        completion_tokens=answer.completion_tokens or (0 if answer.prompt_tokens else answer.tokens),
        seconds=answer.seconds,
        proposals=len(reply.proposals),
        rejected=len(reply.rejections),
        reasons=tuple(dict.fromkeys(reasons))[:_MOST_REASONS],
        error="" if reply.proposals else _why_empty(answer, reply),
    )


def _conversation(call: Call, ending: str, text: str) -> str:
    parts = [*((message["role"], message["content"]) for message in call.messages), (ending, text)]
    return "\n\n".join(f"===== {role} =====\n{content}" for role, content in parts) + "\n"


def _why_empty(answer: Answer, reply: Reply) -> str:
    if reply.rejections:
        return f"all {len(reply.rejections)} proposals were rejected: {reply.rejections[0].reason[:_SHOWN_REASON]}"
    cut = " (it was cut off at the limit of tokens)" if answer.finish == "length" else ""
    return f"the reply holds no proposal{cut}"


def _next_call(call: Call, answer: Answer, reply: Reply) -> Call | None:
    """One follow-up where less than half of what the model proposed can be measured."""
    if call.kind == "follow-up" or len(reply.proposals) > len(reply.rejections):
        return None
    if len(reply.proposals) == len(reply.rejections) and reply.proposals:
        return None
    missing = max(1, call.wanted - len(reply.proposals))
    reasons = [_shown(rejection) for rejection in reply.rejections] or ["the reply held no JSON object with proposals"]
    least, most = _SHOWN_REPLY
    request = _length(follow_up((), "", reasons, missing))
    room = call.briefing.max_tokens * CHARACTERS_PER_TOKEN - request
    if room - _length(call.messages) < least:
        call = call.within((room - least) // CHARACTERS_PER_TOKEN)
    shown = answer.text[: min(most, max(least, room - _length(call.messages)))]
    messages = follow_up(call.messages, shown, reasons, missing)
    return replace(call, id=f"{call.id}f", kind="follow-up", messages=tuple(messages), wanted=missing)


def _shown(rejection: Rejection) -> str:
    return f"{dict(rejection.configuration)!r:.300}: {rejection.reason[:_SHOWN_REASON]}"


def _name(model: ChatModel) -> str:
    try:
        return str(model.name)
    except Exception:  # noqa: BLE001 - a name is not worth a study
        return type(model).__name__


def _in_time(ask: Callable[[], Answer], timeout_s: float) -> Answer:
    """The answer, or an error once the time is over: a server that sends a byte a second never times out by itself."""
    outcome: list[Answer | BaseException] = []

    def run() -> None:
        try:
            outcome.append(ask())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            outcome.append(error)

    thread = threading.Thread(target=run, name="llm-sampler-call", daemon=True)
    thread.start()
    thread.join(timeout_s + _GRACE_S)
    if not outcome:
        raise UnreachableError(f"no reply within {round(timeout_s, 2):g} s")
    answer = outcome[0]
    if isinstance(answer, BaseException):
        raise answer
    if not isinstance(answer, Answer):
        raise TypeError(f"a chat model must return an Answer, got {type(answer).__name__}")
    return answer
