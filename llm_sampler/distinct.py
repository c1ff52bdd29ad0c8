"""`DistinctSampler`: any Optuna sampler, without proposing a configuration twice or one that breaks a restriction.

Positions and tables are those of `SearchSpace`; what is taken is kept by `StudyMemory`.

The order of a trial: bring the memory up to date, draw (``free``), claim (``claim``), return.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CLAIM, PROPOSED_BY, USER, sampler_name
from llm_sampler.claim import take
from llm_sampler.draw import joint_draw, reseed, seed_of, unused_copy
from llm_sampler.exhaustion import is_exhausted, refuse_asked_trial, refuse_running_trial, stop_if_exhausted
from llm_sampler.free import Turn, find_free
from llm_sampler.memory import Memories, StudyMemory, fixed_values, is_optimizing
from llm_sampler.notes import tag
from llm_sampler.search_space import SearchSpace
from llm_sampler.space import Space, SpaceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_logger = optuna.logging.get_logger("optuna.llm_sampler")
_REDRAWS = 4


class DistinctSampler(BaseSampler):
    """Wraps a sampler so that no configuration is measured twice and none that breaks a restriction is tried.

    Taken are configurations of trials that are COMPLETE, PRUNED, RUNNING or WAITING; FAIL frees them. A proposal that
    is taken or not allowed is drawn again as a whole, up to ``redraws`` times; then the free configuration that
    differs from the last draw in the fewest parameters is proposed. Where the base sampler draws uniformly (random
    search, TPE's start), every free configuration is equally likely: random search without replacement.

    The space is, in this order: the argument; that of the study's task (`write_task`); what the finished trials show,
    if they all had the same distributions. In the last case a used-up space is sampled with repetition, because nobody
    said that it is the whole one. Conditional and changing spaces are passed to the base sampler as they are. When a
    space that somebody stated is used up, ``Study.optimize`` ends as after ``Study.stop`` (see
    `SpaceExhaustedError` for ask and tell). Values that an enqueued trial or a ``PartialFixedSampler`` fixes stay.

    Several threads, and several processes on one storage, do not propose the same configuration. Each study gets its
    own copy of the base sampler, so one instance may serve many studies.

    Args:
        base: Any sampler.
        space: The space, every parameter a categorical.
        search_space: The space as Optuna distributions by parameter name; instead of ``space``.
        restrictions: Expressions that must hold, beside those of ``space``; only with ``search_space``.
        seed: The draws of a trial follow from this and the trial's number, so that a study that is resumed does not
            repeat its stream. None: derived from the base sampler's own seed if it has one, else not reproducible.
        redraws: How often a proposal is drawn again at most; less often after 100 trials, where draws of TPE get slow.
            On four recorded spaces of 4,000 to 11,000 configurations (100 trials of TPE, 10 seeds each) 16 and 64
            redraws found nothing better than 4 and took up to twice the time.

    Raises:
        SpaceError: A restriction cannot be used, or both spaces were given.
    """

    def __init__(
        self,
        base: BaseSampler,
        *,
        space: Space | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        restrictions: Sequence[str] = (),
        seed: int | None = None,
        redraws: int = _REDRAWS,
    ) -> None:
        self._base = base
        self._declared = declared_space(space, search_space, restrictions)
        self._seed = seed if seed is not None else seed_of(base)
        self._redraws = redraws
        self._name = sampler_name(base)
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._memories = Memories(self._make_memory)

    def _make_memory(self) -> tuple[StudyMemory, BaseSampler]:
        return StudyMemory(self._declared), unused_copy(self._base)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_memories")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __str__(self) -> str:
        return f"DistinctSampler({self._base})"

    def reseed_rng(self) -> None:
        """Draw from fresh randomness from now on, for this sampler and its base."""
        with self._lock:
            if self._seed is not None:
                self._seed = int(np.random.SeedSequence().generate_state(1)[0])
            self._base.reseed_rng()
            for _, base in self._memories:
                base.reseed_rng()

    def memory(self, study: optuna.Study) -> StudyMemory:
        """What this sampler knows of a study; ``refresh`` it before use, under ``lock``."""
        return self._memories.of(study)[0]

    @property
    def base_name(self) -> str:
        """What ``proposed_by`` calls the base sampler."""
        return self._name

    def fresh_base(self) -> BaseSampler:
        """A copy of the base sampler that has served no study."""
        return unused_copy(self._base)

    @property
    def lock(self) -> threading.RLock:
        """Held while a proposal is made."""
        return self._lock

    def exhausted(self, study: optuna.Study) -> bool:
        """Whether the study's space was stated and none of its allowed configurations is free."""
        with self._lock:
            memory = self.memory(study)
            memory.refresh(study)
            return is_exhausted(memory)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters of the space; what the base sampler infers where the space is unknown."""
        with self._lock:
            memory, base = self._memories.of(study)
            if not memory.space_is_stated:
                memory.refresh(study, trial.number)
            inferred = base.infer_relative_search_space(study, trial)
            if memory.space is None:
                return inferred
            return {**inferred, **memory.space.sampled}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A free and allowed configuration.

        Raises:
            SpaceExhaustedError: There is none; within ``Study.optimize`` the study has been stopped.
        """
        configuration = self.propose(study, trial, search_space)
        if not trial.system_attrs.get("fixed_params"):  # before_trial has tagged those
            tag(study, trial, PROPOSED_BY, self._name)
        return configuration

    def propose(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: Mapping[str, BaseDistribution],
        *,
        base: BaseSampler | None = None,
    ) -> dict[str, Any]:
        """As ``sample_relative``, without saying so on the trial; drawn from another sampler if ``base`` is one."""
        with self._lock:
            memory, own = self._memories.of(study)
            base = own if base is None else base
            memory.look(study, trial.number)
            if self._seed is not None:
                reseed(base, self._seed, trial.number)
            space = memory.space
            fixed = fixed_values(study, trial)
            if space is None or any(name not in search_space and name not in fixed for name in space.sampled):
                return joint_draw(base, study, trial, search_space)
            values = {**space.single_values, **{n: v for n, v in fixed.items() if n not in search_space}}
            turn = Turn(study, trial, memory, space, base, search_space, values, self.rng(trial), self._redraws)
            if (found := find_free(turn)) is not None:
                return found
            if space.declared and not trial.system_attrs.get("fixed_params"):
                raise refuse_running_trial(study, memory)
            # The user enqueued this trial, or the space was only inferred: a repetition is better than an end.
            return turn.draw()

    def claim(self, study: optuna.Study, trial: FrozenTrial, configuration: Mapping[str, Any]) -> bool:
        """Take a configuration for a trial, unless another trial has it."""
        with self._lock:
            memory = self.memory(study)
            space = memory.space
            position = None if space is None else space.position(configuration)
            if space is None or position is None:
                return True
            return space.allows(configuration) and take(memory, space, study, trial, position)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The base sampler's value of a parameter that the space does not have."""
        with self._lock:
            base = self._memories.of(study)[1]
            return base.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Tag enqueued trials; end an asked trial at once if nothing is free.

        Raises:
            SpaceExhaustedError: The space is used up, and the trial was not made by ``Study.optimize``.
        """
        memory, base = self._memories.of(study)
        base.before_trial(study, trial)
        if trial.system_attrs.get("fixed_params"):
            if PROPOSED_BY not in trial.user_attrs:
                tag(study, trial, PROPOSED_BY, USER)
        elif not is_optimizing(study) and not trial.params and CLAIM not in trial.system_attrs:
            with self._lock:
                refuse_asked_trial(study, trial, memory)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Stop the study if this trial took the last free configuration of a stated space."""
        memory, base = self._memories.of(study)
        base.after_trial(study, trial, state, values)
        if state in (TrialState.COMPLETE, TrialState.PRUNED):
            with self._lock:
                stop_if_exhausted(study, memory)

    def rng(self, trial: FrozenTrial, stream: int = 1) -> np.random.Generator:
        """Randomness of one trial beside the base sampler's; ``stream`` tells uses apart."""
        return np.random.default_rng(None if self._seed is None else (self._seed, trial.number, stream))


def declared_space(
    space: Space | None, search_space: Mapping[str, BaseDistribution] | None, restrictions: Sequence[str]
) -> SearchSpace | None:
    """The space that arguments state, None if they state none.

    Raises:
        SpaceError: They contradict each other, or a restriction cannot be used.
    """
    if space is not None and (search_space is not None or restrictions):
        raise SpaceError("give either space, which has its own restrictions, or search_space and restrictions")
    if space is not None:
        stated = SearchSpace.from_space(space)
    elif search_space is not None:
        stated = SearchSpace(search_space, restrictions=restrictions, declared=True)
    elif restrictions:
        raise SpaceError("restrictions need search_space: the distributions of the parameters that they name")
    else:
        return None
    stated.check_restrictions()
    return stated
