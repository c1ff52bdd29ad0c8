"""When a model is asked, left alone, and when its proposals are out of date; and what a study may spend on it."""

from __future__ import annotations

import optuna
import pytest

from llm_sampler.attributes import CALLS
from llm_sampler.breaker import Breaker
from llm_sampler.budget import CallRecord, Limits, reserve, spending


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_failures_close_the_breaker_for_ever_longer_and_a_success_opens_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert breaker.allows(0)
    assert breaker.healthy
    for pause_s in (30, 60, 120):
        breaker.failed("down")
        clock.now += pause_s - 1
        assert not breaker.allows(10_000)
        clock.now += 1
        assert breaker.allows(0)
    assert breaker.reason == "down"
    breaker.succeeded()
    assert breaker.healthy
    breaker.failed("down", retry_after_s=500)
    clock.now += 499
    assert not breaker.allows(0)


def test_pauses_are_bounded() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(40):
        breaker.failed("down")
        breaker.useless("empty", 0)
    clock.now += 900
    assert breaker.allows(256)


def test_useless_replies_are_counted_in_trials() -> None:
    breaker = Breaker(Clock())
    breaker.useless("empty", 10)
    assert [breaker.allows(number) for number in (11, 17, 18)] == [False, False, True]
    breaker.useless("empty", 18)
    assert [breaker.allows(number) for number in (33, 34)] == [False, True]


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (Limits(), ""),
        (Limits(calls=2), "the budget of 2 calls is used up"),
        (Limits(calls=3), ""),
        (Limits(tokens=450), "the budget of 450 tokens is used up"),
        (Limits(tokens=550), ""),
        (Limits(seconds=1.5), "the budget of 1.5 seconds of calls is used up"),
        (Limits(seconds=2.5), ""),
    ],
)
def test_reservations_and_outcomes_count_against_the_limits(limits: Limits, refusal: str) -> None:
    study = optuna.create_study()
    first, second = study.ask(), study.ask()
    # One call whose outcome is known to have taken less than reserved, one that is under way.
    frozen = [study._storage.get_trial(trial._trial_id) for trial in (first, second)]
    assert reserve(study, frozen[0], "a", 300, Limits()) == ""
    assert reserve(study, frozen[0], "b", 300, Limits()) == ""
    record = CallRecord("a", "opening", prompt_tokens=60, completion_tokens=40, seconds=1.5)
    second.set_user_attr(CALLS, [record.to_json()])
    assert (spending(study.trials).calls, spending(study.trials).tokens) == (2, 400)
    assert reserve(study, frozen[1], "c", 100, limits) == refusal
    spent = spending(study.trials)
    assert (spent.calls, spent.tokens, spent.seconds) == ((2, 400, 1.5) if refusal else (3, 500, 1.5))


def test_a_reservation_that_others_overtake_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study()
    mine, other = study.ask(), study.ask()
    frozen = study._storage.get_trial(mine._trial_id)
    original = study._storage.set_trial_system_attr
    overtaken = []

    def write(trial_id: int, key: str, value: object) -> None:
        """Another worker reserves between this one's first look and its own write."""
        if not overtaken:
            overtaken.append(True)
            original(other._trial_id, key, [{"id": "other", "tokens": 1}])
        original(trial_id, key, value)

    monkeypatch.setattr(study._storage, "set_trial_system_attr", write)
    assert reserve(study, frozen, "mine", 1, Limits(calls=1)) == "the budget of 1 calls is used up"
    assert spending(study.trials).calls == 1
