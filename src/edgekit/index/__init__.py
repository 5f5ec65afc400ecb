"""The index of known models, with the source of every fact: EdgeKit's own, and the models that the user added."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.index.database import IndexFile
    from edgekit.index.types import Entry, Index


def read_index() -> Index:
    """All entries; a user's entry replaces EdgeKit's of the same id. Unreadable entries are listed in `problems`."""
    from edgekit.index.store import stored_entries
    from edgekit.index.types import Entry, Index

    rows = (*index_entries(), *stored_entries())
    entries = {row.id: row for row in rows if isinstance(row, Entry)}
    return Index(
        entries=tuple(entries[name] for name in sorted(entries)),
        problems=_problems(row for row in rows if isinstance(row, str)),
    )


def index_problems() -> tuple[str, ...]:
    """A sentence for each part of the index that cannot be read, with what to do."""
    from edgekit.errors import HeaderError
    from edgekit.index.store import stored_entries

    try:
        return _problems(row for row in stored_entries() if isinstance(row, str))
    except HeaderError as error:  # EdgeKit's own
        return (str(error),)


def _problems(of_users: Iterable[str]) -> tuple[str, ...]:
    from edgekit.index.database import index_problem

    problem = index_problem()
    return (*([problem] if problem else []), *of_users)


def index_entries() -> tuple[Entry, ...]:
    """All models of the index file, read once."""
    from edgekit.index.database import index_file

    return _entries_of(index_file())


@cache
def _entries_of(file: IndexFile) -> tuple[Entry, ...]:
    return tuple(file.entries())


def entry_with_id(name: str) -> Entry | None:
    """EdgeKit's own entry with this id; None if there is none."""
    from edgekit.index.database import index_file

    return next(iter(index_file().entries("WHERE m.id = ?", (name,))), None)


def users_entries() -> tuple[Entry, ...]:
    """The models that the user added; unreadable ones are left out."""
    from edgekit.index.store import stored_entries
    from edgekit.index.types import Entry

    return tuple(row for row in stored_entries() if isinstance(row, Entry))


def related_entries(entry: Entry) -> tuple[Entry, ...]:
    """The models of the same family whose geometry is exact, the most used first, one of each geometry.

    Models without a purpose are left out: base models, which only continue a text.
    """
    from edgekit.index.database import index_file

    related: dict[int | None, Entry] = {}
    condition = (
        "WHERE m.family = ? AND m.basis = 'exact' AND m.kinds != '' AND g.forms != ''"
        " ORDER BY m.uses DESC, m.id"
    )
    for other in index_file().entries(condition, (entry.family,)):
        related.setdefault(other.geometry, other)
    users = (other for other in users_entries() if other.family == entry.family)
    return (*users, *related.values())


CHECKED_MODELS = 160  # of EdgeKit's own: about a minute of planning


def checked_entries(index: Index) -> list[Entry]:
    """The models that are checked unasked: the user's own, and the most used ones whose layers are known.

    Base models are not among them: they have no purpose.
    """
    users = [entry for entry in index.entries if entry.is_users]
    known = (entry for entry in index.entries if not entry.is_users and entry.forms and entry.kinds)
    return [*users, *most_used(known)[:CHECKED_MODELS]]


def most_used(entries: Iterable[Entry]) -> list[Entry]:
    """The models that the user added, then the most used ones first."""
    return sorted(entries, key=lambda entry: (not entry.is_users, -entry.uses, entry.id))
