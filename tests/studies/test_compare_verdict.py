from __future__ import annotations

import numpy as np
import pytest

from llm_sampler.studies.compare_verdict import holm, judge, signed_rank_p


def draws(seed: int, spaces: int = 4, seeds: int = 20, factor: float = 1.0) -> dict[str, np.ndarray]:
    """Ratios of best-so-far times, skewed as they are: many near the optimum, some far."""
    rng = np.random.default_rng(seed)
    return {f"s{i}": 1.0 + factor * rng.lognormal(-3.0 + 0.5 * i, 1.0, seeds) for i in range(spaces)}


def test_the_same_sampler_under_two_names_is_not_distinguishable() -> None:
    words = []
    for repetition in range(200):
        ours, theirs = draws(2 * repetition), draws(2 * repetition + 1)
        verdict = judge("a", "b", 100, {name: (ours[name], theirs[name]) for name in ours})
        words.append(verdict.overall.word)
    assert words.count("not distinguishable") >= 190


def test_a_sampler_that_halves_the_regret_is_better_and_its_losses_are_said() -> None:
    ours, theirs = draws(1, factor=0.4), draws(2)
    ours["s3"], theirs["s3"] = theirs["s3"] + 1.0, ours["s3"]
    verdict = judge("a", "b", 100, {name: (ours[name], theirs[name]) for name in ours})
    assert {one.space: one.word for one in verdict.spaces}["s2"] == "better"
    assert [one.space for one in verdict.losses] == ["s3"]
    assert verdict.losses[0].word == "worse"
    assert "Worse on: s3 (+" in verdict.text
    turned = judge("b", "a", 100, {name: (theirs[name], ours[name]) for name in ours})
    assert {one.space: one.word for one in turned.spaces}["s2"] == "worse"
    assert "Worse on: " in turned.text


def test_one_space_is_one_hypothesis() -> None:
    ours, theirs = draws(1, spaces=1, factor=0.3), draws(2, spaces=1)
    verdict = judge("a", "b", 20, {"s0": (ours["s0"], theirs["s0"])})
    assert verdict.overall == verdict.spaces[0]
    assert verdict.overall.p == verdict.overall.corrected_p
    assert verdict.overall.pairs == 20
    assert verdict.text.startswith("a is better than b after 20 measurements (")
    assert verdict.text.endswith("Worse on no space.")


def test_equal_results_are_no_evidence() -> None:
    both = {"s0": (np.ones(20), np.ones(20)), "s1": (np.full(20, 1.3), np.full(20, 1.3))}
    verdict = judge("a", "b", 20, both)
    assert verdict.overall.word == "not distinguishable"
    assert verdict.overall.ratio == 1.0
    assert signed_rank_p(np.zeros(5)) == 1.0


def test_holm_multiplies_the_smallest_by_the_number_of_hypotheses_and_stays_monotone() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # After the first that is not rejected, none is.
    assert holm([0.001, 0.03, 0.02]) == pytest.approx([0.003, 0.04, 0.04])


def test_signed_ranks_agree_with_the_table_of_small_samples() -> None:
    # All five differences positive: 2 / 2**5.
    assert signed_rank_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == pytest.approx(2 / 32)
