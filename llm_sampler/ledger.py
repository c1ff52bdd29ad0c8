"""`Ledger`: finished trials as the policy and the local source see them, extended as trials finish."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import LLM, PROPOSED_BY
from llm_sampler.memory import StudyMemory
from llm_sampler.policy import Step
from llm_sampler.search_space import Position


class Ledger:
    """Steps of a study with one objective; with several, costs are unknown.

    Attributes:
        steps: Finished trials in the order in which they were noticed.
        started: Whether a trial of the model has finished.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.started = False
        self._costs: list[tuple[float, int]] = []  # cost and index in the memory's finished trials

    def update(self, memory: StudyMemory, directions: Sequence[StudyDirection], sources: Mapping[str, str]) -> None:
        """Add the trials that have finished since.

        Args:
            memory: The study's, refreshed.
            directions: Of the objectives.
            sources: From ``proposed_by`` to the policy's names.
        """
        for index in range(len(self.steps), len(memory.finished)):
            trial = memory.finished[index]
            proposed_by = trial.user_attrs.get(PROPOSED_BY, "")
            cost = _cost(trial, directions)
            self.steps.append(Step(sources.get(proposed_by, proposed_by), cost))
            self.started |= proposed_by == LLM
            if cost is not None:
                self._costs.append((cost, index))

    def best_positions(self, memory: StudyMemory, most: int) -> list[Position]:
        """Positions of the best trials, best first."""
        space = memory.space
        if space is None:
            return []
        best = heapq.nsmallest(most, self._costs)
        found = (space.position(memory.finished[index].params) for _, index in best)
        return [position for position in found if position is not None]


def _cost(trial: FrozenTrial, directions: Sequence[StudyDirection]) -> float | None:
    """The value, lower is better; None if the trial failed, breaks a constraint, or has several values."""
    if trial.state != TrialState.COMPLETE or len(directions) != 1 or not trial.values:
        return None
    value = float(trial.values[0])
    if not math.isfinite(value) or any(violation > 0 for violation in trial.constraints.values()):
        return None
    return -value if directions[0] == StudyDirection.MAXIMIZE else value
