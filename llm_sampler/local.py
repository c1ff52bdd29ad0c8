"""The local source: configurations that differ in one parameter from one of the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import CategoricalDistribution

from llm_sampler.memory import fixed_values
from llm_sampler.search_space import Position, SearchSpace, step_from

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from llm_sampler.distinct import DistinctSampler

_ATTEMPTS = 60
# Steps in a range are normal with this share of its width: wide enough to leave a plateau, narrow enough to stay near.
_STEP = 0.1
_MOST_CHOICES = 64


def neighbours(space: SearchSpace, best: Sequence[Position], rng: np.random.Generator) -> Iterator[Position]:
    """Neighbours of the best positions, at random: one of them, then a parameter, then another value of it.

    The parameter is drawn before the value, so that one with many choices does not crowd out the others.

    Args:
        space: The space.
        best: Positions to start from, at least one.
        rng: Source of randomness.
    """
    names = list(space.sampled)
    columns = {name: column for column, name in enumerate(space.names)}
    for _ in range(_ATTEMPTS):
        position = list(best[int(rng.integers(len(best)))])
        name = names[int(rng.integers(len(names)))]
        column = columns[name]
        position[column] = _other_number(space, name, position[column], rng)
        yield tuple(position)


def _other_number(space: SearchSpace, name: str, number: float, rng: np.random.Generator) -> float:
    size = space.size_of(name)
    ordered = not isinstance(space.distributions[name], CategoricalDistribution)
    if size is not None and not (ordered and size > _MOST_CHOICES):
        other = float(rng.integers(size - 1))
        return other + (other >= number)
    return step_from(space, name, number, float(rng.normal(0.0, _STEP)))


def from_neighbours(
    distinct: DistinctSampler,
    study: optuna.Study,
    trial: FrozenTrial,
    wanted: Mapping[str, BaseDistribution],
    best: Sequence[Position],
) -> dict[str, Any] | None:
    """A free neighbour of the best positions, claimed for the trial; None if none was found.

    Args:
        distinct: Knows what is free; its lock is held.
        study: The study.
        trial: The trial.
        wanted: The parameters to give values to.
        best: Positions to start from.
    """
    space = distinct.memory(study).space
    if space is None or not best:
        return None
    fixed = {name: value for name, value in fixed_values(study, trial).items() if name not in wanted}
    for position in neighbours(space, best, distinct.rng(trial, 4)):
        values = {**space.configuration(position), **fixed}
        if distinct.claim(study, trial, values):
            return {name: values[name] for name in wanted if name in values}
    return None
