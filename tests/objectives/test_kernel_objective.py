from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from llm_sampler.objectives.kernel_objective import KernelObjective, measurement_json
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration, Parameter, Space

SPACE = Space((Parameter("a", (1, 2, 4)), Parameter("b", (False, True))), ("a < 4 or not b",), {"a": 1, "b": False})


class TableEvaluator:
    """Times are a + 0.5 b; a = 2 with b runs out of resources."""

    space = SPACE
    parallel = 1
    device = "Table"
    reference_ms = None

    def __init__(self) -> None:
        self.calls: list[Configuration] = []

    def evaluate(self, configuration: Configuration) -> Measurement:
        self.calls.append(configuration)
        if configuration == {"a": 2, "b": True}:
            return Measurement("out_of_resources", detail="required 9 of 8 bytes")
        return Measurement("ok", median_ms=configuration["a"] + 0.5 * configuration["b"], samples=(1.0,))  # type: ignore[operator, arg-type]

    def close(self) -> None:
        raise NotImplementedError


class BrokenEvaluator(TableEvaluator):
    def evaluate(self, configuration: Configuration) -> Measurement:
        raise RuntimeError("the device is lost")


def run(configurations: list[Configuration], evaluator: TableEvaluator, storage: str | None = None) -> optuna.Study:
    study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
    for configuration in configurations:
        study.enqueue_trial(configuration)
    study.optimize(KernelObjective(evaluator), n_trials=len(configurations))
    return study


def test_a_time_is_the_value_and_the_measurement_is_stored(tmp_path: Path) -> None:
    study = run([{"a": 1, "b": False}, {"a": 4, "b": False}], TableEvaluator(), f"sqlite:///{tmp_path}/t.db")
    first, second = study.get_trials()
    assert [first.value, second.value] == [1.0, 4.0]
    assert first.user_attrs["kernel:measurement"] == {"status": "ok", "median_ms": 1.0, "samples": [1.0]}
    assert first.user_attrs["kernel:status"] == "ok"
    assert [t.user_attrs["kernel:speedup"] for t in (first, second)] == [1.0, 0.25]
    assert first.constraints == {"kernel:failed": 0.0}
    assert first.distributions["a"] == optuna.distributions.CategoricalDistribution((1, 2, 4))


def test_the_speedup_is_known_after_a_resume_and_not_before_the_default(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    run([{"a": 4, "b": False}, {"a": 1, "b": False}], TableEvaluator(), url)
    study = run([{"a": 2, "b": False}], TableEvaluator(), url)
    assert [t.user_attrs.get("kernel:speedup") for t in study.get_trials()] == [None, 1.0, 0.5]


def test_a_failure_is_pruned_infeasible_and_explained() -> None:
    study = run([{"a": 2, "b": True}], TableEvaluator())
    (trial,) = study.get_trials()
    assert trial.state == TrialState.PRUNED
    assert trial.user_attrs["kernel:status"] == "out_of_resources"
    assert trial.user_attrs["kernel:measurement"]["detail"] == "required 9 of 8 bytes"
    assert trial.constraints == {"kernel:failed": 1.0}
    assert "kernel:speedup" not in trial.user_attrs


def test_a_restricted_configuration_is_not_measured() -> None:
    evaluator = TableEvaluator()
    study = run([{"a": 4, "b": True}], evaluator)
    (trial,) = study.get_trials()
    assert evaluator.calls == []
    assert trial.state == TrialState.PRUNED
    assert trial.user_attrs["kernel:status"] == "restricted"
    assert "a < 4 or not b" in trial.user_attrs["kernel:measurement"]["detail"]


def test_the_evaluator_gets_the_choice_itself() -> None:
    evaluator = TableEvaluator()
    run([{"a": 4.0, "b": 0}, {"a": np.int64(2), "b": False}], evaluator)
    assert evaluator.calls == [{"a": 4, "b": False}, {"a": 2, "b": False}]
    assert [[type(value) for value in call.values()] for call in evaluator.calls] == [[int, bool], [int, bool]]


def test_numbers_that_are_not_finite_are_not_stored() -> None:
    wrong = Measurement("wrong_result", error=float("inf"), error_limit=1e-3)
    assert measurement_json(wrong) == {"status": "wrong_result", "error_limit": 1e-3}


def test_a_broken_machine_fails_the_trial_and_ends_the_study() -> None:
    with pytest.raises(RuntimeError, match="device is lost"):
        run([{"a": 1, "b": False}], BrokenEvaluator())


def test_a_stored_measurement_is_at_most_60_kilobytes() -> None:
    huge = Measurement(
        "ok",
        median_ms=1.0,
        samples=tuple(i / 7 for i in range(100_000)),
        detail="x" * 100_000,
        versions={str(i): "y" * 100 for i in range(1000)},
    )
    data = measurement_json(huge)
    assert len(json.dumps(data)) <= 60_000
    assert data["median_ms"] == 1.0
    assert 250 <= len(data["samples"]) <= 500
    assert data["samples"][-1] > 0.99 * huge.samples[-1]
    small = Measurement("ok", median_ms=1.0, samples=(1.0, 2.0), versions={"torch": "2"})
    assert measurement_json(small) == small.to_json()
