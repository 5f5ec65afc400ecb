"""How the built-in engine is started, and what it makes of that: the numbers it allocates by."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit.bill.cache_types import CacheType
from edgekit.bill.spill import PAGE_TOKENS
from edgekit.bill.types import MemoryLine
from edgekit.engines.native.types import NativeModel

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
