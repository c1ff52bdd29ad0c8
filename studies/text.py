"""Foreign text for terminals."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without control characters, which could move a terminal's cursor."""
    return "".join(character if character.isprintable() else " " for character in text)
