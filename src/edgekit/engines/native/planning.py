"""A model, a load and a setup -> StreamPlan: what the built-in engine allocates, before it reads a weight.

All of it is arithmetic on the header, and none of it depends on the kernels that are installed: what the plan says is
what is allocated, once, and never exceeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgekit.bill.cache_types import F16, CacheType
from edgekit.bill.spill import PAGE_TOKENS, SPILL_FROM_TOKENS
from edgekit.bill.types import Load
from edgekit.engines.native.bill import bill_lines
from edgekit.engines.native.scratch import attend_floats, multiply_floats
from edgekit.engines.native.setup import (
    TILE_BYTES,
    USUAL_CHUNK_TOKENS,
    StreamPlan,
    StreamSetup,
)
from edgekit.engines.native.tensors import matrices, side_floats, vectors
from edgekit.engines.native.threads import check_threads, usual_threads
from edgekit.engines.native.types import NativeModel
from edgekit.engines.native.unpacked import check_types
from edgekit.errors import KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.formats.dtype import TensorType
from edgekit.formats.types import Tensor

CACHE_TYPES = ("f32", "f16", "q8_0")
MOST_TOKENS = 2**31 - 1  # places are counted in 32 bits by those who write files


def plan_stream(
    model: NativeModel,
    load: Load,
    setup: StreamSetup,
    *,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> StreamPlan:
    """Every number of a session, and its bill.

    Raises UsageError for numbers that make no sense, RefusedError for what the engine does not do, UnknownDtypeError
    for weights that nobody here unpacks, and KvSpillUnsupportedError for a cache that may not be divided.
    """
    by_rows = tuple(matrices(model))
    check_types((*by_rows, *vectors(model)))
    kinds = {(tensor.type, tensor.shape[1]) for tensor in by_rows}
    window = _window(model, load)
    _check_roll(window, setup)
    check_threads(setup.threads)
    chunk = _chunk(window, load, setup)
    keys, values = load.cache_k or F16, load.cache_v or F16
    for kind in (keys, values):
        _check_type(kind, model.dimensions.head_dim)
    plan = StreamPlan(
        model=model,
        threads=setup.threads or usual_threads(),
        context_tokens=window,
        chunk_tokens=chunk,
        sinks=setup.sinks,
        rolling=setup.rolling,
        cache_k=keys,
        cache_v=values,
        cells=_cells(model, window, full=load.full_window),
        resident_pages=_resident_pages(window, chunk, setup, spill_from_tokens)
        if _sees_all(model, window)
        else None,
        tile_bytes=max(TILE_BYTES, *(kind.row_bytes(columns) for kind, columns in kinds)),
        side_floats=side_floats(model, chunk),
        scratch_floats=_scratch_floats(model, chunk, kinds),
        kept=_kept(by_rows, setup.keep_bytes),
    )
    return replace(plan, lines=tuple(bill_lines(plan)))


def _window(model: NativeModel, load: Load) -> int:
    if (load.sequences or 1) != 1:
        raise RefusedError(
            f"{load.sequences} sequences: the built-in engine runs one at a time; use "
            "engine llama.cpp for several"
        )
    window = load.context_tokens or model.dimensions.context_tokens
    return _number("the context", window, "tokens")


def _number(what: str, value: int, unit: str, least: int = 1) -> int:
    if not least <= value <= MOST_TOKENS:
        raise UsageError(f"{what} must be {least:,} to {MOST_TOKENS:,} {unit} (got {value:,})")
    return value


def _check_roll(window: int, setup: StreamSetup) -> None:
    _number("the number of sinks", setup.sinks, "tokens", least=0)
    if setup.sinks and not setup.rolling:
        raise UsageError(
            "sinks only work with a rolling context: add --rolling, or leave out --sinks "
            f"{setup.sinks}"
        )
    if setup.sinks >= window:
        raise UsageError(
            f"{setup.sinks:,} sinks fill the whole context of {window:,} tokens: use fewer "
            "sinks or a longer context"
        )


def _chunk(window: int, load: Load, setup: StreamSetup) -> int:
    """No longer than what it is stored in."""
    wanted = USUAL_CHUNK_TOKENS if load.microbatch_tokens is None else load.microbatch_tokens
    return min(_number("the chunk", wanted, "tokens"), window - setup.sinks)


def _check_type(kind: CacheType, head_dim: int) -> None:
    if kind.name not in CACHE_TYPES:
        raise RefusedError(
            f"the built-in engine supports the cache types {', '.join(CACHE_TYPES)}, not "
            f"{kind.name}"
        )
    if not kind.divides(head_dim):
        raise RefusedError(
            f"{kind.name} stores blocks of {kind.block_elements} numbers, and the head "
            f"size {head_dim} is not a multiple of that: f16 is the smallest cache type "
            "for this model"
        )


def _cells(model: NativeModel, window: int, *, full: bool) -> tuple[int, ...]:
    return tuple(window if full or own is None else min(own, window) for own in model.windows)


def _sees_all(model: NativeModel, window: int) -> bool:
    """Whether any layer looks back over the whole window: only such a cache is divided."""
    return any(own is None or own >= window for own in model.windows)


def _resident_pages(
    window: int, chunk: int, setup: StreamSetup, spill_from_tokens: int
) -> int | None:
    """Whole pages, of which the newest tokens and the sinks never leave."""
    if setup.resident_tokens is None or setup.resident_tokens >= window:
        return None
    pages = (
        _number("the part of the cache in memory", setup.resident_tokens, "tokens", least=0)
        // PAGE_TOKENS
    )
    if window <= spill_from_tokens:
        raise KvSpillUnsupportedError(
            f"a window of {window:,} tokens must stay in memory: only windows of more "
            f"than {spill_from_tokens:,} can spill to disk. Use fewer tokens, or a "
            "smaller cache type"
        )
    # A chunk may begin in the middle of a page, so it touches one more than it fills.
    least = -(-setup.sinks // PAGE_TOKENS) + -(-chunk // PAGE_TOKENS) + 1
    if pages < least:
        raise KvSpillUnsupportedError(
            f"{setup.resident_tokens:,} tokens in memory are {pages} pages of "
            f"{PAGE_TOKENS}, but at least {least} pages are needed: "
            f"{least * PAGE_TOKENS:,} tokens"
        )
    return pages


def _scratch_floats(model: NativeModel, chunk: int, kinds: Iterable[tuple[TensorType, int]]) -> int:
    return max(
        attend_floats(chunk, model.dimensions.head_dim),
        *(multiply_floats(kind, columns) for kind, columns in kinds),
    )


def _kept(by_rows: Sequence[Tensor], keep_bytes: int | None) -> frozenset[str]:
    """Those that find room, in the order in which a token needs them. More room never keeps less."""
    if keep_bytes is None:
        return frozenset(tensor.name for tensor in by_rows)
    if keep_bytes < 0:
        raise UsageError(f"the memory for weights must not be negative (got {keep_bytes} bytes)")
    kept = []
    for tensor in by_rows:
        if tensor.size_bytes <= keep_bytes:
            kept.append(tensor.name)
            keep_bytes -= tensor.size_bytes
    return frozenset(kept)
