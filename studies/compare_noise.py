"""`NoisyReplay`: a replay whose times are those that one more measurement might have given.

A recorded configuration has samples; drawing as many of them with replacement and taking the median again is the
bootstrap (Efron 1979) of its measurement. The recorded time is scaled by the ratio of the two medians, because a
foreign file's time need not be the median of its samples. What a sampler achieved is judged on the recorded time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_sampler.objectives.evaluate import WrappedEvaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration, configuration_key

Noise = Literal["mean", "bootstrap"]
NOISES: tuple[Noise, ...] = ("mean", "bootstrap")


@dataclass(frozen=True)
class NoisyReplay(WrappedEvaluator):
    """Wraps an evaluator; implements `Evaluator`.

    The noise of a configuration follows from the seed and the configuration: all samplers of one seed meet the same.

    Attributes:
        base: What is replayed.
        seed: Of the noise.
    """

    seed: int

    def evaluate(self, configuration: Configuration) -> Measurement:
        """What one more measurement might have given; failures and single samples are as recorded."""
        recorded = self.base.evaluate(configuration)
        if recorded.median_ms is None or len(recorded.samples) < 2:
            return recorded
        digest = hashlib.sha256(f"{self.seed} {configuration_key(configuration)}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        samples = np.array(recorded.samples)
        drawn = rng.choice(samples, size=len(samples))
        ratio = float(np.median(drawn) / np.median(samples))
        return recorded.with_(median_ms=recorded.median_ms * ratio, samples=tuple(drawn.tolist()))
