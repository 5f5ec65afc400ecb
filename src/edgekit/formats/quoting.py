"""Turns what a stranger wrote into a file into something fit for a message."""

from __future__ import annotations

_LENGTH = 120


def quoted(value: object) -> str:
    """One line, in quotes where it is text, without escape sequences, and not long."""
    text = repr(value)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 3]}..."


def unquoted(text: str) -> str:
    """A name as it is; one that is long or holds escape sequences as `quoted` has it."""
    return text if text.isprintable() and len(text) <= _LENGTH else quoted(text)
