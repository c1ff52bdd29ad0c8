"""A real model on a real server, from the prompt to measured proposals: docs/local-models.md says how to start one.

Run with ``LLM_SAMPLER_TEST_MODEL=http://127.0.0.1:8011/v1 python -m pytest -m model -n 0``. Any model will
do: what it proposes may be poor, what the sampler makes of it may not. A small one on two cores takes some minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState
from typer.testing import CliRunner

from llm_sampler.attributes import CALLS, FALLBACK, MODEL, PROPOSED_BY
from llm_sampler.sampler import LLMSampler

pytestmark = [pytest.mark.model, pytest.mark.timeout(1_800)]
VARIABLE = "LLM_SAMPLER_TEST_MODEL"


@pytest.fixture
def base_url() -> str:
    url = os.environ.get(VARIABLE)
    if not url:
        pytest.skip(f"no model here: set {VARIABLE} to the address of a server, e.g. http://127.0.0.1:8011/v1")
    return url


def calls_of(study: optuna.Study) -> list[dict[str, object]]:
    return [call for trial in study.trials for call in trial.user_attrs.get(CALLS, [])]


def test_a_plain_study_measures_what_the_model_proposes(base_url: str) -> None:
    space = {
        "block": CategoricalDistribution([16, 32, 64, 128, 256]),
        "warps": CategoricalDistribution([1, 2, 4, 8]),
        "stages": IntDistribution(1, 5),
    }
    sampler = LLMSampler(
        base_url=base_url, search_space=space, batch_size=4, timeout_s=600, wait="always", max_calls=3, seed=0
    )
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        block = trial.suggest_categorical("block", [16, 32, 64, 128, 256])
        warps = trial.suggest_categorical("warps", [1, 2, 4, 8])
        return abs(block - 128) / 64 + abs(warps - 8) / 4 + 0.3 * abs(trial.suggest_int("stages", 1, 5) - 3)

    study.optimize(objective, n_trials=12)
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}
    assert any(trial.user_attrs[PROPOSED_BY] == "llm" for trial in study.trials)
    calls = calls_of(study)
    assert 1 <= len(calls) <= 3
    assert all(int(str(call["prompt_tokens"])) > 100 for call in calls)
    assert study.user_attrs[MODEL]


def test_the_command_tunes_a_recorded_kernel(base_url: str, tmp_path: Path) -> None:
    from llm_sampler.scripts.main import app

    storage = f"sqlite:///{tmp_path}/archive.db"
    artifacts = tmp_path / "artifacts"
    command = f"tune matmul --replay shipped --seed 0 --trials 30 --base-url {base_url} --storage {storage}"
    result = CliRunner().invoke(app, [*command.split(), "--artifacts", str(artifacts)])
    assert result.exit_code == 0, result.output
    [name] = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    assert len(study.trials) == 30
    assert all(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in study.trials)
    calls = calls_of(study)
    assert calls
    # Whatever the model was worth: where it did not propose, the trial says why.
    opening = [trial for trial in study.trials if trial.user_attrs[PROPOSED_BY] == "llm"]
    assert opening or any(FALLBACK in trial.user_attrs for trial in study.trials)
    assert all(call.get("prompt_tokens") or call["error"] for call in calls)
    assert list(artifacts.iterdir())
