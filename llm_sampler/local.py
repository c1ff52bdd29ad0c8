"""`neighbours`: configurations that differ in one parameter from a given one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from optuna.distributions import CategoricalDistribution

from llm_sampler.search_space import Position, SearchSpace

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
    return space.step_from(name, number, float(rng.normal(0.0, _STEP)))
