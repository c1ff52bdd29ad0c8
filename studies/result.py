"""`TuneResult`: what a study has found, read from its trials. Times in ms (``_ms``) or seconds (``_s``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from optuna.trial import TrialState

from llm_sampler.space import Space, configuration_key
from llm_sampler.studies.records import TrialRecord, best_first

# Why a study stopped: its target or budget was reached, all allowed configurations are measured, or Ctrl-C.
Stopped = Literal["target", "trials", "time", "exhausted", "interrupted"]


@dataclass(frozen=True)
class TuneResult:
    """The result of a study so far.

    Attributes:
        study_name: The study's name.
        records: All trials, by number.
        baseline: The trial of the default configuration; None where there is none yet.
        best: The fastest trial; None if none has a time.
        reference_ms: Median time of the PyTorch reference; None where there is none.
        top: The five fastest, fastest first.
        failures: How many trials have each status other than ok.
        proposers: How many measured trials each sampler proposed.
        fallbacks: How many trials fell back for each reason.
        llm_calls: Calls of the LLM whose outcome is recorded, failed ones included.
        llm_tokens: Tokens that they took, prompts and replies.
        lost: Trials that ended with their machine or process.
        stopped: Why it stopped.
        seconds: How long this run took; earlier runs of the study do not count.
        measured_before: Trials that earlier runs had measured.
    """

    study_name: str
    records: tuple[TrialRecord, ...]
    baseline: TrialRecord | None
    best: TrialRecord | None
    reference_ms: float | None
    top: tuple[TrialRecord, ...]
    failures: Mapping[str, int]
    proposers: Mapping[str, int]
    fallbacks: Mapping[str, int]
    llm_calls: int
    llm_tokens: int
    lost: int
    stopped: Stopped
    seconds: float
    measured_before: int = 0

    @property
    def measured(self) -> int:
        """How many configurations the study has measured, failures included."""
        return sum(record.measured for record in self.records)

    @property
    def speedup(self) -> float | None:
        """How many times faster the best is than the default configuration."""
        if self.best is None or self.baseline is None or not self.baseline.median_ms or not self.best.median_ms:
            return None
        return self.baseline.median_ms / self.best.median_ms

    @property
    def reference_speedup(self) -> float | None:
        """How many times faster the best is than the PyTorch reference, timed interleaved with it where possible."""
        return reference_speedup(self.best, self.reference_ms) if self.best else None


def summarize(
    records: Sequence[TrialRecord],
    space: Space,
    *,
    study_name: str,
    reference_ms: float | None,
    stopped: Stopped,
    seconds: float,
    measured_before: int = 0,
) -> TuneResult:
    """The result that the trials of a study add up to."""
    ranked = best_first(records)
    done = [record for record in records if record.measured]
    return TuneResult(
        study_name=study_name,
        records=tuple(records),
        baseline=find_baseline(records, space),
        best=ranked[0] if ranked else None,
        reference_ms=reference_ms,
        top=tuple(ranked[:5]),
        failures=Counter(record.status for record in done if not record.ok),
        proposers=Counter(record.proposed_by for record in done),
        fallbacks=Counter(record.fallback for record in done if record.fallback),
        llm_calls=sum(len(record.llm_calls) for record in records),
        llm_tokens=sum(call.tokens for record in records for call in record.llm_calls),
        lost=sum(record.state == TrialState.FAIL for record in records),
        stopped=stopped,
        seconds=seconds,
        measured_before=measured_before,
    )


def find_baseline(records: Sequence[TrialRecord], space: Space) -> TrialRecord | None:
    """The measured trial of the default configuration."""
    if space.default is None:
        return None
    key = configuration_key(space.default)
    return next((record for record in records if record.measured and record.key == key), None)


def reference_speedup(record: TrialRecord, reference_ms: float | None) -> float | None:
    """How many times faster a trial was than the reference.

    Args:
        record: A trial.
        reference_ms: The reference's median time over the study, for trials that did not time it interleaved.
    """
    if record.measurement is not None and record.measurement.reference_ms is not None:
        reference_ms = record.measurement.reference_ms
    return reference_ms / record.median_ms if reference_ms is not None and record.median_ms else None
