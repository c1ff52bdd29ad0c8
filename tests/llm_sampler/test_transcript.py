"""Transcripts: recorded, replayed without a model, and free of secrets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from chat_models import Scripted, batch
from chat_server import chat_server
from four_numbers import OPENING, keys, point, proposed_by, run

from llm_sampler.attributes import CALLS
from llm_sampler.client import NoAnswerError, UnreachableError
from llm_sampler.sampler import LLMSampler
from llm_sampler.transcript import RecordingModel, ReplayingModel, TranscriptError

LATER = batch(*(point(*divmod(i, 5), 4, 1) for i in range(25)))


def test_a_study_repeats_from_its_transcript_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    model = Scripted(batch(*OPENING), LATER)
    recorded = run(LLMSampler(client=model, seed=3, wait="always", transcript=path), 60)
    replayed = run(LLMSampler(seed=3, wait="always", transcript=path), 60)
    assert keys(replayed) == keys(recorded)
    assert proposed_by(replayed) == proposed_by(recorded)
    assert proposed_by(recorded).count("llm") > 6
    assert len(path.read_text().splitlines()) == len(model.asked) > 1


def test_another_question_than_was_recorded_ends_the_study_with_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    run(LLMSampler(client=Scripted(batch(*OPENING)), seed=3, transcript=path), 2)
    with pytest.raises(TranscriptError, match="has no reply to this question"):
        run(LLMSampler(seed=3, transcript=path, batch_size=5), 2)


def test_failures_are_recorded_and_replayed_too(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    run(LLMSampler(client=Scripted(UnreachableError("HTTP 503: busy")), seed=3, transcript=path), 2)
    study = run(LLMSampler(seed=3, transcript=path), 2)
    assert study.trials[0].user_attrs[CALLS][0]["error"] == "HTTP 503: busy"
    with pytest.raises(UnreachableError):
        ReplayingModel(path).complete(json.loads(path.read_text())["messages"], schema=_schema(path))


def _schema(path: Path) -> dict[str, object]:
    schema: dict[str, object] = json.loads(path.read_text())["schema"]
    return schema


def test_equal_questions_are_answered_in_order_and_the_last_one_again(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    model = RecordingModel(Scripted("one", "two"), path)
    question = [{"role": "user", "content": "?"}]
    for _ in range(2):
        model.complete(question)  # type: ignore[arg-type]
    replay = pickle.loads(pickle.dumps(ReplayingModel(path)))
    assert [replay.complete(question).text for _ in range(3)] == ["one", "two", "two"]
    assert replay.name == "scripted"


def test_an_error_in_the_file_is_an_error_of_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    model = RecordingModel(Scripted(ValueError("x")), path)
    with pytest.raises(ValueError, match="x"):
        model.complete([{"role": "user", "content": "?"}])
    with pytest.raises(NoAnswerError, match="x"):
        ReplayingModel(path).complete([{"role": "user", "content": "?"}])


@pytest.mark.parametrize("text", ["not json\n", "[]\n", '{"model": "m"}\n'])
def test_a_file_that_is_no_transcript_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_text(text)
    with pytest.raises(TranscriptError, match="must hold JSON objects|entry 1 has none"):
        ReplayingModel(path)


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "new" / "transcript.jsonl"
    question = [{"role": "user", "content": "?"}]
    RecordingModel(Scripted("one"), path).complete(question)  # type: ignore[arg-type]
    with path.open("a") as file:
        file.write('{"key": "00')
    RecordingModel(Scripted("two"), path).complete(question)  # type: ignore[arg-type]
    replay = ReplayingModel(path)
    assert [replay.complete(question).text for _ in range(2)] == ["one", "two"]  # type: ignore[arg-type]


def test_a_missing_file_without_a_model_is_a_study_without_a_model(tmp_path: Path) -> None:
    study = run(LLMSampler(seed=3, transcript=tmp_path / "none.jsonl"), 2)
    assert proposed_by(study) == ["tpe", "tpe"]
    with pytest.raises(TranscriptError, match="no transcript: cannot read"):
        ReplayingModel(tmp_path / "none.jsonl")


def test_no_key_and_no_address_get_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    secret = "sk-abcdefghijklmnop1234"
    with chat_server(lambda r: r.send_error_text(401, f"Incorrect API key provided: {secret}")) as server:
        run(LLMSampler(base_url=server.url, api_key=secret, seed=3, transcript=path), 2)
        port = str(server.server_address[1])
    text = path.read_text()
    assert "Incorrect API key" in text
    assert secret not in text
    assert port not in json.loads(text.splitlines()[0])["error"]
    assert path.stat().st_mode & 0o077 == 0
