"""What is timed, how often, and when it stops; on a simulated GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_sampler.objectives.intervals import median_interval
from llm_sampler.objectives.timing import TimingSettings, enough, next_samples, time_beside_reference, time_rounds

SETTINGS = TimingSettings()


def kernel() -> None:
    """Stands for a launch."""


def reference() -> None:
    """Stands for another."""


def other() -> None:
    """Stands for a third."""


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    yield importlib.import_module("simulated_gpu").SimulatedStopwatch
    sys.modules.pop("simulated_gpu", None)


def test_rounds_time_every_launch_once_each_in_changing_orders(simulated: Any) -> None:
    watch = simulated({kernel: 1.0, reference: 2.0, other: 3.0}, noise=0.0)
    times = time_rounds([kernel, reference, other], rounds=12, stopwatch=watch, warm_up_rounds=2)
    assert times.tolist() == [[1.0, 2.0, 3.0]] * 12
    launches = [launch for call in watch.calls for launch in call]
    rounds = [tuple(launches[start : start + 3]) for start in range(0, len(launches), 3)]
    assert len(rounds) == 14
    assert all(set(one) == {kernel, reference, other} for one in rounds)
    assert len(set(rounds)) > 3


def test_ratios_within_rounds_hold_while_clocks_drift(simulated: Any) -> None:
    watch = simulated({kernel: 1.0, reference: 1.1}, noise=0.002, drift=0.1, period=150)
    times = time_rounds([kernel, reference], rounds=100, stopwatch=watch)
    assert np.ptp(times[:, 0]) > 0.15
    assert float(np.median(times[:, 1] / times[:, 0])) == pytest.approx(1.1, rel=0.005)


def test_a_configuration_clearly_worse_than_the_incumbent_stops_at_once(simulated: Any) -> None:
    watch = simulated({kernel: 2.0, reference: 1.0})
    timing = time_beside_reference(kernel, reference, stopwatch=watch, settings=SETTINGS, incumbent_ms=1.0)
    assert timing.stopped == "worse"
    assert len(timing.samples) == SETTINGS.least_samples
    assert len(timing.reference_samples) == SETTINGS.least_samples // SETTINGS.reference_every
    assert timing.method == "simulated"


def test_a_contender_is_timed_until_its_median_is_known_to_one_percent(simulated: Any) -> None:
    for seed in range(20):
        watch = simulated({kernel: 0.1, reference: 0.1}, noise=0.01, seed=seed)
        timing = time_beside_reference(kernel, reference, stopwatch=watch, settings=SETTINGS, incumbent_ms=0.1)
        low, high = median_interval(timing.samples) or (0.0, 0.0)
        if timing.stopped == "precise":
            assert high - low <= 0.01 * timing.median_ms
        else:
            assert timing.stopped == "samples"
            assert len(timing.samples) == SETTINGS.most_samples
        assert timing.median_ms == pytest.approx(0.1, rel=0.01)


def test_the_first_of_a_problem_has_no_incumbent_to_be_worse_than() -> None:
    assert enough([2.0, 2.1] * 3, 10.0, SETTINGS, None) is None
    assert enough([2.0, 2.1] * 3, 10.0, SETTINGS, 1.0) == "worse"
    assert enough([2.0, 2.1] * 3, 10.0, SETTINGS, 1.9) is None


def test_slow_kernels_stop_when_the_time_is_used_up(simulated: Any) -> None:
    watch = simulated({kernel: 30.0, reference: 10.0}, noise=0.05)
    timing = time_beside_reference(kernel, reference, stopwatch=watch, settings=SETTINGS, incumbent_ms=29.0)
    assert timing.stopped == "time"
    assert len(timing.samples) == SETTINGS.least_samples


def test_a_slow_contender_gets_more_time_than_what_is_worse(simulated: Any) -> None:
    taken = {}
    for incumbent_ms in (1.62, 1.48):
        watch = simulated({kernel: 1.6, reference: 1.6}, noise=0.03)
        timing = time_beside_reference(kernel, reference, stopwatch=watch, settings=SETTINGS, incumbent_ms=incumbent_ms)
        assert timing.stopped in ("time", "samples")
        taken[incumbent_ms] = len(timing.samples)
    assert taken[1.62] == 60
    assert taken[1.48] < 20


def test_blocks_grow_within_samples_and_time() -> None:
    assert next_samples([], 0.0, SETTINGS, None) == SETTINGS.least_samples
    assert next_samples([0.1] * 6, 0.9, SETTINGS, None) == 6
    assert next_samples([0.1] * 50, 7.5, SETTINGS, None) == SETTINGS.most_samples - 50
    assert next_samples([4.0] * 6, 36.0, SETTINGS, 3.9) == 1
    assert next_samples([4.0] * 6, 36.0, SETTINGS, 4.1) == 6  # it may be the best
    assert next_samples([0.0] * 6, 0.0, SETTINGS, None) == 6  # too coarse a clock divides nothing by zero


def test_intervals_hold_the_true_median_in_spite_of_looking_early(simulated: Any) -> None:
    """Stopping when the interval is narrow must not make it too narrow."""
    held = 0
    for seed in range(400):
        watch = simulated({kernel: 0.1, reference: 0.1}, noise=0.006, seed=seed)
        timing = time_beside_reference(kernel, reference, stopwatch=watch, settings=SETTINGS, incumbent_ms=0.1)
        low, high = median_interval(timing.samples) or (0.0, 0.0)
        held += low <= 0.1 <= high
    assert held >= 0.94 * 400


def test_settings_are_one_line_of_words() -> None:
    assert SETTINGS.text == (
        "6 to 60 samples in 40 ms, 160 for contenders, enough at 1 % or 15 % worse, reference every 2, 256 MiB flushed"
    )
