"""A model in an Ollama registry -> its files, from the manifest; blobs are read by ranges."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from edgekit.errors import RemoteAccessError, RemoteNotFoundError, UsageError
from edgekit.source.address import host_of, shown, site_of
from edgekit.source.manifest import MAX_MANIFEST_BYTES, Layer, files_of_manifest
from edgekit.source.remote import GGUF, JSON, HttpFile
from edgekit.source.transport import Transport
from edgekit.source.types import ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgekit.source.reference import OllamaModel

DEFAULT_REGISTRY = "https://registry.ollama.ai"
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def locate_ollama(model: OllamaModel, reach: Reach) -> ModelFiles:
    """The GGUF of `name:tag`, and its projectors. One request, for the manifest."""
    transport = Transport(reach)
    registry = _registry(model)
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
            f"{label}: no such model or tag at {host_of(registry)}, or a private one; "
            "look it up at ollama.com/search, or `ollama pull` it and give the same name again"
        ) from error

    def opener(layer: Layer) -> Callable[[], HttpFile]:
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


def _registry(model: OllamaModel) -> str:
    """EDGEKIT_OLLAMA_REGISTRY takes the place of Ollama's own: a mirror, for example."""
    if model.host is not None:
        return f"https://{model.host}"
    address = os.environ.get("EDGEKIT_OLLAMA_REGISTRY") or DEFAULT_REGISTRY
    try:
        site_of(address)
    except ValueError as error:
        raise UsageError(
            f"EDGEKIT_OLLAMA_REGISTRY={shown(address)!r} is not a web address: "
            "write https:// and the host"
        ) from error
    return address.rstrip("/")
