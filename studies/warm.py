"""Warm start: a new study begins with the best configurations of its nearest relatives, and its LLM is told of them.

A relative is a study of the same kernel: of another problem, on another device, or of the same in another space. Its
best configuration is queued after the default, if the new space allows it; what held there becomes part of the task's
description, which reaches an LLM as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import optuna
from optuna.storages import RDBStorage

from llm_sampler.attributes import ARCHIVE, PROPOSED_BY, RATIONALE
from llm_sampler.space import Configuration, Space, SpaceError, configuration_key
from llm_sampler.studies.entry import Entry
from llm_sampler.studies.query import relatives
from llm_sampler.task import TASK_ATTRIBUTE, Task

SEEDS_ATTRIBUTE = "archive:seeds"
MOST_SEEDS = 4
_MOST_RATIONALE = 500


@dataclass(frozen=True)
class Seed:
    """A configuration that was the best of a relative.

    Attributes:
        configuration: What is queued.
        where: The relative, e.g. ``matmul 16x8192x8192-fp16 on NVIDIA H200``.
        study: Name of its study.
        median_ms: The configuration's median time there.
        speedup: Over the default configuration there; None if unknown.
        reference_speedup: Over PyTorch there; None if unknown.
        measured: Configurations that were measured there.
        stale: Whether it was measured with another driver or Triton than what counts there now.
    """

    configuration: Configuration
    where: str
    study: str
    median_ms: float
    speedup: float | None = None
    reference_speedup: float | None = None
    measured: int = 0
    stale: bool = False

    @property
    def text(self) -> str:
        """What held there, one line."""
        factors = [
            f"{factor:.2f}x {what}"
            for what, factor in (("the default", self.speedup), ("PyTorch", self.reference_speedup))
            if factor is not None
        ]
        pairs = " ".join(f"{name}={value}" for name, value in self.configuration.items())
        notes = ", ".join([f"{self.median_ms:.4g} ms", *factors, *(["older driver or Triton"] if self.stale else [])])
        return (
            f"{self.where}: of {self.measured} measured configurations the best that is allowed here: {pairs} ({notes})"
        )


def warm_start(
    storage: RDBStorage,
    study_name: str,
    entry: Entry,
    space: Space,
    *,
    here: tuple[str, Mapping[str, str]] = ("", {}),
    most: int = MOST_SEEDS,
) -> tuple[Seed, ...]:
    """What a study begins with: what it did begin with, if it exists; else the best of its nearest relatives.

    Args:
        storage: The archive.
        study_name: The study's name.
        entry: What it is about.
        space: Its space; only configurations that it allows count, and not its default.
        here: This machine's device and versions: see `machine_versions`.
        most: How many, all different.
    """
    try:
        study_id = storage.get_study_id_from_name(study_name)
    except KeyError:
        pass
    else:
        attributes = storage.get_study_user_attrs(study_id)
        if TASK_ATTRIBUTE in attributes:  # else another worker is about to write both, the same as this one
            return read_seeds(attributes)
    found: dict[str, Seed] = {}
    for answer in relatives(storage.engine, entry.kernel, entry.problem, entry.device, allows=space.allows, here=here):
        if len(found) >= most:
            break
        seed = Seed(
            configuration=answer.configuration,
            where=answer.entry.title,
            study=answer.study,
            median_ms=answer.median_ms,
            speedup=answer.speedup,
            reference_speedup=answer.reference_speedup,
            measured=answer.measured,
            stale=answer.stale,
        )
        if space.default is None or configuration_key(seed.configuration) != configuration_key(space.default):
            found.setdefault(configuration_key(seed.configuration), seed)
    return tuple(found.values())


def told(task: Task, seeds: Sequence[Seed]) -> Task:
    """The task with what held on the relatives."""
    if not seeds:
        return task
    lines = "\n".join(f"- {seed.text}" for seed in seeds)
    return replace(
        task,
        description=f"{task.description}\nWhat held on the nearest relatives (measured here, too, after the default):\n"
        f"{lines}",
    )


def keep_seeds(study: optuna.Study, seeds: Sequence[Seed]) -> None:
    """Keep in the study what it begins with."""
    if seeds:
        study.set_user_attr(SEEDS_ATTRIBUTE, [asdict(seed) for seed in seeds])


def queue_seeds(study: optuna.Study, seeds: Sequence[Seed]) -> None:
    """Queue the configurations."""
    for seed in seeds:
        attributes = {PROPOSED_BY: ARCHIVE, RATIONALE: seed.text[:_MOST_RATIONALE]}
        study.enqueue_trial(seed.configuration, user_attrs=attributes)


def read_seeds(user_attrs: Mapping[str, Any]) -> tuple[Seed, ...]:
    """The seeds that a study began with; none where it holds something else under that name."""
    data = user_attrs.get(SEEDS_ATTRIBUTE)
    try:
        seeds = tuple(Seed(**item) for item in data) if isinstance(data, list) else ()
        for seed in seeds:
            configuration_key(seed.configuration)
            seed.text  # noqa: B018 - its format demands numbers
    except (TypeError, ValueError, AttributeError, SpaceError):
        return ()
    return seeds
