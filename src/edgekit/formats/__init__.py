"""Turns the files of a model into what they say: `read_header`. The weights are never read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgekit.errors import HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.gguf_model import read_gguf_model
from edgekit.formats.packing import count_weights
from edgekit.formats.quantization import effective_bits, read_quantization
from edgekit.formats.safetensors_model import read_safetensors_model
from edgekit.formats.types import ArrayFact, Depth, ModelHeader, Quantization, Tensor
from edgekit.sources.types import Container, ModelFiles

__all__ = [
    "ArrayFact",
    "Depth",
    "ModelHeader",
    "Quantization",
    "Tensor",
    "count_weights",
    "effective_bits",
    "read_header",
    "read_quantization",
]

_READERS: Mapping[Container, Callable[[ModelFiles, Depth], ModelHeader]] = {
    Container.GGUF: read_gguf_model,
    Container.SAFETENSORS: read_safetensors_model,
    Container.CONFIG: read_safetensors_model,
}


def read_header(files: ModelFiles, *, depth: Depth = Depth.TENSORS) -> ModelHeader:
    """What the files say.

    Depth.ARCHITECTURE reads as little as the geometry needs: of a remote GGUF what one request
    brought, of safetensors the config and the index's totals.
    """
    if len(files.weights) > limits.SHARDS:
        raise HeaderLimitError(
            "number of shards", value=len(files.weights), limit=limits.SHARDS, file=files.label
        )
    return _READERS[files.container](files, depth)
