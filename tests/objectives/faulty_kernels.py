"""Launchers that misbehave, for worker processes to import."""

from __future__ import annotations

import os
import time


def abort(inputs: object, output: object, configuration: object) -> None:
    os.abort()


def hang(inputs: object, output: object, configuration: object) -> None:
    time.sleep(600)


def divide(inputs: object, output: object, configuration: object) -> None:
    1 / 0  # noqa: B018
