from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from llm_sampler.client import Answer, Message, UnreachableError
from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.space import configuration_key
from llm_sampler.studies.compare_arms import base_sampler, parse_arm
from llm_sampler.studies.compare_controls import (
    Disguise,
    DisguisedEvaluator,
    prompt_without_history,
    without_device,
    without_source,
)
from llm_sampler.studies.compare_setup import ModelSource, make_setup
from llm_sampler.studies.compare_space import ComparedSpace, CompareError
from llm_sampler.studies.compare_transcript import TranscribedChat
from llm_sampler.studies.tasks import recording_task
from llm_sampler.transcript import RecordingModel


class Counting:
    """Answers with the number of the call."""

    name = "counting"

    def __init__(self, *failures: int) -> None:
        self.asked: list[list[Message]] = []
        self.failures = failures

    def complete(self, messages: Any, *, schema: Any = None, timeout_s: float = 60.0) -> Answer:
        self.asked.append(list(messages))
        if len(self.asked) in self.failures:
            raise UnreachableError("too busy")
        return Answer(f"answer {len(self.asked)}", prompt_tokens=10, completion_tokens=5, seconds=0.5)


@pytest.fixture(scope="module")
def space() -> ComparedSpace:
    spec = find_kernel("softmax")
    recording = find_recording("softmax", spec.problem("131072x1024"))
    return ComparedSpace("softmax", recording, recording_task(recording, spec))


def prompts(text: str, space: ComparedSpace, trials: int = 4) -> str:
    """All that a model is told in a run of an arm."""
    told: list[str] = []
    arm = parse_arm(text)
    setup = make_setup(arm, space, seed=0, run="r", source=ModelSource())
    assert setup.chat is not None
    model = Counting()
    setup.chat._model = model
    from llm_sampler.objectives.kernel_objective import KernelObjective
    from llm_sampler.task import write_task

    study = optuna.create_study(sampler=setup.sampler)
    write_task(study, setup.task)
    study.enqueue_trial(setup.evaluator.space.default or {})
    study.optimize(KernelObjective(setup.evaluator), n_trials=trials)
    told = [message["content"] for messages in model.asked for message in messages]
    assert told
    return "\n".join(told)


def test_controls_keep_what_they_name_from_the_model(space: ComparedSpace) -> None:
    full = prompts("llm", space)
    assert "tl.load" in full
    assert "H200" in full
    assert "roofline" in full
    assert "# Measured, best first" in full
    assert "tl.load" not in prompts("llm/no-source", space)
    blind = prompts("llm/no-device", space)
    assert "H200" not in blind
    assert "roofline" not in blind
    assert "tl.load" in blind
    assert "# Measured" not in prompts("llm/no-history", space)
    hidden = prompts("llm/renamed", space)
    assert not any(word in hidden for word in ("softmax", "tl.load", *space.recording.space.names))
    assert "p1" in hidden
    assert "H200" in hidden


def test_a_disguise_changes_names_and_nothing_else(space: ComparedSpace) -> None:
    original = space.recording.space
    disguise = Disguise.of(original)
    hidden = DisguisedEvaluator(space.replay, disguise)
    assert hidden.space is hidden.space
    configurations = list(hidden.space.configurations())
    assert [disguise.revealed(c) for c in configurations] == list(original.configurations())
    times = [hidden.evaluate(c).median_ms for c in configurations]
    assert times == [space.replay.evaluate(c).median_ms for c in original.configurations()]
    assert disguise.task(space.task).space == disguise.space(space.task.space)


def test_tasks_lose_only_what_a_control_takes(space: ComparedSpace) -> None:
    assert without_source(space.task) == replace(space.task, source="")
    blind = without_device(space.task)
    assert (blind.device, blind.source) == ({}, space.task.source)
    assert blind.space == space.task.space


def test_share_batch_and_pure_reach_the_sampler(space: ComparedSpace) -> None:
    def settings(text: str) -> Any:
        return make_setup(parse_arm(text), space, seed=0, run="r").sampler._settings  # type: ignore[attr-defined]

    assert (settings("llm").llm_share, settings("llm").batch_size, settings("llm").wait) == (0.25, 12, "always")
    assert settings("llm/share=0.5").llm_share == 0.5
    assert settings("llm/batch=6").batch_size == 6
    assert settings("llm/pure").llm_share == 1.0
    assert settings("llm/no-history").builder is prompt_without_history
    with pytest.raises(CompareError, match="llm/batch=0: batch_size must be at least 1"):
        settings("llm/batch=0")
    with pytest.raises(CompareError, match="simulated must be one of oracle"):
        settings("llm/simulated=perfect")


def test_a_transcript_answers_each_run_with_its_own_replies_and_repeats_failures(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    question: list[Message] = [{"role": "user", "content": "Which?"}]
    model = Counting(3)
    for run in ("a", "b"):
        chat = TranscribedChat(run, model, path)
        chat.complete(question)
        if run == "b":
            with pytest.raises(UnreachableError):
                chat.complete(question)
    replay = TranscribedChat("b", None, path)
    assert replay.complete(question).text == "answer 2"
    with pytest.raises(UnreachableError, match="too busy"):
        replay.complete(question)
    assert (replay.calls, replay.tokens, replay.name, replay.missing) == (2, 15, "counting", "")
    assert replay.seconds >= 0.5
    with pytest.raises(Exception, match="no reply to call 0 of b"):
        TranscribedChat("b", None, path).complete([{"role": "user", "content": "What else?"}])
    # A run that was killed asks only for what it had not been told yet.
    resumed = TranscribedChat("a", model, path)
    assert [resumed.complete(question).text for _ in range(2)] == ["answer 1", "answer 4"]
    assert len(model.asked) == 4


def test_a_transcript_of_the_sampler_itself_serves_any_run(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    question: list[Message] = [{"role": "user", "content": "Which?"}]
    RecordingModel(Counting(), path).complete(question)
    assert TranscribedChat("any", None, path).complete(question).text == "answer 1"
    path.write_text(json.dumps({"other": 1}) + "\n")
    with pytest.raises(CompareError, match="must be a transcript"):
        TranscribedChat("any", None, path)


def test_a_hub_sampler_is_the_one_class_of_its_package(monkeypatch: pytest.MonkeyPatch, space: ComparedSpace) -> None:
    class Nice(optuna.samplers.RandomSampler):
        pass

    package = types.ModuleType("package")
    vars(package).update(Nice=Nice, RandomSampler=optuna.samplers.RandomSampler, other=3)
    hub = types.ModuleType("optunahub")
    hub.__spec__ = types.SimpleNamespace(name="optunahub")  # type: ignore[assignment]
    loaded: list[str] = []
    hub.load_module = lambda name: loaded.append(name) or package  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "optunahub", hub)
    sampler = base_sampler(parse_arm("hub:nice"), space.recording.space, seed=3)
    assert type(sampler) is Nice
    assert loaded == ["samplers/nice"]
    vars(package)["Second"] = type("Second", (Nice,), {})
    with pytest.raises(CompareError, match="found Nice, Second: name it, hub:nice:CLASS"):
        base_sampler(parse_arm("hub:nice"), space.recording.space, seed=3)
    assert type(base_sampler(parse_arm("hub:nice:Nice"), space.recording.space, seed=3)) is Nice


def test_rows_are_the_recordings_own_order(space: ComparedSpace) -> None:
    assert [space.rows[configuration_key(c)] for c in space.configurations] == list(range(len(space.times_ms)))
