"""Geometry -> the cache layers of one rank: what a token or a sequence takes in each, before blocks are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgekit.engines.vllm.cache_dtypes import BY_NAME, PACKED_LATENT_BYTES
from edgekit.engines.vllm.models import vllm_model
from edgekit.engines.vllm.states import state_blocks, state_bytes
from edgekit.engines.vllm.types import CacheSpec, Keeps, Members
from edgekit.errors import RefusedError
from edgekit.model.types import (
    Attention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    Model,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
)

_KEEPS = {Span.ALL: Keeps.FULL, Span.WINDOW: Keeps.WINDOW, Span.CHUNK: Keeps.CHUNK}
BOUNDARY_LAYERS = 2  # turboquant/config.py get_boundary_skip_layers: so many at either end


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How numbers are kept: dtypes resolved, one rank of several."""

    dtype: str
    cache_dtype: str  # "auto": as the model
    tensor_parallel_size: int = 1
    conv_dtype: str = "bfloat16"
    state_dtype: str = "bfloat16"
    prefix_caching: bool = True
    skipped_layers: frozenset[int] = frozenset()  # those that stay in the model's dtype
    sparse: bool = False
    blackwell: bool = False

    def cache_dtype_of(self, layer: int) -> str:
        named = "auto" if layer in self.skipped_layers else self.cache_dtype
        return self.dtype if named == "auto" else named


def attention_of(kind: LayerKind) -> Attention | LatentAttention | None:
    """The attention of a layer that owns a cache for it."""
    match kind:
        case Attention() | LatentAttention():
            return kind
        case HybridLayer():
            return kind.attention
        case _:
            return None


def boundary_layers(model: Model) -> frozenset[int]:
    """Layers that a packed cache dtype leaves alone; none in models with recurrences."""
    layers = model.geometry.layers
    if any(layer.mixer.states for layer in layers):
        return frozenset()
    count = len(layers)
    ends = min(BOUNDARY_LAYERS, count // 2)
    return frozenset((*range(ends), *range(count - ends, count)))


def cache_members(model: Model, storage: Storage) -> Members:
    """In the order in which vLLM's model code makes them; none where attention looks both ways."""
    if not model.geometry.causal:
        return ()
    known: dict[object, tuple[CacheSpec, ...]] = {}  # most layers are alike
    members: list[tuple[int, CacheSpec]] = []
    for layer in model.geometry.layers:
        name = storage.cache_dtype_of(layer.index)
        key = (layer.mixer, name)
        if key not in known:
            known[key] = tuple(_specs(model, layer.mixer, name, storage))
        members += ((layer.index, spec) for spec in known[key])
    return tuple(members)


def _specs(model: Model, kind: LayerKind, name: str, storage: Storage) -> Iterator[CacheSpec]:
    match kind:
        case Attention():
            yield _attention(model, kind, name, storage)
        case LatentAttention():
            yield from _latent(model, kind, name, storage)
        case Recurrent():
            yield _state(kind, storage)
        case HybridLayer():
            yield _attention(model, kind.attention, name, storage)
            yield _state(kind.recurrent, storage)
        case SharedCache() | NoCache():
            return
        case _:
            raise RefusedError(f"the KV cache that vLLM uses for {kind.label} is not known yet")


def _attention(model: Model, kind: Attention, name: str, storage: Storage) -> CacheSpec:
    if kind.index_dim:
        raise RefusedError(
            "the KV cache that vLLM uses for an indexer with plain attention is not known yet"
        )
    file = vllm_model(model.geometry.architecture)
    offset = file.window_offset if kind.span is Span.WINDOW else 0
    heads = per_rank(kind.kv_heads, storage.tensor_parallel_size)
    spec = _heads((heads, kind.key_dim, kind.value_dim), name)
    return replace(spec, keeps=_KEEPS[kind.span], span_tokens=kind.span_tokens + offset)


def _heads(shape: tuple[int, int, int], name: str) -> CacheSpec:
    heads, key_dim, value_dim = shape
    size = heads * BY_NAME[name].head_bytes(key_dim, value_dim)
    return CacheSpec(keeps=Keeps.FULL, form=(*shape, name), token_bytes=size)


def _latent(
    model: Model, kind: LatentAttention, name: str, storage: Storage
) -> Iterator[CacheSpec]:
    if not vllm_model(model.geometry.architecture).keeps_latent:
        heads = per_rank(kind.heads, storage.tensor_parallel_size)
        yield _heads((heads, kind.key_dim, kind.key_dim), name)
        return
    if kind.span is not Span.ALL:
        raise RefusedError(
            "the KV cache that vLLM uses for sliding-window latent attention is not known yet"
        )
    if kind.index_dim:  # an fp8 key and an f32 scale for every 128 of it (deepseek_v2.py Indexer)
        size = kind.index_dim + kind.index_dim // 128 * 4
        yield CacheSpec(keeps=Keeps.LATENT, form=("index", size), token_bytes=size)
    if storage.sparse and name.startswith("fp8") and not storage.blackwell:
        name = "fp8_ds_mla"  # FlashMLA's sparse kernels have a layout of their own for fp8
    width = kind.latent_dim + kind.rope_dim
    size = PACKED_LATENT_BYTES.get(name) or BY_NAME[name].head_bytes(width, 0)
    yield CacheSpec(keeps=Keeps.LATENT, form=(1, width, 0, name), token_bytes=size)


def _state(kind: Recurrent, storage: Storage) -> CacheSpec:
    dtypes = (storage.conv_dtype, storage.state_dtype)
    return CacheSpec(
        keeps=Keeps.STATE,
        form=("state", kind.cell, *dtypes),
        state_bytes=state_bytes(kind, storage.tensor_parallel_size, *dtypes),
        state_blocks=state_blocks(kind, prefix_caching=storage.prefix_caching),
    )


def per_rank(heads: int, ranks: int) -> int:
    """KV heads of one rank: a share of them, or one of them on several ranks."""
    if max(heads, ranks) % min(heads, ranks):
        raise RefusedError(f"{heads} KV heads cannot be divided among {ranks} ranks")
    return max(1, heads // ranks)
