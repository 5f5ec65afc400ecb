"""Verification -> one screen of text: the verdict first, then predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekit.engines.comparison import ComparedRow, Resident, Verification
from edgekit.report.bill import percent
from edgekit.report.lines import figures
from edgekit.report.screen import MOST_WIDTH, folded
from edgekit.terminal import printable
from edgekit.units import format_bytes

_HEAD = ("", "predicted", "engine", "precision", "difference", "", "")


def verification_text(found: Verification, *, asked: str, bold: bool = False) -> str:
    """The screen. `asked` is what was asked for, in words; `bold` marks the verdict for terminals."""
    verdict = printable(_verdict(found))
    lines = [f"\x1b[1m{verdict}\x1b[0m" if bold else verdict]
    lines += folded(_title(found), MOST_WIDTH) + folded(asked, MOST_WIDTH) + [""]
    lines += beside_lines((*found.rows, found.total))
    if found.resident:
        lines += ["", *_resident_table(found.resident)]
    lines += ["", *(line for note in _notes(found) for line in folded(note, MOST_WIDTH))]
    return "\n".join(lines) + "\n"


def beside_lines(rows: Iterable[ComparedRow]) -> list[str]:
    """What was predicted beside what the engine has; parts that neither has are left out."""
    shown = [row for row in rows if row.predicted_bytes or row.measured.high_bytes]
    return figures(_HEAD, map(_cells, shown))


def _verdict(found: Verification) -> str:
    if found.within:
        return "Within bounds: the engine allocates what was predicted"
    outside = ", ".join(row.part for row in found.rows if not row.within)
    return f"OUTSIDE BOUNDS: {outside}"


def _title(found: Verification) -> str:
    answer = found.answer
    return (
        f"{found.label}  ·  predicted for llama.cpp {found.rules_version}  ·  measured "
        f"with {answer.through} {answer.version} in {answer.seconds:.1f} s"
    )


def _cells(row: ComparedRow) -> tuple[str, ...]:
    off = row.difference_bytes
    return (
        row.part,
        format_bytes(row.predicted_bytes),
        format_bytes(row.measured.middle_bytes),
        f"±{format_bytes(row.measured.resolution_bytes)}",
        f"{off:+,} B" if off else "0",
        _signed(row.difference_share) if off else "",
        "" if row.within else "outside",
    )


def _signed(share: float) -> str:
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _resident_table(rows: tuple[Resident, ...]) -> list[str]:
    return figures(
        ("memory of the process", "resident", "private", "mapped files"),
        (
            (
                row.when,
                format_bytes(row.resident_bytes),
                _known(row.anonymous_bytes),
                _known(row.file_bytes),
            )
            for row in rows
        ),
    )


def _known(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)


def _notes(found: Verification) -> Iterator[str]:
    yield (
        "Bounds: weights, caches and output must match to the precision of the engine's "
        "log; compute within 10 %, or 4 MiB if that is more (the graph changes between "
        "versions)."
    )
    if not found.within:
        yield (
            f"The rules follow llama.cpp {found.rules_version}; a difference in another "
            "version may come from a change in that version."
        )
    yield from found.notes
