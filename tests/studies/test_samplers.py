from __future__ import annotations

import importlib.util
from collections.abc import Callable

import optuna
import pytest

from llm_sampler.objectives.kernel_objective import KernelObjective
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies.samplers import SAMPLERS, SamplerError, make_sampler
from llm_sampler.studies.tasks import recording_task
from llm_sampler.task import write_task


def proposals(name: str, seed: int, recording: Recording, trials: int) -> list[dict[str, object]]:
    study = optuna.create_study(sampler=make_sampler(name, seed=seed))
    write_task(study, recording_task(recording))
    study.optimize(KernelObjective(ReplayEvaluator(recording)), n_trials=trials)
    return [trial.params for trial in study.get_trials()]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LLM_SAMPLER_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_every_sampler_is_distinct_allowed_and_repeatable(name: str, toy: Callable[..., Recording]) -> None:
    if name == "gp" and not all(importlib.util.find_spec(package) for package in ("scipy", "torch")):
        pytest.skip("needs scipy and torch")
    recording = toy()
    trials = 13 if name == "gp" else 25  # it is slow, and begins after ten
    first = proposals(name, 1, recording, trials)
    assert len({str(sorted(p.items())) for p in first}) == trials
    assert all(recording.space.allows(p) for p in first)
    assert proposals(name, 1, recording, trials) == first
    assert proposals(name, 2, recording, trials) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "best"}, "sampler must be one of llm, tpe, random, nsgaii, gp, got 'best'"),
        ({"name": "tpe", "model": "m"}, "is for sampler llm, and the sampler is tpe"),
        ({"name": "tpe", "base_url": "http://x"}, "is for sampler llm, and the sampler is tpe"),
        ({"name": "llm", "base_url": "localhost:80"}, "must begin with http:// or https://, got 'localhost:80'"),
        ({"name": "llm", "base_url": "ftp://u:hunter2@host"}, "must begin with http:// or https://"),
    ],
)
def test_a_sampler_that_cannot_be_is_a_clear_error(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(SamplerError) as caught:
        make_sampler(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_gp_without_its_packages_says_so_before_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sampler.studies.samplers.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SamplerError, match="gp needs torch and scipy: pip install torch scipy"):
        make_sampler("gp")
