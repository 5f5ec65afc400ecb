"""Known models, with the source of every fact: those that come with EdgeKit, and what the user added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.catalog.packaged import packaged
from edgekit.catalog.repositories import model_of_original
from edgekit.catalog.store import stored_entries
from edgekit.catalog.types import Catalog, Entry
from edgekit.errors import NotFoundError

if TYPE_CHECKING:
    from edgekit.engine.types import Model
    from edgekit.estimation import Opened

__all__ = ["find_entry", "open_entry", "opened", "read_catalog"]


def read_catalog() -> Catalog:
    """Everything. What cannot be read is a sentence in `problems`; of one id the user's entry counts."""
    found = (*packaged(), *stored_entries())
    entries = {one.id: one for one in found if isinstance(one, Entry)}
    return Catalog(
        entries=tuple(entries[name] for name in sorted(entries)),
        problems=tuple(one for one in found if isinstance(one, str)),
    )


def find_entry(name: str, catalog: Catalog | None = None) -> Entry:
    """By id or repository, however it is capitalised. NotFoundError with names that are near."""
    wanted = name.strip().lower()
    entries = (catalog or read_catalog()).entries
    published = model_of_original(wanted)
    for entry in entries:
        names = {entry.id.lower(), (entry.repository or "").lower()}
        if wanted and (wanted in names or published == entry.id):
            return entry
    from edgekit.source.naming import close_names

    near = close_names(wanted.rpartition("/")[2], (entry.id for entry in entries))
    raise NotFoundError(f"no model {name[:80]!r} in the catalog", candidates=near)


def open_entry(entry: Entry, engine: str) -> Model:
    """A model that `engine` can be asked about. EdgekitError that says what the entry lacks."""
    from edgekit.catalog.opening import open_entry as opening

    return opening(entry, engine)


def opened(entry: Entry, engine: str) -> Opened:
    """The same with the entry's id as its label, as if a reference had been opened."""
    from edgekit.catalog.opening import opened_entry

    return opened_entry(entry, engine)
