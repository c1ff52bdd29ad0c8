"""What calls to a language model have cost a study, summed from its trials; and reservations, so that limits hold.

A worker reserves a call on its own trial before it makes it, then counts; who finds too many withdraws. The last of
several that reserve at once sees all others, so the limit is never exceeded (but a call may be left unused).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llm_sampler.attributes import CALLS, RESERVED

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

UNDER_WAY = "the reply is under way"


@dataclass(frozen=True)
class CallRecord:
    """What became of one call.

    Attributes:
        id: Identifier, as `attributes.CALL` on the trials that it proposed.
        kind: ``opening``, ``refinement`` or ``follow-up``.
        model: The model that answered.
        prompt_tokens: Tokens of the request, 0 if unknown.
        completion_tokens: Tokens of the reply, 0 if unknown.
        seconds: How long it took.
        proposals: How many passed the checks.
        rejected: How many did not.
        reasons: The first few reasons.
        error: Why there was no reply, empty if there was one.
        conversation: Request and reply as text for people; not part of the JSON, which lies in an attribute.
    """

    id: str
    kind: str
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    proposals: int = 0
    rejected: int = 0
    reasons: tuple[str, ...] = ()
    error: str = ""
    conversation: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON types, without what is empty."""
        data = {**asdict(self), "reasons": list(self.reasons), "seconds": round(self.seconds, 3), "conversation": ""}
        return {name: value for name, value in data.items() if value not in ("", [], 0)}


@dataclass(frozen=True)
class Limits:
    """The most that a study may spend on a language model, over all its workers; None: no limit.

    Attributes:
        calls: Calls.
        tokens: Tokens of requests and replies.
        seconds: Seconds of calls.
    """

    calls: int | None = None
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Spending:
    """What has been spent or reserved.

    Attributes:
        calls: Calls.
        tokens: Tokens; of a call whose outcome is not known yet what was estimated for it.
        seconds: Seconds of the calls whose outcome is known.
    """

    calls: int
    tokens: int
    seconds: float

    def exceeds(self, limits: Limits) -> str:
        """Which limit is exceeded, in words; empty if none is."""
        if limits.calls is not None and self.calls > limits.calls:
            return f"the budget of {limits.calls} calls is used up"
        if limits.tokens is not None and self.tokens > limits.tokens:
            return f"the budget of {limits.tokens} tokens is used up"
        if limits.seconds is not None and self.seconds >= limits.seconds:
            return f"the budget of {limits.seconds:g} seconds of calls is used up"
        return ""


def spending(trials: Iterable[FrozenTrial]) -> Spending:
    """What the trials say was spent and reserved."""
    estimates: dict[str, int] = {}
    actual: dict[str, int] = {}
    seconds = 0.0
    for trial in trials:
        for reserved in trial.system_attrs.get(RESERVED, ()):
            estimates[reserved["id"]] = reserved["tokens"]
        for record in trial.user_attrs.get(CALLS, ()):
            actual[record["id"]] = record.get("prompt_tokens", 0) + record.get("completion_tokens", 0)
            seconds += record.get("seconds", 0.0)
    tokens = sum({**estimates, **actual}.values())
    return Spending(len(estimates | actual), tokens, seconds)


def reserve(
    study: optuna.Study,
    trial: FrozenTrial,
    call: str,
    tokens: int,
    limits: Limits,
    is_under_way: Callable[[], bool] = lambda: False,
) -> str:
    """Reserve a call on a running trial. Of several workers that do so at once one may make its call, or none.

    Args:
        study: The study.
        trial: The trial that pays for it.
        call: The call's identifier.
        tokens: How many it will take at most, estimated.
        limits: The study's.
        is_under_way: Whether another worker's call is, looked up anew.

    Returns:
        Why it may not be made, empty if it may.
    """
    if is_under_way():
        return UNDER_WAY
    trials = study._get_trials(deepcopy=False, use_cache=False)
    before: list[dict[str, Any]] = next(
        (t.system_attrs.get(RESERVED, []) for t in trials if t.number == trial.number), []
    )
    wanted = [*before, {"id": call, "tokens": tokens}]
    spent = spending(trials)
    refusal = Spending(spent.calls + 1, spent.tokens + tokens, spent.seconds).exceeds(limits)
    if refusal:
        return refusal
    study._storage.set_trial_system_attr(trial._trial_id, RESERVED, wanted)
    refusal = spending(study._get_trials(deepcopy=False, use_cache=False)).exceeds(limits)
    if not refusal and is_under_way():
        refusal = UNDER_WAY
    if refusal:
        study._storage.set_trial_system_attr(trial._trial_id, RESERVED, before)
    return refusal
