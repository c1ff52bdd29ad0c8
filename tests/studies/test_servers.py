"""The archive on real servers."""

from __future__ import annotations

import optuna
import pytest

from llm_sampler.studies.archive import open_storage


@pytest.mark.parametrize("server", ["postgres_url", "mysql_url"])
def test_a_study_lives_on_a_server(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)
    storage = open_storage(url)
    study = optuna.create_study(storage=storage, study_name="s")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    storage.engine.dispose()
    storage = open_storage(url)
    assert len(optuna.load_study(storage=storage, study_name="s").trials) == 3
    storage.engine.dispose()
