"""The text renderer: a view of an answer -> lines for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from edgekit.bill.verdict import Status
from edgekit.terminal import printable

MIN_WIDTH = 20
MAX_WIDTH = 100  # longer lines are hard to read, however wide the screen
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
    """What the output can show."""

    width: int = MAX_WIDTH
    colour: bool = False  # only decorates
    glyphs: Glyphs = BLOCKS


# Sentences to fold, or a function that draws lines no wider than the screen it is given.
Body = Iterable[str] | Callable[[Screen], Iterable[str]]
Section = tuple[str | None, Body]
Sections = Iterable[Section]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of an answer, from top to bottom.

    A section has a label and a body and is left out if the body is empty. With the label "" the body takes the full
    width; with None no empty line precedes it.
    """

    headline: str
    status: Status | None = None  # colours the headline
    title: Iterable[str] = ()
    sections: Sections = ()


PLAIN = Screen()


def render(view: View, screen: Screen = PLAIN) -> str:
    screen = replace(screen, width=clamp_width(screen.width))
    width = screen.width
    headline = folded(view.headline, width)
    lines = (
        [painted(line, view.status, bold=True) for line in headline] if screen.colour else headline
    )
    lines += joined(view.title, width, f"  {screen.glyphs.between}  ")
    for label, body in view.sections:
        if not callable(body):
            lines += (
                section(label, body, width) if label else _block(label, folded_rows(body, width))
            )
        elif label:
            lines += labelled(label, body(replace(screen, width=row_width(width))), width)
        else:
            lines += _block(label, body(screen))
    return "\n".join(lines) + "\n"


def _block(label: str | None, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return ["", *found] if found and label is not None else found


def painted(text: str, status: Status | None = None, *, bold: bool = False) -> str:
    codes = (["1"] if bold else []) + ([str(_COLOURS[status])] if status is not None else [])
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def clamp_width(width: int) -> int:
    return min(max(width, MIN_WIDTH), MAX_WIDTH)


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width`, without control characters. Addresses are not cut: they are clicked and copied."""
    words = printable(text)
    breaks = "https://" not in words
    return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=breaks) or [""]


def folded_rows(rows: Iterable[str], width: int) -> list[str]:
    return [line for row in rows for line in folded(row, width)]


def hanging(row: str, width: int) -> list[str]:
    """Folded, with an indent that shows where the next row begins."""
    first, *more = folded(row, width - 2)
    return [first, *(f"  {line}" for line in more)]


def joined(parts: Iterable[str], width: int, separator: str) -> list[str]:
    """As many parts to a line as fit."""
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


def section(label: str, rows: Iterable[str], width: int) -> list[str]:
    """An empty line, then the label and its rows, folded; nothing if there are no rows."""
    found = list(rows)
    fold = hanging if len(found) > 1 else folded
    return labelled(label, [line for row in found for line in fold(row, row_width(width))], width)


def labelled(label: str, lines: Iterable[str], width: int) -> list[str]:
    """The same for lines that fit `row_width` already."""
    found = list(lines)
    if not found:
        return []
    indent = " " * (width - row_width(width))
    rows = [f"{indent}{line}".rstrip() for line in found]
    if len(label) < len(indent):
        return ["", f"{label:<{len(indent)}}{found[0]}".rstrip(), *rows[1:]]
    return ["", *folded(label, width), *rows]


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
    """A table without its last columns where the screen is too narrow for them."""
    for count in range(len(head), 0, -1):
        lines = table(head[:count], [row[:count] for row in rows], left)
        if max(map(len, lines)) <= width:
            break
    return lines


def command_lines(command: str, width: int, continuation: str = "\\") -> list[str]:
    """A command in lines that a shell reads as one; `continuation` ends all but the last.

    A word is never cut, so a line may be wider; a flag and its value stay together.
    """
    command = printable(command)
    words = _WORD.findall(command)
    if " ".join(words) != command:
        return [command]  # an open quote, or spaces that mean something
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
