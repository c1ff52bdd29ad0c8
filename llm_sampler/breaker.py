"""`Breaker`: when not to call a model that has failed, and when to try again.

A server that cannot be reached, or refuses, is left alone for a time that doubles with each failure in a row; a model
whose replies hold nothing usable is left alone for a number of trials that doubles. Time means nothing to the latter:
a study on a replay makes a hundred trials a second, and each useless reply costs tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_PAUSE_S = 30.0
_MOST_PAUSE_S = 900.0
_FIRST_PAUSE_TRIALS = 8
_MOST_PAUSE_TRIALS = 256


class Breaker:
    """Counts failures in a row.

    Args:
        clock: Seconds, ever growing.

    Attributes:
        reason: Why the last call failed, empty after a success.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.reason = ""
        self._clock = clock
        self._failures = 0
        self._useless = 0
        self._closed_at_s = 0.0
        self._closed_at_trial = 0

    def allows(self, trial_number: int) -> bool:
        """Whether a call may be made now."""
        return self._clock() >= self._closed_at_s and trial_number >= self._closed_at_trial

    @property
    def healthy(self) -> bool:
        """Whether the last call was of use, or none was made."""
        return not self.reason

    def failed(self, reason: str, retry_after_s: float | None = None) -> None:
        """The model did not answer."""
        pause_s = min(_FIRST_PAUSE_S * 2.0**self._failures, _MOST_PAUSE_S)
        self._closed_at_s = self._clock() + max(pause_s, retry_after_s or 0.0)
        self._failures += 1
        self.reason = reason

    def useless(self, reason: str, trial_number: int) -> None:
        """The model's reply held nothing that can be measured."""
        self._closed_at_trial = trial_number + min(_FIRST_PAUSE_TRIALS * 2**self._useless, _MOST_PAUSE_TRIALS)
        self._useless += 1
        self.reason = reason

    def succeeded(self) -> None:
        """The model was of use."""
        self._failures = self._useless = 0
        self.reason = ""
