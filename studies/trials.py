"""A finished trial as JSON in a T4 file, and back, with all that Optuna needs to have the same trial again."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import PREFIX
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, STATUS_ATTRIBUTE
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration, Space, configuration_key
from llm_sampler.studies.archive import ArchiveError

_PREFIXES = (PREFIX, "kernel:")
_STATES = {state.name: state for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)}
# Optuna's limits for keys, and MySQL's for values.
_MOST_NAME, _MOST_BYTES = 512, 65_000
_MOST_DEPTH = 8


def trial_facts(trial: FrozenTrial) -> dict[str, Any]:
    """What T4 has no field for: number, state, value, dates, attributes of ours, constraints.

    The name of the worker's host stays behind.
    """
    return {
        "number": trial.number,
        "state": trial.state.name,
        "value": trial.values[0] if trial.values else None,
        "started": trial.datetime_start.isoformat() if trial.datetime_start else None,
        "ended": trial.datetime_complete.isoformat() if trial.datetime_complete else None,
        "attributes": {n: v for n, v in trial.user_attrs.items() if n.startswith(_PREFIXES)},
        "constraints": dict(trial.constraints),
    }


def make_trial(facts: Mapping[str, Any], configuration: Configuration, space: Space) -> FrozenTrial:
    """The trial that ``trial_facts`` told of.

    Args:
        facts: See `trial_facts`.
        configuration: Its configuration; a lost trial may lack parameters.
        space: The study's space.

    Raises:
        ArchiveError: The facts have another form or contradict each other.
    """
    try:
        return _make_trial(facts, configuration, space)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"not a trial of this program: {error!r:.200}") from None


def identity(trial: FrozenTrial) -> str:
    """Equal for copies of one measurement: configuration, outcome and samples; for a lost trial its beginning."""
    key = configuration_key(trial.params)
    if trial.state == TrialState.FAIL:
        return json.dumps([key, "lost", trial.datetime_start.isoformat() if trial.datetime_start else ""])
    measurement = trial.user_attrs.get(MEASUREMENT_ATTRIBUTE)
    samples = measurement.get("samples") if isinstance(measurement, dict) else None
    return json.dumps([key, trial.user_attrs.get(STATUS_ATTRIBUTE), trial.values if trial.values else None, samples])


def _make_trial(facts: Mapping[str, Any], configuration: Configuration, space: Space) -> FrozenTrial:
    state = _STATES[facts["state"]]
    attributes = {_name(name): _bounded(name, value) for name, value in facts["attributes"].items()}
    value = facts["value"]
    if (state == TrialState.COMPLETE) != (value is not None) and state != TrialState.PRUNED:
        raise ArchiveError(f"a trial has a value exactly if it is COMPLETE, got {state.name}, {value!r:.40}")
    if MEASUREMENT_ATTRIBUTE in attributes:
        measurement = Measurement.from_json(attributes[MEASUREMENT_ATTRIBUTE])
        if state == TrialState.COMPLETE and measurement.median_ms != value:
            raise ArchiveError(f"a trial's value must be its measurement's median, got {value!r:.40}")
    distributions: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        if parameter.name in configuration:
            distributions[parameter.name] = CategoricalDistribution(parameter.choices)
    trial = optuna.trial.create_trial(
        state=state,
        value=None if value is None or state != TrialState.COMPLETE else _finite(value),
        params=dict(configuration),
        distributions=distributions,
        user_attrs=attributes,
        constraints={_name(name): _finite(bound) for name, bound in facts["constraints"].items()} or None,
    )
    started, ended = _date(facts["started"]), _date(facts["ended"])
    # A trial that was lost while it waited never started; Optuna wants both dates.
    trial.datetime_start, trial.datetime_complete = started or ended, ended or started
    if trial.datetime_start is None:
        raise ArchiveError("a finished trial must say when it started or ended")
    return trial


def _name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME - 16:
        raise ArchiveError(f"a name must be a text of at most {_MOST_NAME - 16} characters, got {name!r:.60}")
    return name


def _bounded(name: str, value: Any) -> Any:
    if not name.startswith(_PREFIXES):
        raise ArchiveError(f"an attribute must begin with {' or '.join(_PREFIXES)}, got {name!r:.60}")
    if _depth(value, _MOST_DEPTH) > _MOST_DEPTH:
        raise ArchiveError(f"an attribute must be nested at most {_MOST_DEPTH} deep, and {name} is nested deeper")
    size = len(json.dumps(value, allow_nan=False))
    if size > _MOST_BYTES:
        raise ArchiveError(f"an attribute must have at most {_MOST_BYTES:,} bytes, got {name} with {size:,}")
    return value


def _depth(value: Any, most: int) -> int:
    """How deep lists and objects are nested in each other; it looks no further than one beyond ``most``."""
    if most < 0 or not isinstance(value, list | dict):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(item, most - 1) for item in items), default=0)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArchiveError(f"a value must be a finite number, got {value!r:.60}")
    return float(value)


def _date(text: Any) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text).replace(tzinfo=None)
