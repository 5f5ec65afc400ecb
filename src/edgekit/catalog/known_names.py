"""What a name says of a model that the catalog may know: its entry, its quantisation, whether it means a file."""

from __future__ import annotations

from edgekit.catalog import find_entry, near_ids
from edgekit.catalog.naming import is_base, names_instruct, ollama_latest, split_quant
from edgekit.catalog.repositories import original_repository
from edgekit.catalog.types import Catalog, Entry, ModelPurpose
from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources import hub_model_of, locate, path_of
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.types import Reach


def find_quantised(name: str, catalog: Catalog) -> tuple[Entry, str | None]:
    """The entry that a name means and the quantisation that it states. Raises NotFoundError."""
    try:
        return find_entry(name, catalog), None
    except NotFoundError:
        plain, quant = split_quant(name)
        if quant is None:
            raise
        return find_entry(plain, catalog), quant


def known(name: str, catalog: Catalog, *, absolute: bool) -> tuple[Entry | None, str | None]:
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
