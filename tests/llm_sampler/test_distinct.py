"""No configuration twice, none that breaks a restriction, and a clean end."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import CmaEsSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from llm_sampler.attributes import PROPOSED_BY
from llm_sampler.distinct import DistinctSampler
from llm_sampler.exhaustion import SpaceExhaustedError
from llm_sampler.space import Parameter, Space, SpaceError, configuration_key
from llm_sampler.task import Task, write_task

TILES = Space(
    (Parameter("a", (1, 2, 4)), Parameter("b", (True, False)), Parameter("c", ("x", "y"))),
    ("a < 4 or b",),
)  # 10 of 12 are allowed
WIDE = Space(tuple(Parameter(f"p{i}", tuple(range(6))) for i in range(4)), ("p0 + p1 <= 7", "p2 != p3"))
INTEGERS = {f"p{i}": IntDistribution(0, 5) for i in range(4)}


def measure(trial: optuna.Trial, space: Space) -> float:
    """Any objective over a space: categorical parameters, values that differ."""
    indices = [p.choices.index(trial.suggest_categorical(p.name, p.choices)) for p in space.parameters]
    return float(sum((weight + 1) * index for weight, index in enumerate(indices)) % 7)


def keys(study: optuna.Study) -> list[str]:
    return [configuration_key(trial.params) for trial in study.trials]


def tiles(trial: optuna.Trial) -> float:
    return measure(trial, TILES)


def wide(trial: optuna.Trial) -> float:
    return measure(trial, WIDE)


@pytest.mark.parametrize("base", [RandomSampler, TPESampler, NSGAIISampler], ids=lambda base: base.__name__)
def test_a_small_space_is_exhausted_exactly_once_and_the_study_stops(base: Callable[..., object]) -> None:
    study = optuna.create_study(sampler=DistinctSampler(base(seed=0), space=TILES))
    study.optimize(tiles, n_trials=100)
    assert sorted(keys(study)) == sorted(configuration_key(c) for c in TILES.configurations())
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_random_search_stays_uniform_without_replacement() -> None:
    space = Space((Parameter("a", (0, 1, 2)), Parameter("b", (0, 1, 2))), ("a == 0 or b == 0",))  # 5 allowed
    firsts: Counter[str] = Counter()
    lasts: Counter[str] = Counter()
    for seed in range(300):
        study = optuna.create_study(sampler=DistinctSampler(RandomSampler(seed=seed), space=space))
        study.optimize(lambda trial: measure(trial, space), n_trials=4)
        firsts[keys(study)[0]] += 1
        lasts[keys(study)[3]] += 1
    # 60 expected of each; a binomial's standard deviation is 7
    for counts in (firsts, lasts):
        assert len(counts) == 5
        assert all(32 < count < 88 for count in counts.values())


def test_pruned_running_and_waiting_count_as_taken_and_failed_does_not() -> None:
    space = Space((Parameter("a", (0, 1, 2, 3, 4)),))
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=space))
    distribution = {"a": CategoricalDistribution((0, 1, 2, 3, 4))}
    study.add_trial(optuna.create_trial(params={"a": 0}, distributions=distribution, value=1.0))
    study.add_trial(optuna.create_trial(params={"a": 1}, distributions=distribution, state=TrialState.PRUNED))
    study.add_trial(optuna.create_trial(params={"a": 2}, distributions=distribution, state=TrialState.FAIL))
    running = study.ask()
    running.suggest_categorical("a", (0, 1, 2, 3, 4))
    left = {2, 3, 4} - {running.params["a"]}
    study.enqueue_trial({"a": max(left)})
    waiting = study.trials[-1]
    assert waiting.state == TrialState.WAITING
    other = study._storage.create_new_trial(study._study_id)  # made as by another worker, past the queue
    values = study.sampler.sample_relative(study, study._storage.get_trial(other), dict(distribution))
    assert values["a"] == min(left)


def test_the_task_of_the_study_gives_the_space() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0)))
    write_task(study, Task("tiles", TILES))
    study.optimize(tiles, n_trials=100)
    assert len(study.trials) == len(set(keys(study))) == 10


def test_an_inferred_space_is_distinct_as_long_as_it_lasts_and_never_ends_the_study() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0)))
    study.optimize(tiles, n_trials=20)
    assert len(set(keys(study))) == 12
    assert len(set(keys(study)[:12])) == 12
    assert len(study.trials) == 20


def test_a_conditional_space_is_passed_through() -> None:
    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("kind", ("a", "b")) == "a":
            return trial.suggest_float("x", 0, 1)
        return trial.suggest_int("n", 0, 3)

    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0)))
    study.optimize(objective, n_trials=40)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert {trial.params["kind"] for trial in study.trials} == {"a", "b"}


def test_an_infinite_space_gives_the_base_samplers_own_proposals() -> None:
    def objective(trial: optuna.Trial) -> float:
        return (trial.suggest_float("x", -5, 5) - 1) ** 2 + trial.suggest_int("n", 0, 50)

    wrapped = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=3)))
    wrapped.optimize(objective, n_trials=60)
    plain = optuna.create_study(sampler=TPESampler(seed=3))
    plain.optimize(objective, n_trials=60)
    assert wrapped.best_value == pytest.approx(plain.best_value, abs=0.5)


@pytest.mark.parametrize("redraws", [0, 4, 50])
def test_tpe_never_repeats_itself_on_a_restricted_space(redraws: int) -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=1), space=WIDE, redraws=redraws))
    study.optimize(wide, n_trials=150)
    assert len(set(keys(study))) == 150
    assert all(WIDE.allows(trial.params) for trial in study.trials)


def test_after_the_redraws_the_nearest_free_configuration_is_proposed() -> None:
    class Stubborn(RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):  # type: ignore[no-untyped-def]
            return 2

    study = optuna.create_study(sampler=DistinctSampler(Stubborn(seed=0), space=WIDE))
    study.optimize(wide, n_trials=16)
    # p2 == p3 is not allowed, so the draw itself never is; 5 + 5 configurations differ in one parameter, p2 or p3.
    distances = [sum(value != 2 for value in trial.params.values()) for trial in study.trials]
    assert distances == [1] * 10 + [2] * 6


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("make", [RandomSampler, TPESampler, CmaEsSampler, QMCSampler], ids=lambda make: make.__name__)
def test_integer_spaces_by_any_sampler(make: Callable[..., optuna.samplers.BaseSampler]) -> None:
    if make is CmaEsSampler:
        pytest.importorskip("cmaes", reason="pip install cmaes")

    def objective(trial: optuna.Trial) -> float:
        return float(sum(trial.suggest_int(name, 0, 5) for name in INTEGERS))

    sampler = DistinctSampler(make(seed=0), search_space=INTEGERS, restrictions=["p0 <= p1"])
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=60)
    assert len(set(keys(study))) == 60
    assert all(trial.params["p0"] <= trial.params["p1"] for trial in study.trials)


def test_values_are_the_choices_themselves() -> None:
    space = Space((Parameter("flag", (True, False)), Parameter("tile", (16, 32)), Parameter("f", (0.5, 2.0))))
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0, n_startup_trials=2), space=space))
    seen = []

    def objective(trial: optuna.Trial) -> float:
        values = [trial.suggest_categorical(p.name, p.choices) for p in space.parameters]
        seen.append([type(value) for value in values])
        return float(values[1])

    study.optimize(objective, n_trials=8)
    assert seen == [[bool, int, float]] * 8


def test_enqueued_trials_are_left_as_they_are_and_say_user() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    wanted = {"a": 1, "b": True, "c": "x"}
    study.enqueue_trial(wanted)
    study.enqueue_trial(wanted)
    study.enqueue_trial({"a": 4})
    study.enqueue_trial({"a": 2}, user_attrs={PROPOSED_BY: "default"})
    study.optimize(tiles, n_trials=5)
    assert [trial.params for trial in study.trials[:2]] == [wanted, wanted]
    assert study.trials[2].params["a"] == 4
    assert [trial.user_attrs[PROPOSED_BY] for trial in study.trials] == ["user", "user", "user", "default", "tpe"]
    assert study.trials[2].params["b"] is True  # what is not enqueued still obeys the restriction


def test_enqueued_repetitions_are_measured_even_when_the_space_is_used_up() -> None:
    study = optuna.create_study(sampler=DistinctSampler(RandomSampler(seed=0), space=TILES))
    study.optimize(tiles, n_trials=9)
    study.enqueue_trial({"a": 1, "b": True, "c": "x"})
    study.enqueue_trial({"a": 1, "b": True, "c": "x"})
    study.optimize(tiles, n_trials=10)
    assert len(study.trials) == 12
    assert len(set(keys(study))) == 10


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_partial_fixed_sampler_keeps_its_values_and_ends_with_them() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    study.optimize(tiles, n_trials=1)
    study.sampler = optuna.samplers.PartialFixedSampler({"c": "y"}, study.sampler)
    study.optimize(tiles, n_trials=50)
    later = study.trials[1:]
    complete = [trial for trial in later if trial.state == TrialState.COMPLETE]
    assert all(trial.params["c"] == "y" for trial in complete)
    assert len(set(keys(study)[1:])) == len(later)
    assert len({configuration_key(t.params) for t in (study.trials[0], *complete) if t.params["c"] == "y"}) == 5


def test_ask_and_tell_users_get_a_clear_error_and_no_running_trial() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    distributions = {p.name: CategoricalDistribution(p.choices) for p in TILES.parameters}
    for _ in range(10):
        study.tell(study.ask(distributions), 1.0)
    assert study.sampler.exhausted(study)
    with pytest.raises(SpaceExhaustedError, match="all 10 allowed configurations"):
        study.ask(distributions)
    assert not [trial for trial in study.trials if trial.state == TrialState.RUNNING]


def test_ask_gives_as_many_distinct_trials_as_there_are_before_any_is_told() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    distributions = {p.name: CategoricalDistribution(p.choices) for p in TILES.parameters}
    asked = [study.ask(distributions) for _ in range(10)]
    assert len({configuration_key(trial.params) for trial in asked}) == 10
    with pytest.raises(SpaceExhaustedError):
        study.ask(distributions)
    study.tell(asked[0], state=TrialState.FAIL)
    assert study.ask(distributions).params == asked[0].params


def test_optimizing_a_used_up_study_again_ends_at_once() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    study.optimize(tiles, n_trials=100)
    study.optimize(tiles, n_trials=100)
    assert [trial.state for trial in study.trials[10:]] == [TrialState.PRUNED]


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
def test_threads_share_a_small_space_without_repetition(tmp_path: Path, storage: str) -> None:
    url = None if storage == "memory" else f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(storage=url, sampler=DistinctSampler(TPESampler(), space=TILES))
    study.optimize(tiles, n_trials=40, n_jobs=4)
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert len(complete) == len({configuration_key(trial.params) for trial in complete}) == 10
    assert not [trial for trial in study.trials if trial.state == TrialState.RUNNING]


def test_samplers_of_one_study_do_not_collide(tmp_path: Path) -> None:
    """As processes do: each worker has its own study object and sampler, and all start with the same seed."""
    storage = f"sqlite:///{tmp_path}/study.db"
    optuna.create_study(storage=storage, study_name="s")

    def work() -> None:
        study = optuna.load_study(
            study_name="s", storage=storage, sampler=DistinctSampler(RandomSampler(seed=0), space=WIDE)
        )
        study.optimize(wide, n_trials=15)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = optuna.load_study(study_name="s", storage=storage).trials
    assert len(trials) == len({configuration_key(trial.params) for trial in trials}) == 60


def test_a_resumed_study_goes_on_and_does_not_repeat_its_stream(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    for _ in range(3):
        study = optuna.create_study(
            storage=storage,
            study_name="s",
            load_if_exists=True,
            sampler=DistinctSampler(TPESampler(seed=5), search_space={"x": FloatDistribution(0, 1)}),
        )
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    values = [trial.params["x"] for trial in study.trials]
    assert len(set(values)) == 9
    whole = optuna.create_study(
        sampler=DistinctSampler(TPESampler(seed=5), search_space={"x": FloatDistribution(0, 1)})
    )
    whole.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=9)
    assert [trial.params["x"] for trial in whole.trials] == values


def proposals(sampler: optuna.samplers.BaseSampler, count: int = 15) -> list[str]:
    study = optuna.create_study(sampler=sampler)
    study.optimize(wide, n_trials=count)
    return keys(study)


def test_the_seed_decides_and_reseeding_changes_it() -> None:
    first = proposals(DistinctSampler(TPESampler(seed=2), space=WIDE))
    assert proposals(DistinctSampler(TPESampler(seed=2), space=WIDE)) == first
    assert proposals(DistinctSampler(TPESampler(), space=WIDE, seed=2)) == first
    assert proposals(DistinctSampler(TPESampler(), space=WIDE, seed=3)) != first
    assert proposals(DistinctSampler(TPESampler(), space=WIDE)) != proposals(DistinctSampler(TPESampler(), space=WIDE))
    reseeded = DistinctSampler(TPESampler(seed=2), space=WIDE)
    reseeded.reseed_rng()
    assert proposals(reseeded) != first


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
def test_copies_propose_the_same(copied: Callable[[DistinctSampler], DistinctSampler]) -> None:
    sampler = DistinctSampler(TPESampler(seed=2), space=WIDE)
    expected = proposals(sampler)
    assert proposals(copied(sampler)) == expected


def test_one_sampler_serves_several_studies() -> None:
    sampler = DistinctSampler(TPESampler(seed=2), space=WIDE)
    assert proposals(sampler) == proposals(sampler)


def test_multi_objective_studies() -> None:
    study = optuna.create_study(
        directions=["minimize", "maximize"], sampler=DistinctSampler(TPESampler(seed=0), space=WIDE)
    )
    study.optimize(lambda trial: (wide(trial), float(trial.params["p0"])), n_trials=60)
    assert len(set(keys(study))) == 60


def test_hyperband_studies_have_a_task_too() -> None:
    study = optuna.create_study(
        sampler=DistinctSampler(TPESampler(seed=0)), pruner=optuna.pruners.HyperbandPruner(max_resource=9)
    )
    write_task(study, Task("tiles", TILES))

    def objective(trial: optuna.Trial) -> float:
        value = tiles(trial)
        for step in range(9):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study.optimize(objective, n_trials=50)
    assert len(study.trials) == len(set(keys(study))) == 10


def test_a_parameter_with_one_choice_and_a_space_with_one_configuration() -> None:
    space = Space((Parameter("a", (3,)), Parameter("b", (1, 2))), ("b > 1",))
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=space))
    study.optimize(lambda trial: measure(trial, space), n_trials=9)
    assert keys(study) == ['{"a":3,"b":2}']


@pytest.mark.parametrize(
    "arguments",
    [
        {"space": TILES, "search_space": {"x": FloatDistribution(0, 1)}},
        {"restrictions": ["x < 1"]},
        {"search_space": {"x": FloatDistribution(0, 1)}, "restrictions": ["y < 1"]},
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(SpaceError):
        DistinctSampler(RandomSampler(), **arguments)  # type: ignore[arg-type]


def test_a_restriction_over_ranges_is_obeyed_without_a_table() -> None:
    ranges = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    sampler = DistinctSampler(TPESampler(seed=0), search_space=ranges, restrictions=["x + y <= 0.3"])
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: -trial.suggest_float("x", 0, 1) - trial.suggest_float("y", 0, 1), n_trials=40)
    assert all(trial.params["x"] + trial.params["y"] <= 0.3 for trial in study.trials)
    assert study.best_value < -0.25


def test_the_time_a_trial_takes_does_not_grow_worse_than_linearly() -> None:
    """What it reads per proposal: finished trials are looked at once."""
    study = optuna.create_study(sampler=DistinctSampler(RandomSampler(seed=0), space=WIDE))
    study.optimize(wide, n_trials=30)
    memory = study.sampler.memory(study)
    looked_at = []
    original = memory._add
    memory._add = lambda trial: (looked_at.append(trial.number), original(trial))  # type: ignore[method-assign]
    study.optimize(wide, n_trials=30)
    assert looked_at == list(range(29, 59)) or looked_at == list(range(30, 59))


def test_numbers_from_numpy_as_choices_do_not_confuse_it() -> None:
    study = optuna.create_study(sampler=DistinctSampler(TPESampler(seed=0), space=TILES))
    study.enqueue_trial({"a": np.int64(1), "b": np.bool_(True), "c": "x"})
    study.optimize(tiles, n_trials=30)
    assert len(study.trials) == len({str(trial.params) for trial in study.trials}) == 10
