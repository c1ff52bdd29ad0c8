"""Milliseconds a trial that the samplers add to TPE, in memory: ``python tests/benchmarks/sampler_overhead.py``.

A study of 8 parameters; the objective costs nothing, so a trial's time is the sampler's and Optuna's. Times are those
of the processor, the mean of the last 100 trials before each count. The overhead must be at most 5 ms at 1,000 trials
and grow no worse than linearly; the exit status says whether it does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import optuna
from optuna.samplers import BaseSampler, TPESampler

from llm_sampler.distinct import DistinctSampler
from llm_sampler.sampler import LLMSampler
from llm_sampler.simulated import SimulatedModel
from llm_sampler.space import Parameter, Space, configuration_key
from llm_sampler.task import Task, write_task

COUNTS = (250, 500, 1_000)
MOST_MS = 5.0
SPACE = Space(tuple(Parameter(f"p{i}", (0, 1, 2, 3)) for i in range(8)), ("p0 + p1 + p2 <= 7",))


def cost(configuration: dict[str, object]) -> float:
    """Any number."""
    return 1.0 + sum((int(str(value)) - i % 4) ** 2 for i, value in enumerate(configuration.values()))


def milliseconds(make: Callable[[], BaseSampler]) -> list[float]:
    """Mean time of the last 100 trials before each count."""
    study = optuna.create_study(sampler=make())
    write_task(study, Task("benchmark", SPACE))
    times = []

    def objective(trial: optuna.Trial) -> float:
        return cost({p.name: trial.suggest_categorical(p.name, p.choices) for p in SPACE.parameters})

    for _ in range(COUNTS[-1]):
        start = time.process_time()
        study.optimize(objective, n_trials=1)
        times.append(1e3 * (time.process_time() - start))
    assert len({configuration_key(trial.params) for trial in study.trials}) > 0.5 * COUNTS[-1]
    return [sum(times[count - 100 : count]) / 100 for count in COUNTS]


def main() -> int:
    """Print the table."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = [(dict(c), cost(dict(c))) for c in SPACE.configurations()]
    samplers: dict[str, Callable[[], BaseSampler]] = {
        "TPE": lambda: TPESampler(seed=0),
        "DistinctSampler(TPE)": lambda: DistinctSampler(TPESampler(seed=0)),
        "LLMSampler, no model": lambda: LLMSampler(seed=0),
        "LLMSampler, a good model": lambda: LLMSampler(
            client=SimulatedModel(table, "decile", seed=0), seed=0, wait="always", max_calls=None
        ),
    }
    print("CPU ms a trial at", *(f"{count:>8}" for count in COUNTS), "  beyond TPE at 1,000")
    base = milliseconds(samplers["TPE"])
    status = 0
    for name, make in samplers.items():
        found = base if name == "TPE" else milliseconds(make)
        beyond = found[-1] - base[-1]
        print(f"{name:26}", *(f"{value:8.2f}" for value in found), f"{beyond:10.2f}")
        growth = (found[-1] - base[-1]) / max(1.0, found[0] - base[0])
        status |= beyond > MOST_MS or growth > COUNTS[-1] / COUNTS[0]
    return status


if __name__ == "__main__":
    sys.exit(main())
