"""Claims: how workers that propose at the same time keep from choosing the same configuration.

A worker writes its choice to its own trial first and then reads the other trials. Of two workers that choose the same,
the one that writes last reads the other's claim, so at most one keeps it. The one that finds its choice taken draws
again; where the other has the higher number it waits a moment first, because the other may be drawing again already.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llm_sampler.attributes import CLAIM

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from llm_sampler.memory import StudyMemory
    from llm_sampler.search_space import Position, SearchSpace

# A worker that draws again does so within a draw and a commit of the storage, about 50 ms on SQLite.
_WAIT_S = 0.3
_STEP_S = 0.01


def take(memory: StudyMemory, space: SearchSpace, study: optuna.Study, trial: FrozenTrial, position: Position) -> bool:
    """Claim a position for a trial; False if another trial has it.

    The memory is refreshed. A claim that failed stays written until the trial claims something else.
    """
    if memory.taker(position) is not None:
        return False
    claim = dict(zip(space.names, position, strict=True))
    study._storage.set_trial_system_attr(trial._trial_id, CLAIM, claim)
    deadline = time.monotonic() + _WAIT_S
    while True:
        memory.refresh(study, trial.number)
        other = memory.taker(position)
        if other is None:
            return True
        if other < trial.number or memory.has_finished(position) or time.monotonic() > deadline:
            return False
        time.sleep(_STEP_S)
