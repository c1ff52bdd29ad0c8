"""`Proposal`, and the checks that turn a language model's reply into proposals: tolerant of form, strict about values.

A reply holds objects like ``{"family": "safe", "rationale": "...", "configuration": {"num_warps": 8, ...}}`` in any
wrapping. A number that is no legal value moves to the nearest one, and that is recorded; a number as a string is taken
for the number; everything else that is not legal rejects the proposal with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from llm_sampler.extract import CutDict, extract
from llm_sampler.search_space import SearchSpace

MOST_RATIONALE = 500
_REASON_NAMES = ("rationale", "reason", "reasoning", "why", "explanation", "comment")
_FAMILY_NAMES = ("family", "group", "kind", "strategy")


@dataclass(frozen=True)
class Proposal:
    """A configuration that a language model proposed and the checks let through.

    Attributes:
        configuration: Legal values, every parameter of the space unless the space is conditional.
        rationale: The model's reason, at most 500 characters.
        family: The family the model put it in.
        call: Identifier of the call whose reply held it.
        changes: What the checks changed, e.g. ``num_warps: 6 -> 8``.
    """

    configuration: Mapping[str, Any]
    rationale: str = ""
    family: str = ""
    call: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """A proposal that was not let through.

    Attributes:
        configuration: As the model gave it.
        reason: One line: rule and value.
    """

    configuration: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Reply:
    """What came of one reply.

    Attributes:
        proposals: In the model's order.
        rejections: The rest.
    """

    proposals: tuple[Proposal, ...] = ()
    rejections: tuple[Rejection, ...] = ()


def read_reply(
    text: str,
    space: SearchSpace,
    *,
    call: str = "",
    default: Mapping[str, Any] | None = None,
    partial: bool = False,
    taken: Callable[[Mapping[str, Any]], str] | None = None,
) -> Reply:
    """The proposals in a reply.

    Args:
        text: The reply.
        space: What is legal.
        call: Identifier of the call.
        default: Values of parameters that a proposal leaves out.
        partial: Whether a proposal may leave parameters out (a conditional space).
        taken: Says why a configuration is not wanted (``measured in trial 7``), empty if it is.
    """
    proposals: list[Proposal] = []
    rejections: list[Rejection] = []
    seen: set[object] = set()
    for raw in _raw_proposals(extract(text), set(space.names)):
        checked = _check(raw.configuration, space, default or {}, partial)
        if isinstance(checked, str):
            rejections.append(Rejection(raw.configuration, checked))
            continue
        configuration, changes = checked
        key: object = space.position(configuration) or tuple(sorted((n, repr(v)) for n, v in configuration.items()))
        reason = "twice in this reply" if key in seen else (taken(configuration) if taken else "")
        seen.add(key)
        if reason:
            rejections.append(Rejection(raw.configuration, reason))
        else:
            proposals.append(replace(raw, configuration=configuration, changes=changes, call=call))
    return Reply(tuple(proposals), tuple(rejections))


def _raw_proposals(values: list[Any], names: set[str]) -> Iterator[Proposal]:
    """Unchecked proposals: every complete object that names a parameter, with the texts beside or around it."""
    for value in values:
        yield from _walk(value, names, rationale="", family="")


def _walk(value: Any, names: set[str], *, rationale: str, family: str) -> Iterator[Proposal]:
    if isinstance(value, list):
        for element in value:
            yield from _walk(element, names, rationale=rationale, family=family)
    elif isinstance(value, dict):
        scalars = {name: child for name, child in value.items() if not isinstance(child, dict | list)}
        texts = {name.lower(): child for name, child in scalars.items() if name not in names}
        rationale = _text(texts, _REASON_NAMES) or rationale
        family = _text(texts, _FAMILY_NAMES) or family
        if scalars.keys() & names:
            if not isinstance(value, CutDict):
                known = {n: c for n, c in scalars.items() if n.lower() not in (*_REASON_NAMES, *_FAMILY_NAMES)}
                yield Proposal(known | {n: scalars[n] for n in scalars.keys() & names}, rationale, family)
        else:
            for name, child in value.items():
                # {"safe": [...], "balanced": [...]}: the key is the family
                inner = name if isinstance(child, list) and name.lower() in ("safe", "balanced", "aggressive") else ""
                yield from _walk(child, names, rationale=rationale, family=inner or family)


def _text(texts: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((str(texts[name]) for name in names if isinstance(texts.get(name), str)), "")
    return found if len(found) <= MOST_RATIONALE else found[: MOST_RATIONALE - 1] + "…"


def _check(
    raw: Mapping[str, Any], space: SearchSpace, default: Mapping[str, Any], partial: bool
) -> tuple[dict[str, Any], tuple[str, ...]] | str:
    """Legal values and what was changed, or why not."""
    if unknown := sorted(raw.keys() - set(space.names)):
        return f"unknown parameter {unknown[0]!r}; parameters are {', '.join(space.names)}"
    configuration: dict[str, Any] = {}
    changes = []
    for name, distribution in space.distributions.items():
        if name not in raw:
            if name in default:
                configuration[name] = default[name]
            elif name in space.single_values:
                configuration[name] = space.single_values[name]
            elif not partial:
                return f"{name} is missing"
            continue
        legal = legal_value(distribution, raw[name])
        if legal is None:
            return f"{name} must be {describe(distribution)}, got {raw[name]!r}"
        configuration[name] = legal[0]
        if legal[1]:
            changes.append(f"{name}: {raw[name]} -> {legal[0]}")
    if broken := space.broken(configuration):
        return f"breaks {'; '.join(broken)}"
    return configuration, tuple(changes)


def legal_value(distribution: BaseDistribution, raw: Any) -> tuple[Any, bool] | None:
    """The legal value that ``raw`` means and whether it had to be moved; None if it means none."""
    if isinstance(distribution, CategoricalDistribution):
        return _legal_choice(distribution.choices, raw)
    number = _number(raw)
    if number is None or not isinstance(distribution, IntDistribution | FloatDistribution):
        return None
    low, high, step = distribution.low, distribution.high, distribution.step
    value = min(max(number, low), high)
    if step is not None:
        value = min(low + round((value - low) / step) * step, high)
    legal = int(value) if isinstance(distribution, IntDistribution) else float(value)
    return legal, not math.isclose(legal, number, rel_tol=1e-9, abs_tol=0.0)


def _legal_choice(choices: tuple[Any, ...], raw: Any) -> tuple[Any, bool] | None:
    for choice in choices:
        if choice == raw and type(choice) is type(raw):
            return choice, False
    for choice in choices:  # "true" and 1 for True stay apart: only texts are read
        if isinstance(raw, str) and raw.strip().lower() == str(choice).lower():
            return choice, False
    number = _number(raw)
    numbers = [choice for choice in choices if isinstance(choice, int | float) and not isinstance(choice, bool)]
    if number is None or len(numbers) != len(choices):
        return None
    nearest = min(numbers, key=lambda choice: (_distance(choice, number), choice))
    return nearest, nearest != number


def _distance(choice: float, number: float) -> float:
    """Distance of two numbers: of logarithms where both are positive, as tile sizes and rates are meant."""
    if choice > 0 and number > 0:
        return abs(math.log(choice / number))
    return abs(choice - number) + 1e3


def _number(raw: Any) -> float | None:
    """A finite number from a number or its text; None for anything else, bools included."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def describe(distribution: BaseDistribution) -> str:
    """What is legal, in words: ``one of (4, 8)``, ``an integer from 1 to 9 in steps of 2``."""
    if isinstance(distribution, CategoricalDistribution):
        return f"one of ({', '.join(repr(choice) for choice in distribution.choices)})"
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    kind = "an integer" if isinstance(distribution, IntDistribution) else "a number"
    step = distribution.step if distribution.step not in (None, 1) else None
    return (
        f"{kind} from {distribution.low} to {distribution.high}"
        + (f" in steps of {step}" if step is not None else "")
        + (" (logarithmic)" if distribution.log else "")
    )
