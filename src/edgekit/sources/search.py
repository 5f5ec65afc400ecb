"""Locates the files of a name: in the stores on this machine, on the hub, in Ollama's registry, at a web address."""

from __future__ import annotations

from dataclasses import replace

from edgekit.errors import (
    EdgekitError,
    NotFoundError,
    PrivateAddressError,
    RemoteAccessError,
    RemoteInspectError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources.address import is_offline
from edgekit.sources.filenames import close_names
from edgekit.sources.hub import locate_cached, locate_hub
from edgekit.sources.ollama import find_ollama, locate_ollama
from edgekit.sources.reference import BareName, HubModel, OllamaModel, WebFile, ollama_model
from edgekit.sources.remote import locate_url
from edgekit.sources.stores import (
    find_hub_cached,
    find_hub_cached_name,
    find_lm_studio,
    hub_cache_folder,
    known_names,
    sample_names,
)
from edgekit.sources.types import ModelFiles, Reach


def locate_name(reference: HubModel | OllamaModel | BareName | WebFile, reach: Reach) -> ModelFiles:
    """The files of a model that is given by name: from this machine if they are here, else from the network."""
    match reference:
        case HubModel():
            return _locate_hub(reference, reach)
        case BareName():
            return _locate_bare(reference, reach)
        case OllamaModel():
            if (stored := find_ollama(reference)) is not None:
                return stored
            what = f"{reference.name}:{reference.tag}"
        case WebFile():
            what = "the file at that address"
    if not reach.network:
        raise RemoteInspectError(f"{what} is not on this machine, and --offline is set")
    if isinstance(reference, WebFile):
        return locate_url(reference.url, reach)
    return locate_ollama(reference, reach)


def find_cached(model: HubModel, error: RemoteInspectError) -> ModelFiles | None:
    """The files in the hub's cache, for when the network failed with `error`; None if they cannot be used."""
    try:
        files = find_hub_cached(model)
    except EdgekitError:
        return None  # the network error is more informative
    if files is None:
        return None
    note = (
        f"could not read it from Hugging Face, so the files in the local cache were used ({error})"
    )
    return replace(files, notes=(*files.notes, note))


def _locate_hub(model: HubModel, reach: Reach) -> ModelFiles:
    """The model on the hub; if the network fails, its files in the hub's cache, then its cached headers."""
    if not reach.network or is_offline():
        return _locate_hub_offline(model, reach)
    try:
        return locate_hub(model, reach)
    except PrivateAddressError:
        raise
    except RemoteInspectError as error:
        if (downloaded := find_cached(model, error)) is not None:
            return downloaded
        if isinstance(error, RemoteNotFoundError | RemoteAccessError):
            raise  # the hub refused: cached headers may be out of date
        if (headers := locate_cached(model, reach, error)) is not None:
            return headers
        raise


def _locate_hub_offline(model: HubModel, reach: Reach) -> ModelFiles:
    """The model in the hub's cache or LM Studio's folder, else its cached headers."""
    offline = RemoteInspectError(
        f"{model.repo} is not in the Hugging Face cache ({hub_cache_folder()}), and the network is off "
        "(--offline or HF_HUB_OFFLINE): turn it on, or download the model first"
    )
    try:
        files = find_hub_cached(model)
        if files is None and model.filename is None and model.revision is None:
            files = find_lm_studio(model.repo, quant=model.quant)
    except NotFoundError:  # part of the model is cached, but not the requested part
        if (headers := locate_cached(model, reach, offline)) is not None:
            return headers
        raise
    files = files or locate_cached(model, reach, offline)
    if files is None:
        raise offline
    return files


def _locate_bare(reference: BareName, reach: Reach) -> ModelFiles:
    """The model of this name in a store on this machine, else in Ollama's registry."""
    name = reference.name
    stored = find_ollama(reference) or find_lm_studio(name) or find_hub_cached_name(name)
    if stored is not None:
        return stored
    cause: EdgekitError | None = None
    network = "and the network was not searched"
    if reach.network:
        try:
            return locate_ollama(ollama_model(reference), reach)
        except PrivateAddressError:
            raise
        except (UsageError, RemoteNotFoundError, RemoteAccessError) as error:
            cause, network = error, "or in Ollama's registry"
        except RemoteInspectError as error:
            cause, network = error, "and Ollama's registry cannot be reached"
    known = (*known_names(), *(f"sample:{sample}" for sample in sample_names()))
    raise NotFoundError(
        f"model not found: {name!r} is not a file, and not in Ollama, LM Studio or "
        f"the Hugging Face cache on this machine, {network}: give a path, org/name or "
        "name:tag",
        candidates=close_names(name, known),
    ) from cause
