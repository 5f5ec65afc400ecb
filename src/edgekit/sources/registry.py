"""A model in an Ollama registry -> its files, from the manifest; blobs are read by ranges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edgekit.errors import RemoteAccessError, RemoteNotFoundError
from edgekit.sources.address import host_of
from edgekit.sources.endpoint import ollama_registry
from edgekit.sources.manifest import MAX_MANIFEST_BYTES, ManifestLayer, files_of_manifest
from edgekit.sources.remote import GGUF, JSON, HttpFile
from edgekit.sources.transport import Transport
from edgekit.sources.types import ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgekit.sources.reference import OllamaModel

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
