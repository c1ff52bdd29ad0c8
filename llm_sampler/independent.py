"""The independent source: a search that does not see what a model's proposals led to."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, cast

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    import optuna

    from llm_sampler.distinct import DistinctSampler

# Random trials before the fallback sampler's own model is used, where it does not say (TPE does).
_START = 10


class Independent:
    """Random search at first, then the fallback sampler on the trials that do not follow from the model's.

    Args:
        distinct: The fallback, which also knows what is taken.
        shows: Whether a trial does not follow from the model's.
    """

    def __init__(self, distinct: DistinctSampler, shows: Callable[[FrozenTrial], bool]) -> None:
        base = distinct.fresh_base()
        self._distinct = distinct
        self._shows = shows
        self._start = int(getattr(base, "_n_startup_trials", _START))
        self._random = RandomSampler()
        self._filtered = FilteredSampler(base, shows)

    def propose(
        self, study: optuna.Study, trial: FrozenTrial, wanted: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A free configuration, claimed for the trial."""
        with self._distinct.lock:
            seen = sum(self._shows(other) for other in self._distinct.memory(study).finished)
            base = self._random if seen < self._start else self._filtered
            return self._distinct.propose(study, trial, wanted, base=base)


class FilteredSampler(BaseSampler):
    """Wraps a sampler and hides trials from it.

    Args:
        base: The sampler, for one study only.
        shows: Whether it may see a trial; it always sees the one it samples for.
    """

    def __init__(self, base: BaseSampler, shows: Callable[[FrozenTrial], bool]) -> None:
        self._base = base
        self._shows = shows

    def reseed_rng(self) -> None:
        """Draw from fresh randomness from now on."""
        self._base.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """What the base sampler infers from the trials it sees."""
        return self._base.infer_relative_search_space(self._view(study), trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """What the base sampler draws from the trials it sees."""
        return self._base.sample_relative(self._view(study), trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """What the base sampler draws from the trials it sees."""
        return self._base.sample_independent(self._view(study), trial, param_name, param_distribution)

    def _view(self, study: optuna.Study) -> optuna.Study:
        return cast("optuna.Study", _StudyView(study, self._shows))


class _StudyView:
    """A study with fewer trials; everything else is the study's own."""

    def __init__(self, study: optuna.Study, shows: Callable[[FrozenTrial], bool]) -> None:
        self._study = study
        self._shows = shows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        return [t for t in self._study.get_trials(deepcopy=deepcopy, states=states) if self._shows(t)]

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        trials = self._study._get_trials(deepcopy=deepcopy, states=states, use_cache=use_cache)
        return [trial for trial in trials if self._shows(trial)]
