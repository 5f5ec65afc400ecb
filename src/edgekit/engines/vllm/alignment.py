"""Cache layers and backends -> tokens in a block, and every layer's page.

platforms/interface.py update_block_size_for_backend @ 0.32.0: a size that all backends take; in models with recurrences
one whose page holds a state; where two cache dtypes share the pool one whose page holds the wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgekit.engines.vllm.backends import (
    DEFAULT_BLOCK,
    AttentionBackend,
    common_unit,
    default_block,
)
from edgekit.engines.vllm.caches import Storage
from edgekit.engines.vllm.types import DTYPE_BYTES, CacheSpec, Keeps, Members
from edgekit.errors import RefusedError

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
