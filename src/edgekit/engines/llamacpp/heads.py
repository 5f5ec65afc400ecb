"""Sizes of a model's attention heads, as far as llama.cpp checks options against them."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.model.types import (
    Attention,
    CompressedAttention,
    LatentAttention,
    ModelGeometry,
    Span,
    attention_of,
)

# Heads that CUDA has a flash attention kernel for: fattn.cu @ 0c1e570
SAME_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
WIDER_KEYS = {192: 128, 320: 256, 576: 512}  # key size -> the value size there is a kernel for
GQA_MULTIPLE = {192: 8, 320: 32}
NEEDS_GQA = frozenset({192, 320, 512, 576})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSizes:
    """What the options are checked against."""

    key_dims: frozenset[int]
    value_dims: frozenset[int]
    latent: bool  # V is a part of K: both must have one type
    apart: bool  # sequences have caches of their own, asked for or not (DeepSeek-V4)
    window: int  # tokens a sliding layer sees, 0 without any
    widest_value: int  # numbers of one token's V in the widest layer
    flashes: bool  # CUDA has a flash attention kernel for all of them

    @classmethod
    def of(cls, geometry: ModelGeometry) -> HeadSizes:
        attentions = [found for layer in geometry.layers if (found := attention_of(layer.mixer))]
        mixers = [layer.mixer for layer in geometry.layers]
        compressed = [one for one in mixers if isinstance(one, CompressedAttention)]
        latent = any(isinstance(one, LatentAttention) and one.absorbed for one in attentions)
        windows = [one.span_tokens for one in attentions if one.span is not Span.ALL]
        windows += [one.window_tokens for one in compressed]
        return cls(
            key_dims=frozenset(_cached_key_dim(one) for one in attentions),
            value_dims=frozenset() if latent else frozenset(one.value_dim for one in attentions),
            latent=latent or bool(compressed),
            apart=bool(compressed),
            window=max(windows, default=0),
            widest_value=max((_value_width(one) for one in attentions), default=0),
            flashes=all(_has_kernel(one) for one in attentions),
        )


def _cached_key_dim(attention: Attention | LatentAttention) -> int:
    if isinstance(attention, LatentAttention) and attention.absorbed:
        return attention.latent_dim + attention.rope_dim
    return attention.key_dim


def _has_kernel(attention: Attention | LatentAttention) -> bool:
    if isinstance(attention, LatentAttention):
        if attention.absorbed:
            keys, values = _cached_key_dim(attention), attention.latent_dim
            return has_flash_kernel(keys, values, attention.heads)
        return has_flash_kernel(attention.key_dim, attention.value_dim, 1)
    ratio = attention.heads // max(1, attention.kv_heads)
    return has_flash_kernel(attention.key_dim, attention.value_dim, ratio)


def _value_width(attention: Attention | LatentAttention) -> int:
    heads = attention.heads if isinstance(attention, LatentAttention) else attention.kv_heads
    return heads * attention.value_dim


def has_flash_kernel(keys: int, values: int, ratio: int) -> bool:
    """Whether CUDA has one for heads of these sizes, `ratio` of them for each KV head."""
    if keys in WIDER_KEYS:
        fits = values == WIDER_KEYS[keys] and ratio % GQA_MULTIPLE.get(keys, 1) == 0
    else:
        fits = keys in SAME_HEADS and values == keys
    return fits and (keys not in NEEDS_GQA or ratio >= 2)
