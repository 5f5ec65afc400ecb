"""Geometry -> the matrices and vectors that mlx-lm's model file holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.engines.mlx.models import Head, MlxModel
from edgekit.model.hyperparameters import text_section
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    LatentAttention,
    Layer,
    ModelGeometry,
    Recurrent,
    SharedCache,
)

_KEYS_AND_VALUES = frozenset({TensorRole.KEY, TensorRole.VALUE})


def held_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any], file: MlxModel
) -> tuple[ExpectedTensor, ...]:
    """Without towers and prediction blocks: mlx-lm drops both. May raise UnknownArchitectureError."""
    tied = is_tied(config, file)
    layers = {layer.index: layer for layer in geometry.layers}
    expected = expected_tensors(replace(geometry, tied_embeddings=tied), config)
    return tuple(
        part
        for tensor in expected
        for part in _parts(tensor, layers.get(-1 if tensor.layer is None else tensor.layer), file)
    )


def is_tied(config: Mapping[str, Any], file: MlxModel) -> bool:
    if file.head in {Head.TIED, Head.OWN}:
        return file.head is Head.TIED
    for section in (text_section(config), config):
        for word in ("tie_word_embeddings", "share_input_output_layers"):
            if isinstance(section.get(word), bool):
                return bool(section[word])
    return file.head is Head.TIED_BY_DEFAULT


def _parts(tensor: ExpectedTensor, layer: Layer | None, file: MlxModel) -> Iterator[ExpectedTensor]:
    mixer = None if layer is None else layer.mixer
    role = tensor.role
    if role is TensorRole.HEAD and file.raw_head:
        yield replace(tensor, kind=TensorKind.RAW)
    elif role is TensorRole.ROUTER and tensor.kind is not TensorKind.BIAS:
        yield replace(tensor, kind=TensorKind.RAW if file.raw_router else TensorKind.LINEAR)
    elif role is TensorRole.LATENT_UP and file.split_latent and isinstance(mixer, LatentAttention):
        yield from _absorbed(tensor, mixer)
    elif role is TensorRole.STATE_IN and file.split_state and isinstance(mixer, Recurrent):
        out, into = tensor.shape
        yield replace(tensor, shape=(out - mixer.inner, into))
        yield replace(tensor, shape=(mixer.inner, into), role=TensorRole.VALUE)
    elif not _is_borrowed(tensor, layer, file):
        yield tensor


def _absorbed(tensor: ExpectedTensor, kind: LatentAttention) -> Iterator[ExpectedTensor]:
    """embed_q and unembed_out, a small matrix for each head."""
    rank = tensor.shape[-1]
    yield replace(tensor, shape=(kind.heads, rank, kind.key_dim - kind.rope_dim))
    yield replace(tensor, shape=(kind.heads, kind.value_dim, rank))


def _is_borrowed(tensor: ExpectedTensor, layer: Layer | None, file: MlxModel) -> bool:
    """Keys and values of a layer that reads another's."""
    shares = layer is not None and isinstance(layer.mixer, SharedCache)
    return shares and not file.shared_kv and tensor.role in _KEYS_AND_VALUES
