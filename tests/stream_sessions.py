"""Small models for the built-in engine's tests, and sessions with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.embed_models import write_model

from edgekit.bill.types import Load, cache_type
from edgekit.engines.native.cache import PagedCache
from edgekit.engines.native.generator import StreamEngine, open_stream
from edgekit.engines.native.kernels.types import Floats
from edgekit.engines.native.stream_plan import StreamSetup

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
TINY: dict[str, Any] = {
    "width": 64,
    "inner": 96,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "layers": 3,
    "spread": 0.1,
}


def tiny(folder: Path, architecture: str, **shape: Any) -> Path:
    """A model with a few hundred tokens; two of gemma3's three layers have a window of 8 tokens."""
    window = {"window": 8} if architecture == "gemma3" else {}
    sizes = {"kind": "F32", **TINY, **window, **shape}
    return write_model(folder / f"{architecture}.gguf", architecture, **sizes)


def session(
    path: Path,
    *,
    window: int = 64,
    cache: str = "f32",
    values: str | None = None,
    chunk: int | None = None,
    full: bool = False,
    setup: dict[str, Any] | None = None,
    **more: Any,
) -> StreamEngine:
    """`setup` has fields of StreamSetup, `more` parameters of open_stream."""
    load = Load(
        context_tokens=window,
        microbatch_tokens=chunk,
        cache_k=cache_type(cache),
        cache_v=cache_type(values or cache),
        full_window=full,
    )
    return open_stream(
        path, load=load, setup=StreamSetup(**{"threads": 2, **(setup or {})}), **more
    )


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 300, count)]


def steps(engine: StreamEngine, tokens: list[int], prompt: int = 1) -> Floats:
    """Logits after the first `prompt` tokens, and after each of the others."""
    rows = [engine.feed(tokens[:prompt]).copy()]
    rows += [engine.feed([token]).copy() for token in tokens[prompt:]]
    return np.stack(rows)


def allocated_by(engine: StreamEngine) -> dict[str, int]:
    """The size of each array as numpy reports it, by the key of its line in the memory breakdown."""
    weights, buffers, caches = engine._weights, engine._buffers, engine._caches
    sink_query, local_rotary = buffers.sink_query, buffers.local_rotary
    kept_weights: dict[str, int] = {}
    for name, rows in weights.rows.items():
        if rows.in_memory is not None:
            layer = f", layer {name.split('.')[1]}" if name.startswith("blk.") else ""
            key = f"weights kept{layer}"
            kept_weights[key] = kept_weights.get(key, 0) + rows.in_memory.nbytes
    result = {
        "norms and biases": sum(vector.nbytes for vector in weights.held.values()),
        **kept_weights,
        **{f"cache, layer {layer}": cache.size_bytes for layer, cache in enumerate(caches)},
        "page read back": max(
            (cache.page_bytes for cache in caches if isinstance(cache, PagedCache)), default=0
        ),
        "logits": buffers.logits.nbytes,
        "tokens": buffers.x.nbytes,
        "chunk": buffers.chunk.nbytes,
        "queries": buffers.query.nbytes,
        "queries of sinks": 0 if sink_query is None else sink_query.nbytes,
        "attention": buffers.attended.nbytes + buffers.state.nbytes,
        "keys and values, then feed-forward": buffers.arena.nbytes,
        "staging": buffers.keys.nbytes + buffers.values.nbytes,
        "rotary": buffers.rotary.nbytes + (0 if local_rotary is None else local_rotary.nbytes),
        "tiles": sum(
            worker.packed.nbytes + worker.scratch.nbytes + worker.side.nbytes
            for worker in engine._crew.workers
        ),
    }
    return {key: size_bytes for key, size_bytes in result.items() if size_bytes}
