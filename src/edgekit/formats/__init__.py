"""Turns the files of a model into what they say: `read_header`. The weights are never read."""

from __future__ import annotations

from edgekit.errors import HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.gguf_model import read_gguf_model
from edgekit.formats.types import ArrayFact, Depth, ModelHeader, Quantization, Tensor
from edgekit.sources.types import Container, ModelFiles

__all__ = ["ArrayFact", "Depth", "ModelHeader", "Quantization", "Tensor", "read_header"]


def read_header(files: ModelFiles, *, depth: Depth = Depth.TENSORS) -> ModelHeader:
    """What the files say.

    Depth.ARCHITECTURE reads as little as the geometry needs: of a remote GGUF what one request
    brought, of safetensors the config and the index's totals.
    """
    if len(files.weights) > limits.SHARDS:
        raise HeaderLimitError(
            "number of shards", value=len(files.weights), limit=limits.SHARDS, file=files.label
        )
    if files.container is Container.GGUF:
        return read_gguf_model(files, depth)
    from edgekit.formats.safetensors_model import read_safetensors_model

    return read_safetensors_model(files, depth)
