"""The search for one free configuration: draws of the base sampler first, then the nearest free one.

Free is what is allowed and no other trial has. Distances are counted in parameters that differ: a categorical parameter
has no other metric, and TPE treats its choices alike too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.samplers import RandomSampler

from llm_sampler import claim
from llm_sampler.draw import draws_uniformly, joint_draw
from llm_sampler.search_space import random_number

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from llm_sampler.memory import StudyMemory
    from llm_sampler.search_space import Position, SearchSpace

# Without a table, free configurations around a draw are found by chance: at 200 attempts one is missed with a
# probability under 0.1 % where 4 % of the neighbourhood is free.
_ATTEMPTS = 200
# A draw of TPE takes about 10 ms after 1,000 trials; where the nearest free configuration can be looked up, redraws end
# once they would take more than 4 ms together. The limit is in trials, not in time, so that a seed decides everything.
_REDRAWS_TIMES_TRIALS = 400


@dataclass(frozen=True)
class Turn:
    """A trial whose turn it is to get a configuration.

    Attributes:
        study: The study.
        trial: The trial.
        memory: What is known of the study.
        space: Its space.
        base: The sampler that draws.
        wanted: Distributions of the parameters to give values to.
        fixed: Values of the space's other parameters.
        rng: Source of what is random beside the base sampler.
        redraws: How often to draw again.
    """

    study: optuna.Study
    trial: FrozenTrial
    memory: StudyMemory
    space: SearchSpace
    base: BaseSampler
    wanted: Mapping[str, BaseDistribution]
    fixed: Mapping[str, Any]
    rng: np.random.Generator
    redraws: int

    def draw(self) -> dict[str, Any]:
        """A draw of the base sampler, wanted parameters only."""
        return joint_draw(self.base, self.study, self.trial, self.wanted)

    def take(self, position: Position) -> bool:
        """Claim a position if it is allowed and nobody has it."""
        if self.memory.taker(position) is not None or not self.space.allows(self.space.configuration(position)):
            return False
        return claim.take(self.memory, self.space, self.study, self.trial, position)


def find_free(turn: Turn) -> dict[str, Any] | None:
    """Values of the wanted parameters that make a free configuration, claimed; None if there is none.

    Where the space has no table there is always another configuration; after many attempts the last draw is returned,
    taken or not.
    """
    last: dict[str, Any] = {}
    position: Position | None = None
    if not _is_uniform(turn):
        for _ in range(1 + _affordable(turn)):
            last, previous = turn.draw(), position
            position = turn.space.position({**last, **turn.fixed})
            if position is None:
                return last  # a fixed value lies outside the space: the user wants something of their own
            if turn.take(position):
                return _chosen(turn, position, last)
            if position == previous:
                break  # a deterministic sampler will not answer otherwise
    for candidate in free_positions(turn, position):
        if turn.take(candidate):
            return _chosen(turn, candidate, last or dict(turn.space.configuration(candidate)))
    return None if turn.space.table is not None else last


def _affordable(turn: Turn) -> int:
    """How often to draw again."""
    if turn.space.table is None or isinstance(turn.base, RandomSampler):
        return turn.redraws
    return min(turn.redraws, _REDRAWS_TIMES_TRIALS // max(1, len(turn.memory.finished)))


def _is_uniform(turn: Turn) -> bool:
    """Whether the base's draws, again and again until one is free, equal one uniform draw of the free ones."""
    return (
        turn.space.table is not None
        and turn.wanted.keys() <= turn.space.distributions.keys()
        and draws_uniformly(turn.base, len(turn.memory.finished), turn.wanted)
    )


def _chosen(turn: Turn, position: Position, drawn: Mapping[str, Any]) -> dict[str, Any]:
    values = {**drawn, **turn.space.configuration(position)}
    return {name: values[name] for name in turn.wanted}


def free_positions(turn: Turn, near: Position | None) -> Iterator[Position]:
    """Free positions with the turn's fixed values, nearest to ``near`` first, at random among equals.

    Uniformly at random where ``near`` is None. Other workers may take them meanwhile.
    """
    table = turn.space.table
    free = turn.memory.free_rows()
    if table is None or free is None:
        yield from _mutations(turn, near)
        return
    for column, name in enumerate(turn.space.names):
        if name in turn.fixed:
            number = turn.space.number(name, turn.fixed[name])
            free &= table.rows[:, column] == (-1 if number is None else int(number))
    candidates = np.flatnonzero(free)
    distances = np.zeros(len(candidates), int)
    if near is not None:
        distances = table.distances(near)[candidates]
    while len(candidates):
        nearest = np.flatnonzero(distances == distances.min())
        chosen = int(turn.rng.choice(nearest))
        yield table.position(int(candidates[chosen]))
        candidates, distances = np.delete(candidates, chosen), np.delete(distances, chosen)


def _mutations(turn: Turn, near: Position | None) -> Iterator[Position]:
    """Configurations that differ from ``near`` in few parameters, ever more as attempts go on."""
    origin = near if near is not None else turn.space.position({**turn.draw(), **turn.fixed})
    names = [name for name in turn.space.names if name in turn.wanted]
    if origin is None or not names:
        return
    columns = {name: column for column, name in enumerate(turn.space.names)}
    for attempt in range(_ATTEMPTS):
        count = 1 + attempt * len(names) // _ATTEMPTS
        position = list(origin)
        for name in turn.rng.choice(names, size=count, replace=False):
            position[columns[str(name)]] = random_number(turn.space, str(name), turn.rng)
        yield tuple(position)
