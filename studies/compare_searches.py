"""Two searches without a model, for comparison: the order of the table, and all neighbours of the best.

Both are Optuna samplers over categorical parameters; `DistinctSampler` around them keeps what is taken and forbidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.space import Configuration, Space, configuration_key

if TYPE_CHECKING:
    import optuna


class ExhaustiveOrder(BaseSampler):
    """Proposes every allowed configuration in lexicographic order of the choices: a sweep that is cut off.

    Args:
        space: The space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._order: list[Configuration] | None = None

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters that leave a choice."""
        return _distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The first configuration that no trial has."""
        if self._order is None:
            self._order = list(self._space.configurations())
        taken = {configuration_key(other.params) for other in study._get_trials(deepcopy=False) if other.params}
        # What is taken stays taken.
        while self._order and configuration_key(self._order[0]) in taken:
            self._order.pop(0)
        return {name: self._order[0][name] for name in search_space} if self._order else {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The first choice; asked for only once the table is used up."""
        assert isinstance(param_distribution, CategoricalDistribution)
        return param_distribution.choices[0]


class BestNeighbours(BaseSampler):
    """Proposes unmeasured configurations that differ from the best one in one parameter, at random.

    Once all neighbours of the best are measured, those of the second best follow, and so on: hill climbing that always
    goes on from the incumbent. Before anything is measured it draws at random.

    Args:
        space: The space.
        seed: Of its draws.
    """

    def __init__(self, space: Space, *, seed: int | None = None) -> None:
        self._space = space
        self._rng = LazyRandomState(seed)
        self._random = RandomSampler(seed=seed)

    def reseed_rng(self) -> None:
        """Draw from fresh randomness from now on."""
        self._rng.rng.seed()
        self._random.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters that leave a choice."""
        return _distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A neighbour of the best, nothing while there is none."""
        trials = study._get_trials(deepcopy=False)
        taken = {configuration_key(other.params) for other in trials if other.params}
        done = [other for other in trials if other.state == TrialState.COMPLETE and other.values]
        for origin in sorted(done, key=lambda other: (other.values[0], other.number)):
            if near := self._free_neighbours(origin.params, taken):
                chosen = near[int(self._rng.rng.randint(len(near)))]
                return {name: chosen[name] for name in search_space}
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random choice."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _free_neighbours(self, origin: dict[str, Any], taken: set[str]) -> list[Configuration]:
        found = []
        for parameter in self._space.parameters:
            for choice in parameter.choices:
                near = {**origin, parameter.name: choice}
                if configuration_key(near) not in taken and self._space.allows(near):
                    found.append(near)
        return found


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    return {p.name: CategoricalDistribution(p.choices) for p in space.parameters if len(p.choices) > 1}
