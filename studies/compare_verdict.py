"""Verdicts: is an arm better than the baseline, worse, or can nobody tell from these runs?

Runs of one seed are paired. The test is Wilcoxon's signed-rank test (1945) on the differences of log ratios, two-sided.
A pair of arms has one hypothesis per space and one for all spaces together (the mean difference over spaces, by seed);
Holm's correction (1979) keeps the chance of any false verdict on the pair at 5 %.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Word = Literal["better", "worse", "not distinguishable"]
LEVEL = 0.05


@dataclass(frozen=True)
class Finding:
    """An arm against the baseline on one space, or on all together.

    Attributes:
        space: The space; empty for all together.
        ratio: Mean ratio of the arm over that of the baseline; geometric mean over spaces for all together. Under 1 the
            arm is better.
        pairs: Seeds that both have.
        p: Of the test.
        corrected_p: After Holm's correction.
        word: The verdict.
    """

    space: str
    ratio: float
    pairs: int
    p: float
    corrected_p: float
    word: Word


@dataclass(frozen=True)
class Verdict:
    """An arm against the baseline after so many measurements.

    Attributes:
        arm: The arm.
        baseline: The baseline.
        count: Measurements.
        overall: All spaces together.
        spaces: Each space.
    """

    arm: str
    baseline: str
    count: int
    overall: Finding
    spaces: tuple[Finding, ...]

    @property
    def losses(self) -> list[Finding]:
        """Spaces on which the arm's mean is worse, whether that is significant or not; the worst first."""
        return sorted((one for one in self.spaces if one.ratio > 1.0), key=lambda one: -one.ratio)

    @property
    def text(self) -> str:
        """One or two sentences; the losses are always said."""
        change = 100.0 * (self.overall.ratio - 1.0)
        said = f"{self.arm} is {self.overall.word} than {self.baseline}"
        if self.overall.word == "not distinguishable":
            said = f"{self.arm} is not distinguishable from {self.baseline}"
        said += f" after {self.count} measurements ({change:+.1f} % time, corrected p {self.overall.corrected_p:.2g})."
        losses = [
            f"{one.space} ({100.0 * (one.ratio - 1.0):+.1f} %, {one.word})" for one in self.losses if one.ratio > 1.0005
        ]
        return f"{said} Worse on: {', '.join(losses)}." if losses else f"{said} Worse on no space."


def judge(
    arm: str,
    baseline: str,
    count: int,
    values: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> Verdict:
    """The verdict on an arm.

    Args:
        arm: Its name.
        baseline: The baseline's name.
        count: Measurements.
        values: By space: ratios of the arm and of the baseline, paired by seed [S].
    """
    differences = {space: np.log(ours) - np.log(theirs) for space, (ours, theirs) in values.items()}
    fractions = {space: float(ours.mean() / theirs.mean()) for space, (ours, theirs) in values.items()}
    pairs = min(len(one) for one in differences.values())
    together = np.mean([one[:pairs] for one in differences.values()], axis=0)
    p = [signed_rank_p(one) for one in differences.values()]
    combined = float(np.exp(np.mean(np.log(list(fractions.values())))))
    if len(values) > 1:
        p.append(signed_rank_p(together))
        fractions[""] = combined
    corrected = holm(p)
    findings = [
        Finding(space, fraction, len(differences[space]) if space else pairs, raw, adjusted, _word(fraction, adjusted))
        for (space, fraction), raw, adjusted in zip(fractions.items(), p, corrected, strict=True)
    ]
    overall = findings.pop() if len(values) > 1 else findings[0]
    return Verdict(arm, baseline, count, overall, tuple(findings))


def _word(fraction: float, p: float) -> Word:
    if p >= LEVEL or fraction == 1.0:
        return "not distinguishable"
    return "better" if fraction < 1.0 else "worse"


def signed_rank_p(differences: NDArray[np.float64]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; 1 where all differences are zero."""
    from scipy.stats import wilcoxon

    # Equal results of two arms (both found the optimum) are no evidence: dropped, as Wilcoxon did. Rounding errors of
    # logarithms of equal times must not count as differences.
    kept = differences[np.abs(differences) > 1e-12]
    if not len(kept):
        return 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of small samples, whose p is exact
        p = float(wilcoxon(kept).pvalue)
    return p if math.isfinite(p) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p: the k-th smallest of m times m - k + 1, made monotone and at most 1."""
    corrected = [1.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected
