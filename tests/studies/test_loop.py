from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import optuna
import pytest
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import TrialState

from llm_sampler import DistinctSampler
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration, Parameter, Space
from llm_sampler.studies.archive import ArchiveError, open_storage
from llm_sampler.studies.loop import LimitError, Limits, Observer, tune
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.result import TuneResult
from llm_sampler.studies.tasks import recording_task
from llm_sampler.task import read_task

Toy: TypeAlias = Callable[..., Recording]


def random_sampler(seed: int = 0) -> DistinctSampler:
    return DistinctSampler(optuna.samplers.RandomSampler(seed=seed), seed=seed)


def run(
    evaluator: ReplayEvaluator,
    limits: Limits,
    storage: optuna.storages.BaseStorage | None = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    observer: Observer | None = None,
) -> TuneResult:
    return tune(
        evaluator,
        recording_task(evaluator.recording),
        storage=storage or InMemoryStorage(),
        study_name="toy/study",
        sampler=sampler or random_sampler(),
        limits=limits,
        observer=observer,
    )


class SlowEvaluator(ReplayEvaluator):
    """Takes 20 ms a configuration, four at once."""

    parallel = 4

    def evaluate(self, configuration: Configuration) -> Measurement:
        time.sleep(0.02)
        return super().evaluate(configuration)


class BrokenEvaluator(ReplayEvaluator):
    """Breaks down at the fourth configuration."""

    calls = 0

    def evaluate(self, configuration: Configuration) -> Measurement:
        self.calls += 1
        if self.calls >= 4:
            raise RuntimeError("the device is lost")
        return super().evaluate(configuration)


def test_a_study_begins_with_the_default_and_stops_at_its_trials(
    evaluator: ReplayEvaluator, storage: RDBStorage
) -> None:
    result = run(evaluator, Limits(trials=15), storage)
    assert (result.stopped, result.measured, result.measured_before) == ("trials", 15, 0)
    assert result.baseline is not None
    assert (result.baseline.number, result.baseline.proposed_by, result.baseline.median_ms) == (0, "default", 12.0)
    assert result.best is not None
    assert result.best.median_ms == min(r.median_ms for r in result.records if r.median_ms is not None)
    assert result.proposers == {"default": 1, "random": 14}
    study = optuna.load_study(study_name="toy/study", storage=storage)
    task = read_task(study.user_attrs)
    assert task is not None
    assert task.space == evaluator.space
    assert task.outcome == "kernel:measurement"
    assert study.metric_names == ["median_ms"]


def test_a_second_run_finishes_the_same_number_of_trials(evaluator: ReplayEvaluator, storage: RDBStorage) -> None:
    run(evaluator, Limits(trials=10), storage)
    result = run(evaluator, Limits(trials=25), storage)
    assert (result.measured_before, result.measured, result.stopped) == (10, 25, "trials")
    assert len({record.key for record in result.records}) == 25
    again = run(evaluator, Limits(trials=25), storage)
    assert (again.measured_before, again.measured, again.stopped) == (25, 25, "trials")


def test_a_used_up_space_stops_the_study(evaluator: ReplayEvaluator) -> None:
    result = run(evaluator, Limits(trials=1000))
    assert (result.stopped, result.measured) == ("exhausted", 78)
    assert result.best is not None
    assert result.best.configuration == {"x": 8, "y": 4, "z": "b"}
    assert result.failures == {"out_of_resources": 2}
    assert result.speedup == 12.0
    assert result.reference_speedup == 2.0


def test_a_target_is_over_the_reference_where_there_is_one(evaluator: ReplayEvaluator, storage: RDBStorage) -> None:
    result = run(evaluator, Limits(trials=78, target_speedup=0.9), storage)
    assert result.stopped == "target"
    assert result.reference_speedup is not None
    assert result.reference_speedup >= 0.9
    assert result.measured < 78
    last = result.records[-1]
    assert all(2.0 / r.median_ms < 0.9 for r in result.records[:-1] if r.median_ms)
    assert 2.0 / (last.median_ms or 0) >= 0.9
    again = run(evaluator, Limits(trials=78, target_speedup=0.9), storage)
    assert (again.stopped, again.measured) == ("target", result.measured)


def test_a_target_is_over_the_default_where_there_is_no_reference(toy: Toy) -> None:
    result = run(ReplayEvaluator(toy(reference_ms=None)), Limits(trials=78, target_speedup=4.0))
    assert result.stopped == "target"
    assert result.reference_speedup is None
    assert result.speedup is not None
    assert result.speedup >= 4.0
    assert all((r.speedup or 0) < 4.0 for r in result.records[:-1])


def test_seconds_alone_limit_a_run(evaluator: ReplayEvaluator) -> None:
    started = time.monotonic()
    result = run(SlowEvaluator(evaluator.recording), Limits(seconds=0.15))
    assert result.stopped == "time"
    assert 1 < result.measured < 78
    assert time.monotonic() - started < 2.0


def test_parallel_trials_never_exceed_the_limit(evaluator: ReplayEvaluator, storage: RDBStorage) -> None:
    result = run(SlowEvaluator(evaluator.recording), Limits(trials=21), storage)
    assert (result.measured, len(result.records)) == (21, 21)
    assert len({record.key for record in result.records}) == 21


def test_an_observer_sees_the_start_and_every_trial(evaluator: ReplayEvaluator, storage: RDBStorage) -> None:
    class Notes(Observer):
        def __init__(self) -> None:
            self.known: list[int] = []
            self.seen: list[int] = []

        def on_start(self, records: object) -> None:
            assert isinstance(records, list)
            self.known = [record.number for record in records if record.measured]

        def on_trial(self, record: TrialRecord) -> None:
            assert record.measured
            self.seen.append(record.number)

    run(evaluator, Limits(trials=3), storage)
    notes = Notes()
    run(evaluator, Limits(trials=6), storage, observer=notes)
    assert (notes.known, notes.seen) == ([0, 1, 2], [3, 4, 5])


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_broken_machine_raises_and_the_next_run_goes_on(
    recording: Recording, storage: RDBStorage, parallel: int
) -> None:
    broken = BrokenEvaluator(recording)
    type(broken).parallel = parallel  # type: ignore[assignment, method-assign]
    with pytest.raises(RuntimeError, match="device is lost"):
        run(broken, Limits(trials=30), storage)
    result = run(ReplayEvaluator(recording), Limits(trials=30), storage)
    assert (result.measured, result.measured_before) == (30, 3)
    assert result.lost >= 1
    done = [record.key for record in result.records if record.measured]
    assert len(set(done)) == 30


@pytest.mark.parametrize("parallel", [1, 4])
def test_ctrl_c_finishes_the_trials_at_work(recording: Recording, storage: RDBStorage, parallel: int) -> None:
    class Interrupting(SlowEvaluator):
        calls = 0

        def evaluate(self, configuration: Configuration) -> Measurement:
            self.calls += 1
            if self.calls == 8:
                os.kill(os.getpid(), signal.SIGINT)
            return super().evaluate(configuration)

    evaluator = Interrupting(recording)
    type(evaluator).parallel = parallel  # type: ignore[assignment, method-assign]
    before = signal.getsignal(signal.SIGINT)
    result = run(evaluator, Limits(trials=78), storage)
    assert result.stopped == "interrupted"
    assert 8 <= result.measured < 16
    assert all(record.state in (TrialState.COMPLETE, TrialState.PRUNED) for record in result.records)
    assert signal.getsignal(signal.SIGINT) is before
    assert run(evaluator, Limits(trials=20), storage).measured == 20


def test_a_second_ctrl_c_gives_up_the_trial_at_work(recording: Recording, storage: RDBStorage) -> None:
    class Hanging(ReplayEvaluator):
        calls = 0

        def evaluate(self, configuration: Configuration) -> Measurement:
            self.calls += 1
            if self.calls == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            return super().evaluate(configuration)

    started = time.monotonic()
    result = run(Hanging(recording), Limits(trials=78), storage)
    assert (result.stopped, result.measured, result.lost) == ("interrupted", 4, 1)
    assert time.monotonic() - started < 30


def test_three_workers_share_a_study_without_repeating(recording: Recording, url: str) -> None:
    def work(seed: int) -> TuneResult:
        return run(SlowEvaluator(recording), Limits(trials=1000), open_storage(url), random_sampler(seed))

    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(work, range(3)))
    done = [record for record in max(results, key=lambda r: r.measured).records if record.measured]
    assert len(done) == 78
    assert max(Counter(record.key for record in done).values()) == 1
    assert sum(record.proposed_by == "default" for record in done) == 1


def test_a_budget_below_the_samplers_startup_is_kept(evaluator: ReplayEvaluator) -> None:
    tpe = DistinctSampler(optuna.samplers.TPESampler(seed=0, n_startup_trials=10))
    assert run(evaluator, Limits(trials=1), sampler=tpe).measured == 1
    assert run(evaluator, Limits(trials=3), sampler=tpe).measured == 3


def test_a_study_in_which_everything_fails_ends(recording: Recording) -> None:
    failed = tuple(
        dataclasses.replace(r, measurement=Measurement("compile_error", detail="no")) for r in recording.results
    )
    result = run(ReplayEvaluator(dataclasses.replace(recording, results=failed)), Limits(trials=78, target_speedup=1.0))
    assert (result.best, result.stopped, result.measured) == (None, "trials", 78)
    assert result.failures == {"compile_error": 78}


def test_one_parameter_with_one_choice_is_a_study(toy: Toy) -> None:
    space = Space((Parameter("only", (7,)),), (), {"only": 7})
    source = toy()
    one = dataclasses.replace(
        source.results[0], configuration={"only": 7}, measurement=Measurement("ok", median_ms=1.0)
    )
    result = run(ReplayEvaluator(Recording("one", space, (one,))), Limits(trials=60))
    assert (result.stopped, result.measured, result.speedup) == ("exhausted", 1, 1.0)


def test_a_study_of_another_space_is_refused(evaluator: ReplayEvaluator, storage: RDBStorage, toy: Toy) -> None:
    run(evaluator, Limits(trials=2), storage)
    space = Space((Parameter("only", (7,)),))
    one = Recording("one", space, (dataclasses.replace(toy().results[0], configuration={"only": 7}),))
    with pytest.raises(ArchiveError, match="another space"):
        run(ReplayEvaluator(one), Limits(trials=2), storage)


@pytest.mark.parametrize("name", ["trials", "seconds", "target_speedup"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(LimitError, match=f"{name} must be positive, got"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_it_works_outside_the_main_thread(evaluator: ReplayEvaluator) -> None:
    results: list[TuneResult] = []
    thread = threading.Thread(target=lambda: results.append(run(evaluator, Limits(trials=5))))
    thread.start()
    thread.join()
    assert results[0].measured == 5
