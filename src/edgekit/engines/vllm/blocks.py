"""Groups and a length -> blocks of one request; a budget -> blocks of the pool (kv_cache_interface.py @ 0.32.0)."""

from __future__ import annotations

from edgekit.engines.vllm.types import BlockPool, CacheGroup, Keeps, ResolvedVllm
from edgekit.units import GIB


def request_blocks(group: CacheGroup, tokens: int, in_flight_tokens: int) -> int:
    """What vLLM reserves for one request of so many tokens, in its worst moment."""
    spec = group.spec
    match spec.keeps:
        case Keeps.STATE:
            return spec.state_blocks
        case Keeps.WINDOW:
            held = min(spec.span_tokens - 1 + in_flight_tokens, tokens)
            return _blocks(held, spec.block_size) + 1  # a window may start in the middle of a block
        case Keeps.CHUNK:
            return _blocks(min(spec.span_tokens + in_flight_tokens, tokens), spec.block_size)
        case _:
            return _blocks(tokens, spec.block_size)


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def make_pool(resolved: ResolvedVllm, tokens: int, available_bytes: int | None) -> BlockPool:
    """The pool that `available_bytes` make. One block is never given out, so a request must fit in the others."""
    blocks = tuple(
        request_blocks(group, tokens, resolved.in_flight_tokens) for group in resolved.groups
    )
    size = resolved.bytes_per_block
    request_bytes = size * sum(blocks)
    refused = ""
    if available_bytes is not None and blocks:
        refused = _refusal(tokens, request_bytes, available_bytes - size)
    known = available_bytes is not None and not refused
    # A model without caches still has the one block that is never given out.
    count = available_bytes // size if size and available_bytes is not None else 1
    return BlockPool(
        blocks_per_group=blocks,
        request_bytes=request_bytes,
        available_bytes=available_bytes,
        num_blocks=count if known else None,
        refused=refused,
    )


def _refusal(tokens: int, needed_bytes: int, usable_bytes: int) -> str:
    if usable_bytes <= 0:
        return "no memory is left for the KV cache"
    if needed_bytes <= usable_bytes:
        return ""
    return (
        f"one request of {tokens:,} tokens needs {needed_bytes / GIB:.2f} GiB of KV "
        f"cache, but only {usable_bytes / GIB:.2f} GiB are available"
    )
