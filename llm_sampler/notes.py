"""What a trial's attributes say about its proposal: written here, read by reports (see ``attributes``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_sampler import attributes

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from llm_sampler.budget import CallRecord
    from llm_sampler.reply import Proposal


def tag(study: optuna.Study, trial: FrozenTrial, name: str, value: Any) -> None:
    """Set a user attribute of a running trial."""
    study._storage.set_trial_user_attr(trial._trial_id, name, value)


def note_proposal(study: optuna.Study, trial: FrozenTrial, proposal: Proposal, proposed_by: str) -> None:
    """Say that a trial measures a proposal, and why it was made."""
    tag(study, trial, attributes.PROPOSED_BY, proposed_by)
    details = {
        attributes.CALL: proposal.call,
        attributes.FAMILY: proposal.family[:100],
        attributes.RATIONALE: proposal.rationale,
        attributes.CHANGES: "; ".join(proposal.changes)[:1_000],
    }
    for name, value in details.items():
        if value:
            tag(study, trial, name, value)


def note_calls(study: optuna.Study, trial: FrozenTrial, records: Sequence[CallRecord]) -> None:
    """Keep the outcomes of calls on the trial, and the model's name on the study."""
    if not records:
        return
    tag(study, trial, attributes.CALLS, [record.to_json() for record in records])
    models = [record.model for record in records if record.model and not record.error]
    if models:
        study._storage.set_study_user_attr(study._study_id, attributes.MODEL, models[-1])
