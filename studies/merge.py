"""Adding copies of studies to an archive: in one go, and never a trial twice."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage

from llm_sampler.studies.archive import ArchiveError
from llm_sampler.studies.entry import refuse_newer, write_entry
from llm_sampler.studies.exchange import StudyCopy
from llm_sampler.studies.loop import METRIC_NAME
from llm_sampler.studies.report_data import read_study
from llm_sampler.studies.transaction import whole
from llm_sampler.studies.trials import identity
from llm_sampler.task import write_task


@dataclass(frozen=True)
class Merged:
    """What became of a copy.

    Attributes:
        name: The study in the archive.
        added: Trials that it did not have.
        present: Trials that it had.
        unfinished: Trials that were waiting or running where the copy was made, and stayed there.
        created: Whether the archive had no such study.
    """

    name: str
    added: int
    present: int
    unfinished: int
    created: bool


def merge(storage: RDBStorage, copies: Iterable[StudyCopy]) -> list[Merged]:
    """Add the trials that an archive does not have; all of the copies or, where something fails, nothing.

    Trials are copies of each other if configuration, outcome and samples are the same. Another measurement of the same
    configuration is another trial.

    Args:
        storage: The archive.
        copies: The studies; one of an existing study's name continues it.

    Raises:
        ArchiveError: An existing study of that name is about something else, or newer than this program.
    """
    with whole(storage):
        return [_merge_one(storage, copy) for copy in copies]


def _merge_one(storage: RDBStorage, copy: StudyCopy) -> Merged:
    refuse_newer(copy.name, copy.entry)
    created = copy.name not in {study.study_name for study in storage.get_all_studies()}
    if created:
        study = optuna.create_study(storage=storage, study_name=copy.name, direction="minimize")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([METRIC_NAME])
        write_task(study, copy.task)
        write_entry(study, copy.entry)
        for name, value in copy.attributes.items():
            study.set_user_attr(name, value)
    else:
        study = optuna.load_study(storage=storage, study_name=copy.name)
        _, task = read_study(study)
        if task.space.digest() != copy.task.space.digest():
            raise ArchiveError(
                f"study {copy.name} is about another space here (digest {task.space.digest()}, imported "
                f"{copy.task.space.digest()}): give the imported one another --name"
            )
    seen = {identity(trial) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()}
    added = 0
    for trial in copy.trials:
        mark = identity(trial)
        if mark not in seen:
            seen.add(mark)
            study.add_trial(trial)
            added += 1
    return Merged(copy.name, added, len(copy.trials) - added, copy.unfinished, created)
