"""Makes ``support/`` importable, and keeps the tests from finding a model in the environment."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import optuna
import pytest

sys.path.append(str(Path(__file__).parent / "support"))

_MODELS = {"good", "dead", "garbage", "hostile"}
# Of Optuna's suites these call sample_independent a hundred times a case and store nothing.
_STORING_NOTHING = {"test_float", "test_int", "test_categorical", "test_multi_objective_sample_independent"}
# These run over 36 pairs of distributions, or make twenty trials a case: on SQLite, one case of so many by default.
_THINNED = {
    "test_sample_relative_numerical": 24,
    "test_combination_of_different_distributions_objective": 24,
    "test_sample_relative_mixed": 5,
    "test_dynamic_range_objective": 5,
    "test_single_parameter_objective": 3,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark the cases of Optuna's suites that a default run leaves out: ``pytest -m exhaustive`` runs them."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("_storage") != "sqlite":
            continue
        redundant = item.originalname in _STORING_NOTHING or parameters["name"] not in _MODELS
        if redundant or zlib.crc32(item.name.encode()) % _THINNED.get(item.originalname, 1):
            item.add_marker("exhaustive")


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
