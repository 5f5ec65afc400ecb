"""Layers and options -> the caches that mlx-lm makes for them, and their bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
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
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    Recurrent,
    SharedCache,
    Span,
)
from edgekit.units import Basis

BLOCK = 256  # KVCache.step: a KVCache grows by blocks of this many rows
UNKNOWN_CONTEXT = 32_768  # where no file states the context length
# Recurrences with an f32 state whatever the type of the weights (ssm.py, gated_delta.py).
_F32_CELLS = frozenset({Cell.MAMBA2, Cell.GATED_DELTA, Cell.KIMI_DELTA})
_LEAST_VALUES = (  # of the setup's fields
    ("max_tokens", 0),
    ("max_kv_size", 1),
    ("kv_bits", 1),
    ("kv_group_size", 1),
    ("quantized_kv_start", 0),
    ("prefill_step_size", 1),
)


_CLASSES = {  # of cache.py
    Span.ALL: "KVCache",
    Span.WINDOW: "RotatingKVCache",
    Span.CHUNK: "ChunkedKVCache",
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
    for name, minimum in _LEAST_VALUES:
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

    span: Span
    heads: int
    key_dim: int
    value_dim: int
    query_heads: int = 0  # that read it
    span_tokens: int = 0  # of the window or the chunk
    sink_tokens: int = 0  # at the start of the sequence, which a rotating cache never drops
    quantizable: bool = True

    @property
    def row_numbers(self) -> int:
        """Numbers in one row."""
        return self.heads * (self.key_dim + self.value_dim)

    def rows(self, session: MlxSession) -> int:
        """Rows at the end of the session."""
        if self.span is Span.WINDOW:
            return rotating_length(session, self.span_tokens, self.sink_tokens)
        return full_length(session, self.span_tokens if self.span is Span.CHUNK else None)

    def transient_rows(self, session: MlxSession) -> int:
        """Rows needed only while a chunk of the prompt is computed, in addition to those at the end of the session."""
        if self.span is not Span.WINDOW:
            return 0
        return max(widest_rotating(session, self.span_tokens) - self.rows(session), 0)


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
    rotates = model.rotates and (listed or not model.rotates_as_listed)
    caches_of: dict[LayerKind, list[LayerCache]] = {}
    for kind in dict.fromkeys(layer.mixer for layer in geometry.layers):
        caches_of[kind] = list(_caches_of(kind, model, item_bytes, rotates=rotates))
        # --max-kv-size makes every cache rotate in models without their own make_cache
        if setup.max_kv_size is not None and not model.own_cache:
            caches_of[kind] = [
                replace(
                    cache,
                    span=Span.WINDOW,
                    span_tokens=setup.max_kv_size,
                    sink_tokens=MAX_KV_SIZE_KEEP,
                    quantizable=True,
                )
                if isinstance(cache, TokenCache)
                else cache
                for cache in caches_of[kind]
            ]
    return tuple(
        (layer.index, cache) for layer in geometry.layers for cache in caches_of[layer.mixer]
    )


def _caches_of(
    kind: LayerKind, model: MlxModel, item_bytes: int, *, rotates: bool
) -> Iterator[LayerCache]:
    """The caches of one layer: of its attention, its recurrence and its indexer."""
    quantizable, index_dim = not model.listed_caches, 0
    match kind:
        case Attention():
            index_dim = kind.index_dim
            yield TokenCache(
                span=kind.span if rotates else Span.ALL,
                heads=kind.kv_heads,
                key_dim=kind.key_dim,
                value_dim=kind.value_dim,
                query_heads=kind.heads,
                span_tokens=kind.span_tokens if rotates else 0,
                quantizable=quantizable,
            )
        case LatentAttention():  # the latent as key and the rotary part as value, or all heads
            index_dim, heads = kind.index_dim, kind.heads if model.full_heads else 1
            yield TokenCache(
                span=Span.ALL,
                heads=heads,
                key_dim=kind.key_dim if model.full_heads else kind.latent_dim,
                value_dim=kind.value_dim if model.full_heads else kind.rope_dim,
                query_heads=heads,
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
        case CompressedAttention():
            raise RefusedError(f"the caches of mlx-lm's {model.name} are not known yet")
        case SharedCache() if not model.shares:
            yield from _caches_of(kind.attention, model, item_bytes, rotates=rotates)
    if index_dim:
        yield TokenCache(
            span=Span.ALL,
            heads=1,
            key_dim=index_dim,
            value_dim=index_dim if model.index_values else 0,
            query_heads=1,
            quantizable=quantizable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The settings that decide the size of every cache."""

    session: MlxSession
    setup: MlxSetup
    item_bytes: int
    sequences: int

    @property
    def quantizes(self) -> bool:
        """A KVCache is quantised after the step that brings it to --quantized-kv-start tokens, if ever."""
        is_long_enough = self.session.tokens >= self.setup.quantized_kv_start
        return self.setup.kv_bits is not None and is_long_enough


def check_quantized(caches: Iterable[LayerCache], model: MlxModel, settings: CacheSettings) -> None:
    """Raises RefusedError with mlx-lm's own error if it cannot quantise these caches or read them afterwards."""
    if not settings.quantizes:
        return
    setup = settings.setup
    bits, group = setup.kv_bits, setup.kv_group_size
    # the last token quantises the caches, and no token reads them afterwards
    is_never_read = settings.session.tokens <= max(setup.quantized_kv_start, 1)
    for cache in caches:
        if isinstance(cache, StateCache) or not cache.quantizable or cache.span is Span.CHUNK:
            continue
        if cache.span is Span.WINDOW:
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
        if is_never_read:
            continue
        if model.fails_quantized:
            raise _refusal(model.fails_quantized)
        is_grouped = cache.query_heads > cache.heads
        if is_grouped and cache.key_dim != cache.value_dim:  # base.py:112, mx.reshape
            raise _refusal("a quantised cache needs keys and values of the same width")


def _refusal(reason: str) -> RefusedError:
    return RefusedError(f"mlx-lm with kv_bits: {reason}")


def cache_lines(
    caches: Collection[tuple[int, LayerCache]], settings: CacheSettings, geometry: ModelGeometry
) -> tuple[MemoryLine, ...]:
    """One line per cache of a layer, as certain as the geometry."""
    times = f" x {settings.sequences} sequences" if settings.sequences > 1 else ""
    doubt = "" if geometry.basis is Basis.EXACT else f"; {geometry.because}"
    sizes = {cache: _cache_size(cache, settings) for cache in {cache for _, cache in caches}}
    lines = []
    for layer, cache in caches:
        component, size, because = sizes[cache]
        line = MemoryLine(
            component=component,
            size_bytes=size * settings.sequences,
            pool=DEVICE,
            layer=layer,
            basis=geometry.basis,
            because=because + times + doubt,
        )
        lines.append(line)
    return tuple(lines)


def _cache_size(cache: LayerCache, settings: CacheSettings) -> tuple[Component, int, str]:
    """The component of a cache, its bytes for one sequence, and their explanation."""
    if isinstance(cache, StateCache):
        because = f"{cache.name}: {cache.elements} x {cache.item_bytes} bytes"
        return Component.STATE, cache.elements * cache.item_bytes, because
    rows, item_bytes = cache.rows(settings.session), settings.item_bytes
    heads = f"{cache.heads} heads x ({cache.key_dim} + {cache.value_dim})"
    if settings.quantizes and cache.quantizable and cache.span is Span.ALL:
        bits, group = settings.setup.kv_bits or 0, settings.setup.kv_group_size
        widths = cache.key_dim + cache.value_dim
        scale_bytes = widths // group * 2 * item_bytes  # a scale and a bias per group
        row_bytes = cache.heads * (widths * bits // 8 + scale_bytes)
        stored_as = f"{heads} at {bits} bits, one scale and bias per {group}"
    else:
        row_bytes = cache.row_numbers * item_bytes
        stored_as = f"{heads} x {item_bytes}"
    span = f" of {cache.span_tokens}" if cache.span_tokens else ""
    because = f"{_CLASSES[cache.span]}{span}: {rows} rows x {row_bytes} bytes ({stored_as})"
    component = Component.KV_CACHE if cache.span is Span.ALL else Component.SLIDING_KV_CACHE
    return component, rows * row_bytes, because
