"""An Ollama manifest -> the files of the model it describes, wherever its blobs are.

Layers and their media types: manifest/layer.go, server/images.go of ollama @ fb30760.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from edgekit.sources.types import MAX_FILE_BYTES, Container, ModelFile, ModelFiles, Origin, Reach
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgekit.sources.types import ByteSource


# A model with one layer per tensor names each in some 200 bytes: 5,000 tensors are 1 MB.
MAX_MANIFEST_BYTES = 2 * MIB

_TYPE = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLayer:
    kind: str  # "model", "projector", "tensor", ...
    digest: str  # "sha256:" and 64 hexadecimal digits
    size_bytes: int
    title: str  # the name of a tensor or a JSON file; other layers have none


def files_of_manifest(
    body: bytes,
    *,
    reference: str,
    label: str,
    origin: Origin,
    opener: Callable[[ManifestLayer], Callable[[], ByteSource]],
) -> ModelFiles:
    """`opener` says how the blob of a layer is opened.

    HeaderError for what is no manifest, NotFoundError when it describes no weights.
    """
    layers = _layers(body, label)

    def files(kind: str, title: str = "") -> tuple[ModelFile, ...]:
        return tuple(
            ModelFile(
                name=f"{label} ({one.digest[:19]})", open=opener(one), size_bytes=one.size_bytes
            )
            for one in layers
            if (one.kind, one.title) == (kind, title)
        )

    weights, configs = files("model"), files("json", "config.json")
    tensors = [one for one in layers if one.kind == "tensor"]
    if not weights and not (tensors and configs):
        raise NotFoundError(f"{label} has no weights to download: it only runs in Ollama's cloud")
    return ModelFiles(
        reference=reference,
        label=label,
        origin=origin,
        container=Container.GGUF if weights else Container.CONFIG,
        weights=weights,
        config=None if weights else configs[0],
        projectors=files("projector"),
        notes=() if weights else (_tensor_note(tensors),),
    )


def _tensor_note(tensors: list[ManifestLayer]) -> str:
    """Each tensor is a blob of its own: its header would take a request, or a file, of its own."""
    size = format_bytes(sum(layer.size_bytes for layer in tensors))
    return f"the weights are {len(tensors):,} separate blobs ({size} in total), which were not read"


def _layers(body: bytes, label: str) -> list[ManifestLayer]:
    try:
        return [_layer(item) for item in json.loads(body)["layers"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HeaderError(
            (
                "not an Ollama manifest (a list of layers with sha256 digests and sizes): "
                "check the name"
            ),
            file=label,
        ) from error


def _layer(item: Any) -> ManifestLayer:
    digest, size_bytes = item["digest"], item["size"]
    is_size = type(size_bytes) is int and 0 <= size_bytes <= MAX_FILE_BYTES
    if _DIGEST.fullmatch(digest) is None or not is_size:
        raise ValueError(digest)
    kind = str(item["mediaType"]).partition(";")[0].strip().removeprefix(_TYPE)
    return ManifestLayer(
        kind=kind, digest=digest, size_bytes=size_bytes, title=str(item.get("name", ""))
    )


_OLLAMA_REGISTRY = "registry.ollama.ai"


# Where the service that Ollama's installer sets up on Linux keeps its models: docs/faq.mdx @ fb30760
_OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")


def find_ollama(model: OllamaModel | BareName) -> ModelFiles | None:
    """From Ollama's store; None when it has no such model.

    HeaderError for a manifest that is none, NotFoundError when a blob it names is gone.
    """
    try:
        wanted = ollama_model(model) if isinstance(model, BareName) else model
    except UsageError:
        return None  # a bare name that Ollama cannot have
    parts = (wanted.host or _OLLAMA_REGISTRY, wanted.namespace, wanted.name, wanted.tag)
    for store in _ollama_stores():
        path = _without_case(store / "manifests", parts)
        raw = None if path is None else read_small(path, limit=MAX_MANIFEST_BYTES)
        if raw is not None:
            return _ollama_files(wanted, store, raw)
    return None


def _ollama_stores() -> tuple[Path, ...]:
    if told := os.environ.get("OLLAMA_MODELS"):
        return (Path(told),)
    return (home_folder() / ".ollama" / "models", _OLLAMA_SERVICE)


def _without_case(root: Path, parts: tuple[str, ...]) -> Path | None:
    """`root` and `parts`, each as the disk spells it: Ollama's names ignore case."""
    path = root
    for part in parts:
        names = names_in(path)
        folded = {name.lower(): name for name in names}
        name = part if part in names else folded.get(part.lower())
        if name is None:
            return None
        path /= name
    return path


def _ollama_files(model: OllamaModel, store: Path, manifest: bytes) -> ModelFiles:
    label = model.label

    def opener(layer: ManifestLayer) -> Callable[[], ByteSource]:
        # The digest was checked to be hexadecimal: this path stays in the store.
        path = store / "blobs" / layer.digest.replace(":", "-")
        if not is_regular(path):
            raise NotFoundError(f"{path} is missing, although Ollama lists {label}: pull it again")
        return partial(LocalFile, path)

    return files_of_manifest(
        manifest, reference=label, label=label, origin=Origin.OLLAMA_STORE, opener=opener
    )


def ollama_names() -> Iterator[str]:
    """Every model in Ollama's store, as `ollama list` shows it."""
    for store in _ollama_stores():
        for host in folders_in(store / "manifests"):
            for namespace in folders_in(host):
                for name in folders_in(namespace):
                    for tag in names_in(name):
                        yield OllamaModel(
                            host=host.name, namespace=namespace.name, name=name.name, tag=tag
                        ).label


_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def locate_ollama(model: OllamaModel, reach: Reach) -> ModelFiles:
    """The GGUF of `name:tag`, and its projectors. One request, for the manifest."""
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
        # A registry does not tell a stranger whether a private model exists.
        raise type(error)(
            f"{label}: {host_of(registry)} has no such model or tag, or it is private; "
            "look it up at ollama.com/search, or `ollama pull` it and use the same name "
            "again"
        ) from error

    def opener(layer: ManifestLayer) -> Callable[[], HttpFile]:
        return partial(
            HttpFile,
            transport,
            f"{repository}/blobs/{layer.digest}",
            name=f"{label} ({layer.digest[:19]})",
            stride=JSON if layer.kind == "json" else GGUF,
            expected_bytes=layer.size_bytes,
        )

    return files_of_manifest(
        bytes(reply.body), reference=label, label=label, origin=Origin.OLLAMA, opener=opener
    )
