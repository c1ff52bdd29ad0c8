"""Who proposes next, once the model's opening has been measured: shares of trials for four sources.

* ``llm``: the model's next proposals.
* the fallback sampler (``tpe``), which learns from every measurement.
* ``local``: an unmeasured configuration that differs in one parameter from one of the best few.
* ``independent``: a search of its own that does not see what the model led to, so that an opening which misleads costs
  a part of the budget only.

Every source has a prior share and a floor. Beyond the floors the shares follow what the sources achieved: the estimated
chance that a trial of the source improves the incumbent, older trials counting less. The model gets more on a plateau,
where the others have nothing to offer, and less with every batch that was of no use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llm_sampler.attributes import INDEPENDENT, LLM, LOCAL

MODEL_BASED = "fallback"
SOURCES = (LLM, MODEL_BASED, LOCAL, INDEPENDENT)

_FLOOR = 0.06
_HALF_LIFE = 25.0  # trials
_PRIOR_TRIALS = 8.0  # how many trials the prior is worth
_PLATEAU = 15  # trials without improvement


@dataclass(frozen=True)
class Step:
    """A finished trial.

    Attributes:
        source: Who proposed it; anything but one of ``SOURCES`` counts for nobody.
        cost: Its value, lower is better; None if it failed.
    """

    source: str
    cost: float | None


def shares(steps: Sequence[Step], *, llm_share: float) -> dict[str, float]:
    """The share of each source in the trials to come; they sum to 1.

    Args:
        steps: Finished trials since the study began, in order.
        llm_share: The model's prior share.
    """
    rest = 1.0 - llm_share
    prior = {LLM: llm_share, MODEL_BASED: 0.45 * rest, LOCAL: 0.40 * rest, INDEPENDENT: 0.15 * rest}
    merits = _merits(steps)
    weights = {source: prior[source] * merits[source] for source in SOURCES}
    if _since_improvement(steps) >= _PLATEAU:
        weights[LLM] *= 2.0
    total = sum(weights.values())
    floor = {source: min(_FLOOR, prior[source]) for source in SOURCES}
    free = 1.0 - sum(floor.values())
    return {source: floor[source] + free * weights[source] / total for source in SOURCES}


def _merits(steps: Sequence[Step]) -> dict[str, float]:
    """Estimated chance of improving the incumbent, relative to all sources together; 1 where nothing is known."""
    wins = dict.fromkeys(SOURCES, 0.0)
    tries = dict.fromkeys(SOURCES, 0.0)
    best: float | None = None
    for index, step in enumerate(steps):
        improved = step.cost is not None and (best is None or step.cost < best)
        if improved:
            best = step.cost
        if step.source in wins:
            weight = 0.5 ** ((len(steps) - 1 - index) / _HALF_LIFE)
            tries[step.source] += weight
            wins[step.source] += weight * improved
    overall = (sum(wins.values()) + 0.5) / (sum(tries.values()) + 5.0)
    return {
        source: (wins[source] + _PRIOR_TRIALS * overall) / (tries[source] + _PRIOR_TRIALS) / overall
        for source in SOURCES
    }


def _since_improvement(steps: Sequence[Step]) -> int:
    best: float | None = None
    since = 0
    for step in steps:
        since += 1
        if step.cost is not None and (best is None or step.cost < best):
            best, since = step.cost, 0
    return since


def choose(weights: Mapping[str, float], available: Collection[str], draw: float) -> str:
    """A source by its share among those available.

    Args:
        weights: Shares.
        available: Sources that can propose now, at least one.
        draw: Uniform in [0, 1).
    """
    names = [source for source in SOURCES if source in available]
    total = sum(weights[name] for name in names)
    reached = 0.0
    for name in names:
        reached += weights[name] / total
        if draw < reached:
            return name
    return names[-1]
