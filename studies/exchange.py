"""Studies in and out of an archive: T4 files, and other archives.

A T4 file of ours holds in ``results`` each measured configuration once, with the trial it comes from beside what the
format knows, and under ``metadata.archive`` the rest of the study. Other T4 files become a study of their recording.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import ARCHIVE, MODEL, PROPOSED_BY
from llm_sampler.kernels import KERNELS
from llm_sampler.kernels.device import Device
from llm_sampler.objectives.kernel_objective import (
    CONSTRAINT,
    MEASUREMENT_ATTRIBUTE,
    SPEEDUP_ATTRIBUTE,
    STATUS_ATTRIBUTE,
    measurement_json,
)
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import (
    Recorded,
    Recording,
    RecordingError,
    load_t4,
    recording_of,
    t4_bytes,
    t4_document,
)
from llm_sampler.space import Configuration, SpaceError, configuration_key
from llm_sampler.studies.archive import ArchiveError, study_name
from llm_sampler.studies.entry import Entry, read_entry, refuse_newer
from llm_sampler.studies.files import write_whole
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.report_data import read_study
from llm_sampler.studies.tasks import recording_task
from llm_sampler.studies.trials import make_trial, trial_facts
from llm_sampler.studies.warm import SEEDS_ATTRIBUTE
from llm_sampler.task import Task, read_task

_KEPT = (MODEL, SEEDS_ATTRIBUTE)
_MOST_NAME = 512
_MOST_CHOICE_CHARACTERS = 500


@dataclass(frozen=True)
class StudyCopy:
    """A study on its way from one archive to another.

    Attributes:
        name: The study's name.
        entry: What it is about.
        task: Its task.
        trials: Its finished trials.
        attributes: Further user attributes of the study.
        unfinished: Trials that wait or run, which stay behind.
    """

    name: str
    entry: Entry
    task: Task
    trials: Sequence[FrozenTrial]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    unfinished: int = 0


def copy_study(study: optuna.Study) -> StudyCopy:
    """A kernel's study as it stands in its archive.

    Raises:
        ArchiveError: It is no kernel's study, or a newer version of this program wrote it.
    """
    entry, task = read_study(study)
    trials = study.get_trials(deepcopy=False)
    finished = [trial for trial in trials if trial.state.is_finished()]
    attributes = {name: study.user_attrs[name] for name in _KEPT if name in study.user_attrs}
    return StudyCopy(study.study_name, entry, task, finished, attributes, len(trials) - len(finished))


def copies_of(storage: RDBStorage) -> Iterator[StudyCopy]:
    """Every kernel's study of an archive, one after the other.

    Raises:
        ArchiveError: A newer version of this program wrote one.
    """
    for frozen in storage.get_all_studies():
        entry = read_entry(frozen.study_name, frozen.user_attrs)
        if entry is not None and read_task(frozen.user_attrs) is not None:
            yield copy_study(optuna.load_study(study_name=frozen.study_name, storage=storage))


def write_t4(path: Path, copy: StudyCopy) -> None:
    """Write a study as a T4 file; gzip if the name ends in ``.gz``.

    Raises:
        OutputError: It cannot be written.
    """
    first, more = _split(copy)
    measurements = {key: (trial, measurement) for key, (trial, measurement) in first.items()}
    recording = Recording(
        kernel=copy.entry.kernel,
        space=copy.task.space,
        results=tuple(Recorded(dict(trial.params), measurement) for trial, measurement in measurements.values()),
        problem=copy.entry.problem,
        device=_device(copy),
        versions=_common_versions([measurement for _, measurement in measurements.values()]),
        date=max((t.datetime_complete.isoformat() for t in copy.trials if t.datetime_complete), default=""),
        chosen=f"the trials of study {copy.name}",
    )
    document = t4_document(recording)
    for result in document["results"]:
        trial, _ = measurements[configuration_key(result["configuration"])]
        result["trial"] = trial_facts(trial)
        result["timestamp"] = trial.datetime_complete.isoformat() if trial.datetime_complete else ""
    document["metadata"]["archive"] = {
        "study": copy.name,
        "entry": copy.entry.to_json(),
        "task": json.loads(copy.task.to_json()),
        "attributes": dict(copy.attributes),
        "more": [{**trial_facts(trial), "configuration": dict(trial.params)} for trial in more],
    }
    write_whole(path, t4_bytes(document, packed=path.suffix == ".gz"))


def read_t4(path: Path, space_path: Path | None = None) -> StudyCopy:
    """The study in a T4 file: one that `write_t4` wrote, a recording, or a foreign file with its T1 file.

    Raises:
        RecordingError: The file is no T4, or it cannot be used.
        ArchiveError: It was an archive's, and what it says of its trials cannot be used.
    """
    data = load_t4(path)
    recording = recording_of(data, path, space_path)
    try:
        _check_space(recording)
        archive = data["metadata"].get("archive") if isinstance(data.get("metadata"), dict) else None
        return _from_recording(recording) if archive is None else _from_archive(recording, data, archive)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, RecordingError | ArchiveError | SpaceError):
            raise type(error)(f"{path.name}: {error!s:.600}") from None
        raise ArchiveError(f"{path.name} holds no study of this program: {error!r:.200}") from None


def _split(copy: StudyCopy) -> tuple[dict[str, tuple[FrozenTrial, Measurement]], list[FrozenTrial]]:
    """The first trial of each configuration with its measurement, and all other trials."""
    first: dict[str, tuple[FrozenTrial, Measurement]] = {}
    more = []
    for trial in copy.trials:
        measurement = TrialRecord.from_trial(trial).measurement
        key = configuration_key(trial.params)
        in_space = not copy.task.space.faults(trial.params)
        if measurement is None or trial.state == TrialState.FAIL or key in first or not in_space:
            more.append(trial)
        else:
            first[key] = trial, measurement
    return first, more


def _from_archive(recording: Recording, data: Mapping[str, Any], archive: Mapping[str, Any]) -> StudyCopy:
    entry = Entry.from_json(archive["entry"])
    name = archive["study"]
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        raise ArchiveError(f"a study's name must be a text of at most {_MOST_NAME} characters, got {name!r:.60}")
    refuse_newer(name, entry)
    task = Task.from_json(json.dumps(archive["task"]))
    _check_task(task)
    if entry.kernel != recording.kernel:
        raise ArchiveError(f"its metadata and its entry must name one kernel, got {recording.kernel:.60} and another")
    if task.space.digest() != recording.space.digest() or entry.digest != task.space.digest():
        raise ArchiveError("the spaces of its metadata, its entry and its task must be the same")
    trials = []
    for result in data["results"]:
        facts, configuration = result["trial"], dict(result["configuration"])
        trial = make_trial(facts, configuration, task.space)
        _check_same(trial, recording.by_key[configuration_key(configuration)])
        trials.append((int(facts["number"]), trial))
    for facts in archive["more"]:
        trials.append((int(facts["number"]), make_trial(facts, dict(facts["configuration"]), task.space)))
    kept = {name: value for name, value in dict(archive["attributes"]).items() if name in _KEPT}
    ordered = [trial for _, trial in sorted(trials, key=lambda item: item[0])]
    return StudyCopy(name, entry, task, ordered, kept)


def _from_recording(recording: Recording) -> StudyCopy:
    """A study of everything that was recorded, the default first."""
    digest = recording.digest()
    task = recording_task(recording, KERNELS.get(recording.kernel))
    problem = recording.problem.name if recording.problem else ""
    space_digest = recording.space.digest()
    name = study_name(recording.kernel, problem, recording.device_name, space_digest, f"recorded-{digest}")
    entry = Entry(recording.kernel, recording.problem, recording.device_name, space_digest, digest)
    default = configuration_key(recording.space.default) if recording.space.default else ""
    when = _parsed(recording.date)
    trials = [
        _recorded_trial(result, recording, when)
        for result in sorted(recording.results, key=lambda result: result.key != default)
    ]
    return StudyCopy(name, entry, task, trials)


def _recorded_trial(result: Recorded, recording: Recording, when: datetime.datetime) -> FrozenTrial:
    measurement = result.measurement
    attributes: dict[str, Any] = {
        PROPOSED_BY: ARCHIVE,
        STATUS_ATTRIBUTE: measurement.status,
        MEASUREMENT_ATTRIBUTE: measurement_json(measurement),
    }
    if recording.default_ms is not None and measurement.median_ms is not None:
        attributes[SPEEDUP_ATTRIBUTE] = round(recording.default_ms / measurement.median_ms, 4)
    facts = {
        "state": "COMPLETE" if measurement.ok else "PRUNED",
        "value": measurement.median_ms,
        "started": when.isoformat(),
        "ended": when.isoformat(),
        "attributes": attributes,
        "constraints": {CONSTRAINT: 0.0 if measurement.ok else 1.0},
    }
    return make_trial(facts, result.configuration, recording.space)


def _check_same(trial: FrozenTrial, measurement: Measurement) -> None:
    """Make sure that a file says one thing of a configuration, not two: its T4 half has five digits."""
    value_ms = trial.values[0] if trial.values else None
    listed_ms = measurement.median_ms
    same = value_ms is None if listed_ms is None else value_ms is not None and abs(value_ms / listed_ms - 1) < 1e-4
    status = trial.user_attrs.get(STATUS_ATTRIBUTE, measurement.status)
    if not same or status != measurement.status:
        raise ArchiveError(
            f"a result and its trial must agree, got {measurement.status} {listed_ms} and {status!r:.40} {value_ms}"
        )


def _check_task(task: Task) -> None:
    """Make sure that what a prompt or a report shows of a task are texts and scalars."""
    texts = (task.title, task.description, task.source, task.objective, task.unit, task.outcome)
    if not all(isinstance(text, str) for text in texts):
        raise ArchiveError("a task's title, description, source, objective, unit and outcome must be texts")
    for facts in (task.problem, task.device, task.space.facts):
        if not isinstance(facts, dict) or not all(isinstance(v, bool | int | float | str) for v in facts.values()):
            raise ArchiveError("a task's problem, device and facts must be objects of bools, numbers and texts")


def _check_space(recording: Recording) -> None:
    """Make sure that Optuna and databases can hold the space."""
    for parameter in recording.space.parameters:
        if not parameter.name or len(parameter.name) > _MOST_CHOICE_CHARACTERS:
            raise RecordingError(f"a parameter's name must have 1 to {_MOST_CHOICE_CHARACTERS} characters")
        for choice in parameter.choices:
            if not isinstance(choice, bool | int | float | str):
                raise RecordingError(f"a choice of {parameter.name:.60} must be a bool, int, float or str")
            if isinstance(choice, str) and len(choice) > _MOST_CHOICE_CHARACTERS:
                raise RecordingError(f"a choice must have at most {_MOST_CHOICE_CHARACTERS} characters")
    default: Configuration | None = recording.space.default
    if default is not None and (not isinstance(default, dict) or not recording.space.allows(default)):
        raise RecordingError(f"the default must be an allowed configuration, got {default!r:.80}")


def _device(copy: StudyCopy) -> Device | str:
    """The device with its facts, where the task has them."""
    facts = dict(copy.task.device)
    rates = {n.removeprefix("peak_tflops_"): facts.pop(n) for n in list(facts) if n.startswith("peak_tflops_")}
    try:
        return Device.from_json({**facts, "peak_tflops": rates})
    except TypeError:
        return copy.entry.device


def _common_versions(measurements: Sequence[Measurement]) -> dict[str, str]:
    """Versions that all measurements agree in; each trial keeps its own."""
    sets = [set(measurement.versions.items()) for measurement in measurements]
    return dict(sorted(set.intersection(*sets))) if sets else {}


def _parsed(date: str) -> datetime.datetime:
    try:
        parsed = datetime.datetime.fromisoformat(date)
    except ValueError:
        return datetime.datetime.now()
    return parsed.astimezone().replace(tzinfo=None) if parsed.tzinfo else parsed
