from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from llm_sampler.objectives.recording import Recording
from llm_sampler.studies.compare_figures import shares_reached
from llm_sampler.studies.compare_run import Run
from llm_sampler.studies.compare_space import ComparedSpace
from llm_sampler.studies.compare_statistics import (
    checkpoints,
    geometric_level,
    level,
    ratios,
    ratios_by_asks,
    reach,
    score,
)
from llm_sampler.studies.tasks import recording_task


@pytest.fixture
def space(toy: Callable[..., Recording]) -> ComparedSpace:
    recording = toy()
    return ComparedSpace("toy", recording, recording_task(recording))


def make_run(
    space: ComparedSpace, *configurations: dict[str, int | str], observed: list[float | None] | None = None
) -> Run:
    from llm_sampler.space import configuration_key

    rows = [space.rows[configuration_key(c)] for c in configurations]
    times = [space.times_ms[row] for row in rows]
    asks = [2 * n for n in range(1, len(rows) + 1)]
    return Run("k", "toy", "tpe", 0, 5, "d", rows, times if observed is None else observed, asks, [1.0] * len(rows))


BEST = {"x": 8, "y": 4, "z": "b"}  # 1 ms
FAILING = {"x": 1, "y": 0, "z": "a"}
TWO = {"x": 7, "y": 4, "z": "b"}  # 2 ms
THREE = {"x": 6, "y": 4, "z": "b"}  # 3 ms


def test_a_curve_is_the_incumbents_time_over_the_optimum_and_a_short_run_keeps_what_it_had(
    space: ComparedSpace,
) -> None:
    run = make_run(space, FAILING, THREE, BEST)
    # Nothing measured yet: the default, 12 ms, which any user has.
    assert ratios([run], space, default_first=True).tolist() == [[12.0, 3.0, 1.0, 1.0, 1.0]]
    empty = Run("k", "toy", "tpe", 0, 5, "d", failure="raised")
    assert ratios([empty], space, default_first=True).tolist() == [[12.0] * 5]
    # Without a default the worst time stands for nothing.
    worst = max(ms for ms in space.times_ms if ms is not None)
    assert ratios([empty], space, default_first=False).tolist() == [[worst] * 5]


def test_regret_is_judged_on_the_recorded_time_of_what_looked_best(space: ComparedSpace) -> None:
    # By noise THREE looked better than BEST, so it is what a user would have kept.
    run = make_run(space, TWO, THREE, BEST, observed=[2.0, 0.9, 0.95])
    assert ratios([run], space, default_first=True)[0].tolist() == [2.0, 3.0, 3.0, 3.0, 3.0]


def test_asks_count_draws_that_led_to_nothing(space: ComparedSpace) -> None:
    run = make_run(space, THREE, TWO, BEST)  # two asks each
    assert ratios_by_asks([run], space, [1, 2, 3, 4, 6, 9], default_first=True)[0].tolist() == [12, 3, 3, 2, 1, 1]


def test_reach_counts_censored_runs_and_does_not_invent_a_median() -> None:
    curves = np.array([[2.0, 1.04, 1.0, 1.0], [2.0, 2.0, 1.05, 1.05], [2.0, 2.0, 2.0, 1.2], [3.0, 3.0, 3.0, 3.0]])
    found = reach(curves, 0.05)
    assert (found.hits, found.runs, found.low, found.median, found.high) == (2, 4, 2.0, 3.0, None)
    assert found.mean_censored == (2 + 3 + 4 + 4) / 4
    assert reach(curves, 0.01).median is None
    assert reach(curves[2:], 0.05).mean_censored == 4.0


def test_levels_have_an_interval_that_covers_the_mean() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        values = 1.0 + rng.exponential(0.2, 30)
        one = level(10, values)
        assert one.low <= one.mean <= one.high
        covered += one.low <= 1.2 <= one.high
    assert covered >= 174  # the percentile interval of a skewed sample of 30 covers a little less than 95 %
    assert level(10, np.full(5, 1.5)).low == level(10, np.full(5, 1.5)).high == 1.5


def test_the_score_is_0_for_random_search_and_1_for_the_optimum() -> None:
    assert score(1.4, 1.4) == 0.0
    assert score(1.0, 1.4) == 1.0
    assert score(1.8, 1.4) == pytest.approx(-1.0)
    # No room between random search and the optimum.
    assert score(1.0, 1.0005) is None
    assert score(1.0, None) is None


def test_spaces_are_joined_by_the_geometric_mean_of_their_means() -> None:
    one = geometric_level(5, [np.array([2.0, 2.0]), np.array([4.0, 12.0])])
    assert one.mean == pytest.approx(4.0)
    assert one.low < 4.0 < one.high


def test_the_last_measurement_is_always_reported() -> None:
    assert checkpoints(100) == (5, 10, 20, 50, 100)
    assert checkpoints(30) == (5, 10, 20, 30)
    assert checkpoints(3) == (3,)


def test_shares_of_runs_count_those_that_never_came_there() -> None:
    assert shares_reached([1, 3, None, 3], 4) == [0.25, 0.25, 0.75, 0.75]
