"""Texts that are ready to paste -> those of one program in full, the others by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.engines.commands import COMMAND, SETTINGS, Command
from edgekit.machine.types import System
from edgekit.plan.commands import LIMIT, by_program
from edgekit.report.screen import continued, folded, hanging, placed, row_width
from edgekit.terminal import printable


def run_lines(ready: Sequence[Command], system: System, width: int) -> list[str]:
    """What to paste, and which other programs it could be pasted into."""
    programs = by_program(ready)
    if not programs:
        return []
    main, *others = programs
    lines = placed("Run", list(_full(programs[main], system, row_width(width))), width)
    named = [name for name in others if name != LIMIT]
    if named:
        words = f"--for {' | '.join(named)}: the same for another program"
        lines += placed("Also", folded(words, row_width(width)), width)
    return lines


def run_notes(ready: Sequence[Command]) -> Iterator[str]:
    """What is to be known before it is pasted."""
    shown = next(iter(by_program(ready).values()), [])
    for one in shown:
        for note in one.notes:
            yield f"{one.name}: {note}" if len(shown) > 1 else note


def _full(shown: Sequence[Command], system: System, width: int) -> Iterator[str]:
    """Several have their names above, but for those that begin with them; of several machines, which one it is for."""
    for one in shown:
        if one.where:
            yield from folded(f"# {one.where}", width)
        elif len(shown) > 1 and not one.text.startswith(one.name):
            yield from folded(f"{one.name}:", width)
        yield from _pasted(one, system, width)


def _pasted(one: Command, system: System, width: int) -> Iterator[str]:
    for line in map(printable, one.text.rstrip("\n").split("\n")):
        if one.kind == COMMAND:
            yield from continued(line, width, "`" if system is System.WINDOWS else "\\")
        elif one.kind == SETTINGS:
            yield from hanging(line, width)
        else:
            yield line  # of a file every space counts
