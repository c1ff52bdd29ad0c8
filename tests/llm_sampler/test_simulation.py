"""Good and bad advice, simulated on a small space: what it may bring and what it may cost."""

from __future__ import annotations

import json
import math

import pytest

from llm_sampler.simulated import QUALITIES, SimulatedModel
from llm_sampler.simulation import Course, simulate, summarize
from llm_sampler.space import Parameter, Space, configuration_key

SPACE = Space(
    tuple(Parameter(f"p{i}", tuple(range(6))) for i in range(4)), ("p0 + p1 <= 8",), {f"p{i}": 0 for i in range(4)}
)


def cost(configuration: dict[str, object]) -> float | None:
    """Rugged, with the optimum at (4, 2, 5, 1) and failures in a corner."""
    a, b, c, d = (int(str(configuration[f"p{i}"])) for i in range(4))
    if a == 5 and c < 2:
        return None
    return 10.0 + (a - 4) ** 2 + abs(b - 2) * 1.5 + (5 - c) * (1 + (d % 2)) / 2 + abs(d - 1) * 2


COSTS = {configuration_key(c): cost(c) for c in SPACE.configurations()}
SEEDS = range(6)


def mean_after(quality: str | None, trials: int) -> float:
    courses = [simulate(SPACE, COSTS, quality, seed=seed, trials=trials) for seed in SEEDS]  # type: ignore[arg-type]
    return summarize(courses, [trials]).means[0]


def test_an_oracle_comes_within_five_percent_in_sixteen_measurements() -> None:
    courses = [simulate(SPACE, COSTS, "oracle", seed=seed, trials=16) for seed in SEEDS]
    assert all((course.first_within(0.05) or 99) <= 16 for course in courses)


def test_good_advice_helps() -> None:
    assert mean_after("decile", 20) < mean_after(None, 20) - 0.05


def test_hostile_advice_costs_a_few_trials_and_little_else() -> None:
    courses = [simulate(SPACE, COSTS, "hostile", seed=seed, trials=60) for seed in SEEDS]
    assert all(3 <= course.llm_trials <= 10 for course in courses)
    assert summarize(courses, [60]).means[0] <= 1.05 * mean_after(None, 60)


def test_the_models_are_as_good_as_they_say() -> None:
    table = [(dict(c), cost(c)) for c in SPACE.configurations()]
    ranks = {configuration_key(c): i for i, (c, _) in enumerate(sorted(table, key=lambda r: r[1] or math.inf))}
    found = {}
    for quality in QUALITIES:
        model = SimulatedModel(table, quality, seed=1)
        text = model.complete([{"role": "user", "content": "Propose 20 configurations"}]).text
        again = model.complete([{"role": "user", "content": "Propose 20 configurations"}]).text

        drawn = [p["configuration"] for t in (text, again) for p in json.loads(t)["proposals"]]
        assert len({configuration_key(c) for c in drawn}) == 40
        found[quality] = [ranks[configuration_key(c)] for c in drawn]
    tenth = len(table) // 10
    assert max(found["oracle"]) < tenth
    assert max(found["decile"]) < tenth
    assert sum(found["oracle"][:10]) < sum(found["decile"][:10])
    assert 0.3 < sum(found["uniform"]) / 40 / len(table) < 0.7
    assert all(cost(table_row) is None for table_row in _worst(table, 40)) == (min(found["hostile"]) >= len(table) - 40)


def _worst(table: list[tuple[dict[str, object], float | None]], count: int) -> list[dict[str, object]]:
    ranked = sorted(table, key=lambda row: math.inf if row[1] is None else row[1])
    return [configuration for configuration, _ in ranked[-count:]]


def test_an_unknown_quality_is_refused() -> None:
    with pytest.raises(ValueError, match="quality must be one of oracle, decile, uniform, hostile, got 'good'"):
        SimulatedModel([], "good", seed=0)  # type: ignore[arg-type]


def test_summaries() -> None:
    courses = [Course((math.inf, 2.0, 1.0), 1), Course((3.0, 1.5, 1.04), 3)]
    summary = summarize(courses, [2, 3, 9])
    assert summary.means == (1.75, 1.02, 1.02)
    assert summary.within == 3
    assert summary.llm_trials == 2
    assert summarize([Course((2.0,), 0)], [1]).within is None
