"""`KernelObjective`: an Optuna objective that measures configurations of a kernel.

Times in ms. What it stores with each trial (`kernel:` attributes) is all that records and reports need.
"""

from __future__ import annotations

import json
import math
from typing import Any

import optuna
from optuna.trial import TrialState

from llm_sampler.objectives.evaluate import Evaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.occupancy import with_occupancy
from llm_sampler.space import Configuration, Space, Value, configuration_key

STATUS_ATTRIBUTE = "kernel:status"
SPEEDUP_ATTRIBUTE = "kernel:speedup"
MEASUREMENT_ATTRIBUTE = "kernel:measurement"
CONSTRAINT = "kernel:failed"
# MySQL keeps 65,535 bytes a value.
_MOST_BYTES = 60_000
_MOST_SAMPLES = 500
_MOST_DETAIL = 2_000


class KernelObjective:
    """Suggests every parameter as a categorical, measures, stores, and returns the median time in ms.

    A configuration that fails is pruned and infeasible, not failed: Optuna's samplers ignore trials in state FAIL and
    would propose it again. FAIL is for a broken machine, where ``evaluate`` raises.

    It stores a trial's ``kernel:status``; its ``kernel:speedup`` over the default configuration, where the default was
    measured by then; and ``kernel:measurement``, the whole measurement as a JSON object of at most 60 kB. Safe to call
    from several threads.

    Args:
        evaluator: What measures.

    Example:
        ```python
        objective = KernelObjective(ReplayEvaluator(find_recording("matmul")))
        study = optuna.create_study()
        study.optimize(objective, n_trials=60)
        ```
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self._default_ms: float | None = None

    def __call__(self, trial: optuna.Trial) -> float:
        """Median time in ms.

        Raises:
            optuna.TrialPruned: The configuration failed; the message is its status and why.
        """
        configuration = self.suggest(trial)
        return self.finish(trial, configuration, self.measure(configuration))

    def suggest(self, trial: optuna.Trial) -> Configuration:
        """The trial's configuration."""
        return suggest(trial, self.evaluator.space)

    def measure(self, configuration: Configuration) -> Measurement:
        """What comes of a configuration; one that breaks a restriction is not evaluated."""
        space = self.evaluator.space
        if faults := space.faults(configuration):
            return Measurement("restricted", detail="; ".join(faults), device=self.evaluator.device)
        # Older recordings have registers and shared memory only.
        return with_occupancy(self.evaluator.evaluate(configuration), configuration, space.facts)

    def finish(self, trial: optuna.Trial, configuration: Configuration, measurement: Measurement) -> float:
        """Store a measurement with its trial; the median time in ms.

        Raises:
            optuna.TrialPruned: As when called.
        """
        self._store(trial, configuration, measurement)
        if measurement.median_ms is None:
            raise optuna.TrialPruned(f"{measurement.status}: {measurement.detail}".rstrip(": "))
        return measurement.median_ms

    def _store(self, trial: optuna.Trial, configuration: Configuration, measurement: Measurement) -> None:
        trial.set_constraint(CONSTRAINT, 0.0 if measurement.ok else 1.0)
        trial.set_user_attr(STATUS_ATTRIBUTE, measurement.status)
        default_ms = self._find_default_ms(trial, configuration, measurement)
        if default_ms is not None and measurement.median_ms is not None:
            trial.set_user_attr(SPEEDUP_ATTRIBUTE, round(default_ms / measurement.median_ms, 4))
        # Last: where it is, all is; a worker that is killed before the trial is told loses nothing (`workers`).
        trial.set_user_attr(MEASUREMENT_ATTRIBUTE, measurement_json(measurement))

    def _find_default_ms(
        self, trial: optuna.Trial, configuration: Configuration, measurement: Measurement
    ) -> float | None:
        default = self.evaluator.space.default
        if default is None or self._default_ms is not None:
            return self._default_ms
        key = configuration_key(default)
        if configuration_key(configuration) == key:
            self._default_ms = measurement.median_ms
        else:
            for other in trial.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
                if configuration_key(other.params) == key:
                    self._default_ms = other.value
                    break
        return self._default_ms


def suggest(trial: optuna.Trial, space: Space) -> Configuration:
    """A configuration of the space from the trial, every parameter as a categorical.

    Categorical, not an index: Optuna's TPE finds kernels' optima with fewer measurements that way (after 100
    measurements 1.088 × the optimum against 1.378 ×, the geometric mean over five recorded spaces).
    """
    suggested = {p.name: trial.suggest_categorical(p.name, p.choices) for p in space.parameters}
    return {p.name: _choice(p.choices, suggested[p.name]) for p in space.parameters}


def _choice(choices: tuple[Value, ...], value: object) -> Value:
    """The choice itself: an enqueued 32.0 or NumPy integer passes Optuna unchanged, and compiles another kernel."""
    equal = [choice for choice in choices if choice == value]
    return next((choice for choice in equal if type(choice) is type(value)), equal[0])


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """The measurement as JSON types of at most 60 kB: long texts are cut, many samples thinned evenly.

    Numbers that are not finite are left out: browsers refuse JSON that holds them.
    """
    data = {n: v for n, v in measurement.to_json().items() if not isinstance(v, float) or math.isfinite(v)}
    if len(data.get("detail", "")) > _MOST_DETAIL:
        data["detail"] = data["detail"][: _MOST_DETAIL - 1] + "…"
    samples = data.get("samples", [])
    if len(samples) > _MOST_SAMPLES:
        step = -(-len(samples) // _MOST_SAMPLES)
        data["samples"] = samples[::step]
    if len(json.dumps(data)) > _MOST_BYTES:
        # Only versions are unbounded now.
        data.pop("versions", None)
    return data
