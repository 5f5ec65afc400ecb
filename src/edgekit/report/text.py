"""The text renderer: folding, tables, labelled sections, colours and shell commands for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from edgekit.bill.verdict import Status
from edgekit.terminal import printable

MIN_WIDTH = 20
MAX_WIDTH = 100  # longer lines are hard to read even on a wide screen
_LABEL_COLUMN_FROM = 50  # columns; on a narrower screen labels are above their rows
_LABEL = 9
_COLOURS = {Status.PASSED: 32, Status.WARNING: 33, Status.FAILED: 31}  # green, yellow, red
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")  # a quoted part is never split


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of bars and titles."""

    parts: str  # model, context, compute, other
    free: str
    mark: str  # where the usable memory ends
    between: str  # the parts of a title


BLOCKS = Glyphs("█▓▒░", "·", "|", "·")
ASCII = Glyphs("#=+~", ".", "|", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Blocks if the encoding has them, else ASCII."""
    try:
        (BLOCKS.parts + BLOCKS.free).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The capabilities of the output."""

    width: int = MAX_WIDTH
    colour: bool = False  # decoration only
    glyphs: Glyphs = BLOCKS


# Sentences to fold, or a function that returns lines no wider than the screen.
Body = Iterable[str] | Callable[[Screen], Iterable[str]]
Section = tuple[str | None, Body]
Sections = Iterable[Section]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The parts of an answer on the screen, from top to bottom.

    A section has a label and a body and is left out if the body is empty. With the label "" the body takes the full
    width; with None no empty line precedes it.
    """

    headline: str
    status: Status | None = None  # colours the headline
    title: Iterable[str] = ()
    sections: Sections = ()


PLAIN = Screen()


def render(view: View, screen: Screen = PLAIN) -> str:
    width = clamp_width(screen.width)
    full, inner = replace(screen, width=width), replace(screen, width=row_width(width))
    lines = folded(view.headline, width)
    if screen.colour:
        lines = [painted(line, view.status, bold=True) for line in lines]
    lines += joined(view.title, width, f"  {screen.glyphs.between}  ")
    for label, body in view.sections:
        if label:
            rows = body(inner) if callable(body) else _section_rows(body, inner.width)
            lines += labelled(label, list(rows), width)
        else:
            rows = list(body(full) if callable(body) else folded_rows(body, width))
            lines += ["", *rows] if rows and label is not None else rows
    return "\n".join(lines) + "\n"


def _section_rows(body: Iterable[str], width: int) -> list[str]:
    """Rows, folded; if there are several, with a hanging indent to show where each begins."""
    rows = list(body)
    return [line for row in rows for line in (hanging if len(rows) > 1 else folded)(row, width)]


def labelled(label: str, rows: list[str], width: int) -> list[str]:
    """An empty line, then the label next to its rows, or above them on a narrow screen; nothing without rows."""
    if not rows:
        return []
    indent = " " * (width - row_width(width))
    lines = [f"{indent}{row}".rstrip() for row in rows]
    if len(label) < len(indent):
        return ["", f"{label:<{len(indent)}}{rows[0]}".rstrip(), *lines[1:]]
    return ["", *folded(label, width), *lines]


def painted(text: str, status: Status | None = None, *, bold: bool = False) -> str:
    codes = (["1"] if bold else []) + ([str(_COLOURS[status])] if status is not None else [])
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def clamp_width(width: int) -> int:
    return min(max(width, MIN_WIDTH), MAX_WIDTH)


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width`, without control characters. URLs are not split, so that they can be clicked."""
    words = printable(text)
    breaks = "https://" not in words
    return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=breaks) or [""]


def folded_rows(rows: Iterable[str], width: int) -> list[str]:
    return [line for row in rows for line in folded(row, width)]


def hanging(row: str, width: int) -> list[str]:
    """A folded row with its second and later lines indented."""
    first, *more = folded(row, width - 2)
    return [first, *(f"  {line}" for line in more)]


def joined(parts: Iterable[str], width: int, separator: str) -> list[str]:
    """Parts joined to lines, each as full as the width allows."""
    lines: list[str] = []
    for part in map(printable, filter(None, parts)):
        if lines and len(lines[-1]) + len(separator) + len(part) <= width:
            lines[-1] += f"{separator}{part}"
        else:
            lines += folded(part, width)
    return lines


def row_width(width: int) -> int:
    """The width of the rows of a labelled section."""
    return width - (_LABEL if width >= _LABEL_COLUMN_FROM else 2)


def counted(count: int, noun: str) -> str:
    """'1 row', '2,400 rows'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)
) -> list[str]:
    """Columns as wide as their cells; those in `left` are aligned to the left, the others to the right."""
    cells = [tuple(head), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def fitted_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: Collection[int] = (0,)
) -> list[str]:
    """A table without its last columns if the screen is too narrow for them."""
    for count in range(len(head), 0, -1):
        lines = table(head[:count], [row[:count] for row in rows], left)
        if max(map(len, lines)) <= width:
            break
    return lines


def command_lines(command: str, width: int, continuation: str = "\\") -> list[str]:
    """A command folded with line continuations; `continuation` ends all lines but the last.

    Words are never split, so a line may be wider; a flag and its value stay together.
    """
    command = printable(command)
    words = _WORD.findall(command)
    if " ".join(words) != command:
        return [command]  # an open quote, or significant spaces
    groups: list[str] = []
    for previous, word in zip(("", *words), words, strict=False):
        if previous.startswith("-") and not word.startswith("-"):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 1 <= width - 2:
            lines[-1] += f" {group}"
        else:
            lines.append(group)
    return [f"{line} {continuation}" for line in lines[:-1]] + lines[-1:]
