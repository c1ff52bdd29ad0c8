"""`IndexEncoded`: lets a sampler that knows only numbers search a categorical space, by the indices of the choices.

The study stays categorical for everybody else; the wrapped sampler sees the same trials with each parameter as the
index of its choice, an integer from 0. It may also see logarithms of the values, and failures as the worst value so
far: samplers that ignore pruned trials would propose what is known to fail.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    import optuna


class IndexEncoded(BaseSampler):
    """Wraps a sampler that is to see indices instead of choices.

    Args:
        base: The sampler, for one study only.
        log_values: Whether it sees logarithms of the (positive) values: times of kernels differ by factors.
        tell_failures: Whether it sees pruned trials as complete ones with the worst value so far; their constraints
            stay, and samplers that know constraints use them.
    """

    def __init__(self, base: BaseSampler, *, log_values: bool = False, tell_failures: bool = False) -> None:
        self._base = base
        self._log_values = log_values
        self._tell_failures = tell_failures
        self._coded: dict[int, FrozenTrial] = {}  # finished trials by number, which do not change any more

    def __str__(self) -> str:
        return f"IndexEncoded({self._base})"

    def reseed_rng(self) -> None:
        """Draw from fresh randomness from now on."""
        self._base.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """What the base sampler infers, as the study knows it."""
        inferred = self._base.infer_relative_search_space(self._view(study, trial), trial)
        known: dict[str, BaseDistribution] = {}
        for other in study._get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            known.update(other.distributions)
        return {name: known[name] for name in inferred if name in known}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """What the base sampler draws, as choices."""
        coded = {name: _coded(distribution) for name, distribution in search_space.items()}
        drawn = self._base.sample_relative(self._view(study, trial), trial, coded)
        return {name: _decoded(search_space[name], value) for name, value in drawn.items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """What the base sampler draws, as a choice."""
        coded = _coded(param_distribution)
        value = self._base.sample_independent(self._view(study, trial), trial, param_name, coded)
        return _decoded(param_distribution, value)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Pass it on."""
        self._base.before_trial(self._view(study, trial), trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Pass it on."""
        self._base.after_trial(self._view(study, trial), trial, state, values)

    def _view(self, study: optuna.Study, trial: FrozenTrial) -> optuna.Study:
        return cast("optuna.Study", _CodedStudy(study, trial.number, self._code, self._tell_failures))

    def _code(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.number in self._coded:
            return self._coded[trial.number]
        coded = copy.copy(trial)
        coded.params = _indices(trial.params, trial.distributions)
        coded.distributions = {name: _coded(distribution) for name, distribution in trial.distributions.items()}
        if self._log_values and trial.values is not None:
            coded.values = [math.log(value) for value in trial.values]
        if trial.state.is_finished():
            self._coded[trial.number] = coded
        return coded


class _CodedStudy:
    """A study with indices for choices; everything but its trials is the study's own.

    The trial that is being sampled is left out while it runs: a sampler that is asked again would take its own earlier
    answer for another worker's (GPSampler then integrates over it by sampling, at ten times the price).
    """

    def __init__(
        self, study: optuna.Study, own: int, code: Callable[[FrozenTrial], FrozenTrial], tell_failures: bool
    ) -> None:
        self._study = study
        self._own = own
        self._code = code
        self._tell_failures = tell_failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    @property
    def trials(self) -> list[FrozenTrial]:
        return self._get_trials()

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        return self._get_trials(states=states)

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        trials = self._study._get_trials(deepcopy=False, use_cache=use_cache)
        others = (trial for trial in trials if trial.number != self._own or trial.state.is_finished())
        coded = [self._code(trial) for trial in others]
        if self._tell_failures:
            coded = _with_failures(coded)
        return [trial for trial in coded if states is None or trial.state in states]


def _coded(distribution: BaseDistribution) -> BaseDistribution:
    if isinstance(distribution, CategoricalDistribution):
        return IntDistribution(0, len(distribution.choices) - 1)
    return distribution


def _decoded(distribution: BaseDistribution, value: Any) -> Any:
    return distribution.choices[int(value)] if isinstance(distribution, CategoricalDistribution) else value


def _indices(params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    # A categorical's internal representation is the index of the choice.
    return {
        name: int(distributions[name].to_internal_repr(value))
        if isinstance(distributions[name], CategoricalDistribution)
        else value
        for name, value in params.items()
    }


def _with_failures(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """Pruned trials with the worst value of the complete ones; they stay pruned while there is none."""
    values = [trial.value for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    return [_as_worst(trial, max(values)) if values and _failed(trial) else trial for trial in trials]


def _failed(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.PRUNED and bool(trial.params)


def _as_worst(trial: FrozenTrial, value: float) -> FrozenTrial:
    told = copy.copy(trial)
    told.state = TrialState.COMPLETE
    told.values = [value]
    return told
