"""Tolerant extraction of JSON objects from what a language model wrote around and into them.

Understood: prose and code fences around, `<think>` blocks before, several objects (JSON lines), trailing or missing
commas, comments, single quotes, bare words, Python's True, False and None, and a text that ends in the middle: of a
truncated object or array the complete parts are kept. What values mean is for the caller to check.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_MOST_CHARACTERS = 200_000
_MOST_DEPTH = 40
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_SPACE = re.compile(r"(?:[\s﻿]+|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z))+", re.DOTALL)
_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)


class CutDict(dict[str, Any]):
    """The complete members of an object whose end is missing."""


class CutList(list[Any]):
    """The complete elements of an array whose end is missing."""


class _BadError(Exception):
    """There is no value here."""


def without_thoughts(text: str) -> str:
    """The text without what the model wrote for itself: `<think>` blocks, an unfinished one to the end.

    A closing tag alone ends a block whose opening the server's template has swallowed.
    """
    text = _THOUGHT.sub("", text)
    for tag in ("</think>", "</thinking>", "</reasoning>"):
        text = text.rpartition(tag)[2]
    return text


def extract(text: str) -> list[Any]:
    """Objects and arrays in the text, outermost, in order; a `CutDict` or `CutList` where the text ended too early."""
    text = without_thoughts(text[:_MOST_CHARACTERS])
    found = []
    position = 0
    while (start := _next_bracket(text, position)) is not None:
        reader = _Reader(text, start)
        try:
            found.append(reader.value(0))
            position = max(reader.position, start + 1)
        except _BadError:
            position = start + 1
    return found


def _next_bracket(text: str, position: int) -> int | None:
    places = [place for place in (text.find("{", position), text.find("[", position)) if place >= 0]
    return min(places, default=None)


class _Reader:
    """A recursive descent over one value.

    Attributes:
        position: Index of the next character.
    """

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position

    def value(self, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise _BadError
        character = self._peek()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        return self._scalar(character)

    def _scalar(self, character: str) -> Any:
        if character in ("'", '"'):
            return self._string(character)
        if match := _NUMBER.match(self._text, self.position):
            self.position = match.end()
            return _number(match.group())
        if match := _WORD.match(self._text, self.position):
            self.position = match.end()
            return _WORDS.get(match.group(), match.group())
        raise _BadError

    def _object(self, depth: int) -> dict[str, Any]:
        self.position += 1
        members: dict[str, Any] = {}
        while True:
            character = self._peek(skip=",")
            if character == "}":
                self.position += 1
                return members
            if not character:
                return CutDict(members)
            start = self.position
            try:
                key = self._scalar(character)
                if self._peek() != ":":
                    raise _BadError
                self.position += 1
                value = self.value(depth + 1)
            except _BadError:
                return CutDict(members) if self._ends() else self._fail(start)
            if self._ends() and not isinstance(value, dict | list):
                return CutDict(members)  # 12 may be the beginning of 128
            members[str(key)] = value

    def _array(self, depth: int) -> list[Any]:
        self.position += 1
        elements: list[Any] = []
        while True:
            character = self._peek(skip=",")
            if character == "]":
                self.position += 1
                return elements
            if not character:
                return CutList(elements)
            start = self.position
            try:
                value = self.value(depth + 1)
            except _BadError:
                return CutList(elements) if self._ends() else self._fail(start)
            if self._ends() and not isinstance(value, dict | list):
                return CutList(elements)
            elements.append(value)

    def _string(self, quote: str) -> str:
        end = self.position + 1
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            self.position = len(self._text)
            raise _BadError
        raw = self._text[self.position + 1 : end]
        self.position = end + 1
        if quote == "'":
            raw = raw.replace("\\'", "'").replace('"', '\\"')
        try:
            return str(json.loads(f'"{raw}"', strict=False))
        except ValueError:
            return raw

    def _peek(self, skip: str = "") -> str:
        """The next character after space and comments, empty at the end of the text."""
        while True:
            if match := _SPACE.match(self._text, self.position):
                self.position = match.end()
            if skip and self._text[self.position : self.position + 1] == skip:
                self.position += 1
                continue
            return self._text[self.position : self.position + 1]

    def _ends(self) -> bool:
        return not self._text[self.position :].strip()

    def _fail(self, position: int) -> Any:
        self.position = position
        raise _BadError


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if math.isfinite(value) else float("nan")
