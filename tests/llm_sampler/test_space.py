"""Spaces, restrictions and configuration keys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from llm_sampler.space import Parameter, Restrictions, Space, SpaceError, configuration_key, evaluate

TILES = Space(
    parameters=(
        Parameter("BLOCK", (16, 32, 64), "tile"),
        Parameter("warps", (1, 2, 4)),
        Parameter("flag", (True, False)),
    ),
    restrictions=("BLOCK * warps <= limit", "flag or warps < 4"),
    default={"BLOCK": 16, "warps": 1, "flag": True},
    facts={"limit": 128},
)


def test_equal_configurations_have_one_key_whatever_the_order_and_the_number_type() -> None:
    assert configuration_key({"b": np.int64(2), "a": 1}) == configuration_key({"a": 1, "b": 2}) == '{"a":1,"b":2}'


def test_keys_keep_types_apart() -> None:
    assert len({configuration_key({"a": value}) for value in (1, 1.0, True, "1", None)}) == 5


def test_a_key_of_something_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(SpaceError, match="a must be a bool, int, float or str, got list"):
        configuration_key({"a": [1]})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("cdiv(7, 2)", 4),
        ("next_power_of_2(1)", 1),
        ("next_power_of_2(5)", 8),
        ("next_power_of_2(8)", 8),
        ("min(a, 3) + max(1, abs(-2))", 5),
        ("a in (1, 3)", True),
        ("sum_is if False else a % 2", 1),
        ("len_is_unknown if a < 0 else True", True),
        ("[x * 2 for x in range(3)] == [0, 2, 4]", True),
    ],
)
def test_expressions(expression: str, value: object) -> None:
    assert evaluate(expression, {"a": 3, "sum_is": 0, "len_is_unknown": 0}) == value


@pytest.mark.parametrize(
    "expression", ["a.__class__", "__import__('os')", "open('x')", "a +", "1 / 0", "unknown + 1", "(lambda: 1)()"]
)
def test_what_an_expression_must_not_do_is_one_error(expression: str) -> None:
    with pytest.raises(SpaceError):
        evaluate(expression, {"a": 1})


def test_configurations_are_exactly_the_allowed_ones_in_lexicographic_order() -> None:
    product = itertools.product((16, 32, 64), (1, 2, 4), (True, False))
    expected = [
        {"BLOCK": block, "warps": warps, "flag": flag}
        for block, warps, flag in product
        if block * warps <= 128 and (flag or warps < 4)
    ]
    assert list(TILES.configurations()) == expected
    assert TILES.size == len(expected) == 14


def test_a_restriction_over_a_comprehension_names_only_its_free_variables() -> None:
    assert Restrictions(["a in [i * k for i in range(4)]"]).variables == [frozenset({"a", "k"})]


def test_a_broken_restriction_says_both_sides() -> None:
    assert TILES.checker.broken({"BLOCK": 64, "warps": 4, "flag": True}) == [
        "BLOCK * warps <= limit (left side 256, right side 128)"
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"BLOCK": 48}, "BLOCK must be one of (16, 32, 64), got 48"),
        ({"BLOCK": 16.0}, "BLOCK must be one of (16, 32, 64), got 16.0"),
        ({"flag": 1}, "flag must be one of (True, False), got 1"),
        ({"depth": 3}, "unknown parameter depth"),
        ({"BLOCK": 64, "warps": 4}, "BLOCK * warps <= limit (left side 256, right side 128)"),
    ],
)
def test_faults_say_rule_and_value(change: dict[str, object], fault: str) -> None:
    assert TILES.faults({"BLOCK": 16, "warps": 1, "flag": True} | change) == [fault]


def test_a_missing_parameter_is_a_fault() -> None:
    assert TILES.faults({"BLOCK": 16, "flag": True}) == ["warps is missing"]


def test_a_space_survives_json_and_keeps_its_digest() -> None:
    again = Space.from_json(TILES.to_json())
    assert again == TILES
    assert again.digest() == TILES.digest()


def test_the_digest_follows_what_is_allowed_and_not_what_is_said() -> None:
    other_meaning = Space((Parameter("a", (1, 2), "x"),))
    assert other_meaning.digest() == Space((Parameter("a", (1, 2), "y"),)).digest()
    assert len({s.digest() for s in (other_meaning, Space((Parameter("a", (1, 3)),)), TILES)}) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parameter("a", ()), "parameter a needs at least one choice"),
        (lambda: Parameter("a", (1, 1)), "the choices of a must all be different"),
        (lambda: Space((Parameter("a", (1,)), Parameter("a", (2,)))), "parameter names must be different"),
        (lambda: Space((Parameter("a", (1,)),), ("a < b",)), "names b, neither a parameter"),
        (lambda: Space.from_json({"parameters": [{"name": "a"}]}), "not a space"),
    ],
)
def test_a_space_that_cannot_be_used_is_refused(make: object, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make()  # type: ignore[operator]


def test_distinguishes_true_from_one_as_choices() -> None:
    space = Space((Parameter("a", (True, 1, "1")),))
    assert space.size == 3
    assert space.allows({"a": True})
    assert not space.allows({"a": 1.0})
