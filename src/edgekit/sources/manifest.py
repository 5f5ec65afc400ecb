"""An Ollama manifest -> the files of the model it describes, wherever its blobs are.

Layers and their media types: manifest/layer.go, server/images.go of ollama @ fb30760.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekit.errors import HeaderError, NotFoundError
from edgekit.sources.types import MAX_FILE_BYTES, Container, ModelFile, ModelFiles, Origin
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

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
