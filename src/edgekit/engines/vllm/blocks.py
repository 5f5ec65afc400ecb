"""The attention backend of each layer -> block sizes and cache groups; a context length -> blocks of one request.

Order and conditions of the backends: platforms/cuda.py _get_backend_priorities and the backends' own checks
(validate_configuration, fa_utils.py get_flash_attn_version); groups and pools: kv_cache_interface.py, kv_cache_utils.py
@ 0.32.0. Memory depends on a backend through the block sizes of its kernels, and through the layers that it refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

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
# Groups are as large as the most frequent kind of cache if it has fewer than this many times the layers of the rarest.
PADDING_LIMIT = 1.5


def with_block_sizes(
    members: Members,
    backends: tuple[AttentionBackend, ...],
    requested: int | None,
    storage: Storage,
) -> tuple[int, Members]:
    """The block size that vLLM reports, and the members with their own block sizes.

    `requested`: the block size that the user set.
    """
    specs = tuple(dict.fromkeys(spec for _, spec in members))
    if not backends:  # only recurrences
        block = requested or DEFAULT_BLOCK
        return block, _map_specs(members, lambda spec: replace(spec, block_size=block))
    unit = math.lcm(*(backend.unit for backend in backends))
    block = requested or (unit if DEFAULT_BLOCK % unit else DEFAULT_BLOCK)
    state_page = window_page = 0  # bytes that pages of states and of windows are padded to
    states = [spec.state_bytes for spec in specs if spec.keeps is Keeps.STATE]
    if states:  # _align_hybrid_block_size: a block of attention holds at least a whole state
        attention = next(spec for spec in specs if spec.keeps is not Keeps.STATE)
        step = max(backends[0].unit, block)
        if attention.keeps is Keeps.LATENT:
            step = max(step, LATENT_ALIGNMENT)
        needed = step * -(-max(states) // (step * attention.token_bytes))
        block = max(block, unit * -(-needed // unit))
        state_page = block * attention.token_bytes
    if storage.skipped_layers:  # _align_heterogeneous_kv_block_size
        if any(spec.keeps is Keeps.LATENT for spec in specs):
            raise RefusedError("a packed cache dtype does not work with latent attention (MLA)")
        plain_bytes = specs[0].token_bytes
        # vLLM takes the packed width from the backend of the first layer, which is not quantised: one byte per number
        packed_bytes = plain_bytes // DTYPE_BYTES[storage.dtype]
        step = max(backends[0].unit, block)
        block = max(block, step * -(-plain_bytes * backends[0].unit // (step * packed_bytes)))
        window_page = block * packed_bytes

    def with_block_size(spec: CacheSpec) -> CacheSpec:
        """The cache with its block size, padded where layers have to share a page size."""
        if spec.keeps is Keeps.STATE:
            padded = state_page if state_page != spec.state_bytes else 0
            return replace(spec, block_size=block, page_padded=padded)
        if spec.keeps is not Keeps.WINDOW:
            return replace(spec, block_size=block)
        if window_page:
            tokens = window_page // spec.token_bytes // DEFAULT_BLOCK * DEFAULT_BLOCK
            return replace(spec, block_size=max(DEFAULT_BLOCK, tokens), page_padded=window_page)
        # attention.py get_kv_cache_spec: a kernel with a single block size uses that one
        fixed_sizes = (backend.window_block for backend in backends if backend.window_block)
        return replace(spec, block_size=next(fixed_sizes, block))

    return block, _map_specs(members, with_block_size)


def group_members(members: Members, *, hybrid_manager: bool) -> tuple[CacheGroup, ...]:
    """Groups of layers that share a block table, in vLLM's order.

    Layers of equal caches are divided evenly into groups: layers 0 to 5 into (0, 2, 4) and (1, 3, 5). Kinds of cache
    come in the order in which they first appear. Raises RefusedError if the layers need several groups and
    `hybrid_manager` is off.
    """
    if not members:
        return ()
    has_full_attention = any(spec.keeps in ALL_TOKENS for _, spec in members)
    if not hybrid_manager and has_full_attention and not _is_uniform(members):
        members = _map_specs(members, _for_all_tokens)
    if _is_uniform(members):
        return (CacheGroup(members=members),)
    if not hybrid_manager:
        raise RefusedError(
            "the layers of this model cannot share one kind of KV cache: vLLM needs its "
            "hybrid cache manager"
        )
    largest_page = max(spec.page_bytes for _, spec in members)
    by_kind: dict[CacheSpec, list[tuple[int, CacheSpec]]] = {}
    for layer, spec in _map_specs(members, lambda spec: _with_page_size(spec, largest_page)):
        by_kind.setdefault(spec, []).append((layer, spec))
    counts = [len(layers) for layers in by_kind.values()]
    group_size = max(counts) if max(counts) < min(counts) * PADDING_LIMIT else min(counts)
    groups = []
    for layers in by_kind.values():
        group_count = -(-len(layers) // group_size)
        groups += [
            CacheGroup(members=tuple(layers[start::group_count])) for start in range(group_count)
        ]
    return tuple(groups)


def _for_all_tokens(spec: CacheSpec) -> CacheSpec:
    """The cache with blocks for all tokens, even if attention sees only a window or a chunk."""
    if spec.keeps in {Keeps.WINDOW, Keeps.CHUNK}:
        return replace(spec, keeps=Keeps.FULL, span_tokens=0)
    return spec


def bytes_per_block(groups: tuple[CacheGroup, ...], stage: range) -> int:
    """Bytes of a block on a pipeline stage. All groups share one pool, so the largest decides."""
    group_bytes = (
        sum(spec.page_bytes for layer, spec in group.members if layer in stage) for group in groups
    )
    return max(group_bytes, default=0)


def _map_specs(members: Members, change: Callable[[CacheSpec], CacheSpec]) -> Members:
    """The members with `change` applied to every cache, once for caches that are equal."""
    changed = {spec: change(spec) for spec in {spec for _, spec in members}}
    return tuple((layer, changed[spec]) for layer, spec in members)


def _is_uniform(members: Members) -> bool:
    """Whether all layers need the same number of blocks, so that one group is enough."""
    specs = {spec for _, spec in members}
    first = members[0][1]
    if first.keeps is Keeps.STATE:
        return len({(spec.keeps, spec.page_bytes, spec.state_blocks) for spec in specs}) == 1
    if len({spec.block_size for spec in specs}) > 1:
        return False
    if first.keeps in ALL_TOKENS:
        return all(spec.keeps in ALL_TOKENS for spec in specs)
    return len({(spec.keeps, spec.span_tokens) for spec in specs}) == 1


def _with_page_size(spec: CacheSpec, page: int) -> CacheSpec:
    """The cache with a page of this size: a larger block if it divides the page evenly, else padding."""
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
    """The most blocks that one request of this length needs at any time.

    `in_flight_tokens` have been scheduled, so windows and chunks cannot free their blocks yet.
    """
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
    """The pool of `available_bytes`, and the blocks in it that a request of this length needs.

    vLLM never hands out one of the blocks, so a request must fit into the others.
    """
    blocks_per_group = tuple(
        request_blocks(group, tokens, resolved.in_flight_tokens) for group in resolved.groups
    )
    block_bytes = resolved.bytes_per_block
    request_bytes = block_bytes * sum(blocks_per_group)
    refused = ""
    if available_bytes is not None and blocks_per_group:
        usable_bytes = available_bytes - block_bytes
        if usable_bytes <= 0:
            refused = "no memory is left for the KV cache"
        elif request_bytes > usable_bytes:
            refused = (
                f"one request of {tokens:,} tokens needs {request_bytes / GIB:.2f} GiB of KV "
                f"cache, but only {usable_bytes / GIB:.2f} GiB are available"
            )
    num_blocks = None
    if available_bytes is not None and not refused:
        # a model without caches still has the block that is never handed out
        num_blocks = available_bytes // block_bytes if block_bytes else 1
    return BlockPool(
        blocks_per_group=blocks_per_group,
        request_bytes=request_bytes,
        num_blocks=num_blocks,
        refused=refused,
    )


DEFAULT_BLOCK = 16  # config/cache.py DEFAULT_BLOCK_SIZE
UNQUANTIZED = frozenset({"auto", "float16", "bfloat16"})
FLASH_FP8 = frozenset({"fp8", "fp8_e4m3"})
PLAIN_OR_FP8 = UNQUANTIZED | FLASH_FP8
TRITON_ONLY = frozenset(
    {"fp8_e5m2", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"}
)
LATENT_WIDTHS = frozenset({320, 512, 576})  # mla_attention.py get_supported_head_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """Everything about a layer and the GPU that a backend has to support."""

    capability: tuple[int, int]
    dtype: str
    cache_dtype: str
    head_dim: int  # of the layer
    model_head_dim: int = 0  # of the model's widest layer: some kernels are chosen once for all
    block_size: int | None = None  # as the user set it
    sliding: bool = False
    sinks: bool = False
    softcap: bool = False
    bidirectional: bool = False  # image tokens attend to each other both ways
    sparse: bool = False
    flashinfer: bool = False

    @property
    def major(self) -> int:
        return self.capability[0]

    @property
    def quantized(self) -> bool:
        return self.cache_dtype != "auto" and self.cache_dtype not in DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    name: str
    unit: int  # blocks must be a multiple of it
    window_block: int = 0  # the only block size of its kernel for sliding layers; 0: any


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentBackend:
    """A backend of latent attention (MLA), and what it supports."""

    unit: int
    cache_dtypes: frozenset[str]
    majors: frozenset[int] | None = None  # of the compute capability; None: any
    head_dims: frozenset[int] | None = None  # None: any
    float32: bool = False
    needs_flashinfer: bool = False

    def supports(self, needs: AttentionNeeds) -> bool:
        return (
            needs.cache_dtype in self.cache_dtypes
            and (self.float32 or needs.dtype != "float32")
            and (self.majors is None or needs.major in self.majors)
            and (self.head_dims is None or needs.head_dim in self.head_dims)
            and (needs.flashinfer or not self.needs_flashinfer)
        )


LATENT_BACKENDS = {
    "FLASH_ATTN_MLA": LatentBackend(
        unit=16, cache_dtypes=UNQUANTIZED, majors=frozenset({9}), head_dims=LATENT_WIDTHS
    ),
    "FLASHMLA": LatentBackend(
        unit=64, cache_dtypes=PLAIN_OR_FP8, majors=frozenset({9, 10}), head_dims=LATENT_WIDTHS
    ),
    "CUTLASS_MLA": LatentBackend(
        unit=128, cache_dtypes=PLAIN_OR_FP8, majors=frozenset({10}), head_dims=LATENT_WIDTHS
    ),
    "FLASHINFER_MLA": LatentBackend(
        unit=32, cache_dtypes=PLAIN_OR_FP8, head_dims=LATENT_WIDTHS, needs_flashinfer=True
    ),
    "TRITON_MLA": LatentBackend(unit=16, cache_dtypes=PLAIN_OR_FP8),
    "FLASH_ATTN_MLA_SPARSE": LatentBackend(
        unit=64, cache_dtypes=UNQUANTIZED, majors=frozenset({9})
    ),
    "FLASHMLA_SPARSE": LatentBackend(
        unit=64,
        cache_dtypes=frozenset({"auto", "bfloat16", "fp8", "fp8_ds_mla"}),
        majors=frozenset({9, 10}),
        head_dims=frozenset({576}),
        float32=True,
    ),
    "FLASHINFER_MLA_SPARSE": LatentBackend(  # chosen even if the package is missing
        unit=32, cache_dtypes=PLAIN_OR_FP8, head_dims=frozenset({512, 576}), float32=True
    ),
}


def choose_backend(needs: AttentionNeeds, *, latent: bool) -> AttentionBackend:
    """The first backend that supports the layer. Raises RefusedError if there is none.

    `latent`: the layer caches the latent of MLA.
    """
    card = f"{needs.capability[0]}.{needs.capability[1]}"
    for name in _latent_order(needs) if latent else _backend_order(needs):
        if latent:
            backend = LATENT_BACKENDS[name]
            unit = backend.unit if backend.supports(needs) else 0
        else:
            unit = _block_unit(name, needs)
        if not unit or (needs.block_size is not None and needs.block_size % unit):
            continue
        if name.startswith("TRITON"):  # triton_attn.py, triton_mla.py: no fallback for a dtype
            if needs.cache_dtype.startswith("fp8") and needs.capability < (8, 9):
                raise RefusedError(
                    f"an fp8 cache needs compute capability 8.9 or higher here (this GPU has {card})"
                )
            if needs.cache_dtype == "bfloat16" and needs.capability < (8, 0):
                raise RefusedError(
                    f"a bfloat16 cache needs compute capability 8.0 or higher (this GPU has {card})"
                )
        window_block = _kernel_block(needs, needs.head_dim) if name == "FLASH_ATTN" else 0
        return AttentionBackend(name=name, unit=unit, window_block=window_block)
    blocks = f", blocks of {needs.block_size}" if needs.block_size else ""
    raise RefusedError(
        f"no attention backend of vLLM takes head size {needs.head_dim}, {needs.dtype}, "
        f"cache {needs.cache_dtype}{blocks} on compute capability {card}"
    )


def _backend_order(needs: AttentionNeeds) -> tuple[str, ...]:
    """Backends of plain attention in the order in which vLLM tries them."""
    fallbacks = ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    if needs.bidirectional and needs.major == 9:
        return ("TRITON_FLASH_ATTN", "FLASHINFER", *fallbacks)
    if needs.major == 10:
        return ("FLASHINFER", "FLASH_ATTN", *fallbacks)
    return ("FLASH_ATTN", "FLASHINFER", *fallbacks)


def _latent_order(needs: AttentionNeeds) -> tuple[str, ...]:
    """Backends of latent attention in the order in which vLLM tries them."""
    if needs.sparse and needs.major == 10:
        order = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
        return order[::-1] if needs.quantized else order
    if needs.sparse:
        return ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    if needs.major == 10:
        return ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA")
    if needs.major == 12:
        return ("TRITON_MLA",)
    return ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")


def _block_unit(name: str, needs: AttentionNeeds) -> int:
    """The number of tokens that block sizes must be a multiple of; 0 if the backend does not support the layer."""
    cache_dtype = needs.cache_dtype
    match name:
        case "FLASH_ATTN":
            return _flash_unit(needs)
        case "TRITON_FLASH_ATTN":  # images go to Triton, the rest to FlashAttention
            return _flash_unit(replace(needs, bidirectional=False))
        case "FLASHINFER":
            is_supported = _flashinfer_supports(needs)
        case "TRITON_ATTN":
            is_supported = needs.head_dim >= 32 and cache_dtype in PLAIN_OR_FP8 | TRITON_ONLY
        case "FLEX_ATTENTION":
            is_supported = cache_dtype in UNQUANTIZED and not needs.sinks
        case _:  # TURBOQUANT
            is_plain = needs.dtype != "float32" and not needs.sinks and not needs.sliding
            is_supported = is_plain and cache_dtype.startswith("turboquant_")
    return DEFAULT_BLOCK if is_supported else 0


def _flash_unit(needs: AttentionNeeds) -> int:
    """The number of tokens that FlashAttention's blocks are a multiple of; 0 if it does not support the layer."""
    head_dim, major = needs.head_dim, needs.major
    if needs.capability < (8, 0) or needs.dtype == "float32" or needs.bidirectional:
        return 0
    has_fa4 = major in {9, 10, 11}
    if head_dim % 8 or head_dim > (512 if has_fa4 else 256):
        return 0
    if needs.sinks and major not in {9, 10}:
        return 0
    if needs.quantized:
        is_supported = {9: head_dim <= 256 or head_dim == 512, 10: head_dim <= 128}
        if needs.cache_dtype not in FLASH_FP8 or not is_supported.get(major):
            return 0
    return _kernel_block(needs, needs.model_head_dim or head_dim) or DEFAULT_BLOCK


def _kernel_block(needs: AttentionNeeds, head_dim: int) -> int:
    """The only block size that FlashAttention 4 has for these wide heads; 0 if its kernels take any size.

    flash_attn.py _get_sm90_fa4_fp8_kv_block_size, _get_fa4_hd256_block_size.
    """
    if needs.major == 9 and needs.quantized and head_dim == 512:
        return 64
    is_plain = not (needs.sinks or needs.softcap or needs.quantized or needs.bidirectional)
    return 128 if head_dim == 256 and needs.major == 10 and is_plain else 0


def _flashinfer_supports(needs: AttentionNeeds) -> bool:
    cache_dtype = needs.cache_dtype
    if not needs.flashinfer or needs.dtype == "float32" or needs.capability < (7, 5):
        return False
    if needs.head_dim not in {64, 128, 256} or (needs.sinks and needs.major != 10):
        return False
    is_fp4 = cache_dtype.startswith("nvfp4") and cache_dtype != "nvfp4_ds_mla"
    return cache_dtype in PLAIN_OR_FP8 | {"fp8_e5m2"} or (is_fp4 and needs.major == 10)
