"""QR codes in a terminal."""

from __future__ import annotations

import io

from edgekit.server import needs_extra

BLOCKS = "▀▄█"
# White on black, in palette colours that themes do not change: the same in light and dark terminals.
_START, _END = "\x1b[38;5;231;48;5;16m", "\x1b[0m"


def qr_code(text: str) -> tuple[str, ...]:
    """The lines of a QR code with its margin, in half blocks, as it must look on a dark ground."""
    with needs_extra("web", "the QR code"):
        import segno
    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, compact=True)
    return tuple(out.getvalue().splitlines())


def on_dark(line: str) -> str:
    """The line with colours that make it readable on any ground."""
    return f"{_START}{line}{_END}"


def can_show(encoding: str | None) -> bool:
    """Whether an output with this encoding can show a QR code."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
