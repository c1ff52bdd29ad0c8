"""Replies as language models write them, and what may pass."""

from __future__ import annotations

import json

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from llm_sampler.extract import CutDict, CutList, extract
from llm_sampler.reply import Reply, read_reply
from llm_sampler.search_space import SearchSpace

SPACE = SearchSpace(
    {
        "tile": CategoricalDistribution((16, 32, 64)),
        "warps": CategoricalDistribution((1, 2, 4)),
        "async": CategoricalDistribution((True, False)),
        "mode": CategoricalDistribution(("pointer", "descriptor")),
    },
    restrictions=["tile * warps <= 128"],
    declared=True,
)
GOOD = {"tile": 32, "warps": 4, "async": True, "mode": "pointer"}
OTHER = {"tile": 64, "warps": 2, "async": False, "mode": "descriptor"}


def said(*configurations: object) -> str:
    return json.dumps({"proposals": [{"family": "f", "rationale": "r", "configuration": c} for c in configurations]})


def found(text: str, **arguments: object) -> list[object]:
    return [dict(p.configuration) for p in read_reply(text, SPACE, **arguments).proposals]  # type: ignore[arg-type]


FORMS = {
    "plain": said(GOOD, OTHER),
    "fence": f"Here you are:\n```json\n{said(GOOD, OTHER)}\n```\nGood luck!",
    "array": json.dumps([GOOD, OTHER]),
    "array of proposals": json.dumps([{"configuration": GOOD}, {"config": OTHER}]),
    "lines": f"{json.dumps(GOOD)}\n{json.dumps(OTHER)}\n",
    "lines of proposals": f'{{"configuration": {json.dumps(GOOD)}}}\n{{"configuration": {json.dumps(OTHER)}}}',
    "thoughts": f"<think>{said({'tile': 16, 'warps': 1, 'async': True, 'mode': 'pointer'})}</think>{said(GOOD, OTHER)}",
    "swallowed opening tag": f"perhaps {json.dumps(GOOD)[:20]} or so</think>\n{said(GOOD, OTHER)}",
    "prose with braces": f"The set {{tile}} and [1] matter, so {{...}}: {said(GOOD, OTHER)} as {{ said.",
    "trailing commas": said(GOOD, OTHER).replace("}", ",}").replace("]", ",]"),
    "missing commas": said(GOOD, OTHER).replace("}}, {", "}} {"),
    "comments": said(GOOD, OTHER).replace("[", "[ // two of them\n").replace('"tile"', '/* rows */ "tile"'),
    "hash comments": said(GOOD, OTHER).replace("[", "[ # two of them\n"),
    "python": str({"proposals": [{"configuration": GOOD}, {"configuration": OTHER}]}),
    "bare words": "[{tile: 32, warps: 4, async: true, mode: pointer} {tile: 64 warps: 2 async:false mode:descriptor}]",
    "strings for numbers": json.dumps([{k: str(v) for k, v in c.items()} for c in (GOOD, OTHER)]),
    "floats for integers": json.dumps([{**GOOD, "tile": 32.0}, {**OTHER, "warps": 2.0}]),
    "families as keys": json.dumps({"safe": [GOOD], "aggressive": [OTHER]}),
    "deep": json.dumps({"result": {"data": {"items": [{"params": GOOD}, {"params": OTHER}]}}}),
    "truncated array": said(GOOD, OTHER, GOOD)[:-60],
    "truncated without a third": said(GOOD, OTHER)[:-2],
    "byte order mark": "\ufeff" + said(GOOD, OTHER),
    "extra members": json.dumps([{"reason": "x", **GOOD}, {**OTHER, "family": "y"}]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_both_proposals_as_choices(form: str) -> None:
    proposals = found(FORMS[form])
    assert proposals == [GOOD, OTHER]
    assert all(type(value) is type(GOOD[name]) for p in proposals for name, value in p.items())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    ["", "no", "{", "[", "{}", "[]", "null", "[[[[", "{{{{", '{"proposals": []}', '{"a": 1}', "[1, 2]", "<think>"],
)
def test_nothing_is_found_in_nothing(text: str) -> None:
    assert read_reply(text, SPACE) == Reply()


def test_thoughts_that_were_cut_off_are_no_answer() -> None:
    assert found(f"<think>I could take {said(GOOD)} but") == []


def test_a_number_at_the_very_end_may_be_cut_and_is_not_used() -> None:
    assert extract('[{"tile": 3') == [CutList([CutDict()])]
    assert extract('{"a": 1, "b": [1, 2') == [CutDict(a=1, b=CutList([1]))]
    assert found('[{"tile": 32, "warps": 4, "async": true, "mode": "pointer"}, {"tile": 64, "warps": 2') == [GOOD]


def test_hostile_nesting_ends() -> None:
    assert extract("[" * 3_000 + "]" * 10) is not None
    assert extract('{"a":' * 2_000) is not None


REASONS = [
    ({**GOOD, "depth": 3}, "unknown parameter 'depth'; parameters are tile, warps, async, mode"),
    ({**GOOD, "mode": "tma"}, "mode must be one of ('pointer', 'descriptor'), got 'tma'"),
    ({**GOOD, "async": 1}, "async must be one of (True, False), got 1"),
    ({**GOOD, "async": None}, "async must be one of (True, False), got None"),
    ({**GOOD, "tile": True}, "tile must be one of (16, 32, 64), got True"),
    ({**GOOD, "tile": "large"}, "tile must be one of (16, 32, 64), got 'large'"),
    ({**GOOD, "tile": 64}, "breaks tile * warps <= 128 (left side 256, right side 128)"),
    ({"tile": 32, "warps": 4, "async": True}, "mode is missing"),
]


@pytest.mark.parametrize(("configuration", "reason"), REASONS)
def test_illegal_proposals_are_rejected_with_rule_and_value(configuration: dict[str, object], reason: str) -> None:
    reply = read_reply(said(OTHER, configuration), SPACE)
    assert [dict(proposal.configuration) for proposal in reply.proposals] == [OTHER]
    assert [rejection.reason for rejection in reply.rejections] == [reason]


@pytest.mark.parametrize(("said_tile", "tile"), [(48, 64), (20, 16), (1_000_000, 64), (0.5, 16), ("33", 32), (-3, 16)])
def test_a_number_off_the_grid_moves_to_the_nearest_choice_and_that_is_recorded(said_tile: object, tile: int) -> None:
    (proposal,) = read_reply(said({**GOOD, "warps": 1, "tile": said_tile}), SPACE).proposals
    assert proposal.configuration["tile"] == tile
    assert proposal.changes == (f"tile: {said_tile} -> {tile}",)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "[32]", '{"value": 32}'])
def test_what_is_no_finite_number_is_rejected(value: str) -> None:
    text = f'{{"configuration": {{"tile": {value}, "warps": 4, "async": true, "mode": "pointer"}}}}'
    assert found(text) == []


def test_duplicates_within_a_reply_and_taken_ones_are_rejected() -> None:
    reply = read_reply(said(GOOD, OTHER, GOOD), SPACE, taken=lambda c: "trial 7 has it" if c == OTHER else "")
    assert [dict(proposal.configuration) for proposal in reply.proposals] == [GOOD]
    assert [rejection.reason for rejection in reply.rejections] == ["trial 7 has it", "twice in this reply"]


def test_left_out_parameters_have_their_default() -> None:
    assert found(said({"tile": 64, "warps": 1}), default=GOOD) == [{**GOOD, "tile": 64, "warps": 1}]


def test_conditional_spaces_may_leave_parameters_out() -> None:
    assert found(said({"tile": 64}), partial=True) == [{"tile": 64}]


def test_family_rationale_and_call_are_kept_and_the_rationale_is_bounded() -> None:
    text = json.dumps({"proposals": [{"family": "bold", "rationale": "x" * 900, "configuration": GOOD}]})
    (proposal,) = read_reply(text, SPACE, call="c1").proposals
    assert (proposal.family, proposal.call, len(proposal.rationale)) == ("bold", "c1", 500)


def test_a_parameter_may_be_called_like_a_member_of_a_proposal() -> None:
    space = SearchSpace({"family": CategoricalDistribution(("a", "b")), "reason": IntDistribution(0, 9)})
    reply = read_reply('[{"family": "b", "reason": 3}]', space)
    assert [dict(proposal.configuration) for proposal in reply.proposals] == [{"family": "b", "reason": 3}]


@pytest.mark.parametrize(
    ("distribution", "raw", "value", "changed"),
    [
        (FloatDistribution(0, 1), 0.25, 0.25, False),
        (FloatDistribution(0, 1), "0.25", 0.25, False),
        (FloatDistribution(0, 1), 1.5, 1.0, True),
        (FloatDistribution(1e-5, 1, log=True), 1e-3, 1e-3, False),
        (FloatDistribution(0, 1, step=0.25), 0.6, 0.5, True),
        (IntDistribution(0, 10), 3.0, 3, False),
        (IntDistribution(0, 10), 3.4, 3, True),
        (IntDistribution(1, 9, step=2), 4.2, 5, True),
        (IntDistribution(1, 1000, log=True), 2000, 1000, True),
    ],
)
def test_numbers_in_ranges(distribution: object, raw: object, value: float, changed: bool) -> None:
    space = SearchSpace({"x": distribution})  # type: ignore[dict-item]
    (proposal,) = read_reply(json.dumps([{"x": raw}]), space).proposals
    assert proposal.configuration["x"] == pytest.approx(value)
    assert type(proposal.configuration["x"]) is type(value)
    assert bool(proposal.changes) == changed
