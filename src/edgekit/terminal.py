"""Text that is safe to print on a terminal."""

from __future__ import annotations

_QUOTED_LENGTH = 120


def printable(text: str) -> str:
    """The text with control characters replaced: file names and servers could smuggle in escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, max_chars: int = 40) -> str:
    """Untrusted text, shortened for a message. Runs of blanks and control characters become one blank."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:max_chars]


def quoted(value: object) -> str:
    """repr() of an untrusted value, cut to one short line without control characters."""
    text = repr(value)
    return text if len(text) <= _QUOTED_LENGTH else f"{text[: _QUOTED_LENGTH - 3]}..."


def unquoted(text: str) -> str:
    """A short printable name as it is, any other text quoted."""
    return text if text.isprintable() and len(text) <= _QUOTED_LENGTH else quoted(text)
