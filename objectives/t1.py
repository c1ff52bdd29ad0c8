"""The parameters and restrictions of a T1 file: what a foreign T4 recording leaves out.

T1 is the autotuning community's format for a tuning problem (Kernel Tuner's ``schema/T1/1.0.0/input-schema.json``).
Choices and conditions are Python expressions in text, evaluated like every restriction (`llm_sampler.space`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_sampler.space import Parameter, Space, SpaceError, evaluate

# No published space has more than a few hundred choices a parameter; `range(10**9)` is an accident or worse.
_MOST_CHOICES = 10_000


def space_from_t1(data: Any) -> Space:
    """The space that a T1 file describes; no default where it gives none, or one that its conditions forbid.

    Raises:
        SpaceError: It has another form.
    """
    try:
        section = data["ConfigurationSpace"]
        parameters = tuple(_parameter(item) for item in section["TuningParameters"])
        restrictions = tuple(str(item["Expression"]) for item in section.get("Conditions") or ())
        defaults = {str(item["Name"]): item.get("Default") for item in section["TuningParameters"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise SpaceError(
            f"a T1 file must have ConfigurationSpace with TuningParameters (Name, Values) and Conditions (Expression): "
            f"{error!r}"
        ) from None
    space = Space(parameters, restrictions)
    return Space(parameters, restrictions, defaults) if space.allows(defaults) else space


def name_from_t1(data: Any) -> str:
    """The benchmark's name, empty where there is none."""
    general = data.get("General") if isinstance(data, Mapping) else None
    return str(general.get("BenchmarkName") or "") if isinstance(general, Mapping) else ""


def _parameter(item: Mapping[str, Any]) -> Parameter:
    name, values = str(item["Name"]), item["Values"]
    choices = evaluate(values, {}) if isinstance(values, str) else values
    if not isinstance(choices, list | tuple | range) or not 0 < len(choices) <= _MOST_CHOICES:
        raise SpaceError(f"Values of {name} must be a list of 1 to {_MOST_CHOICES} choices, got {values!r:.80}")
    for choice in choices:
        if not isinstance(choice, bool | int | float | str):
            raise SpaceError(f"a choice of {name} must be a bool, int, float or str, got {choice!r:.80}")
    return Parameter(name, tuple(choices))
