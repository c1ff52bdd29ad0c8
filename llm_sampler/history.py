"""What a study has measured, as rows; and what the rows say about parameters.

Values are in the study's unit; lower is better where the direction is minimize.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import PROPOSED_BY
from llm_sampler.search_space import SearchSpace

_MOST_RANKED = 500
_BINS = 4


@dataclass(frozen=True)
class Row:
    """One finished trial.

    Attributes:
        number: The trial's number.
        configuration: Its parameters.
        values: Its objective values, None if it failed.
        status: ``ok``, or in a word why it failed.
        detail: Why it failed, one line.
        proposed_by: Who proposed it.
        measured: What else was measured: numbers and short texts by name.
    """

    number: int
    configuration: Mapping[str, Any]
    values: tuple[float, ...] | None
    status: str = "ok"
    detail: str = ""
    proposed_by: str = ""
    measured: Mapping[str, Any] | None = None


def rows_of(trials: Iterable[FrozenTrial], outcome: str = "") -> list[Row]:
    """The finished trials as rows.

    A trial that was pruned, or breaks a constraint, is a failure: its value cannot be compared.

    Args:
        trials: COMPLETE and PRUNED ones count.
        outcome: Name of the user attribute (a JSON object) with ``status``, ``detail`` and what else was measured.
    """
    return [_row(t, outcome) for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]


def _row(trial: FrozenTrial, outcome: str) -> Row:
    measured = trial.user_attrs.get(outcome) if outcome else None
    measured = measured if isinstance(measured, dict) else {}
    scalars = {n: v for n, v in measured.items() if isinstance(v, bool | int | float | str)}
    status, detail = str(scalars.pop("status", "ok")), str(scalars.pop("detail", ""))
    broken = {name: value for name, value in trial.constraints.items() if value > 0}
    values: tuple[float, ...] | None = None
    if trial.state == TrialState.PRUNED:
        if status == "ok":
            steps = trial.intermediate_values
            status = "pruned"
            detail = f"at step {max(steps)} with {steps[max(steps)]:.6g}" if steps else detail
    elif broken:
        status = "infeasible" if status == "ok" else status
        detail = detail or ", ".join(f"{name} = {value:.4g}, must be at most 0" for name, value in broken.items())
    elif trial.values is not None and all(math.isfinite(value) for value in trial.values):
        values = tuple(trial.values)
    else:
        status = "not finite"
    return Row(trial.number, trial.params, values, status, detail, trial.user_attrs.get(PROPOSED_BY, ""), scalars)


def ranked(rows: Sequence[Row], directions: Sequence[StudyDirection]) -> list[Row]:
    """The rows that have values, best first.

    With several objectives: fewest rows that dominate them first, of the 500 newest rows.
    """
    good = [row for row in rows if row.values is not None]
    costs = {row.number: _costs(row, directions) for row in good}
    if len(directions) == 1:
        return sorted(good, key=lambda row: (costs[row.number], row.number))
    newest = good[-_MOST_RANKED:]
    dominating = {
        row.number: sum(_dominates(costs[other.number], costs[row.number]) for other in newest) for row in newest
    }
    return sorted(newest, key=lambda row: (dominating[row.number], row.number))


def _costs(row: Row, directions: Sequence[StudyDirection]) -> tuple[float, ...]:
    assert row.values is not None
    pairs = zip(row.values, directions, strict=False)
    return tuple(-value if direction == StudyDirection.MAXIMIZE else value for value, direction in pairs)


def _dominates(costs: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return costs != others and all(a <= b for a, b in zip(costs, others, strict=True))


@dataclass(frozen=True)
class ChoiceRecord:
    """What was seen of one choice of one parameter.

    Attributes:
        choice: The choice, or the range of values, as text.
        count: Finished trials that had it.
        failures: How many of them failed.
        best: Best value among the others, None if there are none.
    """

    choice: str
    count: int
    failures: int
    best: float | None


def choice_records(rows: Sequence[Row], space: SearchSpace, direction: StudyDirection) -> dict[str, list[ChoiceRecord]]:
    """For every parameter what was seen of its choices, untried ones included; ranges are cut in four."""
    better = max if direction == StudyDirection.MAXIMIZE else min
    records: dict[str, list[ChoiceRecord]] = {}
    for name in space.sampled:
        members: dict[str, list[Row]] = {label: [] for label in _labels(space, name)}
        for row in rows:
            if name in row.configuration and (label := _label(space, name, row.configuration[name])) is not None:
                members[label].append(row)
        records[name] = [
            ChoiceRecord(
                label,
                len(found),
                sum(row.values is None for row in found),
                better((row.values[0] for row in found if row.values), default=None),
            )
            for label, found in members.items()
        ]
    return records


def _labels(space: SearchSpace, name: str) -> list[str]:
    distribution = space.distributions[name]
    if isinstance(distribution, CategoricalDistribution):
        return [str(choice) for choice in distribution.choices]
    edges = _edges(distribution)
    return [f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges)]


def _label(space: SearchSpace, name: str, value: Any) -> str | None:
    distribution = space.distributions[name]
    if isinstance(distribution, CategoricalDistribution):
        number = space.number(name, value)
        return None if number is None else str(distribution.choices[int(number)])
    edges = _edges(distribution)
    labels = _labels(space, name)
    if not isinstance(value, int | float) or not edges[0] <= value <= edges[-1]:
        return None
    return labels[min(sum(value >= edge for edge in edges[1:]), len(labels) - 1)]


def _edges(distribution: Any) -> list[float]:
    """Edges of four bins of equal width, in the logarithm where the distribution is logarithmic."""
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        return [low * (high / low) ** (index / _BINS) for index in range(_BINS)] + [high]
    return [low + (high - low) * index / _BINS for index in range(_BINS)] + [high]


def failures_by_cause(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Failed rows by status, the newest first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in reversed(rows):
        if row.values is None:
            groups[row.status].append(row)
    return dict(groups)
