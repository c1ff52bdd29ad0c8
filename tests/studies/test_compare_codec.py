from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from llm_sampler import DistinctSampler
from llm_sampler.objectives.kernel_objective import KernelObjective
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies.compare_arms import base_sampler, parse_arm
from llm_sampler.studies.compare_codec import IndexEncoded
from llm_sampler.studies.compare_draws import watch
from llm_sampler.studies.compare_searches import BestNeighbours, ExhaustiveOrder


class Looking(BaseSampler):
    """Keeps what it sees, and always proposes the last index of everything."""

    def __init__(self) -> None:
        self.seen: list[list[FrozenTrial]] = []

    def __deepcopy__(self, _: dict[int, Any]) -> Looking:
        return self

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return dict(trials[0].distributions) if trials else {}

    def sample_relative(self, study: Any, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(study._get_trials(deepcopy=False))
        assert all(isinstance(d, IntDistribution) and d.low == 0 for d in search_space.values())
        return {name: distribution.high for name, distribution in search_space.items()}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        assert isinstance(param_distribution, IntDistribution)
        return param_distribution.high


def run(sampler: BaseSampler, recording: Recording, trials: int, **enqueued: Any) -> optuna.Study:
    study = optuna.create_study(sampler=sampler)
    if enqueued:
        study.enqueue_trial(enqueued)
    study.optimize(KernelObjective(ReplayEvaluator(recording)), n_trials=trials)
    return study


def test_a_sampler_of_numbers_sees_indices_and_the_study_choices(recording: Recording) -> None:
    base = Looking()
    coded = IndexEncoded(base, log_values=True, tell_failures=True)
    study = run(coded, recording, 3, x=1, y=0, z="a")
    assert [trial.params for trial in study.trials[1:]] == [{"x": 8, "y": 4, "z": "b"}] * 2
    seen = base.seen[-1]
    # Not the trial that it samples for: it would take its own earlier answer for another worker's.
    assert [trial.number for trial in seen] == [0, 1]
    assert seen[1].params == {"x": 7, "y": 4, "z": 1}
    assert seen[1].value == pytest.approx(math.log(1.0))
    # The failure is told as the worst value so far, with the constraint that it breaks.
    assert (seen[0].state, seen[0].value) == (TrialState.COMPLETE, seen[1].value)
    assert any(value > 0 for value in seen[0].constraints.values())
    assert not any(value > 0 for value in seen[1].constraints.values())
    assert study.trials[0].state == TrialState.PRUNED


def test_without_the_option_failures_stay_pruned_and_values_as_they_are(recording: Recording) -> None:
    base = Looking()
    run(IndexEncoded(base), recording, 3, x=1, y=0, z="a")
    assert base.seen[-1][0].state == TrialState.PRUNED
    assert base.seen[-1][1].value == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:Constraints have been set")
@pytest.mark.parametrize("arm", ["cmaes", "qmc", "tpe/index", "random/index", "cmaes/categorical"])
def test_index_arms_search_the_categorical_space_and_repeat_with_their_seed(arm: str, recording: Recording) -> None:
    def params(seed: int) -> list[dict[str, Any]]:
        base = base_sampler(parse_arm(arm), recording.space, seed=seed)
        return [t.params for t in run(DistinctSampler(base, space=recording.space, seed=seed), recording, 20).trials]

    first = params(1)
    assert len({str(p) for p in first}) == 20
    assert all(recording.space.allows(p) for p in first)
    assert params(1) == first
    assert params(2) != first


def test_exhaustive_order_is_the_order_of_the_table(recording: Recording) -> None:
    sampler = DistinctSampler(ExhaustiveOrder(recording.space), space=recording.space, seed=0)
    study = run(sampler, recording, 200, **recording.space.default or {})
    expected = [c for c in recording.space.configurations() if c != recording.space.default]
    assert [trial.params for trial in study.trials][1:] == expected


def test_neighbours_of_the_best_are_measured_before_anything_else(recording: Recording) -> None:
    sampler = DistinctSampler(BestNeighbours(recording.space, seed=3), space=recording.space, seed=3)
    study = run(sampler, recording, 40, **recording.space.default or {})
    taken: list[dict[str, Any]] = [study.trials[0].params]
    climbed = 0
    for number, trial in enumerate(study.trials[1:], 1):
        earlier = [t for t in study.trials[:number] if t.value is not None]
        best = min(earlier, key=lambda t: (t.value, t.number)).params
        near = [c for c in recording.space.configurations() if sum(c[n] != best[n] for n in c) == 1]
        if any(c not in taken for c in near):
            assert trial.params in near
            climbed += 1
        taken.append(trial.params)
    assert climbed > 10
    assert study.best_value == 1.0


def test_draws_are_counted_through_copies_and_replacements_are_noticed(toy: Callable[..., Recording]) -> None:
    recording = toy()
    base = Looking()
    coded = IndexEncoded(base)
    draws = watch(coded)
    study = optuna.create_study(sampler=DistinctSampler(coded, space=recording.space, seed=0))
    counts = []
    objective = KernelObjective(ReplayEvaluator(recording))
    for _ in range(4):
        study.optimize(objective, n_trials=1)
        counts.append(draws.take(study.trials[-1].params))
    # It proposes one configuration again and again: the second answer is the same, and the nearest free one is taken.
    assert counts == [(1, True), (2, False), (2, False), (2, False)]


def test_a_uniform_draw_is_one_ask_and_its_own(recording: Recording) -> None:
    base = RandomSampler(seed=0)
    draws = watch(base)
    study = run(DistinctSampler(base, space=recording.space, seed=0), recording, 78)
    assert len(study.trials) == 78
    assert draws.take(study.trials[-1].params) == (1, True)
