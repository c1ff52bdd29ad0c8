"""Transcripts: every request and reply in a file, and a model that answers from one.

A transcript is a file of JSON lines, appended to: ``{"key", "model", "messages", "schema", "answer"}`` or, where there
was no answer, ``"error"`` in its place. The key is a hash of messages and schema, so that a replay finds the reply to
the same question wherever it stands; equal questions are answered in the order in which they were recorded. It holds
what was told and answered, and neither keys nor addresses.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_sampler.client import Answer, ChatError, ChatModel, Message, NoAnswerError, redact


class TranscriptError(ChatError):
    """A transcript that cannot be read, or lacks the question that was asked."""


class RecordingModel:
    """A `ChatModel` that passes everything to another one and writes it down.

    Several threads and processes may append to one file: each line is written at once.

    Args:
        model: Who answers.
        path: The file; made if it is missing.
    """

    def __init__(self, model: ChatModel, path: Path | str) -> None:
        self._model = model
        self._path = Path(path)

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
        try:
            answer = self._model.complete(messages, schema=schema, timeout_s=timeout_s)
        except Exception as error:
            self._write(messages, schema, {"error": redact(str(error) or type(error).__name__)})
            raise
        self._write(messages, schema, {"answer": asdict(answer)})
        return answer

    def _write(self, messages: Sequence[Message], schema: Mapping[str, Any] | None, outcome: dict[str, Any]) -> None:
        entry = {
            "key": question_key(messages, schema),
            "model": self._model.name,
            "messages": list(messages),
            "schema": schema,
            **outcome,
        }
        line = (json.dumps(entry, default=str) + "\n").encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


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
        self._outcomes: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._name = "transcript"
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise TranscriptError(f"cannot read the transcript {self._path}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._outcomes[str(entry["key"])].append(entry)
                self._name = str(entry.get("model") or self._name)
            except (ValueError, KeyError, TypeError):
                raise TranscriptError(f"line {number} of the transcript {self._path} is no entry of one") from None

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
            NoAnswerError: No answer was recorded, but an error.
        """
        key = question_key(messages, schema)
        with self._lock:
            outcomes = self._outcomes.get(key)
            if not outcomes:
                raise TranscriptError(
                    f"the transcript {self._path} has no reply to this question (key {key}): "
                    "study, seed and prompt must be those of the recording, and wait must be always"
                )
            # The last one stays, so that a study that asks again is answered as before.
            entry = outcomes.popleft() if len(outcomes) > 1 else outcomes[0]
        if "answer" not in entry:
            raise NoAnswerError(str(entry.get("error", "no answer was recorded")))
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
