from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.studies.compare_random import RandomSearch

COUNTS = (1, 2, 5, 10, 20, 50)
Times = Sequence[float | None]


def binomial(times: Times, drawn: int) -> float:
    """The expectation by binomial coefficients in exact arithmetic, over searches that measured a time."""
    best_first = sorted(ms for ms in times if ms is not None)
    size, all_draws = len(times), math.comb(len(times), drawn)
    chances = [
        Fraction(math.comb(size - i + 1, drawn) - math.comb(size - i, drawn), all_draws)
        for i in range(1, len(best_first) + 1)
    ]
    total = sum(Fraction(ms) * chance for ms, chance in zip(best_first, chances, strict=True))
    return float(total / sum(chances))


def simulate(times: Times, first: int | None, searches: int) -> np.ndarray:
    """Best so far of simulated searches [searches, COUNTS]; nan while nothing succeeded."""
    values = np.array([math.inf if ms is None else ms for ms in times])
    rng = np.random.default_rng(7)
    found = []
    for _ in range(searches):
        order = rng.permutation(len(values))
        if first is not None:
            order = np.concatenate([[first], order[order != first]])
        best = np.minimum.accumulate(values[order])
        found.append([best[min(count, len(best)) - 1] for count in COUNTS])
    array = np.array(found)
    array[np.isinf(array)] = np.nan
    return array


def heavy() -> Times:
    """3,000 configurations with a heavy tail, a tenth of them failing."""
    rng = np.random.default_rng(1)
    return [None if rng.random() < 0.1 else float(ms) for ms in 1.0 + rng.lognormal(0.0, 2.0, 3000)]


def toy_times(toy: Callable[..., Recording]) -> Times:
    return [result.measurement.median_ms for result in toy().results]


def softmax_times() -> Times:
    spec = find_kernel("softmax")
    return [r.measurement.median_ms for r in find_recording("softmax", spec.problem("131072x1024")).results]


@pytest.mark.parametrize("space", ["toy", "softmax", "heavy"])
@pytest.mark.parametrize("first", [None, 3])
def test_the_closed_form_agrees_with_simulated_searches(
    space: str, first: int | None, toy: Callable[..., Recording]
) -> None:
    times = {"toy": lambda: toy_times(toy), "softmax": softmax_times, "heavy": heavy}[space]()
    exact = RandomSearch(times, first).expected_best_ms(COUNTS)
    searches = simulate(times, first, 2_000)
    for index, count in enumerate(COUNTS):
        best = searches[:, index]
        best = best[~np.isnan(best)]
        error = best.std(ddof=1) / math.sqrt(len(best))
        # Of 30 comparisons within one standard error each, a third would fail; none lies beyond three.
        assert abs(best.mean() - exact[index]) <= 3.0 * error + 1e-12, (count, best.mean(), exact[index], error)
    errors = [
        abs(np.nanmean(searches[:, index]) - exact[index])
        / (np.nanstd(searches[:, index]) / math.sqrt(len(searches)) + 1e-12)
        for index in range(len(COUNTS))
    ]
    assert np.median(errors) <= 1.0, errors


@pytest.mark.parametrize("size", [3, 40, 2500])
def test_it_equals_exact_arithmetic_for_thousands_of_configurations(size: int) -> None:
    rng = np.random.default_rng(size)
    times: list[float | None] = [float(ms) for ms in rng.lognormal(0.0, 1.0, size)]
    times[1] = None
    counts = sorted({1, 2, size // 3, size - 1, size})
    found = RandomSearch(times).expected_best_ms([count for count in counts if count])
    assert found == pytest.approx([binomial(times, count) for count in counts if count], rel=1e-10)


def test_the_first_configuration_is_no_draw() -> None:
    times: Times = (4.0, 1.0, 2.0)
    search = RandomSearch(times, first=0)
    assert search.expected_best_ms([1, 2, 3, 9]) == pytest.approx([4.0, 1.5, 1.0, 1.0])
    assert search.hit_rates(1.5, [1, 2, 3]) == pytest.approx([0.0, 0.5, 1.0])
    assert search.expected_measurements(1.5) == pytest.approx(2.5)
    assert search.expected_measurements(4.0) == 1.0
    assert RandomSearch(times).expected_measurements(1.5) == pytest.approx(2.0)
    assert RandomSearch(times).expected_measurements(0.5) == math.inf


def test_where_all_draws_may_fail_the_expectation_is_over_those_that_do_not() -> None:
    times: Times = (None, 3.0, None, 1.0)
    assert RandomSearch(times).expected_best_ms([1, 3, 4]) == pytest.approx([2.0, 3.0 / 2.0 + 1.0 / 4.0 - 1 / 4, 1.0])
    assert math.isnan(RandomSearch((None, None)).expected_best_ms([1])[0])
    # A default that fails is a measurement that yields nothing.
    assert RandomSearch(times, first=0).expected_best_ms([2]) == pytest.approx([2.0])
