"""How a sampler fares on a recorded space, alone or with a simulated model: best value over the optimum, by trial."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.samplers import TPESampler

from llm_sampler.attributes import DEFAULT, PROPOSED_BY
from llm_sampler.distinct import DistinctSampler
from llm_sampler.sampler import LLMSampler
from llm_sampler.simulated import Quality, SimulatedModel
from llm_sampler.space import Space, configuration_key
from llm_sampler.task import Task, write_task


@dataclass(frozen=True)
class Course:
    """One simulated study.

    Attributes:
        ratios: Best cost so far over the least cost of the space, after each trial; infinite before the first success.
        llm_trials: How many trials measured a proposal of the model.
    """

    ratios: tuple[float, ...]
    llm_trials: int

    def first_within(self, share: float) -> int | None:
        """After how many trials the best cost was within this share of the optimum, None if it never was."""
        return next((index + 1 for index, ratio in enumerate(self.ratios) if ratio <= 1.0 + share), None)


def simulate(
    space: Space, costs: Mapping[str, float | None], quality: Quality | None, *, seed: int, trials: int
) -> Course:
    """One study on a recorded space; the default is measured first, as in any other.

    Args:
        space: The space.
        costs: By configuration key; None for a configuration that fails.
        quality: Of the model; None for TPE alone.
        seed: Of sampler and model.
        trials: How many.
    """
    if quality is None:
        sampler: optuna.samplers.BaseSampler = DistinctSampler(TPESampler(seed=seed))
    else:
        model = SimulatedModel([(json.loads(key), cost) for key, cost in costs.items()], quality, seed=seed)
        sampler = LLMSampler(client=model, seed=seed, wait="always", max_calls=None)
    study = optuna.create_study(sampler=sampler)
    write_task(study, Task("simulated", space))
    if space.default is not None and space.allows(space.default):
        study.enqueue_trial(space.default, user_attrs={PROPOSED_BY: DEFAULT})

    def objective(trial: optuna.Trial) -> float:
        configuration = {p.name: trial.suggest_categorical(p.name, p.choices) for p in space.parameters}
        cost = costs[configuration_key(configuration)]
        if cost is None:
            trial.set_constraint("failed", 1.0)
            raise optuna.TrialPruned
        return cost

    study.optimize(objective, n_trials=trials)
    optimum = min(cost for cost in costs.values() if cost is not None)
    finished = study.get_trials(deepcopy=False)
    values = [math.inf if trial.value is None else trial.value / optimum for trial in finished]
    count = sum(trial.user_attrs.get(PROPOSED_BY) == "llm" for trial in finished)
    return Course(tuple(float(ratio) for ratio in np.minimum.accumulate(values)), count)


@dataclass(frozen=True)
class Summary:
    """Several courses of one kind on one space.

    Attributes:
        means: Mean ratio after the given numbers of trials.
        within: Median number of trials to 5 % of the optimum; None if fewer than half came there.
        llm_trials: Mean number of the model's trials.
    """

    means: tuple[float, ...]
    within: float | None
    llm_trials: float


def summarize(courses: Sequence[Course], checkpoints: Sequence[int]) -> Summary:
    """The courses in numbers.

    Args:
        courses: At least one.
        checkpoints: Numbers of trials, from 1; a course that ended earlier counts with its end.
    """
    means = []
    for checkpoint in checkpoints:
        means.append(float(np.mean([course.ratios[min(checkpoint, len(course.ratios)) - 1] for course in courses])))
    hits = sorted(hit if hit is not None else math.inf for hit in (c.first_within(0.05) for c in courses))
    within = float(np.median(hits))
    llm_trials = float(np.mean([course.llm_trials for course in courses]))
    return Summary(tuple(means), within if math.isfinite(within) else None, llm_trials)
