"""Layout of text for a terminal: folded lines, labelled sections, tables, commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from edgekit.terminal import printable

LEAST_WIDTH = 20
MOST_WIDTH = 100  # longer lines are hard to read, however wide the screen
_BESIDE_FROM = 50
_LABEL = 9
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")  # quotes stay as they are


def within(width: int) -> int:
    """The width to write for."""
    return min(max(width, LEAST_WIDTH), MOST_WIDTH)


def folded(text: str, width: int) -> list[str]:
    """Lines of at most `width`; what a stranger wrote does not steer the terminal."""
    words = printable(text)
    breaks = "https://" not in words  # an address that is cut can be neither clicked nor copied
    return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=breaks) or [""]


def joined(parts: Iterable[str], width: int, between: str = "·") -> list[str]:
    """'one  ·  two', as many to a line as it holds."""
    lines: list[str] = []
    for part in map(printable, filter(None, parts)):
        if lines and len(lines[-1]) + len(part) + 5 <= width:
            lines[-1] += f"  {between}  {part}"
        else:
            lines += folded(part, width)
    return lines


def row_width(width: int) -> int:
    """What is left for the rows of a section."""
    return width - (_LABEL if width >= _BESIDE_FROM else 2)


def section(label: str, rows: Iterable[str], width: int) -> list[str]:
    """An empty line, then the label and its rows, folded; nothing where there are no rows."""
    told, room = list(rows), row_width(width)
    fold = hanging if len(told) > 1 else folded
    return placed(label, [line for row in told for line in fold(row, room)], width)


def hanging(row: str, width: int) -> list[str]:
    """One of several rows: it is seen where the next begins."""
    first, *more = folded(row, width - 2)
    return [first, *(f"  {line}" for line in more)]


def placed(label: str, lines: list[str], width: int) -> list[str]:
    """The same for lines that are cut to `row_width` already."""
    if not lines:
        return []
    indent = " " * (width - row_width(width))
    rows = [f"{indent}{line}".rstrip() for line in lines]
    if len(label) < len(indent):
        return ["", f"{label:<{len(indent)}}{lines[0]}".rstrip(), *rows[1:]]
    return ["", *folded(label, width), *rows]


def command_rows(command: str, width: int) -> list[str]:
    """A command in lines that a shell reads as one."""
    return continued(printable(command).strip(), row_width(width), "\\") if command else []


def continued(command: str, width: int, mark: str) -> list[str]:
    """Lines that a shell reads as one; `mark` ends all but the last.

    A word is never cut, so one may be wider; a flag and its value stay together.
    """
    lines: list[str] = []
    for words in _kept_together(command):
        if lines and len(lines[-1]) + len(words) + 1 <= width - 2:
            lines[-1] += f" {words}"
        else:
            lines.append(words)
    return [f"{line} {mark}" for line in lines[:-1]] + lines[-1:]


def _kept_together(command: str) -> list[str]:
    words = _WORD.findall(command)
    if " ".join(words) != command:
        return [command]  # an open quote, or spaces that mean something
    found: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        if before.startswith("-") and not word.startswith("-"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def counted(count: int, what: str) -> str:
    """'1 row', '2,400 rows'."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as what stands in them."""
    every = [head, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    return (
        "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in every
        )
        + "\n"
    )


def figures(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """A table: so many columns of words to the left, numbers to the right."""
    every = [tuple(head), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]
    return [
        "  ".join(
            f"{cell:<{width}}" if i < words else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    ]
