"""Drawing from another Optuna sampler: whole joint proposals, its randomness by trial, and what it leaves open.

Optuna asks a sampler for some parameters together (`sample_relative`) and for the rest one by one; a *joint draw* is
both, for given distributions.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.samplers._lazy_random_state import LazyRandomState
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    import optuna


_Lock = type(threading.Lock())


def unused_copy(base: BaseSampler) -> BaseSampler:
    """A deep copy of a sampler that has served no study; a lock that it holds (Optuna 5.1's NSGA-II) becomes a new one.

    Optuna's samplers refuse to serve two studies (`IntersectionSearchSpace`), so each study has its copy.
    """
    return copy.deepcopy(base, {id(lock): threading.Lock() for lock in _locks(base)})


def _locks(sampler: BaseSampler) -> Iterator[object]:
    for value in vars(sampler).values():
        if isinstance(value, _Lock):
            yield value
        elif isinstance(value, BaseSampler):
            yield from _locks(value)


def joint_draw(
    base: BaseSampler, study: optuna.Study, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
) -> dict[str, Any]:
    """One draw of all parameters in ``distributions``."""
    relative = base.sample_relative(study, trial, relative_space(base, study, trial, distributions))
    return {
        name: relative[name] if name in relative else base.sample_independent(study, trial, name, distribution)
        for name, distribution in distributions.items()
    }


def relative_space(
    base: BaseSampler, study: optuna.Study, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
) -> dict[str, BaseDistribution]:
    """The parameters that the base sampler draws together.

    Optuna's TPE takes any space, and one that is given stays whole where the one it infers shrinks: after a trial that
    was pruned before it suggested everything, it would sample the missing parameters one by one for good.
    """
    inferred = base.infer_relative_search_space(study, trial)
    if type(base) is TPESampler and inferred and not base._group:
        return dict(distributions)
    return {name: distribution for name, distribution in inferred.items() if name in distributions}


def draws_uniformly(base: BaseSampler, finished: int, distributions: Mapping[str, BaseDistribution]) -> bool:
    """Whether the base sampler's next draw is uniform over the grid of ``distributions``.

    Random search always is; TPE is until it has seen its startup trials.

    Args:
        base: The sampler.
        finished: COMPLETE and PRUNED trials of the study.
        distributions: What it draws.
    """
    if any(isinstance(d, FloatDistribution | IntDistribution) and d.log for d in distributions.values()):
        return False
    if type(base) is TPESampler:
        return finished < base._n_startup_trials
    return type(base) is RandomSampler


def seed_of(sampler: BaseSampler) -> int | None:
    """The seed that a sampler was given, None if it was not given one.

    Optuna has no public way to ask. A Mersenne Twister that has not been used holds its seed in its first word
    (``init_genrand``, Matsumoto and Nishimura 2002); of one that has been used, the word is as good a seed as any.
    """
    for state in _random_states(sampler):
        if state._rng is not None:
            return int(state._rng.get_state(legacy=False)["state"]["key"][0])
    return None


def reseed(sampler: BaseSampler, seed: int, number: int) -> None:
    """Set every random state of a sampler, and of the samplers it holds, from a seed and a trial number."""
    states = _random_states(sampler)
    seeds = np.random.SeedSequence((seed, number)).generate_state(max(1, len(states)))
    for state, value in zip(states, seeds, strict=False):
        state.rng.seed(int(value))


def _random_states(sampler: BaseSampler) -> list[LazyRandomState]:
    found = []
    for _, value in sorted(vars(sampler).items()):
        if isinstance(value, LazyRandomState):
            found.append(value)
        elif isinstance(value, BaseSampler):
            found += _random_states(value)
    return found
