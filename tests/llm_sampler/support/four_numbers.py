"""A small study: four numbers with a restriction, a task, and how to run a sampler on it."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.samplers import BaseSampler

from llm_sampler.attributes import PROPOSED_BY
from llm_sampler.space import Parameter, Space, configuration_key
from llm_sampler.task import Task, write_task

SPACE = Space(
    tuple(Parameter(f"p{i}", tuple(range(5))) for i in range(4)),
    ("p0 + p1 <= 6",),
    {f"p{i}": 0 for i in range(4)},
)
TASK = Task("four numbers", SPACE)


def objective(trial: optuna.Trial) -> float:
    """Least at (3, 1, 4, 1)."""
    values = [trial.suggest_categorical(p.name, p.choices) for p in SPACE.parameters]
    return 1.0 + sum(abs(a - b) for a, b in zip(values, (3, 1, 4, 1), strict=True))


def point(*values: int) -> dict[str, int]:
    return {f"p{i}": value for i, value in enumerate(values)}


def run(
    sampler: BaseSampler, trials: int = 30, *, task: Task | None = TASK, storage: str | None = None, **arguments: Any
) -> optuna.Study:
    study = optuna.create_study(sampler=sampler, storage=storage)
    if task is not None:
        write_task(study, task)
    study.optimize(objective, n_trials=trials, **arguments)
    return study


def proposed_by(study: optuna.Study) -> list[str]:
    return [trial.user_attrs[PROPOSED_BY] for trial in study.trials]


def keys(study: optuna.Study) -> list[str]:
    return [configuration_key(trial.params) for trial in study.trials]


OPENING = [point(3, 1, 4, 0), point(3, 1, 3, 1), point(2, 1, 4, 1)]
