"""Geometry -> the cache layers of one rank: bytes of a token or a sequence in each, before block sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit.engines.vllm.expected import share
from edgekit.engines.vllm.models import vllm_model
from edgekit.engines.vllm.types import DTYPE_BYTES, CacheSpec, Keeps, Members
from edgekit.errors import RefusedError, UsageError, unquoted
from edgekit.model.types import (
    Attention,
    Cell,
    HybridLayer,
    LatentAttention,
    LayerKind,
    Model,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
)

BOUNDARY_LAYERS = 2  # turboquant/config.py get_boundary_skip_layers: layers at either end
SCALE_BYTES = 4  # an f32
PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}  # mla_attention.py get_kv_cache_spec
_KEEPS = {Span.ALL: Keeps.FULL, Span.WINDOW: Keeps.WINDOW, Span.CHUNK: Keeps.CHUNK}

HeadBytes = Callable[[int, int], int]  # widths of a key and a value -> bytes of both


def _plain(element_bytes: int) -> HeadBytes:
    return lambda key, value: (key + value) * element_bytes


def _per_token_head(bits: int) -> HeadBytes:
    """Quantised numbers, and a scale for each key and each value (triton_attn.py customize_spec)."""
    return lambda key, value: key * bits // 8 + value * bits // 8 + 2 * SCALE_BYTES


def _turboquant(key_bits: int, value_bits: int) -> HeadBytes:
    """Keys with a norm unless they are fp8, values with a scale and a zero point, rounded up to two bytes.

    turboquant/config.py slot_size_aligned.
    """

    def head_bytes(width: int, _value_width: int) -> int:
        key_bytes = width if key_bits == 8 else -(-width * key_bits // 8) + 2
        value_bytes = -(-width * value_bits // 8) + 4
        return -(-(key_bytes + value_bytes) // 2) * 2

    return head_bytes


def _nvfp4(key: int, value: int) -> int:
    """Four bits per number, and a one-byte scale for every 16."""
    return sum(width // 2 + width // 16 for width in (key, value))


# The cache dtypes of vLLM. All except the model's own dtypes are quantised.
HEAD_BYTES: Mapping[str, HeadBytes] = {
    **{name: _plain(size) for name, size in DTYPE_BYTES.items()},
    "fp8": _plain(1),
    "fp8_e4m3": _plain(1),
    "fp8_e5m2": _plain(1),
    "fp8_inc": _plain(1),
    "fp8_ds_mla": _plain(1),
    "nvfp4_ds_mla": _plain(1),
    "turboquant_k8v4": _turboquant(8, 4),
    "turboquant_4bit_nc": _turboquant(4, 4),
    "turboquant_k3v4_nc": _turboquant(3, 4),
    "turboquant_3bit_nc": _turboquant(3, 3),
    "ultraquant_4bit": _plain(1),
    "int4_per_token_head": _per_token_head(4),
    "int8_per_token_head": _per_token_head(8),
    "fp8_per_token_head": _per_token_head(8),
    "nvfp4": _nvfp4,
    "nvfp4_4over6": _nvfp4,
}
NAMES = ("auto", *(name for name in HEAD_BYTES if name != "float32"))


def check_name(name: str) -> None:
    """Raises UsageError for a cache dtype that vLLM does not have."""
    if name not in NAMES:
        raise UsageError(f"unknown cache dtype {name[:40]!r}; choose one of {', '.join(NAMES)}")


def resolve_auto(config: Mapping[str, Any], *, latent: bool) -> str:
    """The cache dtype that "auto" stands for: the one the checkpoint was calibrated for, else "auto" itself.

    torch_utils.py get_kv_cache_quant_algo_string (ModelOpt), attention.py Attention.__init__ (compressed-tensors).
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return "auto"
    method = str(quantization.get("quant_method") or "")
    if method == "compressed-tensors":
        has_scheme = isinstance(quantization.get("kv_cache_scheme"), Mapping)
        return "fp8" if has_scheme and not latent else "auto"
    if not method.startswith("modelopt"):
        return "auto"
    nested = quantization.get("quantization")
    sections = (nested, quantization) if isinstance(nested, Mapping) else (quantization,)
    schemes = (
        section.get(key)
        for key in ("kv_cache_scheme", "kv_cache_quant_algo")
        for section in sections
    )
    scheme = next(filter(None, schemes), None)
    if isinstance(scheme, Mapping):
        is_float, bits = scheme.get("type") == "float", scheme.get("num_bits")
        if is_float and bits == 8 and scheme.get("dynamic") is False:
            return "fp8_e4m3"
        return "nvfp4" if is_float and bits == 4 else "auto"
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(scheme).lower(), "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The resolved dtypes of caches and states, on one of several ranks."""

    dtype: str
    cache_dtype: str  # "auto": as the model
    tensor_parallel_size: int = 1
    conv_dtype: str = "bfloat16"
    state_dtype: str = "bfloat16"
    prefix_caching: bool = True
    skipped_layers: frozenset[int] = frozenset()  # their caches stay in the model's dtype
    sparse: bool = False
    blackwell: bool = False


def boundary_layers(model: Model) -> frozenset[int]:
    """Layers that TurboQuant does not quantise; none in models with recurrences."""
    layers = model.geometry.layers
    if any(layer.mixer.states for layer in layers):
        return frozenset()
    count = len(layers)
    ends = min(BOUNDARY_LAYERS, count // 2)
    return frozenset((*range(ends), *range(count - ends, count)))


def cache_members(model: Model, storage: Storage) -> Members:
    """The caches of all layers, in the order in which vLLM's model code creates them.

    Bidirectional models have none.
    """
    if not model.geometry.causal:
        return ()
    architecture = model.geometry.architecture
    if vllm_model(architecture).unknown_caches:
        raise RefusedError(
            f"the KV cache that vLLM uses for {unquoted(architecture)} is not known yet"
        )
    specs_by_kind: dict[object, tuple[CacheSpec, ...]] = {}  # most layers are identical
    members: list[tuple[int, CacheSpec]] = []
    for layer in model.geometry.layers:
        is_quantized = storage.cache_dtype != "auto" and layer.index not in storage.skipped_layers
        dtype = storage.cache_dtype if is_quantized else storage.dtype
        key = (layer.mixer, dtype)
        if key not in specs_by_kind:
            specs_by_kind[key] = tuple(_specs(model, layer.mixer, dtype, storage))
        members += ((layer.index, spec) for spec in specs_by_kind[key])
    return tuple(members)


def _specs(model: Model, kind: LayerKind, dtype: str, storage: Storage) -> Iterator[CacheSpec]:
    """The caches of one layer. Raises RefusedError if it is not known how vLLM caches the layer."""
    match kind:
        case Attention():
            if kind.index_dim:
                raise RefusedError(
                    "the KV cache that vLLM uses for an indexer with plain attention is not known yet"
                )
            facts = vllm_model(model.geometry.architecture)
            offset = facts.window_offset if kind.span is Span.WINDOW else 0
            heads = per_rank(kind.kv_heads, storage.tensor_parallel_size)
            spec = _head_spec((heads, kind.key_dim, kind.value_dim), dtype)
            yield replace(spec, keeps=_KEEPS[kind.span], span_tokens=kind.span_tokens + offset)
        case LatentAttention():
            yield from _latent_specs(model, kind, dtype, storage)
        case Recurrent():
            dtypes = (storage.conv_dtype, storage.state_dtype)
            blocks = 1
            if storage.prefix_caching:  # MambaSpec.max_memory_usage_bytes
                # the request's state; one to copy on write; with Mamba-2 one that a prefill leaves behind
                blocks = 3 if kind.cell is Cell.MAMBA2 else 2
            yield CacheSpec(
                keeps=Keeps.STATE,
                form=("state", kind.cell, *dtypes),
                state_bytes=state_bytes(kind, storage.tensor_parallel_size, *dtypes),
                state_blocks=blocks,
            )
        case HybridLayer():
            yield from _specs(model, kind.attention, dtype, storage)
            yield from _specs(model, kind.recurrent, dtype, storage)
        case SharedCache() | NoCache():
            return
        case _:
            raise RefusedError(f"the KV cache that vLLM uses for {kind.label} is not known yet")


def _head_spec(shape: tuple[int, int, int], dtype: str) -> CacheSpec:
    """The cache of plain attention; `shape` has the number of heads and the widths of a key and a value."""
    heads, key_dim, value_dim = shape
    size = heads * HEAD_BYTES[dtype](key_dim, value_dim)
    return CacheSpec(keeps=Keeps.FULL, form=(*shape, dtype), token_bytes=size)


def _latent_specs(
    model: Model, kind: LatentAttention, dtype: str, storage: Storage
) -> Iterator[CacheSpec]:
    """The caches of latent attention: its indexer and its latent, or every head if vLLM does not keep the latent."""
    if not vllm_model(model.geometry.architecture).keeps_latent:
        heads = per_rank(kind.heads, storage.tensor_parallel_size)
        yield _head_spec((heads, kind.key_dim, kind.key_dim), dtype)
        return
    if kind.span is not Span.ALL:
        raise RefusedError(
            "the KV cache that vLLM uses for sliding-window latent attention is not known yet"
        )
    # An fp8 key, and an f32 scale for every 128 numbers (deepseek_v2.py Indexer)
    if kind.index_dim:
        size = kind.index_dim + kind.index_dim // 128 * SCALE_BYTES
        yield CacheSpec(keeps=Keeps.LATENT, form=("index", size), token_bytes=size)
    if storage.sparse and dtype.startswith("fp8") and not storage.blackwell:
        dtype = "fp8_ds_mla"  # FlashMLA's sparse kernels use another layout for fp8
    width = kind.latent_dim + kind.rope_dim
    size = PACKED_LATENT_BYTES.get(dtype) or HEAD_BYTES[dtype](width, 0)
    yield CacheSpec(keeps=Keeps.LATENT, form=(1, width, 0, dtype), token_bytes=size)


def per_rank(heads: int, ranks: int) -> int:
    """The number of KV heads on one rank. With more ranks than heads, each rank has a copy of one head.

    Raises RefusedError if one number is not a multiple of the other.
    """
    if max(heads, ranks) % min(heads, ranks):
        raise RefusedError(f"{heads} KV heads cannot be divided among {ranks} ranks")
    return max(1, heads // ranks)


def state_bytes(kind: Recurrent, ranks: int, conv_dtype: str, state_dtype: str) -> int:
    """Bytes on one rank of a sequence's state, and of the last inputs that the convolution still needs."""
    taps = kind.conv_kernel - 1  # inputs before the current one
    state = kind.state_elements // ranks
    match kind.cell:
        case Cell.MAMBA:
            channels = share(kind.inner, ranks, "an inner width")
            state = channels * kind.state_size
        case Cell.MAMBA2:
            # every rank needs a group, so groups that cannot be divided are copied
            groups = kind.groups if kind.groups % ranks == 0 else ranks
            channels = share(kind.inner + 2 * groups * kind.state_size, ranks, "a convolution")
            share(kind.heads, ranks, "a count of state heads")
        case Cell.GATED_DELTA | Cell.KIMI_DELTA:
            channels = share(kind.conv_elements // max(taps, 1), ranks, "a convolution")
            share(kind.heads, ranks, "a count of state heads")
        case Cell.SHORT_CONV:
            channels, state = share(kind.inner, ranks, "a convolution"), 0
        case _:
            raise RefusedError(f"vLLM 0.32 has no model with {kind.cell.value} layers")
    return taps * channels * DTYPE_BYTES[conv_dtype] + state * DTYPE_BYTES[state_dtype]
