"""Models of Ollama: in its store on this machine, or in a registry.

Manifests, layers and their media types: manifest/layer.go, server/images.go of ollama @ fb30760.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgekit.errors import (
    HeaderError,
    NotFoundError,
    RemoteAccessError,
    RemoteNotFoundError,
    UsageError,
)
from edgekit.sources.address import host_of, ollama_registry
from edgekit.sources.http import Transport
from edgekit.sources.local import (
    LocalFile,
    folders_in,
    home_folder,
    is_regular,
    names_in,
    read_small,
)
from edgekit.sources.reference import BareName, OllamaModel, ollama_model
from edgekit.sources.remote import GGUF, JSON, HttpFile
from edgekit.sources.types import (
    MAX_FILE_BYTES,
    ByteSource,
    Container,
    ModelFile,
    ModelFiles,
    Origin,
    Reach,
)
from edgekit.units import MIB, format_bytes

# A model with one layer per tensor names each in about 200 bytes: 5,000 tensors are 1 MB.
MAX_MANIFEST_BYTES = 2 * MIB

_REGISTRY = "registry.ollama.ai"
# Where the service that Ollama's installer sets up on Linux stores its models: docs/faq.mdx @ fb30760
_SERVICE_STORE = Path("/usr/share/ollama/.ollama/models")
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER_TYPE = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def find_ollama(
    model: OllamaModel | BareName, *, stores: tuple[Path, ...] | None = None
) -> ModelFiles | None:
    """The model in one of these stores, or in any of Ollama's; None if it is not there.

    HeaderError for something that is not a manifest, NotFoundError if a blob is missing.
    """
    try:
        parsed = ollama_model(model) if isinstance(model, BareName) else model
    except UsageError:
        return None  # a bare name that Ollama cannot have
    parts = (parsed.host or _REGISTRY, parsed.namespace, parsed.name, parsed.tag)
    for store in stores or _stores():
        path = _find_ignoring_case(store / "manifests", parts)
        body = None if path is None else read_small(path, limit=MAX_MANIFEST_BYTES)
        if body is not None:
            break
    else:
        return None
    label = parsed.label

    def opener(layer: ManifestLayer) -> Callable[[], ByteSource]:
        # The digest was checked to be hexadecimal: this path stays in the store.
        path = store / "blobs" / layer.digest.replace(":", "-")
        if not is_regular(path):
            raise NotFoundError(f"{path} is missing, although Ollama lists {label}: pull it again")
        return partial(LocalFile, path)

    return _files_of_manifest(body, label=label, origin=Origin.OLLAMA_STORE, opener=opener)


def ollama_names() -> Iterator[str]:
    """Every model in Ollama's store, as `ollama list` shows it."""
    for store in _stores():
        for host in folders_in(store / "manifests"):
            for namespace in folders_in(host):
                for name in folders_in(namespace):
                    for tag in names_in(name):
                        yield OllamaModel(
                            host=host.name, namespace=namespace.name, name=name.name, tag=tag
                        ).label


def user_store() -> Path:
    """Where an Ollama that the user starts stores models."""
    folder = os.environ.get("OLLAMA_MODELS")
    return Path(folder) if folder else home_folder() / ".ollama" / "models"


def _stores() -> tuple[Path, ...]:
    """Where models of Ollama may be: OLLAMA_MODELS, else the user's and the service's folder."""
    return (user_store(),) if os.environ.get("OLLAMA_MODELS") else (user_store(), _SERVICE_STORE)


def _find_ignoring_case(root: Path, parts: tuple[str, ...]) -> Path | None:
    """The path `root`/`parts` in the spelling on disk: Ollama's names ignore case."""
    path = root
    for part in parts:
        names = names_in(path)
        folded = {name.lower(): name for name in names}
        name = part if part in names else folded.get(part.lower())
        if name is None:
            return None
        path /= name
    return path


def locate_ollama(model: OllamaModel, reach: Reach) -> ModelFiles:
    """The GGUF of `name:tag` in a registry, with its projectors. One request, for the manifest."""
    transport = Transport(reach)
    registry = ollama_registry() if model.host is None else f"https://{model.host}"
    repository = f"{registry}/v2/{model.namespace}/{model.name}"
    label = model.label
    try:
        reply = transport.get(
            f"{repository}/manifests/{model.tag}",
            name=label,
            limit_bytes=MAX_MANIFEST_BYTES,
            accept=_MANIFEST_TYPE,
        )
    except (RemoteNotFoundError, RemoteAccessError) as error:
        # A registry does not reveal whether a private model exists.
        raise type(error)(
            f"{label}: {host_of(registry)} has no such model or tag, or it is private; "
            "look it up at ollama.com/search, or `ollama pull` it and use the same name "
            "again"
        ) from error

    def opener(layer: ManifestLayer) -> Callable[[], ByteSource]:
        return partial(
            HttpFile,
            transport,
            f"{repository}/blobs/{layer.digest}",
            name=f"{label} ({layer.digest[:19]})",
            stride=JSON if layer.kind == "json" else GGUF,
            expected_bytes=layer.size_bytes,
        )

    return _files_of_manifest(bytes(reply.body), label=label, origin=Origin.OLLAMA, opener=opener)


# -- manifests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLayer:
    kind: str  # "model", "projector", "tensor", ...
    digest: str  # "sha256:" and 64 hexadecimal digits
    size_bytes: int
    title: str  # the name of a tensor or a JSON file; other layers have none


def _files_of_manifest(
    body: bytes,
    *,
    label: str,
    origin: Origin,
    opener: Callable[[ManifestLayer], Callable[[], ByteSource]],
) -> ModelFiles:
    """The model's files; `opener` returns a function that opens the blob of a layer.

    HeaderError for something that is not a manifest, NotFoundError if it has no weights.
    """
    try:
        layers = [_layer(item) for item in json.loads(body)["layers"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "not an Ollama manifest (a list of layers with sha256 digests and sizes): check the name"
        raise HeaderError(what, file=label) from error

    def files(kind: str, title: str = "") -> tuple[ModelFile, ...]:
        return tuple(
            ModelFile(
                name=f"{label} ({layer.digest[:19]})",
                open=opener(layer),
                size_bytes=layer.size_bytes,
            )
            for layer in layers
            if (layer.kind, layer.title) == (kind, title)
        )

    weights, configs = files("model"), files("json", "config.json")
    tensors = [layer for layer in layers if layer.kind == "tensor"]
    if not weights and not (tensors and configs):
        raise NotFoundError(f"{label} has no weights to download: it only runs in Ollama's cloud")
    # With a blob per tensor, each header would take a request, or a file.
    size = format_bytes(sum(layer.size_bytes for layer in tensors))
    note = f"the weights are {len(tensors):,} separate blobs ({size} in total), which were not read"
    return ModelFiles(
        label=label,
        origin=origin,
        container=Container.GGUF if weights else Container.CONFIG,
        weights=weights,
        config=None if weights else configs[0],
        projectors=files("projector"),
        notes=() if weights else (note,),
    )


def _layer(item: Any) -> ManifestLayer:
    """A layer of a manifest. Raises ValueError, TypeError or KeyError if it is invalid."""
    digest, size_bytes = item["digest"], item["size"]
    is_valid_size = type(size_bytes) is int and 0 <= size_bytes <= MAX_FILE_BYTES
    if _DIGEST.fullmatch(digest) is None or not is_valid_size:
        raise ValueError(digest)
    kind = str(item["mediaType"]).partition(";")[0].strip().removeprefix(_LAYER_TYPE)
    return ManifestLayer(
        kind=kind, digest=digest, size_bytes=size_bytes, title=str(item.get("name", ""))
    )
