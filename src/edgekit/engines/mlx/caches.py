"""Layers and options -> the caches mlx-lm makes for them, and their bytes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgekit.basis import Basis
from edgekit.bill.types import Component, Load, MemoryLine
from edgekit.engines.mlx.models import MlxModel
from edgekit.engines.mlx.quantization import GROUP_SIZES, WEIGHT_BITS
from edgekit.engines.mlx.types import MAX_KV_SIZE_KEEP, MlxSetup, PackingMode
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


BLOCK = 256  # KVCache.step


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSession:
    """What was put into the caches."""

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
        """Tokens that come alone: the last of the prompt and the new ones."""
        return min(self.prompt_tokens, 1) + self.new_tokens

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """(tokens, tokens up to its end) of the last full chunk and of the rest: no other is larger."""
        ends = self.full_chunks * self.step
        both = ((self.step, ends), (self.last_chunk, ends + self.last_chunk))
        return tuple((size, end) for size, end in both if size and end) or ((1, 1),)

    @property
    def widest_chunk(self) -> int:
        return self.step if self.full_chunks else max(self.last_chunk, 1)


def full_length(session: MlxSession) -> int:
    """KVCache and QuantizedKVCache: rows held."""
    used, rows = _chunks(0, 0, session.step, session.full_chunks)
    used, rows = _chunks(used, rows, session.last_chunk, 1)
    return _singles(used, rows, session.singles)


def chunked_length(session: MlxSession, chunk: int) -> int:
    """ChunkedKVCache: a KVCache that is cut to the last `chunk` tokens before each call."""
    used, rows = _chunks(0, 0, session.step, session.full_chunks, keep=chunk)
    used, rows = _chunks(used, rows, session.last_chunk, 1, keep=chunk)
    if session.singles > max(chunk - used + 1, 0):
        return chunk + BLOCK  # cut to the chunk, then a block for one more
    return _singles(used, rows, session.singles)


def rotating_length(session: MlxSession, window: int, keep: int = 0) -> int:
    """RotatingKVCache: chunks are appended to the last window - 1 rows, single tokens overwrite."""
    rows, singles = _after_prompt(session, max(window - 1, keep))
    return min(max(window, keep), rows + _blocks(singles)) if singles else rows


def widest_rotating(session: MlxSession, window: int) -> int:
    """The most rows that a rotating cache holds while a chunk goes through."""
    full = _appended(0, session.step, session.full_chunks, window - 1)
    return max(full, _after_prompt(session, window - 1)[0], rotating_length(session, window))


def _after_prompt(session: MlxSession, kept: int) -> tuple[int, int]:
    """Rows after the chunks, and tokens that follow alone: a chunk of one token is one of these."""
    if session.step == 1:
        return 0, session.tokens
    rows = _appended(0, session.step, session.full_chunks, kept)
    if session.last_chunk == 1:
        return rows, session.singles + 1
    return _appended(rows, session.last_chunk, 1, kept), session.singles


def _appended(rows: int, size: int, count: int, kept: int) -> int:
    """Rows after `count` chunks, each behind the last `kept` rows of those before."""
    if not count or not size:
        return rows
    return min(rows + size * (count - 1), kept) + size


def _chunks(
    used: int, rows: int, size: int, count: int, *, keep: int | None = None
) -> tuple[int, int]:
    """Used and held rows after `count` chunks. After a few hundred at most they repeat themselves."""
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    done = 0
    while size and done < count:
        if keep is not None and used > keep:
            used = rows = keep
        rows = _grown(used, rows, size)
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


def _grown(used: int, rows: int, size: int) -> int:
    """Rows with room for `size` more. What is unused is cut off, unless a block ends just there."""
    if used + size <= rows:
        return rows
    return (used if used % BLOCK else rows) + _blocks(size)


def _singles(used: int, rows: int, count: int) -> int:
    return rows + _blocks(max(used + count - rows, 0))


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK) * BLOCK


UNKNOWN_CONTEXT = 32_768  # a window that no file states

_LEAST = (
    ("max_tokens", 0),
    ("max_kv_size", 1),
    ("kv_bits", 1),
    ("kv_group_size", 1),
    ("quantized_kv_start", 0),
    ("prefill_step_size", 1),
)


def read_session(geometry: ModelGeometry, load: Load, setup: MlxSetup) -> MlxSession:
    """A session that has been filled to the context: its last `max_tokens` are new, the rest is prompt."""
    for name, least in _LEAST:
        value = getattr(setup, name)
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least} (got {value})")
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


def is_quantized(one: Slot, session: MlxSession, setup: MlxSetup) -> bool:
    """A KVCache becomes a quantised one after the step that brings it to --quantized-kv-start tokens."""
    reached = session.tokens >= setup.quantized_kv_start and session.tokens > 0
    return setup.kv_bits is not None and reached and one.quantizable and one.growth is Growth.FULL


def check(
    holdings: Iterable[Holding], model: MlxModel, session: MlxSession, setup: MlxSetup
) -> None:
    """Raises RefusedError with mlx-lm's own last words."""
    if setup.kv_bits is None or session.tokens < max(setup.quantized_kv_start, 1):
        return
    for one in holdings:
        if isinstance(one, Slot) and one.quantizable:
            _check_slot(one, setup)
            _check_use(one, model, session, setup)


def _check_slot(one: Slot, setup: MlxSetup) -> None:
    if one.growth is Growth.ROTATING:
        raise _refused("NotImplementedError: RotatingKVCache Quantization NYI")
    if one.growth is Growth.CHUNKED:
        return
    bits, group = setup.kv_bits, setup.kv_group_size
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


def _check_use(one: Slot, model: MlxModel, session: MlxSession, setup: MlxSetup) -> None:
    """The step after: a cache quantised by the last token is never read."""
    if one.growth is not Growth.FULL or session.tokens - 1 < max(setup.quantized_kv_start, 1):
        return
    if model.fails_quantized:
        raise _refused(model.fails_quantized)
    if one.queries > one.heads and one.key_dim != one.value_dim:  # base.py:112, mx.reshape
        raise _refused("a quantised cache needs keys and values of the same width")


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"mlx-lm with kv_bits: {reason}")


_COMPONENTS = {
    Growth.FULL: Component.KV_CACHE,
    Growth.ROTATING: Component.SLIDING_KV_CACHE,
    Growth.CHUNKED: Component.SLIDING_KV_CACHE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All that the size of a cache depends on beside the cache itself."""

    session: MlxSession
    setup: MlxSetup
    item_bytes: int
    sequences: int


def cache_lines(
    holdings: Iterable[tuple[int, Holding]], prices: Prices, geometry: ModelGeometry
) -> tuple[MemoryLine, ...]:
    """As well known as the geometry is."""
    priced: dict[int, tuple[Component, int, str]] = {}  # layers share a few holdings
    unsure = "" if geometry.basis is Basis.EXACT else f"; {geometry.because}"
    lines = []
    for layer, one in holdings:
        price = priced.get(id(one))
        if price is None:
            price = priced[id(one)] = _price(one, prices, unsure)
        lines.append(
            MemoryLine(
                component=price[0],
                size_bytes=price[1],
                pool=DEVICE,
                layer=layer,
                basis=geometry.basis,
                because=price[2],
            )
        )
    return tuple(lines)


def _price(one: Holding, prices: Prices, unsure: str) -> tuple[Component, int, str]:
    times = f" x {prices.sequences} sequences" if prices.sequences > 1 else ""
    component, size, because = _fixed(one) if isinstance(one, Fixed) else _slot(one, prices)
    return component, size * prices.sequences, because + times + unsure


def _fixed(one: Fixed) -> tuple[Component, int, str]:
    size = one.elements * one.item_bytes
    return Component.STATE, size, f"{one.name}: {one.elements} x {one.item_bytes} bytes"


def _slot(one: Slot, prices: Prices) -> tuple[Component, int, str]:
    rows = one.rows(prices.session)
    row, packed = _row(one, prices)
    because = f"{one.growth.value}{_span(one)}: {rows} rows x {row} bytes ({packed})"
    return _COMPONENTS[one.growth], rows * row, because


def _span(one: Slot) -> str:
    return f" of {one.tokens}" if one.tokens else ""


def _row(one: Slot, prices: Prices) -> tuple[int, str]:
    """Bytes of one token's keys and values, and how they come about."""
    setup, item_bytes = prices.setup, prices.item_bytes
    widths = one.key_dim + one.value_dim
    heads = f"{one.heads} heads x ({one.key_dim} + {one.value_dim})"
    if not is_quantized(one, prices.session, setup):
        return one.heads * widths * item_bytes, f"{heads} x {item_bytes}"
    bits, group = setup.kv_bits or 0, setup.kv_group_size
    packed = widths * bits // 8 + widths // group * 2 * item_bytes  # a scale and a bias per group
    return one.heads * packed, f"{heads} at {bits} bits, one scale and bias per {group}"
