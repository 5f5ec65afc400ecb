"""Text that is safe to print on a terminal."""

from __future__ import annotations

_QUOTED_LENGTH = 120


def printable(text: str) -> str:
    """On one line, without the control sequences that a file name or a server could smuggle in."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, max_chars: int = 40) -> str:
    """Text of unknown origin, shortened for a message; runs of blanks and control characters become one blank."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:max_chars]


def quoted(value: object) -> str:
    """repr() of a stranger's value, cut to one short line: it contains no control sequences."""
    text = repr(value)
    return text if len(text) <= _QUOTED_LENGTH else f"{text[: _QUOTED_LENGTH - 3]}..."


def unquoted(text: str) -> str:
    """A short printable name as it is; any other as `quoted` has it."""
    return text if text.isprintable() and len(text) <= _QUOTED_LENGTH else quoted(text)
