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
    """The tokens that went through the model, and how many at once."""

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
        """(tokens, tokens up to its end) of the last full chunk and of the rest: no other chunk is larger."""
        ends = self.full_chunks * self.step
        both = ((self.step, ends), (self.last_chunk, ends + self.last_chunk))
        return tuple((size, end) for size, end in both if size and end) or ((1, 1),)

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

    `chunk`: of a ChunkedKVCache, which is cut to the last `chunk` tokens before each call.
    """
    used, rows = _after_chunks(0, 0, session.step, session.full_chunks, keep=chunk)
    used, rows = _after_chunks(used, rows, session.last_chunk, 1, keep=chunk)
    if chunk is not None and session.singles > max(chunk - used + 1, 0):
        return chunk + BLOCK  # cut to the chunk, then a block for one more
    return rows + _whole_blocks(max(used + session.singles - rows, 0))


def _after_chunks(
    used: int, rows: int, size: int, count: int, *, keep: int | None
) -> tuple[int, int]:
    """(used, allocated) rows after `count` chunks.

    A cache that is too small drops its unused rows, unless they end at a block, and grows by whole blocks. The pattern
    repeats after a few hundred chunks at most, so the rest is multiplied out.
    """
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    done = 0
    while size and done < count:
        if keep is not None and used > keep:
            used = rows = keep
        if used + size > rows:
            rows = (used if used % BLOCK else rows) + _whole_blocks(size)
        used, done = used + size, done + 1
        state = (used % BLOCK if keep is None else used, rows - used)
        if state in seen:
            done_then, used_then = seen.pop(state)
            turns = (count - done) // (done - done_then)
            longer = turns * (used - used_then)
            used, rows, done = used + longer, rows + longer, done + turns * (done - done_then)
        else:
            seen[state] = (done, used)
    return used, rows


def _whole_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK


def rotating_length(session: MlxSession, window: int, keep: int = 0) -> int:
    """Rows of a RotatingKVCache: a chunk is appended to the last window - 1 rows, single tokens overwrite old ones."""
    rows, singles = _rotated_prompt(session, max(window - 1, keep))
    return min(max(window, keep), rows + _whole_blocks(singles)) if singles else rows


def widest_rotating(session: MlxSession, window: int) -> int:
    """The most rows of a RotatingKVCache while a chunk of the prompt is computed."""
    full = _appended(0, session.step, session.full_chunks, window - 1)
    return max(full, _rotated_prompt(session, window - 1)[0], rotating_length(session, window))


def _rotated_prompt(session: MlxSession, keep: int) -> tuple[int, int]:
    """Rows after the chunks, and the number of single tokens after them: a chunk of one token is a single token."""
    if session.step == 1:
        return 0, session.tokens
    rows = _appended(0, session.step, session.full_chunks, keep)
    if session.last_chunk == 1:
        return rows, session.singles + 1
    return _appended(rows, session.last_chunk, 1, keep), session.singles


def _appended(rows: int, size: int, count: int, keep: int) -> int:
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
        if self.growth is Growth.ROTATING:
            return rotating_length(session, self.tokens, self.keep)
        return full_length(session, self.tokens if self.growth is Growth.CHUNKED else None)

    def transient_rows(self, session: MlxSession) -> int:
        """Rows that a chunk of the prompt needs for a while, beyond those at the end."""
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
    """(layer, cache) for every cache of every layer. `listed`: config.json lists the types of its layers."""
    found: list[tuple[int, LayerCache]] = []
    made: dict[LayerKind, tuple[LayerCache, ...]] = {}
    rotates = model.rotates and (listed or not model.rotates_as_listed)
    # --max-kv-size makes every cache rotate in models without their own make_cache
    limit = None if model.own_cache else setup.max_kv_size
    for layer in geometry.layers:
        if layer.mixer not in made:
            caches = tuple(_caches_of(layer.mixer, model, item_bytes, rotates=rotates))
            if limit is not None:
                caches = tuple(
                    one
                    if isinstance(one, StateCache)
                    else replace(
                        one,
                        growth=Growth.ROTATING,
                        tokens=limit,
                        keep=MAX_KV_SIZE_KEEP,
                        quantizable=True,
                    )
                    for one in caches
                )
            made[layer.mixer] = caches
        found += [(layer.index, one) for one in made[layer.mixer]]
    return tuple(found)


def _caches_of(
    kind: LayerKind, model: MlxModel, item_bytes: int, *, rotates: bool
) -> Iterator[LayerCache]:
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
            f32 = kind.cell in _F32_CELLS or (kind.cell is Cell.LIGHTNING and model.f32_lightning)
            if kind.conv_elements:
                yield StateCache(name="conv", elements=kind.conv_elements, item_bytes=item_bytes)
            if kind.state_elements:
                size = 4 if f32 else item_bytes
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
    for one in caches:
        if isinstance(one, StateCache) or not one.quantizable or one.growth is Growth.CHUNKED:
            continue
        if one.growth is Growth.ROTATING:
            raise _refused("NotImplementedError: RotatingKVCache Quantization NYI")
        if group not in GROUP_SIZES[PackingMode.AFFINE]:
            raise _refused(f"group size {group} is not supported: use 32, 64 or 128")
        if bits not in WEIGHT_BITS:
            raise _refused(f"{bits} bits are not supported: use 1, 2, 3, 4, 5, 6 or 8")
        for width in (one.key_dim, one.value_dim):
            if width % group:
                raise _refused(
                    f"the last dimension of the cache ({width}) must be divisible by the "
                    f"group size {group}"
                )
        if session.tokens - 1 < start:
            continue  # quantised by the last token: it is never read
        if model.fails_quantized:
            raise _refused(model.fails_quantized)
        if one.queries > one.heads and one.key_dim != one.value_dim:  # base.py:112, mx.reshape
            raise _refused("a quantised cache needs keys and values of the same width")


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"mlx-lm with kv_bits: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """What the size of every cache depends on."""

    session: MlxSession
    setup: MlxSetup
    item_bytes: int
    sequences: int


def cache_lines(
    caches: Iterable[tuple[int, LayerCache]], settings: CacheSettings, geometry: ModelGeometry
) -> tuple[MemoryLine, ...]:
    """As certain as the geometry."""
    times = f" x {settings.sequences} sequences" if settings.sequences > 1 else ""
    unsure = "" if geometry.basis is Basis.EXACT else f"; {geometry.because}"
    sized: dict[int, tuple[Component, int, str]] = {}  # by identity: layers share a few caches
    lines = []
    for layer, one in caches:
        if id(one) not in sized:
            sized[id(one)] = _size(one, settings)
        component, size, because = sized[id(one)]
        lines.append(
            MemoryLine(
                component=component,
                size_bytes=size * settings.sequences,
                pool=DEVICE,
                layer=layer,
                basis=geometry.basis,
                because=because + times + unsure,
            )
        )
    return tuple(lines)


def _size(one: LayerCache, settings: CacheSettings) -> tuple[Component, int, str]:
    """Component, bytes of one sequence and their explanation."""
    if isinstance(one, StateCache):
        because = f"{one.name}: {one.elements} x {one.item_bytes} bytes"
        return Component.STATE, one.elements * one.item_bytes, because
    session, setup, item_bytes = settings.session, settings.setup, settings.item_bytes
    rows, widths = one.rows(session), one.key_dim + one.value_dim
    heads = f"{one.heads} heads x ({one.key_dim} + {one.value_dim})"
    if one.is_quantized(session, setup):
        bits, group = setup.kv_bits or 0, setup.kv_group_size
        head = widths * bits // 8 + widths // group * 2 * item_bytes  # a scale and bias per group
        form = f"{heads} at {bits} bits, one scale and bias per {group}"
    else:
        head, form = widths * item_bytes, f"{heads} x {item_bytes}"
    row = one.heads * head
    span = f" of {one.tokens}" if one.tokens else ""
    because = f"{one.growth.value}{span}: {rows} rows x {row} bytes ({form})"
    return _COMPONENTS[one.growth], rows * row, because
