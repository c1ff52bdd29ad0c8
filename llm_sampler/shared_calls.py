"""`SharedCalls`: the model's calls of all workers of a study, as its trials tell of them; one call at a time, for all.

A worker reserves a call on its trial (``budget``) and makes it only if no other is under way; it offers what the reply
held on its trial, too, and every worker takes from that: claims keep two from taking the same. A call is under way from
its reservation until an outcome, an offer or its time limit, or until the trial fails with its worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from llm_sampler.attributes import CALLS, OFFERS, RESERVED
from llm_sampler.reply import Proposal

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

# MySQL's TEXT holds 65,535 bytes.
_MOST_BYTES = 60_000


@dataclass(frozen=True)
class Offer:
    """What a call brought.

    Attributes:
        call: Identifier of the call.
        opening: Whether it was the study's opening.
        proposals: Checked, in order of merit.
        trial: Number of the trial that offers it.
    """

    call: str
    opening: bool
    proposals: tuple[Proposal, ...]
    trial: int


class SharedCalls:
    """What a worker knows of calls.

    Attributes:
        offers: By the calls' identifiers.
    """

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}
        self._ended: set[str] = set()
        self._of_finished: set[str] = set()
        self._of_running: set[str] = set()
        self._first_seen_s: dict[str, float] = {}

    def look_anew(self) -> None:
        """Trials that run will be noted again, without what they have withdrawn."""
        self._of_running = set()

    def note(self, trial: FrozenTrial) -> None:
        """What a trial tells."""
        reserved = {str(one["id"]) for one in trial.system_attrs.get(RESERVED, ())}
        self._ended |= {str(one["id"]) for one in trial.user_attrs.get(CALLS, ())}
        for data in trial.system_attrs.get(OFFERS, ()):
            if data["call"] not in self.offers:
                self.offers[data["call"]] = _offer(data, trial.number)
                self._ended.add(data["call"])
        if not reserved:
            return
        if trial.state == TrialState.FAIL:
            self._ended |= reserved
        elif trial.state.is_finished():
            self._of_finished |= reserved
        else:
            self._of_running |= reserved
        for call in reserved:
            self._first_seen_s.setdefault(call, time.monotonic())

    def under_way(self, own: Collection[str], timeout_s: float) -> bool:
        """Whether another worker's call is, which may take so long from when it was first seen here."""
        self._of_finished -= self._ended
        since = time.monotonic() - timeout_s
        others = (self._of_finished | self._of_running) - self._ended
        return any(call not in own and self._first_seen_s[call] > since for call in others)


def publish(study: optuna.Study, trial: FrozenTrial, offers: Sequence[Offer]) -> None:
    """Offer proposals to all workers on a running trial; as many as an attribute holds."""
    data = [_json(offer) for offer in offers]
    while len(json.dumps(data)) > _MOST_BYTES:
        longest = max(data, key=lambda one: len(one["proposals"]))
        longest["proposals"].pop()
    study._storage.set_trial_system_attr(trial._trial_id, OFFERS, data)


def _json(offer: Offer) -> dict[str, Any]:
    proposals = [
        {"configuration": dict(p.configuration), "rationale": p.rationale, "family": p.family, "changes": p.changes}
        for p in offer.proposals
    ]
    return {"call": offer.call, "opening": offer.opening, "proposals": proposals}


def _offer(data: dict[str, Any], trial: int) -> Offer:
    proposals = tuple(
        Proposal(p["configuration"], p["rationale"], p["family"], data["call"], tuple(p["changes"]))
        for p in data["proposals"]
    )
    return Offer(data["call"], data["opening"], proposals, trial)
