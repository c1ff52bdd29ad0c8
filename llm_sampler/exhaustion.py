"""The end of a finite space: how a study finds out, and how it stops without a trial left running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState

from llm_sampler.memory import is_optimizing

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from llm_sampler.memory import StudyMemory

_logger = optuna.logging.get_logger("optuna.llm_sampler")


class SpaceExhaustedError(optuna.TrialPruned):
    """Every allowed configuration of the study's space has been measured or is being measured.

    Within ``Study.optimize`` the study stops and nobody sees it. With ask and tell, ``Study.ask`` raises it (its trial
    ends as FAIL); so does a ``suggest`` call if another worker took the last configuration meanwhile (tell the trial
    PRUNED).
    """


def is_exhausted(memory: StudyMemory) -> bool:
    """Whether the space was stated and none of its allowed configurations is free."""
    free = memory.free_rows()
    return free is not None and memory.space is not None and memory.space.declared and not free.any()


def refuse_asked_trial(study: optuna.Study, trial: FrozenTrial, memory: StudyMemory) -> None:
    """End a trial that ``Study.ask`` has just made, if there is nothing to propose for it.

    Raises:
        SpaceExhaustedError: There is not.
    """
    memory.refresh(study, trial.number)
    if is_exhausted(memory):
        # Otherwise it would stay RUNNING for good: ask() raises before the caller has the trial.
        study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        raise SpaceExhaustedError(_text(memory))


def refuse_running_trial(study: optuna.Study, memory: StudyMemory) -> SpaceExhaustedError:
    """The error for a trial that finds nothing to propose; the study stops if it can be stopped."""
    if is_optimizing(study):
        study.stop()
    return SpaceExhaustedError(_text(memory))


def stop_if_exhausted(study: optuna.Study, memory: StudyMemory) -> None:
    """Stop ``Study.optimize`` once the last free configuration has been measured and no trial is enqueued."""
    if not is_optimizing(study) or not memory.may_be_exhausted():
        return
    memory.refresh(study)
    if is_exhausted(memory) and not memory.waiting:
        _logger.info(_text(memory))
        study.stop()


def _text(memory: StudyMemory) -> str:
    size = len(memory.space.table) if memory.space is not None and memory.space.table is not None else 0
    return (
        f"all {size} allowed configurations of the space have been proposed; to go on, widen the space or loosen a "
        "restriction"
    )
