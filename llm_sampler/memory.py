"""`StudyMemory`: what a sampler knows of one study, brought up to date before each trial in time linear in new trials.

Everything here is derived from the storage and is never the only copy. Positions are those of `SearchSpace`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CLAIM
from llm_sampler.search_space import Position, SearchSpace
from llm_sampler.shared_calls import SharedCalls
from llm_sampler.task import Task, read_task

if TYPE_CHECKING:
    import optuna

_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# More than the workers of a study could take between two looks at the storage.
_FEW = 64
State = TypeVar("State")


class StudyMemory:
    """Finished trials, the space, and which configurations are taken.

    A configuration is taken by a trial that is COMPLETE, PRUNED, RUNNING or WAITING; one that ends as FAIL frees it.

    Args:
        declared: The space, None to use that of the study's task, or what the finished trials show.

    Attributes:
        finished: COMPLETE and PRUNED trials in the order in which they were noticed.
        seen_distributions: The newest distribution of every parameter; parameters whose kind changes are left out.
        task: The study's task, None if it has none.
        waiting: Whether trials are enqueued.
        calls: What trials tell of the workers' calls to a model.
    """

    def __init__(self, declared: SearchSpace | None = None) -> None:
        self.finished: list[FrozenTrial] = []
        self.seen_distributions: dict[str, BaseDistribution] = {}
        self.task: Task | None = None
        self.waiting = False
        self.calls = SharedCalls()
        self._declared = declared
        self._space = declared
        self._uniform = True  # whether all finished trials had the same distributions
        self._ambiguous: set[str] = set()
        self._settled = 0  # trials before this index are finished and known
        self._known: set[int] = set()
        self._taken: dict[Position, int] = {}
        self._pending: dict[Position, int] = {}
        self._free: NDArray[np.bool_] | None = None
        self._task_is_final = False
        self._looked_for: int | None = None

    @property
    def space(self) -> SearchSpace | None:
        """The space, None while it is unknown or changes from trial to trial."""
        return self._space

    @property
    def space_is_stated(self) -> bool:
        """Whether somebody said what the space is, so that no trial can change it."""
        return self._declared is not None

    def look(self, study: optuna.Study, own_number: int) -> None:
        """Refresh, unless that was done for this trial just now: a read of a database takes about 5 ms.

        What is overlooked that way is found when the trial claims its configuration, which always refreshes.
        """
        if self._looked_for != own_number:
            self.refresh(study, own_number)

    def refresh(self, study: optuna.Study, own_number: int | None = None) -> None:
        """Read the study's trials; ``own_number`` is the trial that is being proposed for, which takes nothing."""
        trials = study._get_trials(deepcopy=False, use_cache=False)
        self._looked_for = own_number
        self._read_task(study)
        self._pending = {}
        self.waiting = False
        self.calls.look_anew()
        contiguous = True
        for index in range(self._settled, len(trials)):
            trial = trials[index]
            if trial.state.is_finished():
                if trial.number not in self._known:
                    self._add(trial)
                if contiguous:
                    self._settled = index + 1
                continue
            contiguous = False
            self.calls.note(trial)
            self.waiting |= trial.state == TrialState.WAITING
            if trial.number != own_number and (position := self._position(trial)) is not None:
                self._pending.setdefault(position, trial.number)

    def taker(self, position: Position) -> int | None:
        """Number of the trial that has this configuration, None if it is free."""
        return self._taken.get(position, self._pending.get(position))

    def has_finished(self, position: Position) -> bool:
        """Whether a finished trial has this configuration."""
        return position in self._taken

    def may_be_exhausted(self) -> bool:
        """Whether few enough configurations were free at the last refresh to look again; cheap."""
        if self._space is None or not self._space.declared or self._space.table is None:
            return False
        return len(self._space.table) - len(self._taken) - len(self._pending) <= _FEW

    def free_rows(self) -> NDArray[np.bool_] | None:
        """Which rows of the space's table are free [N], None where there is no table."""
        if self._space is None or (table := self._space.table) is None:
            return None
        if self._free is None:
            self._free = np.ones(len(table), bool)
            for position in self._taken:
                self._mark(self._free, position)
        free = self._free.copy()
        for position in self._pending:
            self._mark(free, position)
        return free

    def _mark(self, free: NDArray[np.bool_], position: Position) -> None:
        assert self._space is not None
        assert self._space.table is not None
        if (row := self._space.table.row(position)) is not None:
            free[row] = False

    def _add(self, trial: FrozenTrial) -> None:
        self._known.add(trial.number)
        self.calls.note(trial)
        if trial.state not in _FINISHED:
            return
        self.finished.append(trial)
        for name, distribution in trial.distributions.items():
            if type(self.seen_distributions.get(name, distribution)) is not type(distribution):
                self._ambiguous.add(name)
            self.seen_distributions[name] = distribution
        for name in self._ambiguous:
            self.seen_distributions.pop(name, None)
        if self._declared is None and self._uniform and trial.distributions:
            self._infer(trial)
        self._take(trial)

    def _take(self, trial: FrozenTrial) -> None:
        if self._space is not None and (position := self._space.position(trial.params)) is not None:
            self._taken.setdefault(position, trial.number)
            if self._free is not None:
                self._mark(self._free, position)

    def _infer(self, trial: FrozenTrial) -> None:
        if self._space is None:
            self._space = SearchSpace(trial.distributions)
        elif trial.distributions != self._space.distributions:
            self._uniform = False
            self._space = None
            self._taken, self._free = {}, None

    def _position(self, trial: FrozenTrial) -> Position | None:
        """Where an unfinished trial is: what it has suggested, was enqueued with, and has claimed."""
        if self._space is None:
            return None
        claim: Mapping[str, float] = trial.system_attrs.get(CLAIM, {})
        values = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        for name in self._space.names:
            if name not in values and name in claim:
                values[name] = self._space.value(name, claim[name])
        return self._space.position(values)

    def _read_task(self, study: optuna.Study) -> None:
        """The task is read until the first trial has finished: it is written before a study starts."""
        if self._task_is_final:
            return
        # Not study.user_attrs: under HyperbandPruner the study has none.
        self.task = read_task(study._storage.get_study_user_attrs(study._study_id))
        self._task_is_final = self.task is not None or bool(self.finished)
        if self.task is not None and self._declared is None:
            self._declared = SearchSpace.from_space(self.task.space)
            self._declared.check_restrictions()
            self._space = self._declared
            self._taken, self._free = {}, None
            for trial in self.finished:
                self._take(trial)


class Memories(Generic[State]):
    """One state per study; studies are told apart by storage object and identifier. Not pickled, not copied.

    Args:
        make: Makes the state of a study that is met for the first time.
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._states: weakref.WeakKeyDictionary[object, dict[int, State]] = weakref.WeakKeyDictionary()

    def of(self, study: optuna.Study) -> State:
        """The state of a study."""
        with self._lock:  # or two threads would begin with a state each
            states = self._states.setdefault(study._storage, {})
            if study._study_id not in states:
                states[study._study_id] = self._make()
            return states[study._study_id]

    def __iter__(self) -> Iterator[State]:
        """All states."""
        return (state for states in list(self._states.values()) for state in states.values())


def fixed_values(study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
    """Values that the sampler is not asked for: enqueued ones, and those of Optuna's ``PartialFixedSampler``."""
    from optuna.samplers import PartialFixedSampler

    fixed: dict[str, Any] = {}
    sampler = study.sampler
    while isinstance(sampler, PartialFixedSampler):
        fixed = {**sampler._fixed_params, **fixed}
        sampler = sampler._base_sampler
    return {**fixed, **trial.system_attrs.get("fixed_params", {})}


def is_optimizing(study: optuna.Study) -> bool:
    """Whether this thread is within ``Study.optimize``; the study that HyperbandPruner makes does not know itself."""
    root: optuna.Study = getattr(study, "_study", study)
    return bool(root._thread_local.in_optimize_loop)
