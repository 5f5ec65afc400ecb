"""What was said -> the models of the catalog that are meant, and the best of them for a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.asking.words import Words, ask_of
from edgekit.catalog import read_catalog
from edgekit.engines.flags import read_number

if TYPE_CHECKING:  # only to name types: a list needs none of it
    from edgekit.catalog.types import Catalog, Entry
    from edgekit.machine.types import Machine
    from edgekit.plan.recommending import Recommendation

MOST_SHOWN = 100
_EVERY_FAMILY = 10**6


def listed(catalog: Catalog, *, kind: str | None = None, family: str | None = None) -> list[Entry]:
    """The models for this, and of this family or one whose name goes on."""
    start = (family or "").lower()
    return [
        entry
        for entry in catalog.entries
        if (kind is None or kind in {one.value for one in entry.kinds})
        and entry.family.lower().startswith(start)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best few, and what there is to know of them and of the catalog."""

    found: Recommendation
    notes: tuple[str, ...]


def recommend_words(
    words: Words,
    *,
    limit: str | None = None,
    all_sizes: bool = False,
    machine: Machine | None = None,
    tell: Callable[[str], None] | None = None,
) -> Best:
    """What `recommend` answers. Raises UsageError."""
    from edgekit.plan.recommending import SHOWN
    from edgekit.planning import recommended

    ask = ask_of(words, machine)
    most = read_number("--limit", limit, least=1) or SHOWN
    catalog = read_catalog()
    found = recommended(
        catalog,
        ask,
        most=min(most, MOST_SHOWN),
        of_a_family=_EVERY_FAMILY if all_sizes else 1,
        tell=tell,
    )
    return Best(found=found, notes=tuple(_notes(catalog, found)))


def _notes(catalog: Catalog, found: Recommendation) -> Iterator[str]:
    from edgekit.resolver import base_note

    yield from catalog.problems
    for one in found.suggestions:
        yield from base_note(one.entry)
