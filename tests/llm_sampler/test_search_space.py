"""Positions, tables and values of search spaces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from llm_sampler.search_space import SearchSpace, random_number, step_from
from llm_sampler.space import Parameter, Space, SpaceError

FINITE = {
    "tile": CategoricalDistribution((16, 32, 64)),
    "depth": IntDistribution(1, 9, step=2),
    "rate": FloatDistribution(0.1, 0.5, step=0.1),
    "flag": CategoricalDistribution((True, False)),
}


def test_the_table_holds_exactly_the_allowed_configurations() -> None:
    space = Space(
        (Parameter("a", (1, 2, 3, 4)), Parameter("b", (1, 2, 3)), Parameter("c", ("x", "y"))),
        ("a * b <= limit", "c == 'x' or a > 1", "1 / (a - 2) < 9"),
        facts={"limit": 6},
    )
    search_space = SearchSpace.from_space(space)
    table = search_space.table
    assert table is not None
    found = [search_space.configuration(table.position(row)) for row in range(len(table))]
    expected = [
        {"a": a, "b": b, "c": c}
        for a in (1, 3, 4)  # a == 2 divides by zero, which counts as not allowed
        for b in (1, 2, 3)
        for c in ("x", "y")
        if a * b <= 6 and (c == "x" or a > 1)
    ]
    assert found == expected
    assert [table.row(table.position(row)) for row in range(len(table))] == list(range(len(table)))


def test_a_row_that_is_not_allowed_is_not_found() -> None:
    space = SearchSpace.from_space(Space((Parameter("a", (1, 2)), Parameter("b", (1, 2))), ("a != b",)))
    assert space.table is not None
    assert space.table.row((0.0, 0.0)) is None
    assert space.table.row((0.0, 1.0)) == 0


def test_positions_and_configurations_are_inverse_and_give_the_choices_themselves() -> None:
    space = SearchSpace(FINITE)
    configuration = {"tile": np.int64(32), "depth": 5.0, "rate": 0.30000000000000004, "flag": True}
    position = space.position(configuration)
    assert position == (1.0, 2.0, 2.0, 0.0)
    values = space.configuration(position)
    assert values == {"tile": 32, "depth": 5, "rate": pytest.approx(0.3), "flag": True}
    assert [type(value) for value in values.values()] == [int, int, float, bool]


@pytest.mark.parametrize(
    "change", [{"tile": 48}, {"depth": 4}, {"depth": 11}, {"rate": 0.35}, {"rate": "x"}, {"depth": None}]
)
def test_illegal_values_have_no_position(change: dict[str, object]) -> None:
    assert SearchSpace(FINITE).position({"tile": 16, "depth": 1, "rate": 0.1, "flag": True} | change) is None


def test_other_parameters_do_not_matter_and_missing_ones_do() -> None:
    space = SearchSpace({"x": FloatDistribution(0, 1)})
    assert space.position({"x": 0.25, "y": 3}) == (0.25,)
    assert space.position({"y": 3}) is None


def test_every_grid_value_of_a_float_is_within_its_bounds() -> None:
    distribution = FloatDistribution(-10.2, 10.2, step=0.1)
    space = SearchSpace({"x": distribution})
    values = space.values_of("x")
    assert values is not None
    assert len(values) == 205
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)
    assert [space.number("x", value) for value in values] == list(range(205))


def test_infinite_and_huge_spaces_have_no_table() -> None:
    assert SearchSpace({"x": FloatDistribution(0, 1)}).table is None
    assert SearchSpace({"x": IntDistribution(0, 10**9)}).table is None
    assert SearchSpace({name: IntDistribution(0, 99) for name in "abcd"}).table is None


def test_a_large_product_with_few_allowed_configurations_has_a_table() -> None:
    names = [f"p{index}" for index in range(40)]
    pairs = [f"{a} == {b}" for a, b in itertools.pairwise(names)]
    space = SearchSpace({name: CategoricalDistribution((0, 1, 2, 3)) for name in names}, restrictions=pairs)
    assert space.table is not None
    assert len(space.table) == 4
    assert space.table.row(tuple([3.0] * 40)) == 3


def test_restrictions_with_unknown_names_or_functions_are_refused() -> None:
    with pytest.raises(SpaceError, match="names y, neither a parameter"):
        SearchSpace({"x": FloatDistribution(0, 1)}, restrictions=["x < y"]).check_restrictions()
    with pytest.raises(SpaceError, match="cannot evaluate"):
        SearchSpace({"x": FloatDistribution(0, 1)}, restrictions=["x(3) < 3"]).check_restrictions()


def test_random_numbers_and_steps_stay_legal() -> None:
    rng = np.random.default_rng(0)
    space = SearchSpace(FINITE | {"log": IntDistribution(1, 1000, log=True), "x": FloatDistribution(1e-5, 1, log=True)})
    for name in space.names:
        numbers = [random_number(space, name, rng) for _ in range(200)]
        values = [space.value(name, number) for number in numbers]
        assert [space.number(name, value) for value in values] == pytest.approx(numbers)
        assert len(set(values)) > 1
    for name in ("depth", "rate", "log", "x"):
        for share in (-2.0, -0.01, 0.01, 2.0):
            number = step_from(space, name, random_number(space, name, rng), share)
            assert space.number(name, space.value(name, number)) == pytest.approx(number)
