"""A file of /proc or /sys -> its text, its number, its pairs, or nothing. Every read is bounded."""

from __future__ import annotations

import re
from pathlib import Path

from edgekit.units import LARGEST

# mountinfo is the longest one read: 100,000 mounts of a crowded node would be cut, 5,000 are not.
_TEXT_BYTES = 1024**2
_PIECE_BYTES = 4 * 1024  # asked for at once: a read of a megabyte takes that megabyte first
_PRINTED = 40  # characters of a stranger's text that a note repeats


def text_of(path: Path) -> str | None:
    """None where it is absent, unreadable or no file."""
    data = bytes_of(path, _TEXT_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def bytes_of(path: Path, length: int) -> bytes | None:
    pieces = []
    try:
        with path.open("rb", buffering=0) as file:
            while length > 0 and (piece := file.read(min(length, _PIECE_BYTES))):
                pieces.append(piece)
                length -= len(piece)
            return b"".join(pieces)
    except (OSError, ValueError):  # ValueError: a NUL in a name
        return None


def number_of(path: Path) -> int | None:
    """A count of bytes; None where there is none, or none that can be meant."""
    return number_in(text_of(path) or "")


def number_in(text: str) -> int | None:
    """'25753026560' and '0x744c' -> int; anything else, and what no machine has, -> None."""
    found = re.fullmatch(r"\s*(?:(\d{1,20})|0[xX]([0-9a-fA-F]{1,16}))\s*", text, re.ASCII)
    if found is None:
        return None
    number = int(found[1]) if found[1] else int(found[2], 16)
    return number if number < LARGEST else None


def pairs_of(path: Path, between: str = "=") -> dict[str, str]:
    """Lines of 'key=value', as uevent has them, or with another sign between."""
    lines = (text_of(path) or "").splitlines()
    parts = (line.partition(between) for line in lines)
    return {key.strip(): value.strip() for key, sign, value in parts if sign}


def printable(text: str, length: int = _PRINTED) -> str:
    """Somebody else's text, fit for a line on a terminal."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:length]
