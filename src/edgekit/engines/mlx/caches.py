"""Layers and options -> the caches mlx-lm makes for them, and their bytes."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from edgekit.engines.mlx.growth import (
    MlxSession,
    chunked_length,
    full_length,
    rotating_length,
    widest_rotating,
)
from edgekit.engines.mlx.models import MlxModel
from edgekit.engines.mlx.types import MAX_KV_SIZE_KEEP, MlxSetup
from edgekit.model.types import (
    Attention,
    Cell,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    Recurrent,
    SharedCache,
    Span,
)


class Growth(enum.Enum):
    """The cache classes of cache.py."""

    FULL = "KVCache"
    ROTATING = "RotatingKVCache"
    CHUNKED = "ChunkedKVCache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One cache of one layer: keys and values of some heads for every row it holds."""

    growth: Growth
    heads: int
    key_dim: int
    value_dim: int
    queries: int = 0  # heads that read it
    tokens: int = 0  # the window or the chunk
    keep: int = 0
    quantizable: bool = True

    def rows(self, session: MlxSession) -> int:
        match self.growth:
            case Growth.FULL:
                return full_length(session)
            case Growth.ROTATING:
                return rotating_length(session, self.tokens, self.keep)
            case Growth.CHUNKED:
                return chunked_length(session, self.tokens)

    def transient_rows(self, session: MlxSession) -> int:
        """Rows beyond those held at the end that a chunk of the prompt needs for a while."""
        if self.growth is not Growth.ROTATING:
            return 0
        return max(widest_rotating(session, self.tokens) - self.rows(session), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A state: so many numbers of so many bytes, however long the session."""

    name: str
    elements: int
    item_bytes: int


Holding = Slot | Fixed

_GROWTHS = {
    Span.ALL: Growth.FULL,
    Span.WINDOW: Growth.ROTATING,
    Span.CHUNK: Growth.CHUNKED,
}
# Recurrences whose state is f32, whatever the weights are: ssm.py and gated_delta.py compute it so.
_F32_CELLS = frozenset({Cell.MAMBA2, Cell.GATED_DELTA, Cell.KIMI_DELTA})


def holdings(
    geometry: ModelGeometry, model: MlxModel, setup: MlxSetup, item_bytes: int, *, listed: bool
) -> tuple[tuple[int, Holding], ...]:
    """What every layer holds, as (layer, cache). `listed`: config.json lists its layer types."""
    found: list[tuple[int, Holding]] = []
    made: dict[LayerKind, tuple[Holding, ...]] = {}
    rotates = model.rotates and (listed or not model.rotates_as_listed)
    for layer in geometry.layers:
        if layer.mixer not in made:
            made[layer.mixer] = tuple(
                _limited(one, model, setup)
                for one in _held(layer.mixer, model, item_bytes, rotates=rotates)
            )
        found += [(layer.index, one) for one in made[layer.mixer]]
    return tuple(found)


def _held(kind: LayerKind, model: MlxModel, item_bytes: int, *, rotates: bool) -> Iterator[Holding]:
    match kind:
        case Attention():
            yield from _attention(kind, model, rotates=rotates)
        case LatentAttention():
            yield from _latent(kind, model)
        case Recurrent():
            yield from _states(kind, model, item_bytes)
        case HybridLayer():
            yield from _states(kind.recurrent, model, item_bytes)
            yield from _attention(kind.attention, model, rotates=rotates)
        case SharedCache() if not model.shares:
            yield from _attention(kind.attention, model, rotates=rotates)


def _attention(kind: Attention, model: MlxModel, *, rotates: bool) -> Iterator[Holding]:
    growth = _GROWTHS[kind.span] if rotates else Growth.FULL
    yield Slot(
        growth=growth,
        heads=kind.kv_heads,
        key_dim=kind.key_dim,
        value_dim=kind.value_dim,
        queries=kind.heads,
        tokens=0 if growth is Growth.FULL else kind.span_tokens,
        quantizable=not model.listed_caches,
    )
    yield from _indexer(kind.index_dim, model)


def _latent(kind: LatentAttention, model: MlxModel) -> Iterator[Holding]:
    """The latent as key and the rotary part as value; or all heads."""
    widths = (
        {"heads": kind.heads, "key_dim": kind.key_dim, "value_dim": kind.value_dim}
        if model.full_heads
        else {"heads": 1, "key_dim": kind.latent_dim, "value_dim": kind.rope_dim}
    )
    queries = widths["heads"]
    yield Slot(growth=Growth.FULL, queries=queries, quantizable=not model.listed_caches, **widths)
    yield from _indexer(kind.index_dim, model)


def _indexer(width: int, model: MlxModel) -> Iterator[Holding]:
    if width:
        values = width if model.index_values else 0
        yield Slot(
            growth=Growth.FULL,
            heads=1,
            key_dim=width,
            value_dim=values,
            queries=1,
            quantizable=not model.listed_caches,
        )


def _states(kind: Recurrent, model: MlxModel, item_bytes: int) -> Iterator[Holding]:
    f32 = kind.cell in _F32_CELLS or (kind.cell is Cell.LIGHTNING and model.f32_lightning)
    if kind.conv_elements:
        yield Fixed(name="conv", elements=kind.conv_elements, item_bytes=item_bytes)
    if kind.state_elements:
        size = 4 if f32 else item_bytes
        yield Fixed(name="state", elements=kind.state_elements, item_bytes=size)


def _limited(one: Holding, model: MlxModel, setup: MlxSetup) -> Holding:
    """--max-kv-size: rotating caches everywhere, in models without a make_cache of their own."""
    if isinstance(one, Fixed) or model.own_cache or setup.max_kv_size is None:
        return one
    return Slot(
        growth=Growth.ROTATING,
        heads=one.heads,
        key_dim=one.key_dim,
        value_dim=one.value_dim,
        queries=one.queries,
        tokens=setup.max_kv_size,
        keep=MAX_KV_SIZE_KEEP,
    )
