"""Chat models for tests: scripted, dead, garbage; and how to say a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_sampler.client import Answer, Message, UnreachableError


def batch(*configurations: Mapping[str, Any]) -> str:
    """A reply with these proposals."""
    proposals = [{"family": "safe", "rationale": "because", "configuration": dict(c)} for c in configurations]
    return json.dumps({"proposals": proposals})


class Scripted:
    """Answers with given replies in turn, the last one again and again; an exception is raised.

    Attributes:
        asked: The conversations so far.
    """

    name = "scripted"

    def __init__(self, *replies: str | BaseException | Callable[[str], str]) -> None:
        self.replies = replies
        self.asked: list[Sequence[Message]] = []

    def complete(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append(messages)
        if isinstance(reply, BaseException):
            raise reply
        text = reply if isinstance(reply, str) else reply(messages[-1]["content"])
        return Answer(text, prompt_tokens=100, completion_tokens=50, seconds=0.25, model="scripted-1")


def dead() -> Scripted:
    """A model that cannot be reached."""
    return Scripted(UnreachableError("no connection"))


def garbage() -> Scripted:
    """A model that answers without a proposal."""
    return Scripted("I would rather talk about the weather.")
