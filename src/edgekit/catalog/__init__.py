"""Known models, with the source of every fact: those that come with EdgeKit, and what the user added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgekit.catalog.repositories import model_of_original
from edgekit.errors import NotFoundError

if TYPE_CHECKING:
    from edgekit.catalog.types import Catalog, Entry

__all__ = ["find_entry", "listed", "near_ids", "read_catalog"]

SHOWN = 6  # names in one message


def read_catalog() -> Catalog:
    """Everything. What cannot be read is a sentence in `problems`; of one id the user's entry counts."""
    from edgekit.catalog.store import packaged, stored_entries
    from edgekit.catalog.types import Catalog, Entry

    found = (*packaged(), *stored_entries())
    entries = {one.id: one for one in found if isinstance(one, Entry)}
    return Catalog(
        entries=tuple(entries[name] for name in sorted(entries)),
        problems=tuple(one for one in found if isinstance(one, str)),
    )


def listed(catalog: Catalog, *, kind: str | None = None, family: str | None = None) -> list[Entry]:
    """The models for this purpose, of this family or one whose name begins with it."""
    start = (family or "").lower()
    return [
        entry
        for entry in catalog.entries
        if (kind is None or kind in {one.value for one in entry.kinds})
        and entry.family.lower().startswith(start)
    ]


def find_entry(name: str, catalog: Catalog | None = None) -> Entry:
    """By id or repository, in any spelling: 'Gemma 3 27B', 'gemma3:27b', 'google/gemma-3-27b-it'.

    Raises NotFoundError with the nearest ids where there is none, or where several are meant.
    """
    entries = (catalog or read_catalog()).entries
    wanted = name.strip().lower()
    published = model_of_original(wanted)
    for entry in entries:
        names = {entry.id.lower(), (entry.repository or "").lower()}
        if wanted and (wanted in names or published == entry.id):
            return entry
    from edgekit.catalog.names import spellings

    for spelt in range(3) if wanted else ():
        loose = spellings(name)[spelt]
        found = [entry for entry in entries if loose and loose in _spelt(entry, spelt)]
        if len(found) == 1:
            return found[0]
        if found:
            near = tuple(entry.id for entry in found[:SHOWN])
            raise NotFoundError(
                f"{name[:80]!r} matches several models of the catalog", candidates=near
            )
    raise NotFoundError(
        f"{name[:80]!r} is not in the catalog (edgekit catalog list shows all models)",
        candidates=near_ids(name, entries),
    )


def _spelt(entry: Entry, spelt: int) -> set[str]:
    from edgekit.catalog.names import spellings

    return {spellings(one)[spelt] for one in (entry.id, entry.repository) if one}


def near_ids(name: str, entries: Iterable[Entry]) -> tuple[str, ...]:
    """The ids that look most like the name; those that begin with it come first."""
    from edgekit.catalog.names import spellings
    from edgekit.sources.filenames import close_names

    ids = {spellings(entry.id)[1]: entry.id for entry in entries}
    wanted = spellings(name)[1]
    begin = sorted(one for one in ids if wanted and one.startswith(f"{wanted} "))
    near = dict.fromkeys((*begin, *close_names(wanted, ids)))
    return tuple(ids[one] for one in near)[:SHOWN]
