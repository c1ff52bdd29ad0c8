"""Simulated language models of known quality, to see what a sampler makes of good and of bad advice.

They answer from a table of measured configurations and need no network. Qualities, over the N configurations ranked by
cost:

* ``oracle``: knows the order of the best tenth; draws from it, rank r with weight 1/r.
* ``decile``: knows the best tenth but no order in it; draws from it uniformly.
* ``uniform``: knows nothing; draws from all configurations uniformly.
* ``hostile``: proposes the worst ones, worst first: those that fail, then the slowest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from llm_sampler.client import Answer, Message

Quality = Literal["oracle", "decile", "uniform", "hostile"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
_ASKED = re.compile(r"Propose (\d+)")


class SimulatedModel:
    """A `ChatModel` that answers from a table; never proposes a configuration twice.

    Args:
        table: Every allowed configuration with its cost, lower is better; None where it fails.
        quality: What the model knows.
        seed: Of its draws.
    """

    def __init__(self, table: Iterable[tuple[Mapping[str, Any], float | None]], quality: Quality, *, seed: int) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"quality must be one of {', '.join(QUALITIES)}, got {quality!r}")
        ranked = sorted(table, key=lambda row: math.inf if row[1] is None else row[1])
        self._configurations = [dict(configuration) for configuration, _ in ranked]
        self._quality = quality
        rng = np.random.default_rng(seed)
        self._order = _order(len(ranked), quality, rng)
        self._next = 0

    @property
    def name(self) -> str:
        """E.g. ``simulated-oracle``."""
        return f"simulated-{self._quality}"

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """As many proposals as the last message asks for."""
        asked = _ASKED.search(messages[-1]["content"])
        count = int(asked[1]) if asked else 1
        rows = self._order[self._next : self._next + count]
        self._next += count
        proposals = [{"family": self._quality, "configuration": self._configurations[row]} for row in rows]
        text = json.dumps({"proposals": proposals})
        return Answer(text, sum(len(m["content"]) for m in messages) // 3, len(text) // 3, model=self.name)


def _order(count: int, quality: Quality, rng: np.random.Generator) -> list[int]:
    """Ranks in the order in which they will be proposed."""
    if quality == "hostile":
        return list(range(count - 1, -1, -1))
    if quality == "uniform":
        return [int(row) for row in rng.permutation(count)]
    best = max(1, count // 10)
    weights = np.ones(best) if quality == "decile" else 1.0 / np.arange(1, best + 1)
    drawn = rng.choice(best, size=best, replace=False, p=weights / weights.sum())
    return [int(row) for row in drawn]
