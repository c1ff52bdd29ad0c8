"""Where a study's configurations came from, and what became of those that failed. Times in ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna

from llm_sampler.attributes import ARCHIVE, LLM, MODEL
from llm_sampler.studies.records import TrialRecord


@dataclass(frozen=True)
class Failure:
    """Configurations that failed for one cause: the status, how many, and the first of them."""

    status: str
    count: int
    example: TrialRecord
    detail: str


@dataclass(frozen=True)
class Proposer:
    """What came of one source's proposals.

    Attributes:
        name: ``llm``, ``tpe``, ``default``, ``archive``, ``user`` or another; ``unknown`` where it was not recorded.
        measured: Its measured configurations.
        failed: Those without a time.
        best_ms: Least time; None if all failed.
        share: Of all measured configurations.
    """

    name: str
    measured: int
    failed: int
    best_ms: float | None
    share: float


@dataclass(frozen=True)
class LLMUse:
    """What an LLM cost and brought.

    Attributes:
        model: Name of the model that answered last; empty if none did.
        calls: Calls, failed ones included.
        failed: Calls without a usable reply, by reason.
        tokens: Prompts and replies together.
        seconds: Length of all calls together.
        share: Of the measured configurations, those it proposed.
        fallbacks: How many trials fell back, by reason.
    """

    model: str
    calls: int
    failed: Mapping[str, int]
    tokens: int
    seconds: float
    share: float
    fallbacks: Mapping[str, int]


def failures_of(done: Sequence[TrialRecord]) -> tuple[Failure, ...]:
    """The failures of measured trials, the most frequent cause first."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in done:
        if not record.ok:
            groups.setdefault(record.status, []).append(record)
    found = [
        Failure(status, len(group), group[0], group[0].measurement.detail if group[0].measurement else "")
        for status, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda failure: -failure.count))


def proposers_of(done: Sequence[TrialRecord]) -> tuple[Proposer, ...]:
    """Who proposed the measured trials, the most first."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in done:
        groups.setdefault(record.proposed_by or "unknown", []).append(record)
    found = [
        Proposer(
            name=name,
            measured=len(group),
            failed=sum(not record.ok for record in group),
            best_ms=min((record.median_ms for record in group if record.median_ms is not None), default=None),
            share=len(group) / len(done),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda proposer: (-proposer.measured, proposer.name)))


def llm_use_of(study: optuna.Study, records: Sequence[TrialRecord], done: Sequence[TrialRecord]) -> LLMUse:
    """What the LLM did: calls are summed over all trials, shares over the measured ones."""
    calls = [call for record in records for call in record.llm_calls]
    return LLMUse(
        model=str(study.user_attrs.get(MODEL) or ""),
        calls=len(calls),
        failed=Counter(call.error for call in calls if call.error),
        tokens=sum(call.tokens for call in calls),
        seconds=sum(call.seconds for call in calls),
        share=sum(record.proposed_by == LLM for record in done) / len(done) if done else 0.0,
        fallbacks=Counter(record.fallback for record in done if record.fallback and record.proposed_by != ARCHIVE),
    )
