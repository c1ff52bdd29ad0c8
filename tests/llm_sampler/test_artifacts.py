"""Requests and replies as Optuna artifacts."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from chat_models import Scripted, batch, dead
from four_numbers import OPENING, run
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta

from llm_sampler.attributes import CALLS
from llm_sampler.sampler import LLMSampler


def texts(study: optuna.Study, store: FileSystemArtifactStore) -> dict[str, str]:
    """By file name."""
    found = {}
    for trial in study.trials:
        for meta in get_all_artifact_meta(trial, storage=study._storage):
            assert meta.mimetype == "text/plain"
            with store.open_reader(meta.artifact_id) as file:
                found[meta.filename] = file.read().decode()
    return found


def test_a_call_leaves_its_request_and_reply_with_the_trial_that_noted_it(tmp_path: Path) -> None:
    store = FileSystemArtifactStore(tmp_path)
    model = Scripted(batch(*OPENING))
    study = run(LLMSampler(client=model, seed=0, artifact_store=store), 3, storage=f"sqlite:///{tmp_path}/s.db")
    (call,) = study.trials[0].user_attrs[CALLS]
    assert "conversation" not in call
    ((name, text),) = texts(study, store).items()
    assert name == f"opening-{call['id']}.txt"
    for message in model.asked[0]:
        assert message["content"] in text
    assert text.endswith(f"===== reply =====\n{batch(*OPENING)}\n")


def test_a_call_without_a_reply_says_why(tmp_path: Path) -> None:
    store = FileSystemArtifactStore(tmp_path)
    study = run(LLMSampler(client=dead(), seed=0, artifact_store=store), 2, storage=f"sqlite:///{tmp_path}/s.db")
    assert next(iter(texts(study, store).values())).endswith("===== no reply =====\nno connection\n")


def test_a_store_that_fails_costs_the_text_and_not_the_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()

    class Broken(FileSystemArtifactStore):
        def write(self, *_: object) -> None:
            raise PermissionError("read-only")

    study = run(LLMSampler(client=Scripted(batch(*OPENING)), seed=0, artifact_store=Broken(tmp_path)), 3)
    assert len(study.trials) == 3
    assert "is not kept: PermissionError: read-only" in caplog.text
