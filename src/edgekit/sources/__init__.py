"""What a person typed -> the files of a model, wherever they are. Nothing of them is read yet.

Everything that reaches the network is imported on first use: a local file needs none of it.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.sources.reference import (
    HUB_HOSTS,
    BareName,
    HubModel,
    OllamaModel,
    SampleName,
    WebFile,
    clean_text,
    ollama_model,
    parse_reference,
)
from edgekit.sources.types import ModelFiles, Reach

if TYPE_CHECKING:
    from edgekit.sources.reference import Reference

__all__ = ["cached_in_need", "hub_hosts", "hub_model_of", "locate", "path_of"]

_PATH_START = re.compile(r"[/~]|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[/\\]|.*\\", re.DOTALL)


def locate(reference: str, *, reach: Reach | None = None) -> ModelFiles:
    """The files that `reference` means: a path, sample:name, org/name, name:tag or an address.

    A path comes first. A name is looked for in the stores on this machine, then on the network;
    a hub id on the network, then in the hub's cache. UsageError for what can be no model,
    NotFoundError with candidates for what is not there, RemoteInspectError for what the network
    did not give.
    """
    text, reach = clean_text(reference), reach or Reach()
    if (path := path_of(text, whole=reach.within is not None)) is not None:
        from edgekit.sources.local import locate_path

        return locate_path(path, text, within=reach.within)
    wanted = parse_reference(text, hub_hosts=hub_hosts())
    try:
        return replace(_locate_name(wanted, reach), reference=text)
    except RemoteInspectError as error:
        if reach.within is not None:
            raise
        raise _with_local_names(error, text) from error


def _with_local_names(error: RemoteInspectError, text: str) -> RemoteInspectError:
    """A name that the network does not have may be a path with a slip in it."""
    from edgekit.sources.local import names_near

    path = Path(text)
    near = names_near(path) if "/" in text and path.parent.is_dir() else ()
    if not near:
        return error
    return type(error)(f"{error}. Similar names on this machine: {', '.join(near)}")


def hub_hosts() -> frozenset[str]:
    """The hub's hosts, and the one that HF_ENDPOINT puts in their place."""
    endpoint = os.environ.get("HF_ENDPOINT", "").lower()
    place = endpoint.rpartition("://")[2].strip("/")
    return HUB_HOSTS | {place} if place else HUB_HOSTS


def hub_model_of(reference: str, *, reach: Reach | None = None) -> HubModel | None:
    """The hub model that `reference` means; None for a path and for every other kind of name."""
    text = clean_text(reference)
    path = path_of(text, whole=reach is not None and reach.within is not None)
    wanted = parse_reference(text, hub_hosts=hub_hosts()) if path is None else None
    return wanted if isinstance(wanted, HubModel) else None


def path_of(text: str, *, whole: bool = False) -> Path | None:
    """The path that `text` is: it exists, or it can be nothing else. None for a name.

    `whole`: only one that does not depend on where we are; nothing is looked up then.
    """
    if "://" in text:
        return None
    if whole:
        return Path(text) if Path(text).is_absolute() else None
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # "~nobody/model.gguf": no such user
        path = Path(text)
    if _PATH_START.match(text) or os.path.lexists(path):
        return path
    # "org/name/file.gguf" and "org/name:file.gguf" are names, "folder/file.gguf" is not, and
    # neither is anything that starts with a folder which is here.
    named = ":" in text or (text.count("/") > 1 and not Path(path.parts[0]).is_dir())
    return path if text.lower().endswith(MODEL_SUFFIXES) and not named else None


def _locate_name(wanted: Reference, reach: Reach) -> ModelFiles:
    match wanted:
        case SampleName(name=name):
            from edgekit.sources.stores import locate_sample

            return locate_sample(name)
        case HubModel():
            return _locate_hub(wanted, reach)
        case OllamaModel():
            return _locate_ollama(wanted, reach)
        case BareName():
            return _locate_bare(wanted, reach)
        case WebFile(url=url):
            _require_network(reach, "the file at that address")
            from edgekit.sources.remote import locate_url

            return locate_url(url, reach)


def _locate_hub(model: HubModel, reach: Reach) -> ModelFiles:
    from edgekit.sources.address import is_offline

    if not reach.network or is_offline():
        return _locate_hub_offline(model, reach)
    from edgekit.sources.hub import locate_hub, locate_kept

    try:
        return locate_hub(model, reach)
    except PrivateAddressError:
        raise
    except RemoteInspectError as error:
        if (found := _cached_in_need(model, error)) is not None:
            return found
        if isinstance(error, RemoteNotFoundError | RemoteAccessError):
            raise  # the hub said no: headers that were read before may be out of date
        if (kept := locate_kept(model, reach, error)) is not None:
            return kept
        raise


def _locate_hub_offline(model: HubModel, reach: Reach) -> ModelFiles:
    from edgekit.sources import stores

    cache = stores.hub_cache_folder()
    try:
        found = stores.find_hub_cached(model, cache)
        if found is None and model.filename is None and model.revision is None:
            found = stores.find_lm_studio(model.repo, quant=model.quant)
    except NotFoundError:  # something of it is there, but not what was asked for
        if (kept := _kept_offline(model, reach, cache)) is not None:
            return kept
        raise
    found = found or _kept_offline(model, reach, cache)
    if found is None:
        raise _switched_off(model, cache)
    return found


def _kept_offline(model: HubModel, reach: Reach, cache: Path) -> ModelFiles | None:
    from edgekit.sources.hub import locate_kept

    return locate_kept(model, reach, _switched_off(model, cache))


def _switched_off(model: HubModel, cache: Path) -> RemoteInspectError:
    return RemoteInspectError(
        f"{model.repo} is not in the Hugging Face cache ({cache}), and the network is off "
        "(--offline or HF_HUB_OFFLINE): turn it on, or download the model first"
    )


def cached_in_need(
    reference: str, error: RemoteInspectError, *, reach: Reach | None = None
) -> ModelFiles | None:
    """The files in the hub's cache of a hub model that the network does not show; None where they are not there."""
    model = hub_model_of(reference, reach=reach)
    found = _cached_in_need(model, error) if model is not None else None
    return None if found is None else replace(found, reference=clean_text(reference))


def _cached_in_need(model: HubModel, error: RemoteInspectError) -> ModelFiles | None:
    """None also for what is there but cannot be used, or is a config.json without its weights."""
    from edgekit.sources.stores import find_hub_cached, hub_cache_folder

    try:
        found = find_hub_cached(model, hub_cache_folder())
    except EdgekitError:
        return None  # the network's error says more
    if found is None:
        return None
    note = (
        f"could not read it from Hugging Face, so the files in the local cache were used ({error})"
    )
    return replace(found, notes=(*found.notes, note))


def _locate_ollama(model: OllamaModel, reach: Reach) -> ModelFiles:
    from edgekit.sources.ollama import find_ollama

    return find_ollama(model) or _from_registry(model, reach)


def _from_registry(model: OllamaModel, reach: Reach) -> ModelFiles:
    _require_network(reach, f"{model.name}:{model.tag}")
    from edgekit.sources.ollama import locate_ollama

    return locate_ollama(model, reach)


def _locate_bare(wanted: BareName, reach: Reach) -> ModelFiles:
    from edgekit.sources import stores
    from edgekit.sources.ollama import find_ollama

    name, cache = wanted.name, stores.hub_cache_folder()
    found = find_ollama(wanted) or stores.find_lm_studio(name)
    found = found or stores.find_hub_cached_name(name, cache)
    if found is not None:
        return found
    try:
        if reach.network:
            return _from_registry(ollama_model(wanted), reach)
    except PrivateAddressError:
        raise
    except (UsageError, RemoteNotFoundError, RemoteAccessError) as error:
        raise _unknown_name(name, cache, "or in Ollama's registry") from error
    except RemoteInspectError as error:
        raise _unknown_name(name, cache, "and Ollama's registry cannot be reached") from error
    raise _unknown_name(name, cache, "and the network was not searched")


def _unknown_name(name: str, cache: Path, network: str) -> NotFoundError:
    from edgekit.sources.filenames import close_names  # only a mistake needs it
    from edgekit.sources.stores import known_names, sample_names

    known = (*known_names(cache), *(f"sample:{sample}" for sample in sample_names()))
    return NotFoundError(
        f"model not found: {name!r} is not a file, and not in Ollama, LM Studio or "
        f"the Hugging Face cache on this machine, {network}: give a path, org/name or "
        "name:tag",
        candidates=close_names(name, known),
    )


def _require_network(reach: Reach, what: str) -> None:
    if not reach.network:
        raise RemoteInspectError(f"{what} is not on this machine, and --offline is set")
