"""Counts what a sampler draws: `DistinctSampler` draws again where a configuration is taken or forbidden.

A *draw* is one joint proposal of the sampler, an *ask*. What comes of several draws is one measurement, which may be
none of them but their nearest free neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler

if TYPE_CHECKING:
    from typing_extensions import Self


class Draws:
    """The draws of one run, shared by all copies of the watched sampler.

    Attributes:
        repeats: How many trials in a row ended with the draw that the trial before ended with, in vain.
    """

    def __init__(self) -> None:
        self._count = 0
        self._last: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self.repeats = 0

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Samplers are copied for each study; what they draw is counted in one place."""
        return self

    def note(self, values: Mapping[str, Any]) -> None:
        """A draw has begun; ``values`` are what was drawn together."""
        self._count += 1
        self._last = dict(values)

    def add(self, name: str, value: Any) -> None:
        """One parameter was drawn by itself."""
        self._last[name] = value

    def take(self, configuration: Mapping[str, Any]) -> tuple[int, bool]:
        """Number of draws since the last call, and whether the configuration is the last of them.

        A sampler that was not asked (its draw would have been uniform, or the configuration was queued) has one draw,
        its own.
        """
        count, last = self._count, self._last
        self._count, self._last = 0, {}
        own = count == 0 or all(configuration.get(name) == value for name, value in last.items())
        self.repeats = self.repeats + 1 if not own and last == self._before else 0
        self._before = last
        return max(1, count), own


class _Watched:
    """A method of a sampler that reports to `Draws`; found by a deep copy of the sampler as a method of the copy."""

    def __init__(self, sampler: BaseSampler, draws: Draws) -> None:
        self._sampler = sampler
        self._draws = draws


class _Relative(_Watched):
    def __call__(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        drawn = type(self._sampler).sample_relative(self._sampler, *arguments, **named)
        self._draws.note(drawn)
        return drawn


class _Independent(_Watched):
    def __call__(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        value = type(self._sampler).sample_independent(self._sampler, study, trial, param_name, param_distribution)
        self._draws.add(param_name, value)
        return value


def watch(sampler: BaseSampler) -> Draws:
    """Count a sampler's draws from now on.

    The sampler keeps its class: `DistinctSampler` and `LLMSampler` treat Optuna's own samplers by their class, so that
    a wrapper would change what is compared.
    """
    draws = Draws()
    sampler.sample_relative = _Relative(sampler, draws)  # type: ignore[method-assign]
    sampler.sample_independent = _Independent(sampler, draws)  # type: ignore[method-assign]
    return draws
