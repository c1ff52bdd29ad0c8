"""The seam between an objective and what measures: a GPU, or a recording of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration, Space


class Evaluator(Protocol):
    """Measures configurations of one space; safe to call from several threads.

    Attributes:
        space: What may be measured.
        parallel: How many calls of ``evaluate`` run side by side to advantage (1 for a replay).
        device: Name of the device that measures or measured.
        reference_ms: Median time of the PyTorch reference, None before the first measurement or where there is none.
    """

    @property
    def space(self) -> Space: ...  # noqa: D102

    @property
    def parallel(self) -> int: ...  # noqa: D102

    @property
    def device(self) -> str: ...  # noqa: D102

    @property
    def reference_ms(self) -> float | None: ...  # noqa: D102

    def evaluate(self, configuration: Configuration) -> Measurement:
        """Measure one configuration; what the configuration does wrong is a status, not an exception."""
        ...

    def close(self) -> None:
        """End worker processes and free the device."""
        ...


@dataclass(frozen=True)
class WrappedEvaluator:
    """Another evaluator with something changed; a subclass says what. Implements `Evaluator`.

    Attributes:
        base: What measures.
    """

    base: Evaluator

    @property
    def space(self) -> Space:
        """The base's."""
        return self.base.space

    @property
    def parallel(self) -> int:
        """The base's."""
        return self.base.parallel

    @property
    def device(self) -> str:
        """The base's."""
        return self.base.device

    @property
    def reference_ms(self) -> float | None:
        """The base's."""
        return self.base.reference_ms

    def evaluate(self, configuration: Configuration) -> Measurement:
        """As the base."""
        return self.base.evaluate(configuration)

    def close(self) -> None:
        """As the base."""
        self.base.close()
