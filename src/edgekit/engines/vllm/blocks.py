"""Cache layers -> block sizes and groups; a length -> blocks of one request; a budget -> blocks of the pool.

kv_cache_interface.py, kv_cache_utils.py @ 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

LATENT_ALIGNMENT = 128  # tokens: kernels of latent attention need multiples next to a recurrence
# With fewer than this many times the layers of the smallest kind, the largest kind decides the size of a group.
PADDING_LIMIT = 1.5


def settle_blocks(
    members: Members, backends: tuple[AttentionBackend, ...], asked: int | None, storage: Storage
) -> tuple[int, Members]:
    """The block size that vLLM reports, and the members with their own."""
    specs = tuple(dict.fromkeys(spec for _, spec in members))
    if not backends:  # only recurrences
        block = asked or DEFAULT_BLOCK
        return block, _changed(members, lambda spec: replace(spec, block_size=block))
    block = asked or default_block(common_unit(backends))
    states = [one.state_bytes for one in specs if one.keeps is Keeps.STATE]
    state_page = shared_page = 0
    if states:
        block, state_page = _block_for_states(specs, block, max(states), backends)
    if storage.skipped_layers:
        block, shared_page = _block_for_skipped(specs, block, backends[0], storage)
    return block, _changed(
        members, lambda spec: _sized(spec, block, state_page, shared_page, backends)
    )


def _block_for_states(
    specs: Sequence[CacheSpec], block: int, state_bytes: int, backends: tuple[AttentionBackend, ...]
) -> tuple[int, int]:
    """_align_hybrid_block_size: (block, page that states are padded to)."""
    attending = next(one for one in specs if one.keeps is not Keeps.STATE)
    step = max(backends[0].unit, block)
    if attending.keeps is Keeps.LATENT:
        step = max(step, LATENT_ALIGNMENT)
    needed = step * -(-state_bytes // (step * attending.token_bytes))
    unit = common_unit(backends)
    block = max(block, unit * -(-needed // unit))
    return block, block * attending.token_bytes


def _block_for_skipped(
    specs: Sequence[CacheSpec], block: int, first: AttentionBackend, storage: Storage
) -> tuple[int, int]:
    """_align_heterogeneous_kv_block_size: (block, page that windows are padded to).

    vLLM takes the packed width from the first layer's backend. That layer is not quantised, and its backend counts one
    byte per number. This is the same.
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
        # attention.py get_kv_cache_spec: a kernel with a single block size uses that one
        fixed = next((one.window_block for one in backends if one.window_block), block)
        return replace(spec, block_size=fixed)
    fitting = max(DEFAULT_BLOCK, shared_page // spec.token_bytes // DEFAULT_BLOCK * DEFAULT_BLOCK)
    return replace(spec, block_size=fitting, page_padded=shared_page)


def group_members(members: Members, *, hybrid_manager: bool) -> tuple[CacheGroup, ...]:
    """In vLLM's order: kinds of cache as they first appear, all groups of a kind together."""
    if not members:
        return ()
    if not hybrid_manager:
        members = _promoted(members)
    if _uniform(members):
        return (CacheGroup(members=members),)
    largest = max(spec.page_bytes for _, spec in members)
    by_kind: dict[CacheSpec, list[tuple[int, CacheSpec]]] = {}
    for layer, spec in _changed(members, lambda spec: _stretched(spec, largest)):
        by_kind.setdefault(spec, []).append((layer, spec))
    counts = [len(layers) for layers in by_kind.values()]
    size = max(counts) if max(counts) < min(counts) * PADDING_LIMIT else min(counts)
    groups = []
    for layers in by_kind.values():
        count = -(-len(layers) // size)
        groups += [CacheGroup(members=tuple(layers[i::count])) for i in range(count)]
    return tuple(groups)


def bytes_per_block(groups: Sequence[CacheGroup]) -> int:
    """All groups share one pool, so the largest decides."""
    return max((group.page_bytes for group in groups), default=0)


def of_stage(groups: tuple[CacheGroup, ...], stage: range) -> tuple[CacheGroup, ...]:
    """The part of each group that is on a pipeline stage; groups are formed for the whole model."""
    inside = (tuple(one for one in group.members if one[0] in stage) for group in groups)
    return tuple(CacheGroup(members=members) for members in inside)


def _changed(members: Members, change: Callable[[CacheSpec], CacheSpec]) -> Members:
    known = {spec: change(spec) for spec in {spec for _, spec in members}}
    return tuple((layer, known[spec]) for layer, spec in members)


def _promoted(members: Members) -> Members:
    """Without the hybrid manager, windows and chunks get blocks for all tokens."""
    if _uniform(members):
        return members
    if any(spec.keeps in ALL_TOKENS for _, spec in members):
        members = _changed(
            members,
            lambda spec: (
                replace(spec, keeps=Keeps.FULL, span_tokens=0)
                if spec.keeps in {Keeps.WINDOW, Keeps.CHUNK}
                else spec
            ),
        )
    if not _uniform(members):
        raise RefusedError(
            "the layers of this model cannot share one kind of KV cache: vLLM needs its "
            "hybrid cache manager"
        )
    return members


def _uniform(members: Members) -> bool:
    """Whether all layers need the same number of blocks, so that one group is enough."""
    specs = {spec for _, spec in members}
    first = members[0][1]
    if first.keeps is Keeps.STATE:
        return len({(one.keeps, one.page_bytes, one.state_blocks) for one in specs}) == 1
    if len({one.block_size for one in specs}) > 1:
        return False
    if first.keeps in ALL_TOKENS:
        return all(one.keeps in ALL_TOKENS for one in specs)
    return len({(one.keeps, one.span_tokens) for one in specs}) == 1


def _stretched(spec: CacheSpec, page: int) -> CacheSpec:
    """With a page of this size: by a larger block if it divides evenly, else by padding."""
    if spec.page_bytes == page:
        return spec
    if spec.keeps is not Keeps.STATE and page % spec.page_bytes == 0 and not spec.page_padded:
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
    if spec.keeps is Keeps.LATENT:
        raise RefusedError(
            "pages of latent attention cannot be padded to the size of other layers' pages"
        )
    return replace(spec, page_padded=page)


def request_blocks(group: CacheGroup, tokens: int, in_flight_tokens: int) -> int:
    """The most blocks that one request of this length needs at any time."""
    spec = group.spec
    match spec.keeps:
        case Keeps.STATE:
            return spec.state_blocks
        case Keeps.WINDOW:
            cached = min(spec.span_tokens - 1 + in_flight_tokens, tokens)
            return -(-cached // spec.block_size) + 1  # a window may start inside a block
        case Keeps.CHUNK:
            return -(-min(spec.span_tokens + in_flight_tokens, tokens) // spec.block_size)
        case _:
            return -(-tokens // spec.block_size)


def make_pool(resolved: ResolvedVllm, tokens: int, available_bytes: int | None) -> BlockPool:
    """The pool of `available_bytes`. vLLM never hands out one of the blocks, so a request must fit into the others."""
    blocks = tuple(
        request_blocks(group, tokens, resolved.in_flight_tokens) for group in resolved.groups
    )
    size = resolved.bytes_per_block
    request_bytes = size * sum(blocks)
    refused = ""
    if available_bytes is not None and blocks:
        usable_bytes = available_bytes - size
        if usable_bytes <= 0:
            refused = "no memory is left for the KV cache"
        elif request_bytes > usable_bytes:
            refused = (
                f"one request of {tokens:,} tokens needs {request_bytes / GIB:.2f} GiB of KV "
                f"cache, but only {usable_bytes / GIB:.2f} GiB are available"
            )
    known = available_bytes is not None and not refused
    # A model without caches still has the block that is never handed out.
    count = available_bytes // size if size and available_bytes is not None else 1
    return BlockPool(
        blocks_per_group=blocks,
        request_bytes=request_bytes,
        available_bytes=available_bytes,
        num_blocks=count if known else None,
        refused=refused,
    )
