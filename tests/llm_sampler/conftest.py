"""Makes ``support/`` importable, and keeps the tests from finding a model in the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import optuna
import pytest

sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LLM_SAMPLER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _quiet_and_warm() -> None:
    """Importing openai takes a second on a busy machine, more than the time limits that tests set."""
    import openai  # noqa: F401

    optuna.logging.set_verbosity(optuna.logging.WARNING)
