"""What the rows of a study leave open: families of configurations, and values that were only seen together.

A *family* is a combination of values of the switches: parameters with two values or with choices that are words. The
rest (tile sizes, counts) are dials within a family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import CategoricalDistribution

from llm_sampler.history import Row
from llm_sampler.pairs import Pair, missing_pairs, pairs_of
from llm_sampler.search_space import SearchSpace

_MOST_CHOICES = 12


def switches(space: SearchSpace) -> list[str]:
    """Parameters with two values, or with choices of which one is a word or a truth value."""
    found = []
    for name, distribution in space.sampled.items():
        words = isinstance(distribution, CategoricalDistribution) and any(
            isinstance(choice, str | bool) or choice is None for choice in distribution.choices
        )
        if words or space.size_of(name) == 2:
            found.append(name)
    return found


def best_of_families(best_first: Sequence[Row], space: SearchSpace, *, most: int) -> list[Row]:
    """The best row of each family, best first; the incumbent is the first."""
    names = switches(space)
    seen: dict[tuple[Any, ...], Row] = {}
    for row in best_first:
        seen.setdefault(tuple(row.configuration.get(name) for name in names), row)
    return list(seen.values())[:most]


@dataclass(frozen=True)
class Bound:
    """A choice that was always tried together with one value of another parameter.

    Attributes:
        name: The parameter.
        choice: Its choice.
        count: In how many rows.
        other: The other parameter.
        value: Its value in all of them.
    """

    name: str
    choice: Any
    count: int
    other: str
    value: Any


def bound_choices(rows: Sequence[Row], space: SearchSpace, *, most: int) -> list[Bound]:
    """Choices seen at least twice whose rows all agree in a switch that could differ there, the most seen first."""
    names = switches(space)
    found = []
    for name in space.sampled:
        if (space.size_of(name) or _MOST_CHOICES + 1) > _MOST_CHOICES:
            continue
        for choice in space.values_of(name) or ():
            having = [row.configuration for row in rows if _has(row.configuration, name, choice)]
            for other in names:
                if other == name or len(having) < 2:
                    continue
                values = {row.get(other) for row in having}
                if len(values) == 1 and _others_are_allowed(space, name, choice, other, next(iter(values))):
                    found.append(Bound(name, choice, len(having), other, values.pop()))
    return sorted(found, key=lambda bound: -bound.count)[:most]


def _others_are_allowed(space: SearchSpace, name: str, choice: Any, other: str, value: Any) -> bool:
    """Whether the restrictions allow the choice together with another value of the other parameter."""
    if space.table is None:
        return True
    columns = {column: index for index, column in enumerate(space.names)}
    rows = space.table.rows
    having = rows[:, columns[name]] == space.number(name, choice)
    return bool((having & (rows[:, columns[other]] != space.number(other, value))).any())


def _has(configuration: Mapping[str, Any], name: str, choice: Any) -> bool:
    return name in configuration and bool(configuration[name] == choice)


def untried_pairs(rows: Sequence[Row], space: SearchSpace, *, most: int) -> list[Pair]:
    """Allowed pairs of values never tried together: those of switches first, then those the incumbents' dials make.

    Args:
        rows: Best first.
        space: The space.
        most: How many to give.
    """
    configurations = [row.configuration for row in rows]
    finite = [name for name in space.sampled if (space.size_of(name) or _MOST_CHOICES + 1) <= _MOST_CHOICES]
    toggles = [name for name in switches(space) if name in finite]
    missing = missing_pairs(space, pairs_of(space, toggles), configurations)
    if len(missing) < most and rows:
        # A pair of which the incumbent has one half is one change away from it.
        best = {name: space.number(name, value) for name, value in configurations[0].items() if name in finite}
        rest = missing_pairs(space, pairs_of(space, finite), configurations)
        near = [
            pair
            for pair in rest
            if pair not in missing
            and (best.get(pair.first) == pair.first_number) != (best.get(pair.second) == pair.second_number)
        ]
        missing += near
    return missing[:most]
