"""Who proposes next: the model's opening first, then four sources by shares.

* ``llm``: the model's next proposals.
* the fallback sampler (``tpe``), which learns from every measurement.
* ``local``: an unmeasured configuration that differs in one parameter from one of the best few.
* ``independent``: a search of its own that does not see what the model led to, so that an opening which misleads costs
  a part of the budget only.

A source's share is its prior times its merit, above a floor. Merit is the estimated chance that a trial of the source
improves the incumbent, older trials counting less. For the model it is also multiplied by *trust*: how often its trials
beat those that nobody chose (the default, the independent ones), 1/2 for a model that knows nothing. That is known long
before improvements are, and it is what keeps a model that advises badly from costing more than a few trials. A trusted
model gets more on a plateau, where the others have nothing to offer.

The opening is given up once its first trials are all worse than the best that nobody chose; if there is none yet, one
independent trial is made to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llm_sampler.attributes import INDEPENDENT, LLM, LOCAL

MODEL_BASED = "fallback"
SOURCES = (LLM, MODEL_BASED, LOCAL, INDEPENDENT)

_FLOORS = {LLM: 0.01, MODEL_BASED: 0.10, LOCAL: 0.01, INDEPENDENT: 0.01}
_HALF_LIFE = 25.0  # trials
_MEMORY = 250  # trials; what is older weighs less than a thousandth
_PRIOR_TRIALS = 8.0  # how many trials the prior is worth
_PLATEAU = 15  # trials without improvement
_PROBE_AFTER = 3  # trials of the opening
_TRUST_WINDOW = 24  # the newest trials of the model that count
_TRUST_PRIOR = 4.0  # comparisons that are taken as won before any is made
_KNOWS_NOTHING, _KNOWS_MUCH = 0.55, 0.8  # of trust: where belief begins, and where it is full
_START = 10  # trials that nobody chose, as TPE's own random start; fewer where the model is trusted
_FEW = 4


@dataclass(frozen=True)
class Step:
    """A finished trial.

    Attributes:
        source: One of ``SOURCES``, or who else proposed it (the default, the user).
        cost: Its value, lower is better; None if it failed.
    """

    source: str
    cost: float | None


def opening_source(steps: Sequence[Step]) -> str | None:
    """Who proposes while proposals of the opening are left: the model, ``independent``, or the shares (None)."""
    own = [_worst_if_failed(step) for step in steps if step.source == LLM]
    if len(own) < _PROBE_AFTER:
        return LLM
    others = [_worst_if_failed(step) for step in steps if _nobody_chose(step)]
    if not others:
        return INDEPENDENT
    return LLM if min(own) < min(others) else None


def shares(steps: Sequence[Step], *, llm_share: float) -> dict[str, float]:
    """The share of each source in the trials to come; they sum to 1.

    Args:
        steps: Finished trials since the study began, in order.
        llm_share: The model's prior share.
    """
    rest = 1.0 - llm_share
    believed = trust(steps)
    belief = min(1.0, max(0.0, (believed - _KNOWS_NOTHING) / (_KNOWS_MUCH - _KNOWS_NOTHING)))
    prior = {
        LLM: llm_share * belief,
        MODEL_BASED: rest * (0.45 * belief + 1.0 - belief),
        LOCAL: rest * 0.40 * belief,
        INDEPENDENT: rest * 0.15 * belief,
    }
    merits = _merits(steps)
    weights = {source: prior[source] * merits[source] for source in SOURCES}
    if believed >= 0.6 and _since_improvement(steps) >= _PLATEAU:
        weights[LLM] *= 2.0
    total = sum(weights.values())
    free = 1.0 - sum(_FLOORS.values())
    found = {source: _FLOORS[source] + free * weights[source] / total for source in SOURCES}
    others = sum(_nobody_chose(step) for step in steps)
    if others < (_START if belief < 0.75 else _FEW):
        # A model-based sampler that has seen nothing but advice would only repeat it.
        return {**found, INDEPENDENT: found[INDEPENDENT] + found[MODEL_BASED], MODEL_BASED: 0.0}
    return found


def trust(steps: Sequence[Step]) -> float:
    """How often the model's newest trials beat those that nobody chose, from 0 to 1; near 1 while little is known."""
    own = [_worst_if_failed(step) for step in steps if step.source == LLM][-_TRUST_WINDOW:]
    others = [_worst_if_failed(step) for step in steps if _nobody_chose(step)][-_TRUST_WINDOW:]
    won = sum((mine < other) + 0.5 * (mine == other) for mine in own for other in others)
    # As many comparisons as trials of the rarer side are worth counting: they are not independent of each other.
    weight = min(len(own), len(others))
    share = won / (len(own) * len(others)) if weight else 1.0
    return (share * weight + _TRUST_PRIOR * 0.8) / (weight + _TRUST_PRIOR) if share > 0.2 else share


def _nobody_chose(step: Step) -> bool:
    return step.source not in (LLM, LOCAL, MODEL_BASED)


def _worst_if_failed(step: Step) -> float:
    return math.inf if step.cost is None else step.cost


def _merits(steps: Sequence[Step]) -> dict[str, float]:
    """Estimated chance of improving the incumbent, relative to all sources together; 1 where nothing is known."""
    wins = dict.fromkeys(SOURCES, 0.0)
    tries = dict.fromkeys(SOURCES, 0.0)
    best = min((step.cost for step in steps[:-_MEMORY] if step.cost is not None), default=None)
    recent = steps[-_MEMORY:]
    for index, step in enumerate(recent):
        improved = step.cost is not None and (best is None or step.cost < best)
        if improved:
            best = step.cost
        if step.source in wins:
            weight = 0.5 ** ((len(recent) - 1 - index) / _HALF_LIFE)
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
        reached += weights[name] / total if total else 1.0 / len(names)
        if draw < reached:
            return name
    return names[-1]
