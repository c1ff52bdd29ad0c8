"""`TranscribedChat`: a language model whose exchanges are kept in a transcript, for one run of a comparison.

The file is one of `llm_sampler.transcript`, each line with its run (space, arm, seed) and its number in it as well:
one question that several runs ask has an answer for each, as the model gave them. Lines without a run, of a transcript
that `LLMSampler` wrote, answer the same question in any run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_sampler.client import Answer, ChatModel, Message, RefusedError
from llm_sampler.studies.compare_space import CompareError
from llm_sampler.transcript import RecordingModel, TranscriptError, question_key, read_entries, recorded_answer


class TranscribedChat:
    """A `ChatModel` that answers from a transcript, asks a model for what it lacks, and writes that down.

    Args:
        run: Key of the run.
        model: What to ask; None to replay only.
        path: The transcript; None to keep none.

    Attributes:
        calls: Calls so far.
        tokens: Tokens of all calls.
        seconds: Seconds of all calls, as they took when they were made.
        missing: Why a question could not be answered; empty if all could.

    Raises:
        CompareError: The file is no transcript.
    """

    def __init__(self, run: str, model: ChatModel | None, path: Path | None) -> None:
        self.calls = 0
        self.tokens = 0
        self.seconds = 0.0
        self.missing = ""
        self._run = run
        self._model = model
        self._path = path
        self._own: dict[int, Mapping[str, Any]] = {}
        self._shared: dict[str, list[Mapping[str, Any]]] = {}
        try:
            entries = read_entries(path) if path is not None and path.exists() else []
        except TranscriptError as error:
            raise CompareError(str(error)) from None
        for entry in entries:
            if "run" not in entry:
                self._shared.setdefault(entry["key"], []).append(entry)
            elif entry["run"] == run:
                self._own[int(entry["call"])] = entry

    @property
    def name(self) -> str:
        """The model's name, as far as it is known."""
        entries = [*self._own.values(), *(entry for entries in self._shared.values() for entry in entries)]
        return next((str(entry.get("model")) for entry in entries), "" if self._model is None else self._model.name)

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """The recorded reply, or the model's.

        Raises:
            ChatError: There is none.
        """
        key = question_key(messages, schema)
        entry = self._recorded(key)
        if entry is not None:
            self.calls += 1
            self.seconds += float(entry.get("seconds") or (entry.get("answer") or {}).get("seconds") or 0.0)
            answer = recorded_answer(entry)
        elif self._model is not None:
            answer = self._ask(self._model, messages, schema, timeout_s)
        else:
            self.missing = f"the transcript has no reply to call {self.calls} of {self._run} (key {key})"
            raise RefusedError(self.missing)
        self.tokens += answer.tokens
        return answer

    def _recorded(self, key: str) -> Mapping[str, Any] | None:
        own = self._own.get(self.calls)
        if own is not None and own["key"] == key:
            return own
        shared = self._shared.get(key)
        # The last one stays, so that a run that asks again is answered as before.
        return None if not shared else shared.pop(0) if len(shared) > 1 else shared[0]

    def _ask(
        self, model: ChatModel, messages: Sequence[Message], schema: Mapping[str, Any] | None, timeout_s: float
    ) -> Answer:
        if self._path is not None:
            model = RecordingModel(model, self._path, marks={"run": self._run, "call": self.calls})
        self.calls += 1
        start = time.monotonic()
        try:
            answer = model.complete(messages, schema=schema, timeout_s=timeout_s)
        except Exception:
            self.seconds += time.monotonic() - start
            raise
        self.seconds += answer.seconds
        return answer
