"""Groups and a length -> blocks of one request; a budget -> blocks of the pool (kv_cache_interface.py @ 0.32.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edgekit.engines.vllm.backends import (
    DEFAULT_BLOCK,
    AttentionBackend,
    common_unit,
    default_block,
)
from edgekit.engines.vllm.caches import Storage
from edgekit.engines.vllm.types import (
    ALL_TOKENS,
    DTYPE_BYTES,
    BlockPool,
    CacheGroup,
    CacheSpec,
    Keeps,
    Members,
    ResolvedVllm,
)
from edgekit.errors import RefusedError
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


PADDING_LIMIT = (
    1.5  # up to so many times the fewest layers of a kind, the most decide a group's size
)


def group_members(members: Members, *, hybrid_manager: bool) -> tuple[CacheGroup, ...]:
    """In the engine's order: kinds as they first appear, each kind's groups one after another."""
    if not members:
        return ()
    if not hybrid_manager:
        members = _promoted(members)
    if _uniform(members):
        return (CacheGroup(members=members),)
    buckets = _buckets(_equal_pages(members))
    size = _group_size([len(bucket) for bucket in buckets])
    return tuple(group for bucket in buckets for group in _split(bucket, size))


def bytes_per_block(groups: Sequence[CacheGroup]) -> int:
    """All groups draw from one pool, so the widest decides."""
    return max((group.page_bytes for group in groups), default=0)


def of_stage(groups: tuple[CacheGroup, ...], stage: range) -> tuple[CacheGroup, ...]:
    """What is left of each group on a pipeline stage; groups are made for the whole model."""
    kept = (tuple(one for one in group.members if one[0] in stage) for group in groups)
    return tuple(CacheGroup(members=members) for members in kept)


def _changed(members: Members, change: Callable[[CacheSpec], CacheSpec]) -> Members:
    known = {spec: change(spec) for spec in {spec for _, spec in members}}
    return tuple((layer, known[spec]) for layer, spec in members)


def _promoted(members: Members) -> Members:
    """Without the hybrid manager, windows and chunks are given blocks for all tokens."""
    if _uniform(members):
        return members
    if any(spec.keeps in ALL_TOKENS for _, spec in members):
        members = _changed(members, _without_span)
    if not _uniform(members):
        raise RefusedError(
            "the layers of this model cannot share one kind of KV cache: vLLM needs its "
            "hybrid cache manager"
        )
    return members


def _without_span(spec: CacheSpec) -> CacheSpec:
    if spec.keeps not in {Keeps.WINDOW, Keeps.CHUNK}:
        return spec
    return replace(spec, keeps=Keeps.FULL, span_tokens=0)


def _uniform(members: Members) -> bool:
    """One group does for all: they need the same number of slots, however wide."""
    specs = {spec for _, spec in members}
    first = members[0][1]
    if first.keeps is Keeps.STATE:
        return len({(one.keeps, one.page_bytes, one.state_blocks) for one in specs}) == 1
    if len({one.block_size for one in specs}) > 1:
        return False
    if first.keeps in ALL_TOKENS:
        return all(one.keeps in ALL_TOKENS for one in specs)
    return len({(one.keeps, one.span_tokens) for one in specs}) == 1


def _equal_pages(members: Members) -> Members:
    """Every page as large as the largest: by larger blocks where that comes out even, by padding elsewhere."""
    largest = max(spec.page_bytes for _, spec in members)
    return _changed(members, lambda spec: _stretched(spec, largest))


def _stretched(spec: CacheSpec, page: int) -> CacheSpec:
    if spec.page_bytes == page:
        return spec
    if spec.keeps is not Keeps.STATE and page % spec.page_bytes == 0 and not spec.page_padded:
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
    if spec.keeps is Keeps.LATENT:
        raise RefusedError(
            "pages of latent attention cannot be padded to the size of other layers' pages"
        )
    return replace(spec, page_padded=page)


def _buckets(members: Members) -> list[Members]:
    found: dict[CacheSpec, list[tuple[int, CacheSpec]]] = {}
    for one in members:
        found.setdefault(one[1], []).append(one)
    return [tuple(bucket) for bucket in found.values()]


def _group_size(counts: list[int]) -> int:
    fewest, most = min(counts), max(counts)
    return most if most < fewest * PADDING_LIMIT else fewest


def _split(bucket: Members, size: int) -> list[CacheGroup]:
    count = -(-len(bucket) // size)
    return [CacheGroup(members=bucket[i::count]) for i in range(count)]


LATENT_ALIGNMENT = 128  # kernels of latent attention want whole pages of it beside a recurrence


def settle_blocks(
    members: Members, backends: tuple[AttentionBackend, ...], asked: int | None, storage: Storage
) -> tuple[int, Members]:
    """The block size that vLLM reports, and the members with their own."""
    specs = tuple(dict.fromkeys(spec for _, spec in members))
    if not backends:  # nothing but recurrences
        block = asked or DEFAULT_BLOCK
        return block, _with(members, {one: replace(one, block_size=block) for one in specs})
    block = asked or default_block(common_unit(backends))
    states = [one.state_bytes for one in specs if one.keeps is Keeps.STATE]
    state_page = shared_page = 0
    if states:
        block, state_page = _hold_states(specs, block, max(states), backends)
    if storage.skipped_layers:
        block, shared_page = _hold_wider(specs, block, backends[0], storage)
    sized = {one: _sized(one, block, state_page, shared_page, backends) for one in specs}
    return block, _with(members, sized)


def _with(members: Members, sized: Mapping[CacheSpec, CacheSpec]) -> Members:
    return tuple((layer, sized[spec]) for layer, spec in members)


def _hold_states(
    specs: Sequence[CacheSpec], block: int, state_bytes: int, backends: tuple[AttentionBackend, ...]
) -> tuple[int, int]:
    """_align_hybrid_block_size: (block, the page that states are padded to)."""
    attending = next(one for one in specs if one.keeps is not Keeps.STATE)
    step = max(backends[0].unit, block)
    if attending.keeps is Keeps.LATENT:
        step = max(step, LATENT_ALIGNMENT)
    wanted = step * -(-state_bytes // (step * attending.token_bytes))
    unit = common_unit(backends)
    block = max(block, unit * -(-wanted // unit))
    return block, block * attending.token_bytes


def _hold_wider(
    specs: Sequence[CacheSpec], block: int, first: AttentionBackend, storage: Storage
) -> tuple[int, int]:
    """_align_heterogeneous_kv_block_size: (block, the page that windows are padded to).

    vLLM asks the first layer's backend for the packed width. That layer is one of those left alone, and its backend
    knows nothing of packing: it counts a byte a number. So do we.
    """
    if any(one.keeps is Keeps.LATENT for one in specs):
        raise RefusedError("a packed cache dtype does not work with latent attention (MLA)")
    plain = specs[0].token_bytes
    packed = plain // DTYPE_BYTES[storage.dtype]
    step = max(first.unit, block)
    block = max(block, step * -(-plain * first.unit // (step * packed)))
    return block, block * packed


def _sized(
    spec: CacheSpec,
    block: int,
    state_page: int,
    shared_page: int,
    backends: tuple[AttentionBackend, ...],
) -> CacheSpec:
    if spec.keeps is Keeps.STATE:
        padded = state_page if state_page != spec.state_bytes else 0
        return replace(spec, block_size=block, page_padded=padded)
    if spec.keeps is not Keeps.WINDOW:
        return replace(spec, block_size=block)
    if not shared_page:
        return replace(spec, block_size=_window_block(block, backends))
    fitting = max(DEFAULT_BLOCK, shared_page // spec.token_bytes // DEFAULT_BLOCK * DEFAULT_BLOCK)
    return replace(spec, block_size=fitting, page_padded=shared_page)


def _window_block(block: int, backends: tuple[AttentionBackend, ...]) -> int:
    """Windows take whole kernel blocks; a kernel with one size only keeps to it (attention.py get_kv_cache_spec)."""
    return next((one.window_block for one in backends if one.window_block), block)
