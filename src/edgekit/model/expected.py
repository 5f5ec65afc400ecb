"""Geometry, and the words of config.json that it lacks -> the tensors a model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.errors import UnknownArchitectureError
from edgekit.model.attention_tensors import attention, compressed, latent
from edgekit.model.feedforward_tensors import dense, experts
from edgekit.model.hyper import text_section
from edgekit.model.residual_tensors import (
    around_layer_embedding,
    around_residual,
    in_layer_embedding,
    in_residual,
    ngram_tables,
)
from edgekit.model.state_tensors import low_rank, recurrent
from edgekit.model.tensor_family import Rows, TensorFamily, array, linear, norm
from edgekit.model.tensor_roles import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.tensor_rows import BY_NAME, PLAIN
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
)

__all__ = [
    "ExpectedTensor",
    "TensorKind",
    "TensorRole",
    "expected_tensors",
    "layer_tensors",
    "outer_tensors",
    "prediction_tensors",
]


def expected_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[ExpectedTensor, ...]:
    """All but towers and prediction blocks. UnknownArchitectureError where they do not follow."""
    family = _family(geometry, config)
    layers = geometry.layers[: len(geometry.layers) // geometry.loops]
    inside = (row for layer in layers for row in _placed(layer, geometry, family))
    return (*_before(geometry, family), *inside, *_after(geometry, family))


def outer_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[ExpectedTensor, ...]:
    """Those outside the layers, but for towers."""
    family = _family(geometry, config)
    return (*_before(geometry, family), *_after(geometry, family))


def layer_tensors(
    layer: Layer, geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[ExpectedTensor, ...]:
    return tuple(_placed(layer, geometry, _family(geometry, config)))


def prediction_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[ExpectedTensor, ...]:
    """The blocks that predict further tokens: a last layer each, what joins both streams, three norms."""
    family = _family(geometry, config)
    attending = [x for x in geometry.layers if not isinstance(x.mixer, Recurrent)]
    last = (attending or geometry.layers)[-1]
    rows: list[ExpectedTensor] = []
    for layer in range(len(geometry.layers), len(geometry.layers) + geometry.mtp_layers):
        rows += _placed(replace(last, index=layer), geometry, family)
        joins = linear(TensorRole.PREDICTION, family.hidden, 2 * family.hidden)
        norms = [row for _ in range(3) for row in norm(family)]
        rows += [replace(row, layer=layer) for row in (*joins, *norms)]
    return tuple(rows)


def _family(geometry: ModelGeometry, config: Mapping[str, Any] | None) -> TensorFamily:
    if geometry.vocabulary is None or geometry.tied_embeddings is None:
        missing = "vocabulary" if geometry.vocabulary is None else "output head"
        raise UnknownArchitectureError(
            f"the {missing} is unknown: read the whole header, or give a config.json"
        )
    return TensorFamily(
        name=geometry.architecture,
        recipe=BY_NAME.get(geometry.architecture, PLAIN),
        section=text_section(config or {}),
        hidden=geometry.hidden,
    )


def _before(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    hidden, recipe, width = family.hidden, family.recipe, family.embedding
    yield array(TensorRole.EMBEDDING, TensorKind.EMBEDDING, geometry.vocabulary or 0, width)
    if width != hidden:
        yield from linear(TensorRole.EMBEDDING_IN, hidden, width)
    if recipe.ngrams:
        yield from ngram_tables(geometry, family)
    if recipe.positions is not None:
        rows = (geometry.trained_context or 0) + recipe.positions
        yield array(TensorRole.POSITION, TensorKind.EMBEDDING, rows, hidden)
    if types := family.number("type_vocab_size", recipe.token_types) if recipe.token_types else 0:
        yield array(TensorRole.SEGMENT, TensorKind.EMBEDDING, types, hidden)
    if recipe.embedding_norm:
        yield from norm(family)
    yield from around_layer_embedding(geometry, family)
    yield from around_residual(family)


def _after(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    recipe, narrow = family.recipe, family.embedding != family.hidden
    if family.says(recipe.final_norm):
        yield from norm(family)
    if narrow and recipe.embedding_out:
        yield from linear(TensorRole.EMBEDDING_OUT, family.embedding, family.hidden)
    if recipe.head_scale:
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)
    bias = family.says(recipe.head_bias)
    if not geometry.tied_embeddings:
        width = family.embedding if recipe.embedding_out else family.hidden
        yield from linear(TensorRole.HEAD, geometry.vocabulary or 0, width, bias=bias)
    elif bias:
        yield array(TensorRole.HEAD, TensorKind.BIAS, geometry.vocabulary or 0)


def _placed(layer: Layer, geometry: ModelGeometry, family: TensorFamily) -> list[ExpectedTensor]:
    rows = (*_layer(layer, family), *in_layer_embedding(geometry, family), *in_residual(family))
    return [replace(row, layer=layer.index) for row in rows]


def _layer(layer: Layer, family: TensorFamily) -> Rows:
    for _ in range(_norm_count(layer, family)):
        yield from norm(family)
    yield from _norm_gates(layer, family)
    yield from _mixer(layer.mixer, family)
    if layer.index and family.recipe.value_rank:
        yield from low_rank(family.number(family.recipe.value_rank), family.hidden)
    if layer.dense is not None:
        yield from dense(layer.dense, family)
    if layer.experts is not None:
        yield from experts(layer.experts, family, layer=layer.index)


def _norm_count(layer: Layer, family: TensorFamily) -> int:
    recipe = family.recipe
    if layer.index == 0 and recipe.first_norms is not None:
        return recipe.first_norms
    mixes = not isinstance(layer.mixer, NoCache) or layer.mixer.attention is not None
    feeds = layer.dense is not None or layer.experts is not None
    usual = recipe.norms if mixes and feeds else min(recipe.norms, recipe.lone_norms)
    more = sum(family.says(said) for said in recipe.more_norms)
    return usual + more + (recipe.expert_norms if layer.experts is not None else 0)


def _norm_gates(layer: Layer, family: TensorFamily) -> Rows:
    """A.X K2: a low-rank gate on the norm before attention, and on the one before experts."""
    if not family.recipe.norm_rank:
        return
    rank = family.number(family.recipe.norm_rank)
    for _ in range(1 if layer.experts is None else 2):
        yield from linear(TensorRole.NORM, rank, family.hidden)
        yield from linear(TensorRole.NORM, family.hidden, rank)


def _mixer(kind: LayerKind, family: TensorFamily) -> Rows:
    match kind:
        case Attention():
            yield from attention(kind, family)
        case SharedCache():
            borrows = not family.says(family.recipe.borrowed_keys)
            yield from attention(kind.attention, family, borrows=borrows)
        case NoCache() if kind.attention is not None:
            yield from attention(kind.attention, family)
        case HybridLayer():
            yield from attention(kind.attention, family)
            yield from recurrent(kind.recurrent, family)
        case LatentAttention():
            yield from latent(kind, family)
        case CompressedAttention():
            yield from compressed(kind, family)
        case Recurrent():
            yield from recurrent(kind, family)
        case _:
            return
