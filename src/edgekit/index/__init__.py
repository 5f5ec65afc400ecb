"""The catalog of known models, with the source of every fact: EdgeKit's own and those that the user added."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.index.types import Catalog, Entry


def read_catalog() -> Catalog:
    """All entries; a user's entry replaces EdgeKit's of the same id. Unreadable entries are listed in `problems`."""
    from edgekit.index.store import packaged, stored_entries
    from edgekit.index.types import Catalog, Entry

    rows = (*packaged(), *stored_entries())
    entries = {row.id: row for row in rows if isinstance(row, Entry)}
    return Catalog(
        entries=tuple(entries[name] for name in sorted(entries)),
        problems=tuple(row for row in rows if isinstance(row, str)),
    )


def listed(catalog: Catalog, *, kind: str | None = None, family: str | None = None) -> list[Entry]:
    """The models with this purpose whose family name starts with `family`."""
    prefix = (family or "").lower()
    return [
        entry
        for entry in catalog.entries
        if (kind is None or kind in {purpose.value for purpose in entry.kinds})
        and entry.family.lower().startswith(prefix)
    ]
