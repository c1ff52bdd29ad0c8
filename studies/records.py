"""`TrialRecord`: a trial as results, reports and queries see it. Times in ms (``_ms``) or seconds (``_s``)."""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CALL, CALLS, CHANGES, FALLBACK, FAMILY, PROPOSED_BY, RATIONALE, USER
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, SPEEDUP_ATTRIBUTE, STATUS_ATTRIBUTE
from llm_sampler.objectives.measurement import Measurement, MeasurementError
from llm_sampler.reply import MOST_RATIONALE
from llm_sampler.space import Configuration, configuration_key

# What Optuna keeps of an enqueued trial.
_FIXED_PARAMETERS = "fixed_params"


@dataclass(frozen=True)
class LLMCall:
    """One call of the LLM, answered or not.

    Attributes:
        tokens: Tokens of prompt and reply, 0 where the server does not say.
        seconds: How long it took.
        error: Why there was no usable reply; empty if there was.
        id: Identifier, as ``TrialRecord.call`` of the trials that it proposed.
        model: The model that answered; empty if unknown.
    """

    tokens: int = 0
    seconds: float = 0.0
    error: str = ""
    id: str = ""
    model: str = ""


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a kernel's study.

    Attributes:
        number: Optuna's number, from 0.
        state: Optuna's state.
        configuration: What was suggested; what is queued, for a trial that waits.
        median_ms: The study's value; None unless it was measured.
        status: A measurement's status; empty if the trial waits, runs or was lost with its machine.
        measurement: All that was measured; None where there is none or it cannot be read.
        speedup: Against the default configuration, as known when it was measured; None if unknown.
        proposed_by: ``llm``, ``tpe``, ``default``, ``user`` or another sampler's name; empty if not recorded.
        fallback: Why the LLM did not propose it; empty if it did, or was not asked.
        rationale: What the LLM said of it, at most 500 characters.
        family: The family that the LLM put it in.
        changes: What the checks of the reply changed in it, e.g. ``num_warps: 6 -> 8``; empty if nothing.
        call: Identifier of the call that proposed it; empty if none did.
        model: The LLM that proposed it; empty if none did, or if that is not recorded.
        llm_calls: Calls of the LLM that ended before the trial and after earlier ones.
        started: When the trial began, local time.
        duration_s: How long it took; None while it runs.
        ended: When it ended, local time; None while it runs.
    """

    number: int
    state: TrialState
    configuration: Configuration
    median_ms: float | None = None
    status: str = ""
    measurement: Measurement | None = None
    speedup: float | None = None
    proposed_by: str = ""
    fallback: str = ""
    rationale: str = ""
    family: str = ""
    changes: str = ""
    call: str = ""
    model: str = ""
    llm_calls: tuple[LLMCall, ...] = ()
    started: datetime.datetime | None = None
    duration_s: float | None = None
    ended: datetime.datetime | None = None

    @functools.cached_property
    def key(self) -> str:
        """The configuration's key."""
        return configuration_key(self.configuration)

    @property
    def ok(self) -> bool:
        """Whether there is a verified time."""
        return self.median_ms is not None

    @property
    def measured(self) -> bool:
        """Whether the trial is done: timed, or failed for the configuration's own reasons.

        A sampler may prune a trial before it has a configuration, where another worker took the last one.
        """
        return self.state == TrialState.COMPLETE or (self.state == TrialState.PRUNED and self.status != "")

    @classmethod
    def from_trial(cls, trial: FrozenTrial, models: Mapping[str, str] | None = None) -> TrialRecord:
        """The record of a trial, whoever wrote it: what is missing or unreadable is None or empty.

        Args:
            trial: The trial.
            models: Of the study's calls, by identifier; another trial than the proposed one may hold a call's record.
        """
        attributes = trial.user_attrs
        measurement = None
        with contextlib.suppress(MeasurementError):
            if isinstance(attributes.get(MEASUREMENT_ATTRIBUTE), dict):
                measurement = Measurement.from_json(attributes[MEASUREMENT_ATTRIBUTE])
        fixed = trial.system_attrs.get(_FIXED_PARAMETERS) or {}
        ok = trial.state == TrialState.COMPLETE
        status = attributes.get(STATUS_ATTRIBUTE) or ("ok" if ok else "")
        return cls(
            number=trial.number,
            state=trial.state,
            configuration={**fixed, **trial.params},
            median_ms=trial.values[0] if ok and trial.values else None,
            status=str(status),
            measurement=measurement,
            speedup=attributes.get(SPEEDUP_ATTRIBUTE),
            proposed_by=str(attributes.get(PROPOSED_BY) or (USER if fixed else "")),
            fallback=str(attributes.get(FALLBACK) or ""),
            rationale=str(attributes.get(RATIONALE) or "")[:MOST_RATIONALE],
            family=str(attributes.get(FAMILY) or ""),
            changes=str(attributes.get(CHANGES) or ""),
            call=str(attributes.get(CALL) or ""),
            model=(models or {}).get(str(attributes.get(CALL) or ""), ""),
            llm_calls=_llm_calls(attributes.get(CALLS)),
            started=trial.datetime_start,
            duration_s=trial.duration.total_seconds() if trial.duration is not None else None,
            ended=trial.datetime_complete,
        )


def _llm_calls(data: Any) -> tuple[LLMCall, ...]:
    """The calls that a trial's attribute lists; none where it holds something else."""
    calls = [call for call in data if isinstance(call, dict)] if isinstance(data, list) else []
    return tuple(
        LLMCall(
            tokens=int(call.get("prompt_tokens") or 0) + int(call.get("completion_tokens") or 0),
            seconds=float(call.get("seconds") or 0.0),
            error=str(call.get("error") or ""),
            id=str(call.get("id") or ""),
            model=str(call.get("model") or ""),
        )
        for call in calls
    )


def read_records(study: optuna.Study) -> list[TrialRecord]:
    """The records of all trials, by number."""
    trials = study.get_trials(deepcopy=False)
    calls = (call for trial in trials if CALLS in trial.user_attrs for call in _llm_calls(trial.user_attrs[CALLS]))
    models = {call.id: call.model for call in calls if call.id}
    return [TrialRecord.from_trial(trial, models) for trial in trials]


def best_first(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Those with a time, fastest first; of equal ones the older first."""
    return sorted((r for r in records if r.ok), key=lambda r: (r.median_ms, r.number))
