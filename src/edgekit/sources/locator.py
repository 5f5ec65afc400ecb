"""`locate` finds the files of a model from the text that a user typed, without reading them.

Stores and network modules are imported only when a name is located (search.py): a path needs neither.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from edgekit.errors import RemoteInspectError
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.local import expand_home, locate_path, names_near
from edgekit.sources.reference import HUB_HOSTS, HubModel, SampleName, clean_text, parse_reference
from edgekit.sources.types import ModelFiles, Reach

_PATH_START = re.compile(r"[/~]|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[/\\]|.*\\", re.DOTALL)


def locate(reference: str, *, reach: Reach | None = None) -> ModelFiles:
    """The files that `reference` means: a path, sample:name, org/name, name:tag or an address.

    A path comes first. A name is searched in the stores on this machine, then on the network; a hub id on the network,
    then in the hub's cache. UsageError for text that cannot be a model, NotFoundError with candidates for a model that
    does not exist, RemoteInspectError if the network fails.
    """
    text, reach = clean_text(reference), reach or Reach()
    if (path := path_of(text, absolute_only=reach.within is not None)) is not None:
        return replace(locate_path(path, within=reach.within), reference=text)
    parsed = parse_reference(text, hub_hosts=_hub_hosts())
    if isinstance(parsed, SampleName):
        from edgekit.sources.stores import locate_sample

        return replace(locate_sample(parsed.name), reference=text)
    from edgekit.sources.search import locate_name

    try:
        return replace(locate_name(parsed, reach), reference=text)
    except RemoteInspectError as error:
        path = Path(text)  # a name that the network does not have may be a misspelt path
        if reach.within is not None or "/" not in text or not path.parent.is_dir():
            raise
        similar_names = names_near(path)
        if not similar_names:
            raise
        raise type(error)(
            f"{error}. Similar names on this machine: {', '.join(similar_names)}"
        ) from error


def hub_model_of(reference: str, *, reach: Reach | None = None) -> HubModel | None:
    """The hub model that `reference` means; None for a path and for every other kind of name."""
    text = clean_text(reference)
    path = path_of(text, absolute_only=reach is not None and reach.within is not None)
    parsed = parse_reference(text, hub_hosts=_hub_hosts()) if path is None else None
    return parsed if isinstance(parsed, HubModel) else None


def path_of(text: str, *, absolute_only: bool = False) -> Path | None:
    """`text` as a path, if that exists or the text cannot be anything else; None for a name.

    `absolute_only`: an absolute path is a path, anything else a name; the disk is not accessed.
    """
    if "://" in text:
        return None
    if absolute_only:
        return Path(text) if Path(text).is_absolute() else None
    path = expand_home(text)
    if _PATH_START.match(text) or os.path.lexists(path):
        return path
    # "org/name/file.gguf" and "org/name:file.gguf" are names; "folder/file.gguf" is a path, and so is anything that
    # starts with an existing folder.
    is_name = ":" in text or (text.count("/") > 1 and not Path(path.parts[0]).is_dir())
    return path if text.lower().endswith(MODEL_SUFFIXES) and not is_name else None


def cached_fallback(
    reference: str, error: RemoteInspectError, *, reach: Reach | None = None
) -> ModelFiles | None:
    """A hub model's files in the hub's cache, for when the network failed with `error`; None if it has none."""
    model = hub_model_of(reference, reach=reach)
    if model is None:
        return None
    from edgekit.sources.search import find_cached

    files = find_cached(model, error)
    return None if files is None else replace(files, reference=clean_text(reference))


def _hub_hosts() -> frozenset[str]:
    """The hosts of the hub, including the one in HF_ENDPOINT."""
    endpoint = os.environ.get("HF_ENDPOINT", "").lower()
    host = endpoint.rpartition("://")[2].strip("/")
    return HUB_HOSTS | {host} if host else HUB_HOSTS
