"""How the built-in engine is started, and what it makes of that: the numbers it allocates by."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit.engine.stream.types import Model
from edgekit.memory.cache_types import CacheType
from edgekit.memory.types import MemoryLine

PAGE_TOKENS = 256  # of a cache that lies partly on the disk


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

    model: Model = field(repr=False)
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
    kept: frozenset[str]  # tensors that stay in memory, as they are in the file
    lines: tuple[MemoryLine, ...] = field(repr=False)
