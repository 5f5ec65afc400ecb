"""What some families do beside their layers: embeddings of every layer, several residual streams."""

from __future__ import annotations

from dataclasses import replace

from edgekit.errors import HeaderError
from edgekit.model.tensor_family import Rows, TensorFamily, array, linear
from edgekit.model.tensor_roles import TensorKind, TensorRole
from edgekit.model.tensor_rows import Streams
from edgekit.model.types import ModelGeometry

MAX_TABLES = 1_024  # LongCat has 12


def around_layer_embedding(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """Gemma 3n and 4: one table for all layers, and the way from the hidden stream into it."""
    width = geometry.per_layer_embedding
    if not width:
        return
    tokens = family.number("vocab_size_per_layer_input", geometry.vocabulary)
    wide = width * len(geometry.layers)
    yield array(TensorRole.LAYER_EMBEDDING, TensorKind.EMBEDDING, tokens, wide)
    yield from linear(TensorRole.LAYER_EMBEDDING_IN, wide, family.hidden)
    yield array(TensorRole.LAYER_EMBEDDING_IN, TensorKind.NORM, width)


def in_layer_embedding(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    if width := geometry.per_layer_embedding:
        yield from linear(TensorRole.LAYER_GATE, width, family.hidden)
        yield from linear(TensorRole.LAYER_OUT, family.hidden, width)
        yield array(TensorRole.LAYER_OUT, TensorKind.NORM, family.hidden)
    for _ in range(family.recipe.layer_scales):
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)


def ngram_tables(geometry: ModelGeometry, family: TensorFamily) -> Rows:
    """LongCat: tables for two to four tokens in a row, a few hashes each, and their way into the hidden stream."""
    parts, longest = family.number("emb_split_num", 4), family.number("emb_neighbor_num", 4)
    rows = family.number("ngram_vocab_size_ratio", 78) * (geometry.vocabulary or 0)
    count = parts * max(longest - 1, 0)
    if count > min(MAX_TABLES, family.hidden):
        raise HeaderError(f"{count} n-gram tables are more than the limit", file="config.json")
    for index in range(count):
        width = family.hidden // count
        yield array(TensorRole.NGRAM, TensorKind.EMBEDDING, rows + 2 * index + 1, width)
        yield from linear(TensorRole.NGRAM, family.hidden, width)


def around_residual(family: TensorFamily) -> Rows:
    hidden = family.hidden
    if family.says(family.recipe.block_residual):
        yield from _block_residual(family)
    if family.recipe.streams is Streams.ALTERNATING:
        others = family.number("altup_num_inputs", 4) - 1
        for _ in ("into the other streams", "out of them"):
            for row in linear(TensorRole.RESIDUAL, hidden, hidden):
                yield replace(row, count=others)
    if family.recipe.streams is Streams.HYPER:
        streams = family.number("hc_mult")
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, streams, streams * hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.BIAS, streams)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, 1)


def _block_residual(family: TensorFamily) -> Rows:
    """Kimi K3: a weight for each earlier block, from a normed stream."""
    yield array(TensorRole.RESIDUAL, TensorKind.RAW, 1, family.hidden)
    yield array(TensorRole.RESIDUAL, TensorKind.NORM, family.hidden)


def in_residual(family: TensorFamily) -> Rows:
    if family.says(family.recipe.block_residual):
        yield from _block_residual(family)  # before attention
        yield from _block_residual(family)  # and before the feed-forward
    if family.recipe.streams is Streams.ALTERNATING:
        yield from _alternating(family)
    if family.recipe.streams is Streams.HYPER:
        yield from _hyper(family)


def _alternating(family: TensorFamily) -> Rows:
    """Gemma 3n: alternating updates of four streams, and a low-rank bypass (LAuReL)."""
    hidden, streams = family.hidden, family.number("altup_num_inputs", 4)
    rank = family.number("laurel_rank", 64)
    yield from linear(TensorRole.RESIDUAL, streams, hidden)
    yield array(TensorRole.RESIDUAL, TensorKind.RAW, streams, streams)
    yield array(TensorRole.RESIDUAL, TensorKind.RAW, streams * streams, streams)
    yield array(TensorRole.RESIDUAL, TensorKind.RAW, hidden)
    yield array(TensorRole.RESIDUAL, TensorKind.NORM, hidden)
    yield from linear(TensorRole.RESIDUAL, rank, hidden)
    yield from linear(TensorRole.RESIDUAL, hidden, rank)
    yield array(TensorRole.RESIDUAL, TensorKind.NORM, hidden)


def _hyper(family: TensorFamily) -> Rows:
    """DeepSeek-V4: hyper-connections before attention and before the feed-forward."""
    streams = family.number("hc_mult")
    mixes = (2 + streams) * streams
    for _ in ("attention", "feed-forward"):
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, mixes, streams * family.hidden)
        yield array(TensorRole.RESIDUAL, TensorKind.BIAS, mixes)
        yield array(TensorRole.RESIDUAL, TensorKind.RAW, 3)
