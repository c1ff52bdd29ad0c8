"""`TableGPSampler`: Optuna's Gaussian process sampler, with its acquisition function maximized over what is allowed.

GPSampler climbs its acquisition function over the whole grid, and knows neither restrictions nor what is taken: on a
space of 575 configurations it drew one forbidden configuration thirty times in a row, and 93 of 100 measurements were
its proposals' neighbours. A table is small enough to be looked through.

Notation: the table has N rows of P indices of choices, normalized as GPSampler does, (index + 1/2) / choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.space import Space

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


class TableGPSampler(GPSampler):
    """Proposes the free configuration with the largest acquisition value; sees indices (`IndexEncoded`).

    Args:
        space: The space.
        seed: Of the random start and of the fit.
        options: Other arguments of GPSampler.
    """

    def __init__(self, space: Space, *, seed: int | None = None, **options: Any) -> None:
        super().__init__(seed=seed, warn_independent_sampling=False, **options)
        self._parameters = {p.name: p.choices for p in space.parameters if len(p.choices) > 1}
        self._table = np.array(
            [[self._parameters[n].index(c[n]) for n in self._parameters] for c in space.configurations()]
        )
        self._free: NDArray[np.float64] = np.empty((0, 0))

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A free configuration, as indices; at random for the first trials."""
        if search_space.keys() != self._parameters.keys():
            return super().sample_relative(study, trial, search_space)
        trials = study._get_trials(deepcopy=False)
        taken = {tuple(t.params[n] for n in self._parameters) for t in trials if t.params.keys() >= search_space.keys()}
        free = self._table[[tuple(row) not in taken for row in self._table.tolist()]]
        if not len(free):
            return super().sample_relative(study, trial, search_space)
        if sum(t.state == TrialState.COMPLETE for t in trials) < self._n_startup_trials:
            row = free[int(self._rng.rng.randint(len(free)))]
            return {name: int(index) for name, index in zip(self._parameters, row, strict=True)}
        columns = [list(self._parameters).index(name) for name in search_space]
        sizes = np.array([len(self._parameters[name]) for name in search_space])
        self._free = (free[:, columns] + 0.5) / sizes
        return super().sample_relative(study, trial, search_space)

    def _optimize_acqf(self, acqf: Any, best_params: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """The free row with the largest value; Optuna documents this method as the one to override."""
        best: NDArray[np.float64] = self._free[int(np.argmax(acqf.eval_acqf_no_grad(self._free)))]
        return best
