"""Layers and options -> the caches that mlx-lm makes for them, and their bytes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from edgekit.bill.types import Component, Load, MemoryLine
from edgekit.engines.mlx.models import MlxModel
from edgekit.engines.mlx.quantization import GROUP_SIZES, WEIGHT_BITS, PackingMode
from edgekit.engines.mlx.setups import MAX_KV_SIZE_KEEP, MlxSetup
from edgekit.errors import RefusedError, UsageError
from edgekit.machine.types import DEVICE
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
from edgekit.units import Basis

BLOCK = 256  # KVCache.step
UNKNOWN_CONTEXT = 32_768  # where no file states the context length
# Recurrences with an f32 state whatever the type of the weights (ssm.py, gated_delta.py).
_F32_CELLS = frozenset({Cell.MAMBA2, Cell.GATED_DELTA, Cell.KIMI_DELTA})
_MINIMUM = (
    ("max_tokens", 0),
    ("max_kv_size", 1),
    ("kv_bits", 1),
    ("kv_group_size", 1),
    ("quantized_kv_start", 0),
    ("prefill_step_size", 1),
)


class Growth(enum.Enum):
    """The cache classes of cache.py."""

    FULL = "KVCache"
    ROTATING = "RotatingKVCache"
    CHUNKED = "ChunkedKVCache"


_GROWTHS = {
    Span.ALL: Growth.FULL,
    Span.WINDOW: Growth.ROTATING,
    Span.CHUNK: Growth.CHUNKED,
}
_COMPONENTS = {
    Growth.FULL: Component.KV_CACHE,
    Growth.ROTATING: Component.SLIDING_KV_CACHE,
    Growth.CHUNKED: Component.SLIDING_KV_CACHE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSession:
    """The tokens of a prompt and its answer, and how many of the prompt are computed at once."""

    prompt_tokens: int
    new_tokens: int
    step: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens

    @property
    def full_chunks(self) -> int:
        return max(self.prompt_tokens - 1, 0) // self.step

    @property
    def last_chunk(self) -> int:
        return max(self.prompt_tokens - 1, 0) % self.step

    @property
    def singles(self) -> int:
        """Tokens computed one at a time: the last of the prompt and the new ones."""
        return min(self.prompt_tokens, 1) + self.new_tokens

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """For the last full chunk and for the rest after it: its tokens, and all tokens up to its end.

        No other chunk needs more memory.
        """
        full_tokens = self.full_chunks * self.step
        pairs = ((self.step, full_tokens), (self.last_chunk, full_tokens + self.last_chunk))
        return tuple((size, end) for size, end in pairs if size and end) or ((1, 1),)

    @property
    def widest_chunk(self) -> int:
        return self.step if self.full_chunks else max(self.last_chunk, 1)


def read_session(geometry: ModelGeometry, load: Load, setup: MlxSetup) -> MlxSession:
    """A session that fills the context: the last `max_tokens` are new, the rest is prompt. Raises UsageError."""
    for name, minimum in _MINIMUM:
        value = getattr(setup, name)
        if value is not None and value < minimum:
            raise UsageError(f"{name} must be at least {minimum} (got {value})")
    if load.cache_k is not None or load.cache_v is not None:
        raise UsageError("mlx-lm has no cache types: use kv_bits to quantise its cache")
    context = load.context_tokens
    if context is None:
        context = max(geometry.native_context or UNKNOWN_CONTEXT, setup.max_tokens + 1)
    if context <= setup.max_tokens:
        raise UsageError(
            f"a context of {context} tokens leaves no room for a prompt before "
            f"{setup.max_tokens} new tokens"
        )
    if load.sequences is not None and load.sequences < 1:
        raise UsageError(f"{load.sequences} sequences")
    return MlxSession(
        prompt_tokens=context - setup.max_tokens,
        new_tokens=setup.max_tokens,
        step=setup.prefill_step_size,
    )


def full_length(session: MlxSession, chunk: int | None = None) -> int:
    """Rows of a KVCache or QuantizedKVCache at the end of the session.

    With `chunk`, rows of a ChunkedKVCache, which is cut to the last `chunk` tokens before each call.
    """
    used, rows = _grow_by_chunks(0, 0, session.step, session.full_chunks, keep=chunk)
    used, rows = _grow_by_chunks(used, rows, session.last_chunk, 1, keep=chunk)
    if chunk is not None and session.singles > max(chunk - used + 1, 0):
        return chunk + BLOCK  # cut to the chunk, then grown by a block for the next token
    return rows + _round_up_to_blocks(max(used + session.singles - rows, 0))


def _grow_by_chunks(
    used: int, rows: int, size: int, count: int, *, keep: int | None
) -> tuple[int, int]:
    """Used and allocated rows of a cache after `count` further chunks of `size` tokens.

    A cache that is too small drops its unused rows, unless the used ones end at a block, and grows by whole blocks. The
    pattern repeats after a few hundred chunks at most, so the remaining repeats are multiplied out.
    """
    first_occurrence: dict[tuple[int, int], tuple[int, int]] = {}
    computed = 0
    while size and computed < count:
        if keep is not None and used > keep:
            used = rows = keep
        if used + size > rows:
            rows = (used if used % BLOCK else rows) + _round_up_to_blocks(size)
        used, computed = used + size, computed + 1
        state = (used % BLOCK if keep is None else used, rows - used)
        if state in first_occurrence:
            computed_then, used_then = first_occurrence.pop(state)
            period = computed - computed_then
            repeats = (count - computed) // period
            growth = repeats * (used - used_then)
            used, rows = used + growth, rows + growth
            computed += repeats * period
        else:
            first_occurrence[state] = (computed, used)
    return used, rows


def _round_up_to_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK


def rotating_length(session: MlxSession, window: int, keep: int = 0) -> int:
    """Rows of a RotatingKVCache: chunks are appended to the last window - 1 rows, single tokens replace old rows."""
    rows, singles = _rows_after_prompt(session, max(window - 1, keep))
    if not singles:
        return rows
    return min(max(window, keep), rows + _round_up_to_blocks(singles))


def widest_rotating(session: MlxSession, window: int) -> int:
    """The most rows of a RotatingKVCache while a chunk of the prompt is computed."""
    full = _rows_after_appending(0, session.step, session.full_chunks, window - 1)
    return max(full, _rows_after_prompt(session, window - 1)[0], rotating_length(session, window))


def _rows_after_prompt(session: MlxSession, keep: int) -> tuple[int, int]:
    """Rows after the prompt's chunks, and the number of single tokens that follow. A chunk of one token is a single."""
    if session.step == 1:
        return 0, session.tokens
    rows = _rows_after_appending(0, session.step, session.full_chunks, keep)
    if session.last_chunk == 1:
        return rows, session.singles + 1
    return _rows_after_appending(rows, session.last_chunk, 1, keep), session.singles


def _rows_after_appending(rows: int, size: int, count: int, keep: int) -> int:
    """Rows after `count` chunks, each appended to the last `keep` rows before it."""
    if not count or not size:
        return rows
    return min(rows + size * (count - 1), keep) + size


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCache:
    """One cache of one layer: keys and values of some heads in every row."""

    growth: Growth
    heads: int
    key_dim: int
    value_dim: int
    queries: int = 0  # heads that read it
    tokens: int = 0  # the window or the chunk
    keep: int = 0
    quantizable: bool = True

    def rows(self, session: MlxSession) -> int:
        """Rows at the end of the session."""
        if self.growth is Growth.ROTATING:
            return rotating_length(session, self.tokens, self.keep)
        return full_length(session, self.tokens if self.growth is Growth.CHUNKED else None)

    def transient_rows(self, session: MlxSession) -> int:
        """Rows needed only while a chunk of the prompt is computed, in addition to those at the end of the session."""
        if self.growth is not Growth.ROTATING:
            return 0
        return max(widest_rotating(session, self.tokens) - self.rows(session), 0)

    def is_quantized(self, session: MlxSession, setup: MlxSetup) -> bool:
        """A KVCache is quantised after the step that brings it to --quantized-kv-start tokens."""
        reached = session.tokens >= setup.quantized_kv_start and session.tokens > 0
        is_full = self.growth is Growth.FULL
        return setup.kv_bits is not None and reached and self.quantizable and is_full


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """A recurrent state or the tail of a convolution: its size does not depend on the session."""

    name: str
    elements: int
    item_bytes: int


LayerCache = TokenCache | StateCache


def layer_caches(
    geometry: ModelGeometry, model: MlxModel, setup: MlxSetup, item_bytes: int, *, listed: bool
) -> tuple[tuple[int, LayerCache], ...]:
    """Every cache with the index of its layer. `listed`: config.json lists the types of its layers."""
    caches_by_layer: list[tuple[int, LayerCache]] = []
    caches_by_kind: dict[LayerKind, tuple[LayerCache, ...]] = {}
    rotates = model.rotates and (listed or not model.rotates_as_listed)
    # --max-kv-size makes every cache rotate in models without their own make_cache
    limit = None if model.own_cache else setup.max_kv_size
    for layer in geometry.layers:
        if layer.mixer not in caches_by_kind:
            caches = tuple(_caches_of(layer.mixer, model, item_bytes, rotates=rotates))
            if limit is not None:
                caches = tuple(_limited(cache, limit) for cache in caches)
            caches_by_kind[layer.mixer] = caches
        caches_by_layer += [(layer.index, cache) for cache in caches_by_kind[layer.mixer]]
    return tuple(caches_by_layer)


def _limited(cache: LayerCache, tokens: int) -> LayerCache:
    """The cache with --max-kv-size: it rotates within that many tokens. A recurrent state stays as it is."""
    if isinstance(cache, StateCache):
        return cache
    return replace(
        cache, growth=Growth.ROTATING, tokens=tokens, keep=MAX_KV_SIZE_KEEP, quantizable=True
    )


def _caches_of(
    kind: LayerKind, model: MlxModel, item_bytes: int, *, rotates: bool
) -> Iterator[LayerCache]:
    """The caches of one layer: of its attention, its recurrence and its indexer."""
    quantizable, index_dim = not model.listed_caches, 0
    match kind:
        case Attention():
            growth, index_dim = _GROWTHS[kind.span] if rotates else Growth.FULL, kind.index_dim
            yield TokenCache(
                growth=growth,
                heads=kind.kv_heads,
                key_dim=kind.key_dim,
                value_dim=kind.value_dim,
                queries=kind.heads,
                tokens=0 if growth is Growth.FULL else kind.span_tokens,
                quantizable=quantizable,
            )
        case LatentAttention():  # the latent as key and the rotary part as value, or all heads
            index_dim, heads = kind.index_dim, kind.heads if model.full_heads else 1
            yield TokenCache(
                growth=Growth.FULL,
                heads=heads,
                key_dim=kind.key_dim if model.full_heads else kind.latent_dim,
                value_dim=kind.value_dim if model.full_heads else kind.rope_dim,
                queries=heads,
                quantizable=quantizable,
            )
        case Recurrent():
            is_f32 = kind.cell in _F32_CELLS or (
                kind.cell is Cell.LIGHTNING and model.f32_lightning
            )
            if kind.conv_elements:
                yield StateCache(name="conv", elements=kind.conv_elements, item_bytes=item_bytes)
            if kind.state_elements:
                size = 4 if is_f32 else item_bytes
                yield StateCache(name="state", elements=kind.state_elements, item_bytes=size)
        case HybridLayer():
            yield from _caches_of(kind.recurrent, model, item_bytes, rotates=rotates)
            yield from _caches_of(kind.attention, model, item_bytes, rotates=rotates)
        case SharedCache() if not model.shares:
            yield from _caches_of(kind.attention, model, item_bytes, rotates=rotates)
    if index_dim:
        yield TokenCache(
            growth=Growth.FULL,
            heads=1,
            key_dim=index_dim,
            value_dim=index_dim if model.index_values else 0,
            queries=1,
            quantizable=quantizable,
        )


def check_quantized(
    caches: Iterable[LayerCache], model: MlxModel, session: MlxSession, setup: MlxSetup
) -> None:
    """Raises RefusedError with mlx-lm's own error if it cannot quantise these caches or read them afterwards."""
    bits, group = setup.kv_bits, setup.kv_group_size
    start = max(setup.quantized_kv_start, 1)
    if bits is None or session.tokens < start:
        return
    for cache in caches:
        if isinstance(cache, StateCache) or not cache.quantizable or cache.growth is Growth.CHUNKED:
            continue
        if cache.growth is Growth.ROTATING:
            raise _refusal("NotImplementedError: RotatingKVCache Quantization NYI")
        if group not in GROUP_SIZES[PackingMode.AFFINE]:
            raise _refusal(f"group size {group} is not supported: use 32, 64 or 128")
        if bits not in WEIGHT_BITS:
            raise _refusal(f"{bits} bits are not supported: use 1, 2, 3, 4, 5, 6 or 8")
        for width in (cache.key_dim, cache.value_dim):
            if width % group:
                raise _refusal(
                    f"the last dimension of the cache ({width}) must be divisible by the "
                    f"group size {group}"
                )
        if session.tokens - 1 < start:
            continue  # quantised by the last token: it is never read
        if model.fails_quantized:
            raise _refusal(model.fails_quantized)
        if (
            cache.queries > cache.heads and cache.key_dim != cache.value_dim
        ):  # base.py:112, mx.reshape
            raise _refusal("a quantised cache needs keys and values of the same width")


def _refusal(reason: str) -> RefusedError:
    return RefusedError(f"mlx-lm with kv_bits: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The settings that decide the size of every cache."""

    session: MlxSession
    setup: MlxSetup
    item_bytes: int
    sequences: int


def cache_lines(
    caches: Iterable[tuple[int, LayerCache]], settings: CacheSettings, geometry: ModelGeometry
) -> tuple[MemoryLine, ...]:
    """One line per cache of a layer, as certain as the geometry."""
    times = f" x {settings.sequences} sequences" if settings.sequences > 1 else ""
    doubt = "" if geometry.basis is Basis.EXACT else f"; {geometry.because}"
    sized: dict[int, tuple[Component, int, str]] = {}  # by identity: layers share a few caches
    lines = []
    for layer, cache in caches:
        if id(cache) not in sized:
            sized[id(cache)] = _cache_size(cache, settings)
        component, size, because = sized[id(cache)]
        lines.append(
            MemoryLine(
                component=component,
                size_bytes=size * settings.sequences,
                pool=DEVICE,
                layer=layer,
                basis=geometry.basis,
                because=because + times + doubt,
            )
        )
    return tuple(lines)


def _cache_size(cache: LayerCache, settings: CacheSettings) -> tuple[Component, int, str]:
    """The component of a cache, its bytes for one sequence, and their explanation."""
    if isinstance(cache, StateCache):
        because = f"{cache.name}: {cache.elements} x {cache.item_bytes} bytes"
        return Component.STATE, cache.elements * cache.item_bytes, because
    session, setup, item_bytes = settings.session, settings.setup, settings.item_bytes
    rows, widths = cache.rows(session), cache.key_dim + cache.value_dim
    heads = f"{cache.heads} heads x ({cache.key_dim} + {cache.value_dim})"
    if cache.is_quantized(session, setup):
        bits, group = setup.kv_bits or 0, setup.kv_group_size
        head = widths * bits // 8 + widths // group * 2 * item_bytes  # a scale and bias per group
        form = f"{heads} at {bits} bits, one scale and bias per {group}"
    else:
        head, form = widths * item_bytes, f"{heads} x {item_bytes}"
    row = cache.heads * head
    span = f" of {cache.tokens}" if cache.tokens else ""
    because = f"{cache.growth.value}{span}: {rows} rows x {row} bytes ({form})"
    return _COMPONENTS[cache.growth], rows * row, because
