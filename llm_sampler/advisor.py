"""`Advisor`: one study's conversation with a language model, within one process: calls under way, and the queue.

Not thread-safe by itself: the sampler's lock is held around everything but `Advisor.wait`.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from llm_sampler.breaker import Breaker
from llm_sampler.budget import CallRecord, Limits, reserve
from llm_sampler.client import ChatModel, redact
from llm_sampler.fetch import Batch, Call, fetch, first_call
from llm_sampler.prompt import Briefing, PromptBuilder
from llm_sampler.reply import Proposal
from llm_sampler.search_space import Position
from llm_sampler.shared_calls import Offer

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Settings:
    """How a model is asked.

    Attributes:
        batch_size: Configurations in the opening; later batches have half as many.
        llm_share: The model's share of trials after the opening.
        limits: The study's budget.
        timeout_s: Seconds that a call may take.
        wait: When a trial waits for a reply.
        max_prompt_tokens: Limit of a request.
        builder: Makes the messages.
    """

    batch_size: int
    llm_share: float
    limits: Limits
    timeout_s: float
    wait: Literal["first", "always", "never"]
    max_prompt_tokens: int
    builder: PromptBuilder

    def waits(self, *, opening: bool, healthy: bool) -> bool:
        """Whether a trial waits for the reply that is under way."""
        return self.wait == "always" or (self.wait == "first" and opening and healthy)


class Advisor:
    """Asks the model, at most one call at a time, and keeps what it proposed.

    Args:
        model: The model.
        settings: How it is asked.

    Attributes:
        queue: Proposals not yet measured, the best first.
        breaker: When the model may be asked.
        answered: Whether any call has brought proposals.
        is_opening: Whether the queue's proposals are of the first batch.
        known: Identifiers of own calls, and of those whose offers were accepted.
    """

    def __init__(self, model: ChatModel, settings: Settings) -> None:
        self.queue: deque[Proposal] = deque()
        self.breaker = Breaker()
        self.answered = False
        self.is_opening = False
        self.known: set[str] = set()
        self._model = model
        self._settings = settings
        self._records: list[CallRecord] = []
        self._offers: list[Offer] = []
        self._has_news = False
        self._follow_up: Call | None = None
        self._done: threading.Event | None = None
        self._batch: Batch | None = None
        self._opening = True
        self._arrived_at = 0
        self._asked_about: Position | None = None
        self._most_tokens = settings.max_prompt_tokens
        self._most_wanted = settings.batch_size

    def request(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        briefing: Callable[[], Briefing],
        taken: Callable[[Mapping[str, Any]], str],
        incumbent: Position | None,
        is_under_way: Callable[[], bool],
    ) -> str:
        """See to it that a call is under way.

        Args:
            study: The study.
            trial: The trial that pays for the call.
            briefing: What to tell; called only if a call is made.
            taken: Says why a configuration is not wanted.
            incumbent: Position of the best trial.
            is_under_way: Whether another worker's call is, looked up anew.

        Returns:
            Why there is none, empty if there is; `UNDER_WAY` where it is another worker's.
        """
        if self._done is not None:
            return ""
        if not self.breaker.allows(trial.number):
            return self.breaker.reason
        call = self._follow_up
        if call is None:
            told = briefing()
            told = replace(
                told,
                max_tokens=min(told.max_tokens, self._most_tokens),
                batch_size=min(told.batch_size, self._most_wanted),
            )
            try:
                call = first_call(f"{trial.number}-{uuid.uuid4().hex[:6]}", told, self._settings.builder)
            except Exception as error:  # noqa: BLE001 - a prompt builder is the user's own, a study goes on without it
                self.breaker.failed(f"the prompt builder failed: {type(error).__name__}: {error}")
                return self.breaker.reason
            self._asked_about = None if told.opening else incumbent
            self._opening = told.opening
        self.known.add(call.id)
        if refusal := reserve(study, trial, call.id, call.tokens, self._settings.limits, is_under_way):
            return refusal
        self._follow_up = None
        self._start(call, taken)
        return ""

    def _start(self, call: Call, taken: Callable[[Mapping[str, Any]], str]) -> None:
        done = self._done = threading.Event()

        def run() -> None:
            try:
                self._batch = fetch(self._model, call, timeout_s=self._settings.timeout_s, taken=taken)
            except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for good
                record = CallRecord(call.id, call.kind, error=redact(f"{type(error).__name__}: {error}"))
                self._batch = Batch(record, answered=False)
            done.set()

        threading.Thread(target=run, name="llm-sampler-fetch", daemon=True).start()

    def wait(self) -> None:
        """Wait for the call that is under way; its own time limit ends it. Without the lock."""
        if (done := self._done) is not None:
            done.wait()

    def collect(self, trial_number: int) -> None:
        """Take over the outcome of a call that has ended.

        Raises:
            TranscriptError: A replay lacks the reply.
        """
        if self._done is None or not self._done.is_set() or self._batch is None:
            return
        batch, self._batch, self._done = self._batch, None, None
        if batch.fatal is not None:
            raise batch.fatal
        self._records.append(batch.record)
        self._follow_up = batch.follow_up
        if batch.most_tokens is not None:
            self._most_tokens = min(self._most_tokens, batch.most_tokens)
        if batch.proposals:
            self.queue.extend(batch.proposals)
            self._arrived_at = trial_number
            self.is_opening = self._opening
            offer = Offer(batch.record.id, self._opening, batch.proposals, trial_number)
            self._offers = [*(one for one in self._offers if one.trial == trial_number), offer]
            self._has_news = True
            self.breaker.succeeded()
            self.answered = True
            if batch.record.seconds < self._settings.timeout_s / 3:
                self._most_wanted = min(self._settings.batch_size, 2 * self._most_wanted)
        elif batch.answered and batch.follow_up is None:
            self.breaker.useless(batch.record.error, trial_number)
        elif not batch.answered:
            if batch.slow:  # a machine without a GPU writes a dozen words a second
                self._most_wanted = max(1, self._most_wanted // 2)
            self.breaker.failed(batch.record.error, batch.retry_after_s)

    def take_offers(self) -> list[Offer]:
        """What calls from here brought in the last trial that got anything, once; for the other workers."""
        has_news, self._has_news = self._has_news, False
        return self._offers if has_news else []

    def accept(self, offers: Mapping[str, Offer], trial_number: int, incumbent: Position | None) -> None:
        """Queue what calls of other workers brought, unless it is too old to be of use."""
        for call in offers.keys() - self.known:
            self.known.add(call)
            self.answered = True
            if trial_number - offers[call].trial <= 3 * self._settings.batch_size:
                self.queue.extend(offers[call].proposals)
                self.is_opening = offers[call].opening
                self._asked_about = None if self.is_opening else incumbent
                self._arrived_at = trial_number

    def drop_stale(self, trial_number: int, incumbent: Position | None) -> None:
        """Forget proposals of a later batch once what it was made from is out of date.

        That is when three times as many trials have begun since it arrived as an opening has, or when the incumbent now
        differs in two parameters or more from the one that it was asked about. Trials that were made while the model
        thought do not count: where they are fast, every reply would be thrown away.
        """
        if self._asked_about is None or incumbent is None:
            return
        moved = sum(a != b for a, b in zip(self._asked_about, incumbent, strict=True))
        if trial_number - self._arrived_at > 3 * self._settings.batch_size or moved >= 2:
            self.queue.clear()

    @property
    def follow_up_is_due(self) -> bool:
        """Whether the last reply was poor, and the model has not been told why yet."""
        return self._follow_up is not None

    def take_records(self) -> list[CallRecord]:
        """The outcomes that no trial has noted yet, which the caller notes."""
        records, self._records = self._records, []
        return records
