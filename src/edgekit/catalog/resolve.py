"""The text that names a model -> that model. Every command, the Python API and the web API resolve names here.

`resolve` decides what a name means: a file, a model of the catalog, or anything that `read` can open. To teach
EdgeKit another spelling, change `resolve` or `catalog.names.spellings`; callers never interpret names themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from edgekit.catalog import find_entry, near_ids, read_catalog
from edgekit.catalog.names import is_base, names_instruct, ollama_latest, split_quant
from edgekit.catalog.repositories import original_repository
from edgekit.catalog.types import Catalog, Entry, ModelPurpose
from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.local import is_here
from edgekit.sources.types import Reach

CATALOG = "catalog:"

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Generic[Read]):
    """A model of the catalog, what was read under the name, or both."""

    name: str
    catalog: Catalog | None = field(default=None, repr=False)  # None: a path
    entry: Entry | None = None
    found: Read | None = field(default=None, repr=False)
    quant: str | None = None  # requested in the name or with --quant, and not yet that of a file
    notes: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str], read: Callable[[str], Read], *, absolute: bool = False
) -> Resolved[Read]:
    """The model that `reference` means: a path first, then a name of the catalog, then whatever `read` finds.

    A catalog name may be spelt in any way and may state a quantisation: "Gemma 3 27B", qwen3-8b:Q8_0. A model that
    another program has on this machine under such a spelling goes first. Models that the user added to the catalog are
    read from their source. Names on the network that cannot be read are answered from the catalog, with a note.
    `absolute`: only absolute paths are paths. Raises EdgekitError.
    """
    name = os.fspath(reference)
    if is_here(name, whole=absolute):
        return Resolved(name=name, found=read(name))
    catalog = read_catalog()
    is_explicit = name.lower().startswith(CATALOG)
    entry: Entry | None
    if is_explicit:
        name = name[len(CATALOG) :]
        entry, quant = find_quantised(name, catalog)
    else:
        entry, quant = entry_named(name, catalog, absolute=absolute)
    resolved: Resolved[Read] = Resolved(name=name, catalog=catalog, entry=entry, quant=quant)
    is_users = entry is not None and entry.is_users
    is_explicit = is_explicit and not is_users
    if entry is not None and (is_explicit or is_catalog_first(name, entry, absolute=absolute)):
        return replace(resolved, notes=base_note(entry, name))
    source = entry.reference if entry is not None and is_users else name
    try:
        found = read(source)
    except PrivateAddressError:
        raise  # an answer from the catalog would hide what was refused
    except (NotFoundError, RemoteInspectError) as error:
        if entry is None or not (is_users or may_stand_in(name, error)):
            raise with_near(error, name, catalog) from error
        if is_users and isinstance(error, NotFoundError):
            note = f"taken from the catalog, because {source} is gone (edgekit catalog remove {entry.id})"
        else:
            note = (
                f"taken from the catalog ({entry.id}), because {source} could not be read: {error}"
            )
        return replace(resolved, notes=(note,))
    return replace(resolved, found=found, quant=quant if is_users else None)


def find_quantised(name: str, catalog: Catalog) -> tuple[Entry, str | None]:
    """The entry that a name means and the quantisation that it states. Raises NotFoundError."""
    try:
        return find_entry(name, catalog), None
    except NotFoundError:
        plain, quant = split_quant(name)
        if quant is None:
            raise
        return find_entry(plain, catalog), quant


def entry_named(name: str, catalog: Catalog, *, absolute: bool) -> tuple[Entry | None, str | None]:
    """Nothing for a path, even one that does not exist, and for an address outside the hub."""
    try:
        is_file = name.lower().endswith(MODEL_SUFFIXES) or path_of(name, whole=absolute) is not None
        if is_file or ("://" in name and hub_model_of(name) is None):
            return None, None
        entry, quant = find_quantised(ollama_latest(name) or name, catalog)
    except (NotFoundError, UsageError, ValueError):  # ValueError: a NUL in the name
        return None, None
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None, None  # a hub id is not the user's model of a similar name
    return entry, quant


def may_be_elsewhere(name: str) -> bool:
    """Whether a name means a file of the hub or of Ollama's registry: org/name, gemma3:27b, llama3.3."""
    return "/" in name or ":" in split_quant(name)[0] or ollama_latest(name) is not None


def is_catalog_first(name: str, entry: Entry, *, absolute: bool) -> bool:
    """Whether the entry answers without a look at the network.

    So do its id, with or without a quantisation, and other spellings that are not found on this machine. A hub id and
    one of Ollama's (gemma3:27b) mean a file that exists, and so does an entry of the user's: that is read if possible.
    """
    if entry.is_users:
        return False
    plain = split_quant(name)[0]
    if entry.id.lower() in {name.strip().lower(), plain.strip().lower()}:
        return True
    if may_be_elsewhere(name):
        return False
    try:
        locate(name, reach=Reach(network=False, within=() if absolute else None))
    except EdgekitError:
        return True
    return False


def may_stand_in(name: str, error: NotFoundError | RemoteInspectError) -> bool:
    """Whether the catalog answers for a name that could not be read.

    Not for a hub id that the hub refuses, or of which something else is here: another quantisation, for instance.
    """
    refused = NotFoundError | RemoteNotFoundError | RemoteAccessError
    return not ("/" in name and isinstance(error, refused))


def with_near(
    error: NotFoundError | RemoteInspectError, name: str, catalog: Catalog
) -> NotFoundError | RemoteInspectError:
    """The same error with the catalog's nearest names, and with what of the catalog could not be read."""
    near = near_ids(split_quant(name)[0], catalog.entries)
    if isinstance(error, RemoteInspectError):
        is_answer = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if is_answer or not near or "://" in name:
            return error
        return type(error)(f"{error}. Similar names in the catalog: {', '.join(near)}")
    if any(sign in name for sign in "/\\") or name.lower().endswith(MODEL_SUFFIXES):
        return error
    if name.lower().startswith("sample:"):
        return error
    here = tuple(one for one in error.candidates if not one.startswith("sample:"))
    damaged = "".join(f"; part of the catalog is unreadable: {one}" for one in catalog.problems[:1])
    message = str(error).partition(". Did you mean: ")[0]
    return NotFoundError(f"{message}{damaged}", candidates=tuple(dict.fromkeys((*here, *near))))


def base_note(entry: Entry, name: str = "") -> tuple[str, ...]:
    """A warning that a base model does not answer questions."""
    if names_instruct(name):
        return ()
    repository = original_repository(entry.id) or entry.repository
    if repository is None or ModelPurpose.CHAT not in entry.kinds or not is_base(repository):
        return ()
    return (f"{repository} is a base model; for chat use its instruct version (same size)",)
