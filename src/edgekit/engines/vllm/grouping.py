"""Layers with pages -> groups that share a table of blocks (kv_cache_utils.py get_kv_cache_groups @ 0.32.0)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgekit.engines.vllm.types import ALL_TOKENS, CacheGroup, CacheSpec, Keeps, Members
from edgekit.errors import RefusedError

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
