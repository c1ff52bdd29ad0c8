"""What each parameter does to the time: importance, and what was seen of its choices. Times in ms."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import optuna
from optuna.exceptions import ExperimentalWarning

from llm_sampler.space import Parameter, Space, Value
from llm_sampler.studies.records import TrialRecord


@dataclass(frozen=True)
class ChoiceImpact:
    """What was seen of one choice of a parameter.

    Attributes:
        choice: The choice.
        measured: Measured configurations that have it.
        failed: Those without a time.
        best_ms: Least time with it; None if none was timed.
        median_ms: Median time with it; None if none was timed.
        ratio: ``best_ms`` over the least time of the study.
    """

    choice: Value
    measured: int
    failed: int
    best_ms: float | None
    median_ms: float | None
    ratio: float | None


@dataclass(frozen=True)
class ParameterImpact:
    """What was seen of a parameter.

    Attributes:
        name: The parameter.
        meaning: One line about it.
        importance: Share of 1 of all parameters (PED-ANOVA, Optuna's default); None where it cannot be told.
        winner: The winner's choice; None if nothing was timed.
        choices: All of them, in the space's order, untried ones included.
    """

    name: str
    meaning: str
    importance: float | None
    winner: Value | None
    choices: tuple[ChoiceImpact, ...]

    @property
    def cost_ratio(self) -> float | None:
        """Least time with any other choice than the winner's, over the least time; None if none was timed."""
        others = [one.ratio for one in self.choices if one.choice != self.winner and one.ratio is not None]
        return min(others, default=None)

    @property
    def untried(self) -> tuple[Value, ...]:
        """Choices that no measured configuration has."""
        return tuple(one.choice for one in self.choices if not one.measured)


def parameter_impacts(
    study: optuna.Study, space: Space, done: Sequence[TrialRecord], best: TrialRecord | None
) -> list[ParameterImpact]:
    """The impact of every parameter, the most important first.

    Args:
        study: For the importances.
        space: Its space.
        done: Its measured trials.
        best: The winner; None if nothing was timed.
    """
    importances = parameter_importances(study)
    least_ms = min((record.median_ms for record in done if record.median_ms is not None), default=None)
    found = [
        ParameterImpact(
            name=parameter.name,
            meaning=parameter.meaning,
            importance=importances.get(parameter.name),
            winner=best.configuration.get(parameter.name) if best else None,
            choices=tuple(_choice(parameter, choice, done, least_ms) for choice in parameter.choices),
        )
        for parameter in space.parameters
    ]
    return sorted(found, key=lambda impact: -(impact.importance or 0.0))


def parameter_importances(study: optuna.Study) -> dict[str, float]:
    """Optuna's importances by parameter name; empty where too few configurations have times."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            # With fewer than about ten times all are called equally important, which is to know nothing.
            warnings.filterwarnings("error", message="The number of trials is too small")
            return optuna.importance.get_param_importances(study)
    except (ValueError, RuntimeError, UserWarning):  # one trial, equal times, or no parameter that all trials have
        return {}


def _choice(parameter: Parameter, choice: Value, done: Sequence[TrialRecord], least_ms: float | None) -> ChoiceImpact:
    having = [record for record in done if _is(record.configuration.get(parameter.name), choice)]
    times = [record.median_ms for record in having if record.median_ms is not None]
    best_ms = min(times, default=None)
    return ChoiceImpact(
        choice=choice,
        measured=len(having),
        failed=len(having) - len(times),
        best_ms=best_ms,
        median_ms=statistics.median(times) if times else None,
        ratio=best_ms / least_ms if best_ms is not None and least_ms is not None else None,
    )


def _is(value: Value | None, choice: Value) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)
