"""What a reference means that somebody typed on this machine: a model of the index, or files elsewhere."""

from __future__ import annotations

import os
import re

from edgekit.errors import (
    AmbiguousNameError,
    EdgekitError,
    HeaderError,
    NotFoundError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.index.database import index_file
from edgekit.index.names import Match, find_model, near_ids, refuse_closed, usually_meant
from edgekit.index.repositories import Form, model_at, original_repository
from edgekit.index.typed import read_name
from edgekit.index.types import Entry, ModelPurpose
from edgekit.index.words import ANSWER_WORDS, is_base, words_of
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.local import expand_home
from edgekit.sources.locator import hub_model_of, locate, path_of
from edgekit.sources.quants import split_quant
from edgekit.sources.reference import clean_text
from edgekit.sources.types import Reach


def entry_named(name: str, *, absolute: bool) -> Match | None:
    """What a name means; None for a URL outside the hub, and a name that nothing has.

    A path is not looked for: it means the model that its file name states. Raises AmbiguousNameError with the
    candidates for a name that several different models have.
    """
    typed = read_name(name)
    try:
        clean_text(name)
        if "://" in name and not typed.is_address and hub_model_of(name) is None:
            return None
        is_model = typed.quant is not None or re.search(r"\.gguf$|models--", name, re.IGNORECASE)
        if not is_model and is_path(name, absolute=absolute):
            return None
        match = find_model(name)
        match = usually_meant(match, typed)
    except AmbiguousNameError:
        if typed.is_path:
            return None
        raise
    except (NotFoundError, UsageError):
        return None
    entry = match.entry
    exact = {entry.id.lower(), (entry.repository or "").lower()}
    if entry.is_users and may_be_elsewhere(name) and split_quant(name.lower())[0] not in exact:
        return None  # a hub id never means a user's model with a similar name
    return match


def is_path(name: str, *, absolute: bool = False) -> bool:
    """Whether the name is spelled as a file or folder on some machine, and cannot be one on the hub."""
    is_file = read_name(name).is_path or path_of(name, absolute_only=absolute) is not None
    return is_file and hub_model_of(name) is None


def is_folder_here(name: str, *, absolute: bool) -> bool:
    """Whether the folder of a path is on this machine: then the file's name was mistyped. Not for a bare file name."""
    path = expand_home(name)
    has_folder = os.sep in name and (path.is_absolute() or not absolute)
    return has_folder and path.parent.is_dir()


def may_be_elsewhere(name: str) -> bool:
    """Whether a name may mean a file of the hub or of Ollama's registry: org/name, gemma3:27b, llama3.3."""
    return "/" in name or ":" in split_quant(name)[0] or is_ollama_name(name)


def is_ollama_name(name: str) -> bool:
    """Whether Ollama's library has a model of this name: 'llama3.3', 'gemma3:27b'."""
    known = model_at(name.strip().lower())
    if known is not None and known[1] is Form.OLLAMA:
        return True
    query = "SELECT 1 FROM names WHERE spelling = ? AND level = 0 AND scheme = 'ollama'"
    return bool(index_file().rows(query, (name.strip().lower(),)))


def is_id_of(name: str, entry: Entry) -> bool:
    """Whether the name is the entry's id, with or without a quantisation."""
    plain = split_quant(name)[0]
    return entry.id.lower() in {name.strip().lower(), plain.strip().lower()}


def is_index_first(name: str, match: Match, *, absolute: bool) -> bool:
    """Whether the index answers for this name without querying the network.

    True for the entry's id, with or without a quantisation, and for other spellings of models that are not on this
    machine. A hub id, an Ollama name (gemma3:27b) and a user's entry refer to files, which are read if possible.
    """
    if match.entry.is_users:
        return False
    if is_id_of(name, match.entry):
        return True
    if may_be_elsewhere(name):
        return False
    try:
        locate(name, reach=Reach(network=False, within=() if absolute else None))
    except EdgekitError:
        return True
    return False


def with_near(
    error: NotFoundError | RemoteInspectError, name: str
) -> NotFoundError | RemoteInspectError:
    """The error with similar names of the index added, or the one that says that the model is closed."""
    try:
        refuse_closed(name)
        near = near_ids(split_quant(name)[0])
    except NotFoundError as closed:
        return closed
    except HeaderError:  # the index cannot be read
        return error
    if isinstance(error, RemoteInspectError):
        is_answer = isinstance(error, RemoteNotFoundError | RemoteAccessError)
        if is_answer or not near or "://" in name:
            return error
        return type(error)(f"{error}. Similar names in the index: {', '.join(near)}")
    if any(sign in name for sign in "/\\") or name.lower().endswith(MODEL_SUFFIXES):
        return error
    if name.lower().startswith("sample:"):
        return error
    local = tuple(
        candidate for candidate in error.candidates if not candidate.startswith("sample:")
    )
    message = str(error).partition(". Did you mean: ")[0]
    return NotFoundError(message, candidates=tuple(dict.fromkeys((*local, *near))))


def base_note(entry: Entry, name: str = "") -> tuple[str, ...]:
    """A warning that a base model does not answer questions, unless the name asks for an instruct model."""
    repository = original_repository(entry.id) or entry.repository or ""
    asks_for_instruct = not ANSWER_WORDS.isdisjoint(words_of(name))
    if asks_for_instruct or not is_base(repository) or ModelPurpose.CHAT not in entry.kinds:
        return ()
    return (f"{repository} is a base model; for chat use its instruct version (same size)",)
