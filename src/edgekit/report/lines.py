"""Words -> lines fit for a terminal: no stray control characters, columns that line up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgekit.terminal import printable


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
