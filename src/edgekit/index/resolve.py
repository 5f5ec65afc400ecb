"""The resolver of model names. Every command, the Python API and the web API resolve names here.

`resolve` decides what a name means: a file, a catalog model, or anything that `read` can open. To support another
spelling, change `resolve` or `index.names.spellings`; callers never interpret names themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from edgekit.errors import (
    NotFoundError,
    PrivateAddressError,
    RemoteInspectError,
)
from edgekit.index import read_catalog
from edgekit.sources.local import is_here

if TYPE_CHECKING:
    from edgekit.index.types import Catalog, Entry

CATALOG = "catalog:"

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Read]):
    """What a name refers to: a catalog entry, a model that was read, or both."""

    name: str
    catalog: Catalog | None = field(default=None, repr=False)  # None: a path
    entry: Entry | None = None
    found: Read | None = field(default=None, repr=False)  # what `read` returned
    quant: str | None = None  # requested in the name or with --quant, not yet matched to a file
    notes: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str], read: Callable[[str], Read], *, absolute: bool = False
) -> Resolved[Read]:
    """The model that `reference` means: a path, else a catalog name, else whatever `read` finds.

    A catalog name may have any spelling and may include a quantisation: "Gemma 3 27B", qwen3-8b:Q8_0. A model of that
    name that another program stored on this machine takes precedence. Models that the user added to the catalog are
    read from their source. If a name on the network cannot be read, the catalog answers, with a note.
    `absolute`: only absolute paths are paths. Raises EdgekitError.
    """
    name = os.fspath(reference)
    if is_here(name, absolute_only=absolute):
        return Resolved(name=name, found=read(name))
    from edgekit.index import names  # not needed for a path

    catalog = read_catalog()
    is_explicit = name.lower().startswith(CATALOG)
    entry: Entry | None
    if is_explicit:
        name = name[len(CATALOG) :]
        entry, quant = names.find_quantised(name, catalog)
    else:
        entry, quant = names.entry_named(name, catalog, absolute=absolute)
    resolved: Resolved[Read] = Resolved(name=name, catalog=catalog, entry=entry, quant=quant)
    is_users = entry is not None and entry.is_users
    is_explicit = is_explicit and not is_users
    if entry is not None and (
        is_explicit or names.is_catalog_first(name, entry, absolute=absolute)
    ):
        return replace(resolved, notes=names.base_note(entry, name))
    source = entry.reference if entry is not None and is_users else name
    try:
        found = read(source)
    except PrivateAddressError:
        raise  # an answer from the catalog would hide the refusal
    except (NotFoundError, RemoteInspectError) as error:
        if entry is None or not (is_users or names.may_stand_in(name, error)):
            raise names.with_near(error, name, catalog) from error
        if is_users and isinstance(error, NotFoundError):
            note = f"taken from the catalog, because {source} is gone (edgekit catalog remove {entry.id})"
        else:
            note = (
                f"taken from the catalog ({entry.id}), because {source} could not be read: {error}"
            )
        return replace(resolved, notes=(note,))
    return replace(resolved, found=found, quant=quant if is_users else None)
