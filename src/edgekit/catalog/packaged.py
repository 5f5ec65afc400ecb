"""models.jsonl, made by tools/catalog.py -> the entries that come with EdgeKit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from edgekit.catalog.records import read_record
from edgekit.catalog.types import Entry
from edgekit.errors import HeaderError

PATH = Path(__file__).with_name("models.jsonl")


@cache
def packaged() -> tuple[Entry | str, ...]:
    """All of models.jsonl, read once: it does not change while the program runs."""
    return tuple(packaged_entries())


def packaged_entries(path: Path = PATH) -> Iterator[Entry | str]:
    """An entry for each line, a sentence for each that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path.name}: the built-in catalog cannot be read: {error}"
        return
    for number, line in enumerate(lines, 1):
        try:
            yield read_record(line, where=f"{path.name}, line {number}")
        except HeaderError as error:
            yield str(error)
