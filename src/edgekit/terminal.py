"""Text that is safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """On one line, without the control sequences that a file name or a server could smuggle in."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, max_chars: int = 40) -> str:
    """Text of unknown origin, shortened for a message; runs of blanks and control characters become one blank."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:max_chars]
