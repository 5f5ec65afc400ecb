"""A model, a load and a setup -> StreamPlan and its bill, before a weight is read.

The plan is arithmetic on the header, and does not depend on the installed kernels. The engine allocates what the plan
says once, and never more. Every line of the bill is EXACT and stands for one array, or for one array per layer; the
words before its colon name the array. The interpreter, libraries, vocabulary and the threads' stacks are not arrays of
the engine: budgets include a reserve for them (rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from edgekit.bill.spill import PAGE_TOKENS, SPILL_FROM_TOKENS
from edgekit.bill.types import F16, CacheType, Component, Load, MemoryLine, Setup
from edgekit.engines.chat import RECENT_TOKENS
from edgekit.engines.native.buffers import (
    FLOAT_BYTES,
    PassPlan,
    arena_floats,
    check_threads,
    check_types,
    fitting_matrices,
    matrices,
    side_floats,
    tile_bytes,
    usual_threads,
    vectors,
)
from edgekit.engines.native.model import NativeModel
from edgekit.errors import KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.formats.dtype import TensorType
from edgekit.machine.types import HOST

CACHE_TYPES = ("f32", "f16", "q8_0")
# Tokens of a prompt that are computed together: twice as many are hardly faster, and need twice the buffers.
USUAL_CHUNK_TOKENS = 64
TILE_BYTES = 2**20  # packed rows that a thread reads at a time; a longer row is read alone
MAX_TOKENS = 2**31 - 1  # files count positions in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSetup(Setup):
    threads: int | None = None  # None: one per usable core, at most 8
    keep_bytes: int | None = 0  # packed weights that stay in memory; None: all of them
    sinks: int = 0  # first tokens, which never leave the window
    rolling: bool = False  # a full window drops its oldest token; False: the session ends
    resident_tokens: int | None = None  # of the cache: in memory, not on disk; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan(PassPlan):
    """The sizes of everything that the generator allocates."""

    context_tokens: int  # the window
    sinks: int
    rolling: bool
    cache_k: CacheType
    cache_v: CacheType
    cells: tuple[int, ...]  # of each layer: the complete context, or its sliding window
    resident_pages: int | None  # in memory, of layers that see the complete context; None: all
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
        """Whether queries are rotated twice: for the recent tokens, and for the sinks."""
        return self.rolling and self.sinks > 0

    @property
    def rotary_tables(self) -> int:
        """Number of cosine and sine tables: a pair for each kind of layer, and as many again for the sinks."""
        if not self.model.dimensions.rotary:
            return 0
        return 2 * (1 + (self.model.local_rope is not None)) * (1 + self.has_sinks)

    def slides(self, layer: int) -> bool:
        """Whether a layer's sliding window is shorter than the context, however many cells the layer has."""
        window = self.model.windows[layer]
        return window is not None and window < self.context_tokens

    def resident_cells(self, layer: int) -> int:
        """The cells of a layer that are in memory: all, unless cold pages are on disk."""
        if self.resident_pages is None or self.slides(layer):
            return self.cells[layer]
        return min(self.resident_pages * PAGE_TOKENS, self.cells[layer])

    @property
    def total_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)


def plan_stream(
    model: NativeModel,
    load: Load,
    setup: StreamSetup,
    *,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> StreamPlan:
    """The plan of a session, with its bill.

    Raises UsageError for impossible numbers, RefusedError for unsupported requests, UnknownDtypeError for weights that
    the kernels cannot unpack, and KvSpillUnsupportedError for a cache that must not be spilled.
    """
    check_types(model)
    if (load.sequences or 1) != 1:
        raise RefusedError(
            f"{load.sequences} sequences: the built-in engine runs one at a time; use "
            "engine llama.cpp for several"
        )
    window = load.context_tokens or model.dimensions.context_tokens
    _check_number("the context", window)
    _check_sinks(window, setup)
    check_threads(setup.threads)
    chunk = USUAL_CHUNK_TOKENS if load.microbatch_tokens is None else load.microbatch_tokens
    _check_number("the chunk", chunk)
    chunk = min(chunk, window - setup.sinks)
    keys, values = load.cache_k or F16, load.cache_v or F16
    for kind in (keys, values):
        _check_cache_type(kind, model.dimensions.head_dim)
    if setup.keep_bytes is not None and setup.keep_bytes < 0:
        raise UsageError(
            f"the memory for weights must not be negative (got {setup.keep_bytes} bytes)"
        )
    sees_all = any(layer_window is None or layer_window >= window for layer_window in model.windows)
    plan = StreamPlan(
        model=model,
        threads=setup.threads or usual_threads(),
        context_tokens=window,
        chunk_tokens=chunk,
        sinks=setup.sinks,
        rolling=setup.rolling,
        cache_k=keys,
        cache_v=values,
        cells=tuple(
            window if load.full_window or layer_window is None else min(layer_window, window)
            for layer_window in model.windows
        ),
        # Only a cache that sees the whole window is spilled.
        resident_pages=_resident_pages(window, chunk, setup, spill_from_tokens)
        if sees_all
        else None,
        tile_bytes=tile_bytes(model, TILE_BYTES),
        side_floats=side_floats(model, chunk),
        scratch_floats=max(
            attend_floats(model.dimensions.head_dim),
            *(multiply_floats(tensor.type, tensor.shape[1]) for tensor in matrices(model)),
        ),
        kept=frozenset(tensor.name for tensor in matrices(model))
        if setup.keep_bytes is None
        else frozenset(fitting_matrices(model, setup.keep_bytes)),
    )
    return replace(plan, lines=tuple(_bill_lines(plan)))


def _check_number(what: str, value: int, least: int = 1) -> None:
    if not least <= value <= MAX_TOKENS:
        raise UsageError(f"{what} must be {least:,} to {MAX_TOKENS:,} tokens (got {value:,})")


def _check_sinks(window: int, setup: StreamSetup) -> None:
    _check_number("the number of sinks", setup.sinks, least=0)
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


def _check_cache_type(kind: CacheType, head_dim: int) -> None:
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


def _resident_pages(
    window: int, chunk: int, setup: StreamSetup, spill_from_tokens: int
) -> int | None:
    """How many pages of each layer stay in memory; None: all. At least the newest tokens and the sinks stay."""
    if setup.resident_tokens is None or setup.resident_tokens >= window:
        return None
    _check_number("the part of the cache in memory", setup.resident_tokens, least=0)
    pages = setup.resident_tokens // PAGE_TOKENS
    if window <= spill_from_tokens:
        raise KvSpillUnsupportedError(
            f"a window of {window:,} tokens must stay in memory: only windows of more "
            f"than {spill_from_tokens:,} can spill to disk. Use fewer tokens, or a "
            "smaller cache type"
        )
    # A chunk may begin in the middle of a page, so it touches one page more than it fills.
    least = -(-setup.sinks // PAGE_TOKENS) + -(-chunk // PAGE_TOKENS) + 1
    if pages < least:
        raise KvSpillUnsupportedError(
            f"{setup.resident_tokens:,} tokens in memory are {pages} pages of "
            f"{PAGE_TOKENS}, but at least {least} pages are needed: "
            f"{least * PAGE_TOKENS:,} tokens"
        )
    return pages


# --- the scratch of a thread: enough for the numpy and the C kernels, because the bill does not know which will run.
# --- tests/unit/engines/native/kernels/test_cache.py checks that neither needs more.

TILE_FLOATS = 64 * 1024  # weights that numpy unpacks before it multiplies; the C kernels need less
UNPACKED_FLOATS = 16 * 1024  # keys or values that numpy unpacks at a time; at least one cell
CELLS_TOGETHER = 512  # cells that are scored at a time
QUERY_ROWS = 32  # queries that are scored at a time
ROW_FLOATS = 3  # per query: the largest score, the sum, and the factor for the previous sum


def multiply_floats(kind: TensorType, columns: int) -> int:
    """Scratch for a multiplication by rows of this length. Raises HeaderError for rows that do not end on a block."""
    kind.row_bytes(columns)
    return max(TILE_FLOATS, columns)


def attend_floats(head_dim: int) -> int:
    """Scratch for attention over any number of queries and cells."""
    unpacked = 2 * max(UNPACKED_FLOATS, head_dim)
    return unpacked + QUERY_ROWS * (CELLS_TOGETHER + head_dim + ROW_FLOATS)


# --- the sampler (sampler.py)

CHUNK_TOKENS = 16_384  # tokens of the vocabulary that are processed together
BEST_TOKENS = 1_024  # the longest sorted list; a longer selection is described by its last token
COLUMNS = 4_096  # the highest logit of each column bounds the highest of all
BINS = 2_048  # 11 bits of a logit
_CHUNK_TOKEN_BYTES = 8 + 8 + 1  # per token of a chunk: its weight, its rank, and a flag


def sampler_bytes(vocabulary: int) -> int:
    """Memory that a Sampler allocates. A larger vocabulary adds only one sum for each chunk."""
    # The list with space for as many new candidates, and the logits.
    best = 2 * BEST_TOKENS * 8 + BEST_TOKENS * 4
    fixed = best + COLUMNS * 4 + BINS * 8 + RECENT_TOKENS * 4
    return CHUNK_TOKENS * _CHUNK_TOKEN_BYTES + fixed + 8 * chunks_of(vocabulary)


def chunks_of(vocabulary: int) -> int:
    return -(-vocabulary // CHUNK_TOKENS)


# --- the bill


def _line(
    component: Component, size_bytes: int, because: str, layer: int | None = None
) -> MemoryLine:
    return MemoryLine(
        component=component, size_bytes=size_bytes, pool=HOST, layer=layer, because=because
    )


def _bill_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    model, vocabulary = plan.model, plan.model.dimensions.vocabulary
    vector_floats = sum(tensor.shape[-1] for tensor in vectors(model))
    because = f"norms and biases: {vector_floats:,} x {FLOAT_BYTES}, held as float32"
    yield _line(Component.WEIGHTS, vector_floats * FLOAT_BYTES, because)
    layer_names = {tensor.name for layer in model.layers for tensor in layer.values()}
    outside = [tensor for tensor in matrices(model) if tensor.name not in layer_names]
    groups = [*enumerate(layer.values() for layer in model.layers), (None, outside)]
    for layer, tensors in groups:
        sizes = [tensor.size_bytes for tensor in tensors if tensor.name in plan.kept]
        if sizes:
            count = "1 matrix" if len(sizes) == 1 else f"{len(sizes)} matrices"
            because = f"weights kept: {count} as in the file"
            yield _line(Component.WEIGHTS, sum(sizes), because, layer)
    yield from _cache_lines(plan)
    yield _line(
        Component.OUTPUT, vocabulary * FLOAT_BYTES, f"logits: {vocabulary:,} x {FLOAT_BYTES}"
    )
    because = f"sampler: workspace for {vocabulary:,} tokens"
    yield _line(Component.COMPUTE, sampler_bytes(vocabulary), because)
    yield from _chunk_lines(plan)
    yield _line(Component.COMPUTE, plan.tiles_bytes, f"tiles: {plan.tiles_because}")


def _cache_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    cell_text = (
        f"({plan.k_row_bytes:,} of {plan.cache_k.name} keys + {plan.v_row_bytes:,} of"
        f" {plan.cache_v.name} values)"
    )
    for layer in range(len(plan.cells)):
        cells = plan.resident_cells(layer)
        slides = plan.slides(layer) and cells < plan.context_tokens
        of_cells = "" if cells == plan.cells[layer] else f" of {plan.cells[layer]:,}"
        yield _line(
            Component.SLIDING_KV_CACHE if slides else Component.KV_CACHE,
            cells * plan.cell_bytes,
            f"cache: {cells:,}{of_cells} cells x {cell_text}",
            layer,
        )
    if plan.resident_pages is not None:
        yield _line(
            Component.KV_CACHE,
            PAGE_TOKENS * plan.cell_bytes,
            f"page read back: {PAGE_TOKENS} cells x {cell_text}",
        )


def _chunk_lines(plan: StreamPlan) -> Iterator[MemoryLine]:
    size, tokens = plan.model.dimensions, plan.chunk_tokens
    times = f"{tokens:,} tokens x"

    def floats(what: str, count: int, arithmetic: str) -> MemoryLine:
        because = f"{what}: {arithmetic} x {FLOAT_BYTES}"
        return _line(Component.COMPUTE, count * FLOAT_BYTES, because)

    yield floats("tokens", tokens * size.width, f"{times} {size.width:,}")
    yield floats("chunk", tokens * size.width, f"{times} {size.width:,}")
    yield floats("queries", tokens * size.query, f"{times} {size.query:,}")
    if plan.has_sinks:
        yield floats("queries of sinks", tokens * size.query, f"{times} {size.query:,}")
    mixed = size.query + 2 * size.heads
    yield floats(
        "attention",
        tokens * mixed,
        f"{times} ({size.query:,} + {size.heads} heads x 2 of its sums)",
    )
    yield floats(
        "keys and values, then feed-forward",
        arena_floats(plan.model, tokens, tokens),
        f"{times} the larger of 2 x {size.key:,} and {size.inner:,}",
    )
    yield _line(
        Component.COMPUTE,
        tokens * plan.cell_bytes,
        f"staging: {times} {plan.cell_bytes:,} of cache",
    )
    if tables := plan.rotary_tables:
        yield floats(
            "rotary", tables * tokens * (size.rotary // 2), f"{tables} x {times} {size.rotary // 2}"
        )
