"""Source text for a prompt: the blocks that mention the parameters most, whole, within a number of characters."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence


def abridged(source: str, names: Sequence[str], most_characters: int) -> str:
    """The source, or the blocks of it that matter most to the parameters, in their order.

    A block is a top-level statement of a Python file, a paragraph of anything else. What is left out is named.

    Args:
        source: The text.
        names: Parameter names.
        most_characters: Limit of the result.
    """
    source = source.strip("\n")
    if len(source) <= most_characters:
        return source
    blocks = _blocks(source)
    mentions = re.compile(r"\b(" + "|".join(re.escape(name) for name in names) + r")\b") if names else None
    weights = [len(mentions.findall(text)) / max(1, len(text)) if mentions else 0.0 for _, text in blocks]
    kept: set[int] = set()
    room = most_characters - 200  # the line that says what is left out
    for index in sorted(range(len(blocks)), key=lambda index: -weights[index]):
        size = len(blocks[index][1]) + 2
        if weights[index] > 0 and size <= room:
            kept.add(index)
            room -= size
    left_out = [title for index, (title, _) in enumerate(blocks) if index not in kept and title]
    text = "\n\n".join(text for index, (_, text) in enumerate(blocks) if index in kept)
    if not text:
        return ""
    names_left = ", ".join(left_out)
    note = f"(left out: {names_left if len(names_left) < 150 else names_left[:150].rpartition(',')[0] + ', ...'})"
    return f"{text}\n\n{note}"


def _blocks(source: str) -> list[tuple[str, str]]:
    """Titles and texts."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return [(text.strip().splitlines()[0][:40], text.strip("\n")) for text in re.split(r"\n\s*\n", source) if text]
    lines = source.splitlines()
    blocks = []
    for node in body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        title = getattr(node, "name", "")
        blocks.append((title, "\n".join(lines[first - 1 : node.end_lineno])))
    return blocks
