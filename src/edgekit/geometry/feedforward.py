"""The feed-forward half of every layer: dense, experts, or both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgekit.errors import HeaderError
from edgekit.geometry.arrange import Word
from edgekit.geometry.hyper import Hyper
from edgekit.geometry.types import Experts, FeedForward

Pair = tuple[FeedForward | None, Experts | None]


def feed_forwards(
    hyper: Hyper, words: tuple[Word, ...], *, gated: bool, beside: bool, alternating: bool
) -> tuple[Pair, ...]:
    """One pair a layer. `beside`: experts stand beside a dense half; `alternating`: a layer is a mixer or this."""
    count = len(words)
    dense = tuple(_dense(width, gated=gated) for width in _dense_widths(hyper, count))
    experts = _experts(hyper, gated=gated)
    routed = _routed_layers(hyper, count) if experts is not None else (False,) * count
    if alternating:
        return tuple(
            _alternate(word, pair, experts) for word, pair in zip(words, dense, strict=True)
        )
    return tuple(
        (half if beside or not moe else None, experts if moe else None)
        for half, moe in zip(dense, routed, strict=True)
    )


def _dense(width: int, *, gated: bool) -> FeedForward | None:
    return FeedForward(width=width, gated=gated) if width else None


def _alternate(word: Word, dense: FeedForward | None, experts: Experts | None) -> Pair:
    if word is not Word.NONE:
        return (None, None)
    return (None, experts) if experts is not None else (dense, None)


def _experts(hyper: Hyper, *, gated: bool) -> Experts | None:
    count = hyper.number("experts") or 0
    if count <= 1:
        return None
    used = hyper.number("experts_used") or 0
    if not 0 < used <= count:
        raise HeaderError(f"{used} of {count} experts are used", file=hyper.header.name)
    width = hyper.number("expert_feed_forward") or hyper.number("feed_forward")
    if not width:
        raise hyper.missing("expert_feed_forward")
    shared = hyper.number("shared_feed_forward")
    if shared is None:
        shared = _count_of(hyper, "shared_experts") * width
    latent = hyper.number("expert_latent") or 0
    return Experts(
        count=count, used=used, width=width, shared_width=shared, latent=latent, gated=gated
    )


def _count_of(hyper: Hyper, word: str) -> int:
    """A count that some configs write as a list (Hunyuan): the largest of it."""
    listed = hyper.items(word)
    if listed is None:
        return hyper.number(word) or 0
    return max((hyper.whole(word, item) for item in listed), default=0)


def _routed_layers(hyper: Hyper, layers: int) -> tuple[bool, ...]:
    if (types := hyper.listed("mlp_layer_types", layers)) is not None:
        return tuple(kind == "sparse" for kind in types)
    if (marks := hyper.listed("moe_step", layers)) is not None:
        return tuple(bool(mark) for mark in marks)
    step = hyper.number("moe_step")
    if step == 0:
        return (False,) * layers
    step = step or 1
    offset = hyper.number("moe_offset")
    routed_at = step - 1 if offset is None else offset
    lead = hyper.number("leading_dense") or 0
    dense = [index for index in hyper.items("mlp_only_layers") or () if isinstance(index, int)]
    return tuple(i >= lead and i % step == routed_at and i not in dense for i in range(layers))


def _dense_widths(hyper: Hyper, layers: int) -> tuple[int, ...]:
    stated = hyper.per_layer("dense_feed_forward", layers) or hyper.per_layer(
        "feed_forward", layers
    )
    if stated is None:
        stated = _derived_widths(hyper, layers)
    stated = tuple(_adjusted(hyper, width) for width in stated)
    if hyper.flag("wide_shared_ffn"):
        shared = hyper.number("shared_cache_layers") or 0
        return tuple(w * 2 if i >= layers - shared else w for i, w in enumerate(stated))
    return stated


def _derived_widths(hyper: Hyper, layers: int) -> tuple[int, ...]:
    """Configs that give a ratio instead of a width."""
    hidden = hyper.need("hidden")
    if (blocks := hyper.listed("block_configs", layers)) is not None:
        return tuple(_block_width(hyper, block, hidden) for block in blocks)
    config = hyper.section
    if (multiple := config.get("multiple_of")) and isinstance(multiple, int):  # Meta's params.json
        scale = config.get("ffn_dim_multiplier") or 1.0
        return (_round_up(int(int(8 * hidden / 3) * _positive(hyper, scale)), multiple),) * layers
    if "hidden_ratio" in config or hyper.architecture in {
        "transformer",
        "gla",
    }:  # flash-linear-attention
        ratio = _positive(hyper, config.get("hidden_ratio") or 4)
        return (_round_up(int(hidden * ratio * 2 / 3), 256),) * layers
    return (4 * hidden,) * layers  # GPT-2, Bloom, Falcon, Phi and their kin never state it


def _block_width(hyper: Hyper, block: Any, hidden: int) -> int:
    half = block.get("ffn") if isinstance(block, dict) else None
    if not isinstance(half, dict) or half.get("no_op") or half.get("replace_with_linear"):
        return 0
    scale = half.get("ffn_mult")
    if scale is None:
        return int(half.get("intermediate_size") or 0)
    return _round_up(int(2 * _positive(hyper, scale) * hidden / 3), 256)


def _adjusted(hyper: Hyper, width: int) -> int:
    """LFM2 states a width that its own code shrinks by a third and rounds."""
    config = hyper.section
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    scaled = int(2 * width / 3) * _positive(hyper, config.get("block_ffn_dim_multiplier") or 1.0)
    return _round_up(int(scaled), int(_positive(hyper, config.get("block_multiple_of") or 1)))


def _positive(hyper: Hyper, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**20:
        raise HeaderError(f"{value!r:.40} is not a ratio of widths", file=hyper.header.name)
    return float(value)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def halved(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Qwen 1 states gate and up together."""
    return tuple(
        (replace(dense, width=dense.width // 2) if dense else None, experts)
        for dense, experts in pairs
    )
