"""Transcripts: every request and reply in a file, and a model that answers from one.

A transcript is a file of JSON lines, appended to: ``{"key", "model", "messages", "schema", "answer"}`` or, where there
was no answer, ``"error"``, ``"kind"`` (of the error) and ``"seconds"`` in its place. The key is a hash of messages and
schema, so that a replay finds the reply to the same question wherever it stands; equal questions are answered in the
order in which they were recorded. It holds what was told and answered, and neither keys nor addresses.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_sampler.client import (
    Answer,
    ChatError,
    ChatModel,
    Message,
    NoAnswerError,
    RefusedError,
    UnreachableError,
    redact,
)
from llm_sampler.json_lines import LinesError, append_line, read_lines

# What was told may be somebody's source text: for the owner's eyes.
_MODE = 0o600
_KINDS: dict[str, type[ChatError]] = {kind.__name__: kind for kind in (UnreachableError, RefusedError, NoAnswerError)}


class TranscriptError(ChatError):
    """A transcript that cannot be read, or lacks the question that was asked."""


class RecordingModel:
    """A `ChatModel` that passes everything to another one and writes it down.

    Several threads and processes may append to one file.

    Args:
        model: Who answers.
        path: The file; made if it is missing.
        marks: More members for each line.
    """

    def __init__(self, model: ChatModel, path: Path | str, *, marks: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self._path = Path(path)
        self._marks = dict(marks or {})

    @property
    def name(self) -> str:
        """The other model's name."""
        return self._model.name

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """The other model's reply.

        Raises:
            ChatError: It did not answer.
        """
        start = time.monotonic()
        try:
            answer = self._model.complete(messages, schema=schema, timeout_s=timeout_s)
        except Exception as error:
            reason = redact(str(error) or type(error).__name__)
            seconds = round(time.monotonic() - start, 3)
            self._write(messages, schema, {"error": reason, "kind": type(error).__name__, "seconds": seconds})
            raise
        self._write(messages, schema, {"answer": asdict(answer)})
        return answer

    def _write(self, messages: Sequence[Message], schema: Mapping[str, Any] | None, outcome: dict[str, Any]) -> None:
        told = {"model": self._model.name, "messages": list(messages), "schema": schema}
        append_line(self._path, {**self._marks, "key": question_key(messages, schema), **told, **outcome}, mode=_MODE)


class ReplayingModel:
    """A `ChatModel` that answers from a transcript and needs no network.

    Args:
        path: The file.

    Raises:
        TranscriptError: It cannot be read.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._name = "transcript"
        for entry in read_entries(self._path):
            self._entries[entry["key"]].append(entry)
            self._name = str(entry.get("model") or self._name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    @property
    def name(self) -> str:
        """The recorded model's name."""
        return self._name

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """The recorded reply to these messages.

        Raises:
            TranscriptError: The question is not in the transcript.
            ChatError: No answer was recorded, but an error.
        """
        key = question_key(messages, schema)
        with self._lock:
            entries = self._entries.get(key)
            if not entries:
                raise TranscriptError(
                    f"the transcript {self._path} has no reply to this question (key {key}): "
                    "study, seed and prompt must be those of the recording, and wait must be always"
                )
            # The last one stays, so that a study that asks again is answered as before.
            entry = entries.popleft() if len(entries) > 1 else entries[0]
        return recorded_answer(entry)


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a transcript in order; lines that were cut off are skipped.

    Raises:
        TranscriptError: It cannot be read, or holds something else.
    """
    try:
        entries = list(read_lines(path))
    except LinesError as error:
        raise TranscriptError(f"no transcript: {error}") from None
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry.get("key"), str):
            raise TranscriptError(
                f"{path} must be a transcript, JSON lines with a key each; entry {number} has none"
            ) from None
    return entries


def recorded_answer(entry: Mapping[str, Any]) -> Answer:
    """What an entry says was answered.

    Raises:
        ChatError: There was no answer; an error of the kind that it was then.
    """
    if "answer" not in entry:
        kind = _KINDS.get(str(entry.get("kind")), NoAnswerError)
        raise kind(str(entry.get("error", "no answer was recorded")))
    return Answer(**entry["answer"])


def question_key(messages: Sequence[Message], schema: Mapping[str, Any] | None) -> str:
    """Sixteen hexadecimal digits that messages and schema determine."""
    text = json.dumps([list(messages), schema], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_transcript(model: ChatModel | None, path: Path | str | None) -> ChatModel | None:
    """The model as a transcript wants it: recorded where there is a model, replayed where there is none.

    Raises:
        TranscriptError: There is no model, and the transcript cannot be read.
    """
    if path is None:
        return model
    return ReplayingModel(path) if model is None else RecordingModel(model, path)
