"""How the built-in engine is started, and what it makes of that: the numbers it allocates by."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgekit.bill.cache_types import F16, CacheType
from edgekit.bill.spill import PAGE_TOKENS, SPILL_FROM_TOKENS
from edgekit.bill.types import Component, Load, MemoryLine
from edgekit.engines.chat import RECENT_TOKENS
from edgekit.engines.native.families import ModelUse
from edgekit.engines.native.model import NativeModel
from edgekit.errors import KvSpillUnsupportedError, RefusedError, UnknownDtypeError, UsageError
from edgekit.formats.dtype import TensorType
from edgekit.formats.types import Tensor
from edgekit.machine.types import HOST
from edgekit.terminal import unquoted

USUAL_CHUNK_TOKENS = 64  # of a prompt: twice as many are hardly faster, and take twice the buffers
TILE_BYTES = 2**20  # packed rows that a thread reads at a time, or one row


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSetup:
    threads: int | None = None  # None: as many as there are cores for us, at most 8
    keep_bytes: int | None = 0  # of packed weights that stay in memory; None: all of them
    sinks: int = 0  # the first tokens, which never leave the window
    rolling: bool = False  # a full window drops its oldest token; False: it ends the session
    resident_tokens: int | None = None  # of the cache in memory, the rest on disk; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """Every number that an allocation follows. The lines are the bill, and the arrays are the lines."""

    model: NativeModel = field(repr=False)
    threads: int
    context_tokens: int  # the window
    chunk_tokens: int  # of a prompt, computed together
    sinks: int
    rolling: bool
    cache_k: CacheType
    cache_v: CacheType
    cells: tuple[int, ...]  # of each layer: the window, or its own sliding one
    resident_pages: int | None  # in memory, of layers that hold the whole window; None: all
    tile_bytes: int  # of a thread: packed rows on their way
    side_floats: int
    scratch_floats: int
    kept: frozenset[str] = field(repr=False)  # tensors that stay in memory, as they are in the file
    lines: tuple[MemoryLine, ...] = field(default=(), repr=False)

    @property
    def k_row_bytes(self) -> int:
        """The keys of one token in one layer."""
        return self.cache_k.row_bytes(self.model.dimensions.key)

    @property
    def v_row_bytes(self) -> int:
        return self.cache_v.row_bytes(self.model.dimensions.key)

    @property
    def cell_bytes(self) -> int:
        return self.k_row_bytes + self.v_row_bytes

    @property
    def has_sinks(self) -> bool:
        """Whether queries are turned twice: for the tokens behind them, and for those at the beginning."""
        return self.rolling and self.sinks > 0

    @property
    def rotary_tables(self) -> int:
        """Of a chunk's places, cosine and sine each: of both kinds of layers, and once more for the sinks."""
        if not self.model.dimensions.rotary:
            return 0
        return 2 * (1 + (self.model.local_rope is not None)) * (1 + self.has_sinks)

    def slides(self, layer: int) -> bool:
        """Whether a layer looks back less far than the window reaches, however many cells it has."""
        window = self.model.windows[layer]
        return window is not None and window < self.context_tokens

    def resident_cells(self, layer: int) -> int:
        """In memory: all of them, unless colder pages lie on the disk."""
        if self.resident_pages is None or self.slides(layer):
            return self.cells[layer]
        return min(self.resident_pages * PAGE_TOKENS, self.cells[layer])

    @property
    def total_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)


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


FLOAT_BYTES = 4


def bill_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    yield from _weight_lines(plan)
    yield from _cache_lines(plan)
    yield from _output_lines(plan)
    yield from _chunk_lines(plan)
    yield from _thread_lines(plan)


def _line(
    component: Component, size_bytes: int, because: str, layer: int | None = None
) -> MemoryLine:
    return MemoryLine(
        component=component, size_bytes=size_bytes, pool=HOST, layer=layer, because=because
    )


def _floats(what: str, count: int, told: str) -> MemoryLine:
    return _line(Component.COMPUTE, count * FLOAT_BYTES, f"{what}: {told} x {FLOAT_BYTES}")


def _weight_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    held = sum(tensor.shape[-1] for tensor in vectors(plan.model))
    yield _line(
        Component.WEIGHTS,
        held * FLOAT_BYTES,
        f"norms and biases: {held:,} x {FLOAT_BYTES}, held as float32",
    )
    for place, layer in enumerate(plan.model.layers):
        sizes = [tensor.size_bytes for tensor in layer.values() if tensor.name in plan.kept]
        if sizes:
            yield _kept_line(sizes, place)
    inside = {tensor.name for layer in plan.model.layers for tensor in layer.values()}
    outside = [tensor for tensor in matrices(plan.model) if tensor.name not in inside]
    sizes = [tensor.size_bytes for tensor in outside if tensor.name in plan.kept]
    if sizes:
        yield _kept_line(sizes, None)


def _kept_line(sizes: list[int], layer: int | None) -> MemoryLine:
    count = "1 matrix" if len(sizes) == 1 else f"{len(sizes)} matrices"
    told = f"weights kept: {count} as in the file"
    return _line(Component.WEIGHTS, sum(sizes), told, layer)


def _cache_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    each = (
        f"({plan.k_row_bytes:,} of {plan.cache_k.name} keys + {plan.v_row_bytes:,} of"
        f" {plan.cache_v.name} values)"
    )
    for layer in range(len(plan.cells)):
        cells = plan.resident_cells(layer)
        slides = plan.slides(layer) and cells < plan.context_tokens
        pages = "" if cells == plan.cells[layer] else f" of {plan.cells[layer]:,}"
        yield _line(
            Component.SLIDING_KV_CACHE if slides else Component.KV_CACHE,
            cells * plan.cell_bytes,
            f"cache: {cells:,}{pages} cells x {each}",
            layer,
        )
    if plan.resident_pages is not None:
        yield _line(
            Component.KV_CACHE,
            PAGE_TOKENS * plan.cell_bytes,
            f"page read back: {PAGE_TOKENS} cells x {each}",
        )


def _output_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    tokens = plan.model.dimensions.vocabulary
    yield _line(Component.OUTPUT, tokens * FLOAT_BYTES, f"logits: {tokens:,} x {FLOAT_BYTES}")
    yield _line(
        Component.COMPUTE, sampler_bytes(tokens), f"sampler: workspace for {tokens:,} tokens"
    )


def _chunk_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    size, tokens = plan.model.dimensions, plan.chunk_tokens
    of = f"{tokens:,} tokens x"
    yield _floats("tokens", tokens * size.width, f"{of} {size.width:,}")
    yield _floats("chunk", tokens * size.width, f"{of} {size.width:,}")
    yield _floats("queries", tokens * size.query, f"{of} {size.query:,}")
    if plan.has_sinks:
        yield _floats("queries of sinks", tokens * size.query, f"{of} {size.query:,}")
    mixed = size.query + 2 * size.heads
    yield _floats(
        "attention", tokens * mixed, f"{of} ({size.query:,} + {size.heads} heads x 2 of its sums)"
    )
    yield _floats(
        "keys and values, then feed-forward",
        arena_floats(plan.model, tokens, tokens),
        f"{of} the larger of 2 x {size.key:,} and {size.inner:,}",
    )
    yield _line(
        Component.COMPUTE, tokens * plan.cell_bytes, f"staging: {of} {plan.cell_bytes:,} of cache"
    )
    if tables := plan.rotary_tables:
        yield _floats(
            "rotary", tables * tokens * (size.rotary // 2), f"{tables} x {of} {size.rotary // 2}"
        )


def _thread_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    floats = plan.side_floats + plan.scratch_floats
    yield _line(
        Component.COMPUTE,
        plan.threads * (plan.tile_bytes + floats * FLOAT_BYTES),
        f"tiles: {plan.threads} threads x ({plan.tile_bytes:,} packed + {plan.side_floats:,} x 4"
        f" for the gate + {plan.scratch_floats:,} x 4 unpacked)",
    )


TILE_FLOATS = 64 * 1024  # weights that numpy unpacks before it multiplies; the C ones need less
UNPACKED_FLOATS = 16 * 1024  # of keys, and of values, that numpy unpacks at a time: or one cell
MOST_CELLS = 512  # whose scores are held at a time
QUERY_ROWS = 32  # that score them together
ROW_FLOATS = 3  # of each: the largest score, its sum, and what the sum before shrinks by


def multiply_floats(kind: TensorType, columns: int) -> int:
    """For rows of so many columns; HeaderError where they do not end on a block."""
    kind.row_bytes(columns)
    return max(TILE_FLOATS, columns)


def attend_floats(rows: int, head_dim: int) -> int:
    """For so many queries over any number of cells. Queries go some at a time, so few need as much."""
    del rows
    unpacked = 2 * max(UNPACKED_FLOATS, head_dim)
    return unpacked + QUERY_ROWS * (MOST_CELLS + head_dim + ROW_FLOATS)


CHUNK_TOKENS = 16_384  # of the vocabulary, looked at together
BEST_TOKENS = 1_024  # that are put in order; more are kept by a bound and never listed
COLUMNS = 4_096  # the highest of each column is a bound for the highest of all
BINS = 2_048  # 11 bits of a logit

# Of one token in a chunk: its weight, its rank, and whether it is kept.
_CHUNK_BYTES = CHUNK_TOKENS * (8 + 8 + 1)
# The best with as many again that are on trial, and their logits; columns; bins; recent tokens.
_FIXED_BYTES = 2 * BEST_TOKENS * 8 + BEST_TOKENS * 4 + COLUMNS * 4 + BINS * 8 + RECENT_TOKENS * 4


def sampler_bytes(vocabulary: int) -> int:
    """What a Sampler allocates when it is made. A larger vocabulary adds one sum for each chunk."""
    return _CHUNK_BYTES + _FIXED_BYTES + 8 * chunks_of(vocabulary)


def chunks_of(vocabulary: int) -> int:
    return -(-vocabulary // CHUNK_TOKENS)


SIDE_ROWS = 128  # for a chunk of tokens: more for fewer


def matrices(model: NativeModel) -> Iterator[Tensor]:
    """Everything that is read by rows, in the order in which a pass wants it most: embeddings last."""
    for layer in model.layers:
        yield from (tensor for tensor in layer.values() if len(tensor.shape) == 2)
    head = ("output.weight",) if model.use is ModelUse.GENERATE else ()
    for name in (*head, "position_embd.weight", "token_embd.weight"):
        if name in model.outside:
            yield model.outside[name]


def vectors(model: NativeModel) -> Iterator[Tensor]:
    """Everything that is held: norms, biases, factors, and of the token types the first row."""
    unused = ("cls.",) if model.use is ModelUse.GENERATE else ("cls.", "output.")
    for shelf in (model.outside, *model.layers):
        yield from (
            tensor
            for name, tensor in shelf.items()
            if (len(tensor.shape) == 1 and not name.startswith(unused))
            or name == "token_types.weight"
        )


def side_floats(model: NativeModel, chunk_tokens: int) -> int:
    """A thread's rows of `up` beside those of the gate, where there is one."""
    return chunk_tokens * min(SIDE_ROWS, model.dimensions.inner) if model.gated else 0


def row_bytes(tensor: Tensor) -> int:
    return tensor.type.row_bytes(tensor.shape[1])


def arena_floats(model: NativeModel, pass_tokens: int, chunk_tokens: int) -> int:
    """Keys and values have been used before the feed-forward begins: both lie in one place."""
    size = model.dimensions
    return max(pass_tokens * 2 * size.key, chunk_tokens * size.inner)


# tests/unit/engines/test_stream_plan.py holds it against both kernels.
UNPACKED = frozenset({
    "F32", "F16", "BF16",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4",
})  # fmt: skip


def check_types(tensors: Iterable[Tensor]) -> None:
    """UnknownDtypeError for the first that cannot be unpacked."""
    for tensor in tensors:
        if tensor.type.name not in UNPACKED:
            raise UnknownDtypeError(
                f"tensor {unquoted(tensor.name)}: the built-in engine does not support "
                f"the type {tensor.type.name} (engines/native/kernels has no row for it); engine "
                "llama.cpp may"
            )


USUAL_THREADS = 8  # beyond, the memory's bandwidth is shared out, not won
MOST_THREADS = 1_024  # of any machine; each has buffers of its own


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # neither macOS nor Windows has it
        return os.cpu_count() or 1


def usual_threads(cores: int | None = None) -> int:
    """One for each core, up to a few. Without `cores`: those that this process may use."""
    return min(USUAL_THREADS, cores or usable_cores())


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError(
            f"the number of threads must be at least 1 (got {threads})"
            if threads < 1
            else f"the number of threads must be at most {MOST_THREADS:,} (got {threads:,})"
        )
