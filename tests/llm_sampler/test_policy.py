"""Who proposes next."""

from __future__ import annotations

import pytest

from llm_sampler.attributes import INDEPENDENT, LLM, LOCAL
from llm_sampler.policy import MODEL_BASED, SOURCES, Step, choose, opening_source, shares, trust

DEFAULT = Step("default", 10.0)
GOOD = [DEFAULT, *(Step(LLM, 5.0 + i) for i in range(4)), *(Step(INDEPENDENT, 9.0) for _ in range(4))]
BAD = [DEFAULT, *(Step(LLM, 20.0 + i) for i in range(4)), *(Step(INDEPENDENT, 9.0) for _ in range(4))]


def test_shares_sum_to_one_and_leave_nobody_out() -> None:
    for steps in ([], GOOD, BAD, GOOD * 8, BAD * 8, [Step(LLM, None)] * 20):
        found = shares(steps, llm_share=0.25)
        assert sum(found.values()) == pytest.approx(1)
        assert set(found) == set(SOURCES)
        assert all(found[source] >= 0.01 for source in (LLM, LOCAL, INDEPENDENT))
        assert found[MODEL_BASED] + found[INDEPENDENT] >= 0.1


def test_a_model_that_beats_what_nobody_chose_is_trusted_and_one_that_does_not_is_not() -> None:
    assert trust(GOOD) > 0.8
    assert trust(BAD) < 0.1
    assert shares(GOOD, llm_share=0.25)[LLM] > 0.15
    assert shares(BAD, llm_share=0.25)[LLM] < 0.02


def test_failures_of_the_model_cost_its_trust() -> None:
    assert trust([DEFAULT, *[Step(LLM, None)] * 5, *[Step(INDEPENDENT, 9.0)] * 5]) < 0.1


def test_little_evidence_leaves_the_trust_high() -> None:
    assert trust([]) > 0.7
    assert trust([DEFAULT, Step(LLM, 5.0)]) > 0.7


def test_without_trust_the_fallback_gets_nearly_all_once_it_has_something_to_learn_from() -> None:
    assert shares(BAD, llm_share=0.25)[INDEPENDENT] > 0.9
    later = BAD + [Step(INDEPENDENT, 9.0)] * 8
    assert shares(later, llm_share=0.25)[MODEL_BASED] > 0.9


def test_a_trusted_model_gets_more_on_a_plateau() -> None:
    plateau = GOOD + [Step(MODEL_BASED, 50.0)] * 20
    fresh = GOOD + [Step(MODEL_BASED, 50.0)] * 19 + [Step("user", 1.0)]
    assert shares(plateau, llm_share=0.25)[LLM] > 1.2 * shares(fresh, llm_share=0.25)[LLM]


def test_a_source_that_improves_gets_more_than_one_that_does_not() -> None:
    local = GOOD + [step for i in range(8) for step in (Step(LOCAL, 4.0 - i / 10), Step(MODEL_BASED, 30.0))]
    fallback = GOOD + [step for i in range(8) for step in (Step(MODEL_BASED, 4.0 - i / 10), Step(LOCAL, 30.0))]
    assert shares(local, llm_share=0.25)[LOCAL] > 1.5 * shares(fallback, llm_share=0.25)[LOCAL]


def test_no_share_for_the_model_means_its_floor() -> None:
    assert shares(GOOD, llm_share=0.0)[LLM] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ([DEFAULT], LLM),
        ([DEFAULT, Step(LLM, 20.0), Step(LLM, 20.0)], LLM),
        ([DEFAULT, *[Step(LLM, 20.0)] * 3], None),
        ([DEFAULT, Step(LLM, 20.0), Step(LLM, 5.0), Step(LLM, 20.0)], LLM),
        ([Step(LLM, 20.0)] * 3, INDEPENDENT),
        ([Step(LLM, 20.0)] * 3 + [Step(INDEPENDENT, 30.0)], LLM),
        ([Step(LLM, None)] * 3 + [Step(INDEPENDENT, 30.0)], None),
    ],
)
def test_an_opening_goes_on_as_long_as_it_is_better_than_nothing(steps: list[Step], source: str | None) -> None:
    assert opening_source(steps) == source


def test_choosing_follows_the_shares_among_those_available() -> None:
    weights = {LLM: 0.5, MODEL_BASED: 0.25, LOCAL: 0.25, INDEPENDENT: 0.0}
    draws = [index / 100 for index in range(100)]
    chosen = [choose(weights, set(SOURCES), draw) for draw in draws]
    assert [chosen.count(source) for source in SOURCES] == [50, 25, 25, 0]
    without = [choose(weights, {MODEL_BASED, LOCAL}, draw) for draw in draws]
    assert [without.count(source) for source in SOURCES] == [0, 50, 50, 0]
    assert choose(weights, {INDEPENDENT}, 0.5) == INDEPENDENT
