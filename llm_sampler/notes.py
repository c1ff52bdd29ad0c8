"""What a trial's attributes say about its proposal: written here, read by reports (see ``attributes``)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from llm_sampler import attributes

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore
    from optuna.trial import FrozenTrial

    from llm_sampler.budget import CallRecord
    from llm_sampler.reply import Proposal

_logger = optuna.logging.get_logger("optuna.llm_sampler")


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


def note_calls(
    study: optuna.Study, trial: FrozenTrial, records: Sequence[CallRecord], store: ArtifactStore | None = None
) -> None:
    """Keep the outcomes of calls on the trial, and the model's name on the study; requests and replies in the store."""
    if not records:
        return
    tag(study, trial, attributes.CALLS, [record.to_json() for record in records])
    models = [record.model for record in records if record.model and not record.error]
    if models:
        study._storage.set_study_user_attr(study._study_id, attributes.MODEL, models[-1])
    if store is not None:
        for record in records:
            _keep(study, trial, record, store)


def _keep(study: optuna.Study, trial: FrozenTrial, record: CallRecord, store: ArtifactStore) -> None:
    """The conversation as an artifact of the trial; a store that fails costs the text, not the study."""
    from optuna.artifacts import upload_artifact

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{record.kind}-{record.id}.txt"
            path.write_text(record.conversation, encoding="utf-8", errors="replace")
            upload_artifact(
                artifact_store=store,
                file_path=str(path),
                study_or_trial=trial,
                storage=study._storage,
                mimetype="text/plain",
            )
    except Exception as error:  # noqa: BLE001 - a store is the user's own, and may be a service far away
        _logger.warning(f"The conversation of call {record.id} is not kept: {type(error).__name__}: {error}")
