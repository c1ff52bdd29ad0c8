"""`TranscribedChat`: a language model whose exchanges are kept in a transcript, for one run of a comparison.

The file has the lines of `llm_sampler.transcript`, each with its run (space, arm, seed) and its number in it as well:
one question that several runs ask has an answer for each, as the model gave them. Lines without a run, of a transcript
that `LLMSampler` wrote, answer the same question in any run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_sampler.client import Answer, ChatError, ChatModel, Message, NoAnswerError, RefusedError, UnreachableError
from llm_sampler.studies.compare_space import CompareError
from llm_sampler.transcript import question_key

_ERRORS: dict[str, type[ChatError]] = {
    kind.__name__: kind for kind in (UnreachableError, RefusedError, NoAnswerError, ChatError)
}


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
        for entry in read_lines(path) if path is not None else ():
            if "key" not in entry:
                raise CompareError(f"{path} must be a transcript, JSON lines with a key each; it holds something else")
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
        if entry is None:
            if self._model is None:
                self.missing = f"the transcript has no reply to call {self.calls} of {self._run} (key {key})"
                raise RefusedError(self.missing)
            entry = self._ask(self._model, key, messages, schema, timeout_s)
        self.calls += 1
        self.seconds += float(entry.get("seconds") or (entry.get("answer") or {}).get("seconds") or 0.0)
        if "answer" not in entry:
            raise _ERRORS.get(str(entry.get("kind")), NoAnswerError)(str(entry.get("error")))
        answer = Answer(**entry["answer"])
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
        self,
        model: ChatModel,
        key: str,
        messages: Sequence[Message],
        schema: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> Mapping[str, Any]:
        started = time.monotonic()
        outcome: dict[str, Any]
        try:
            outcome = {"answer": asdict(model.complete(messages, schema=schema, timeout_s=timeout_s))}
        except ChatError as error:
            seconds = round(time.monotonic() - started, 3)
            outcome = {"error": str(error), "kind": type(error).__name__, "seconds": seconds}
        told = {"key": key, "model": model.name, "messages": list(messages), "schema": schema}
        entry = {"run": self._run, "call": self.calls, **told, **outcome}
        if self._path is not None:
            append_line(self._path, entry)
        return entry


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append one JSON line with a single write: processes do not mix their lines, and a kill cuts none in two.

    POSIX appends a write to a local file as a whole (O_APPEND). A line that a full disk has cut is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        os.write(descriptor, (("" if whole else "\n") + json.dumps(data, sort_keys=True) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, none where there is no file; what was cut off is skipped.

    Raises:
        CompareError: The file cannot be read, or holds no such lines at all.
    """
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CompareError(f"cannot read {path}: {error}") from None
    found = 0
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found += 1
            yield data
    if lines and not found:
        raise CompareError(f"{path} must hold JSON objects, one a line; it holds something else")
