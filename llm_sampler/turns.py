"""`StudyTurns`: one study as an `LLMSampler` deals with it: whose turn a trial is, and what each source proposes."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from llm_sampler.advisor import Advisor, Settings
from llm_sampler.attributes import DEFAULT, INDEPENDENT, LLM, LOCAL, PROPOSED_BY
from llm_sampler.budget import UNDER_WAY, CallRecord
from llm_sampler.client import ChatModel
from llm_sampler.distinct import DistinctSampler
from llm_sampler.history import rows_of
from llm_sampler.independent import Independent
from llm_sampler.ledger import Ledger
from llm_sampler.local import from_neighbours
from llm_sampler.memory import StudyMemory, fixed_values
from llm_sampler.notes import note_proposal, tag
from llm_sampler.policy import MODEL_BASED, SOURCES, choose, opening_source, shares
from llm_sampler.prompt import Briefing
from llm_sampler.reply import Proposal
from llm_sampler.search_space import Position, SearchSpace
from llm_sampler.shared_calls import publish
from llm_sampler.task import Task

UNKNOWN_SPACE = "the space is unknown until a trial has finished"
_LOCAL_ORIGINS = 3
# How often a worker looks whether another's call has ended.
_LOOK_S = 0.4
# A batch, its follow-up, and another batch where all of the first was taken meanwhile.
_MOST_CALLS_A_TURN = 3
# A model whose share is smaller is asked when its turn comes.
_PREFETCH_SHARE = 0.05


@dataclass(frozen=True)
class Turn:
    """What came of the model's turn.

    Attributes:
        values: The proposal, None if there is none.
        reason: Why there is none.
        failed: Whether the model is to blame, rather than the moment.
    """

    values: dict[str, Any] | None
    reason: str = ""
    failed: bool = True


class StudyTurns:
    """What an `LLMSampler` knows and does about one study.

    Args:
        distinct: The fallback, which also knows what is taken.
        model: The model, None if there is none.
        settings: How it is asked.
        task: What to tell the model, None for the study's own.

    Attributes:
        warned: Whether the user has been told that the model does not propose.
    """

    def __init__(
        self, distinct: DistinctSampler, model: ChatModel | None, settings: Settings, task: Task | None
    ) -> None:
        self.warned = False
        self._distinct = distinct
        self._settings = settings
        self._task = task
        self._advisor = None if model is None else Advisor(model, settings)
        self._ledger = Ledger()
        self._sources = {LLM: LLM, LOCAL: LOCAL, INDEPENDENT: INDEPENDENT, distinct.base_name: MODEL_BASED}
        self._independent = Independent(distinct, self._is_independent)
        self._default_is_due = True

    def conditional_space(self, study: optuna.Study) -> dict[str, BaseDistribution]:
        """Parameters that a proposal may give where the space changes from trial to trial."""
        with self._distinct.lock:
            memory = self._distinct.memory(study)
            if memory.space is not None:
                return {}
            return {n: d for n, d in memory.seen_distributions.items() if not d.single()}

    def next_source(self, study: optuna.Study, trial: FrozenTrial, *, without_model: bool = False) -> str:
        """Whose turn it is: the model's until its opening is measured, then the policy's choice."""
        with self._distinct.lock:
            memory = self._update(study, trial)
            if not self._ledger.started and not (self._advisor and self._advisor.answered):
                return MODEL_BASED if without_model else LLM
            source = opening_source(self._ledger.steps) if self._opening_is_queued() else None
            if source is not None and not (without_model and source == LLM):
                return source
            available = set(SOURCES) - ({LLM} if without_model else set())
            if not self._ledger.best_positions(memory, 1):
                available -= {LOCAL}
            weights = shares(self._ledger.steps, llm_share=self._settings.llm_share)
            draw = self._distinct.rng(trial, 2 + without_model).random()
            return choose(weights, available, draw)

    def _opening_is_queued(self) -> bool:
        return bool(self._advisor and self._advisor.queue and self._advisor.is_opening)

    def from_model(self, study: optuna.Study, trial: FrozenTrial, wanted: Mapping[str, BaseDistribution]) -> Turn:
        """A proposal of the model, claimed and noted."""
        advisor = self._advisor
        assert advisor is not None
        calls, until = 0, time.monotonic() + self._settings.timeout_s
        while calls <= _MOST_CALLS_A_TURN:
            with self._distinct.lock:
                memory = self._update(study, trial)
                self._collect(study, trial)
                advisor.drop_stale(trial.number, self._incumbent(memory))
                due = advisor.follow_up_is_due and advisor.breaker.allows(trial.number)
                if not due and (values := self._from_queue(memory, study, trial, wanted)) is not None:
                    return Turn(values)
                if self._space(memory) is None:
                    return Turn(None, UNKNOWN_SPACE, failed=False)
                opening = not self._ledger.started and (not advisor.answered or due)
                refusal = self._request(memory, study, trial, opening)
                elsewhere = refusal == UNDER_WAY
                waits = self._settings.waits(opening=opening, healthy=advisor.breaker.healthy)
                if not waits or (refusal and not (elsewhere and time.monotonic() < until)):
                    if due and (values := self._from_queue(memory, study, trial, wanted)) is not None:
                        return Turn(values)
                    return Turn(None, refusal or UNDER_WAY, failed=refusal not in ("", UNDER_WAY))
            if elsewhere:
                time.sleep(_LOOK_S * (0.5 + random.SystemRandom().random()))  # not all workers at the same moment
                with self._distinct.lock:
                    memory.refresh(study, trial.number)
            else:
                advisor.wait()
                calls += 1
        return Turn(None, "all its proposals were taken meanwhile")

    def prefetch(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Ask for the next batch while others' trials are measured, if the queue is empty and the model is trusted."""
        advisor = self._advisor
        if advisor is None or self._settings.wait == "always":
            return
        with self._distinct.lock:
            memory = self._update(study, trial)
            self._collect(study, trial)
            if self._space(memory) is None:
                return
            wanted = self._ledger.started and advisor.answered and not advisor.queue and advisor.breaker.healthy
            if wanted and shares(self._ledger.steps, llm_share=self._settings.llm_share)[LLM] >= _PREFETCH_SHARE:
                self._request(memory, study, trial, opening=False)

    def _request(self, memory: StudyMemory, study: optuna.Study, trial: FrozenTrial, opening: bool) -> str:
        """See to it that a call is under way; why there is none."""
        space = self._space(memory)
        assert self._advisor is not None
        assert space is not None
        briefing = functools.partial(self._briefing, study, memory, space, opening)
        taken = functools.partial(_taken, memory, space)
        is_under_way = functools.partial(self._is_under_way, memory, study, trial)
        return self._advisor.request(study, trial, briefing, taken, self._incumbent(memory), is_under_way)

    def _is_under_way(self, memory: StudyMemory, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a call of another worker is, or has just brought something."""
        known = self._advisor.known if self._advisor is not None else set()
        memory.refresh(study, trial.number)
        return memory.calls.under_way(known, self._settings.timeout_s) or bool(memory.calls.offers.keys() - known)

    def _collect(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Take over what a call from here brought, and offer it to the other workers."""
        assert self._advisor is not None
        self._advisor.collect(trial.number)
        if offers := self._advisor.take_offers():
            publish(study, trial, offers)

    def _incumbent(self, memory: StudyMemory) -> Position | None:
        return next(iter(self._ledger.best_positions(memory, 1)), None)

    def from_other(
        self, source: str, study: optuna.Study, trial: FrozenTrial, wanted: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A proposal of another source, claimed and noted."""
        if source == LOCAL:
            with self._distinct.lock:
                best = self._ledger.best_positions(self._update(study, trial), _LOCAL_ORIGINS)
                values = from_neighbours(self._distinct, study, trial, wanted, best)
            if values is not None:
                tag(study, trial, PROPOSED_BY, LOCAL)
                return values
        if source == INDEPENDENT:
            values = self._independent.propose(study, trial, wanted)
            tag(study, trial, PROPOSED_BY, INDEPENDENT)
            return values
        return self.from_fallback(study, trial, wanted)

    def from_fallback(
        self, study: optuna.Study, trial: FrozenTrial, wanted: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A proposal of the fallback sampler, claimed and noted."""
        if self._distinct.memory(study).space is None:
            own = self._distinct.infer_relative_search_space(study, trial)
            wanted = {name: distribution for name, distribution in wanted.items() if name in own}
        return self._distinct.sample_relative(study, trial, dict(wanted))

    def take_records(self) -> list[CallRecord]:
        """Outcomes of calls that no trial has noted yet."""
        with self._distinct.lock:
            return [] if self._advisor is None else self._advisor.take_records()

    def _update(self, study: optuna.Study, trial: FrozenTrial) -> StudyMemory:
        memory = self._distinct.memory(study)
        memory.look(study, trial.number)
        self._ledger.update(memory, study.directions, self._sources)
        if self._advisor is not None:
            self._advisor.accept(memory.calls.offers, trial.number, self._incumbent(memory))
        return memory

    def _space(self, memory: StudyMemory) -> SearchSpace | None:
        if memory.space is not None:
            return memory.space
        return SearchSpace(memory.seen_distributions) if memory.seen_distributions else None

    def _briefing(self, study: optuna.Study, memory: StudyMemory, space: SearchSpace, opening: bool) -> Briefing:
        task = self._task or memory.task
        return Briefing(
            space=space,
            rows=rows_of(memory.finished, task.outcome if task else ""),
            directions=study.directions,
            batch_size=self._settings.batch_size if opening else max(1, self._settings.batch_size // 2),
            max_tokens=self._settings.max_prompt_tokens,
            task=task,
            default=self._default(memory),
            opening=opening,
            partial=memory.space is None,
        )

    def _default(self, memory: StudyMemory) -> dict[str, Any] | None:
        task = self._task or memory.task
        return None if task is None else task.space.default

    def _from_queue(
        self, memory: StudyMemory, study: optuna.Study, trial: FrozenTrial, wanted: Mapping[str, BaseDistribution]
    ) -> dict[str, Any] | None:
        assert self._advisor is not None
        queue = self._advisor.queue
        fixed = {name: value for name, value in fixed_values(study, trial).items() if name not in wanted}
        if queue and self._default_is_due:
            # Everybody's comparison, and the model's: measured before its own first proposals.
            self._default_is_due = False
            if (default := self._default(memory)) is not None and not self._ledger.started:
                queue.appendleft(Proposal(default, rationale="the default configuration"))
        while queue:
            proposal = queue.popleft()
            values = {**proposal.configuration, **fixed}
            if self._distinct.claim(study, trial, values):
                is_default = not proposal.call
                note_proposal(study, trial, replace(proposal, configuration=values), DEFAULT if is_default else LLM)
                return {name: values[name] for name in wanted if name in values}
        return None

    def _is_independent(self, trial: FrozenTrial) -> bool:
        """Whether a trial does not follow from the model's proposals."""
        proposed_by = trial.user_attrs.get(PROPOSED_BY)
        return proposed_by not in (LLM, LOCAL, self._distinct.base_name)


def _taken(memory: StudyMemory, space: SearchSpace, configuration: Mapping[str, Any]) -> str:
    position = space.position(configuration)
    number = None if position is None else memory.taker(position)
    return "" if number is None else f"trial {number} has it already"
