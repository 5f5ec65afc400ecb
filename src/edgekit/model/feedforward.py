"""The feed-forward part of every layer: dense, experts, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgekit.errors import HeaderError
from edgekit.model.arrangements import LayerType
from edgekit.model.hyperparameters import Hyper
from edgekit.model.types import Experts, FeedForward

Pair = tuple[FeedForward | None, Experts | None]
WidthRule = Callable[[Hyper], int]  # the width if the file does not state one
PairRule = Callable[
    [Hyper, Pair], Pair
]  # corrects a width that means something else in this family


def feed_forwards(
    hyper: Hyper,
    types: tuple[LayerType, ...],
    *,
    gated: bool,
    dense_and_experts: bool,
    alternating: bool,
    width: WidthRule,
) -> tuple[Pair, ...]:
    """The dense and the expert part of each layer.

    `dense_and_experts`: layers have both. `alternating`: layers are a mixer or a feed-forward.
    """
    count = len(types)
    # Alternating models may consist of recurrences and experts only.
    has_dense = LayerType.NONE in types or not alternating
    widths = _dense_widths(hyper, count, width) if has_dense else (0,) * count
    dense = tuple(FeedForward(width=w, gated=gated) if w else None for w in widths)
    experts = _experts(hyper, width, gated=gated)
    routed = _routed_layers(hyper, count) if experts is not None else (False,) * count
    needed = LayerType.NONE in types if alternating else not all(routed)
    # The tensors of a GGUF show which layers have one; a pruned model lists the layers without.
    optional = hyper.gguf or width is not stated_width or hyper.states("block_configs")
    if needed and not any(dense) and not optional:
        raise hyper.missing("feed_forward")
    if not alternating:
        return tuple(
            (half if dense_and_experts or not moe else None, experts if moe else None)
            for half, moe in zip(dense, routed, strict=True)
        )
    experts_at = {LayerType.EXPERTS}
    if hyper.gguf and experts is not None:  # a GGUF does not distinguish the two
        experts_at.add(LayerType.NONE)
    return tuple(
        (None, experts) if kind in experts_at else (half if kind is LayerType.NONE else None, None)
        for kind, half in zip(types, dense, strict=True)
    )


def _experts(hyper: Hyper, rule: WidthRule, *, gated: bool) -> Experts | None:
    count = hyper.number("experts") or 0
    if count <= 1:
        return None
    used = hyper.number("experts_used") or 0
    if not 0 < used <= count:
        raise HeaderError(f"invalid expert counts: {used} used of {count}", file=hyper.header.name)
    width = _count_of(hyper, "expert_feed_forward") or hyper.number("feed_forward") or rule(hyper)
    if not width:
        raise hyper.missing("expert_feed_forward")
    shared = hyper.number("shared_feed_forward")
    if shared is None:
        shared = _count_of(hyper, "shared_experts") * width
    latent = hyper.number("expert_latent") or 0
    return Experts(
        count=count, used=used, width=width, shared_width=shared, latent=latent, gated=gated
    )


def _count_of(hyper: Hyper, name: str) -> int:
    """A number, or the largest of a list (Hunyuan, ERNIE-VL)."""
    listed = hyper.items(name)
    if listed is None:
        return hyper.number(name) or 0
    return max((hyper.whole(name, item) for item in listed), default=0)


def _routed_layers(hyper: Hyper, layers: int) -> tuple[bool, ...]:
    if (types := hyper.listed("mlp_layer_types", layers)) is not None:
        return tuple(kind != "dense" for kind in types)
    if (marks := hyper.listed("moe_step", layers)) is not None:
        return tuple(bool(mark) for mark in marks)
    if (named := _named_layers(hyper)) is not None:
        return tuple(i in named for i in range(layers))
    step = hyper.number("moe_step")
    if step == 0:
        return (False,) * layers
    step = step or 1
    offset = hyper.number("moe_offset")
    routed_at = step - 1 if offset is None else offset
    lead = hyper.number("leading_dense") or 0
    dense = {index for index in hyper.items("mlp_only_layers") or () if isinstance(index, int)}
    return tuple(i >= lead and i % step == routed_at and i not in dense for i in range(layers))


def _named_layers(hyper: Hyper) -> frozenset[int] | None:
    """Step lists the layers with experts as text: "4,5,6"."""
    text = hyper.text("moe_layers")
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 9 for part in parts):
        raise HeaderError(f"moe_layers_enum is {text!r:.60}", file=hyper.header.name)
    return frozenset(map(int, parts))


def _dense_widths(hyper: Hyper, layers: int, rule: WidthRule) -> tuple[int, ...]:
    stated = hyper.per_layer("dense_feed_forward", layers) or hyper.per_layer(
        "feed_forward", layers
    )
    if stated is None:
        stated = _derived_widths(hyper, layers, rule)
    stated = tuple(hyper.override("feed_forward", i) or width for i, width in enumerate(stated))
    if hyper.flag("width_is_raw"):
        # LFM2's own code shrinks the stated width by a third and rounds it.
        scale, multiple = hyper.ratio("width_scale") or 1.0, hyper.number("width_multiple") or 1
        stated = tuple(_round_up(int(int(2 * w / 3) * scale), multiple) for w in stated)
    if hyper.flag("wide_shared_ffn"):
        shared = hyper.number("shared_cache_layers") or 0
        return tuple(w * 2 if i >= layers - shared else w for i, w in enumerate(stated))
    return stated


def _derived_widths(hyper: Hyper, layers: int, rule: WidthRule) -> tuple[int, ...]:
    """Widths of files that state a ratio instead, or rely on the family's default."""
    if (blocks := hyper.listed("block_configs", layers)) is not None:
        return tuple(_block_width(hyper, block) for block in blocks)
    if (ratios := hyper.listed("width_ratios", layers)) is not None:
        return tuple(_divisible(hyper, ratio) for ratio in ratios)
    if hyper.number("width_multiple") and not hyper.flag("width_is_raw"):
        # Meta's params.json: 8/3 of the hidden width, scaled, rounded up.
        scaled = int(8 * hyper.need("hidden") / 3) * (hyper.ratio("width_scale") or 1.0)
        return (_round_up(int(scaled), hyper.need("width_multiple")),) * layers
    return (rule(hyper),) * layers


def stated_width(hyper: Hyper) -> int:
    """The rule of most families: the file states the width, unless every layer has experts only."""
    if hyper.number("experts") or hyper.gguf:
        return 0
    raise hyper.missing("feed_forward")


def four_times_hidden(hyper: Hyper) -> int:
    """GPT-2 and similar models, which do not state the width."""
    return 4 * hyper.need("hidden")


def two_thirds(hyper: Hyper) -> int:
    """flash-linear-attention: two thirds of hidden x ratio, because the feed-forward is gated."""
    ratio = hyper.ratio("width_ratio") or 4
    return _round_up(int(hyper.need("hidden") * ratio * 2 / 3), 256)


def eight_thirds(hyper: Hyper) -> int:
    """Lille: two thirds of four times, to the nearest 256."""
    return 256 * round(int(8 * hyper.need("hidden") / 3) / 256)


def _divisible(hyper: Hyper, ratio: Any) -> int:
    """OpenELM: a ratio per layer, rounded to a multiple of the divisor, but never down by more than a tenth."""
    divisor = hyper.number("width_divisor") or 8
    exact = hyper.real("ffn_multipliers", ratio) * hyper.need("hidden")
    near = max(divisor, int(exact + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * exact else near


def _block_width(hyper: Hyper, block: Any) -> int:
    half = block.get("ffn") if isinstance(block, dict) else None
    if not isinstance(half, dict) or half.get("no_op") or half.get("replace_with_linear"):
        return 0
    scale = half.get("ffn_mult")
    if scale is None:
        return hyper.whole("feed_forward", half.get("intermediate_size") or 0)
    hidden = hyper.need("hidden")
    return _round_up(int(2 * hyper.real("ffn_mult", scale) * hidden / 3), 256)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def as_stated(_: Hyper, pair: Pair) -> Pair:
    return pair


def halved(_: Hyper, pair: Pair) -> Pair:
    """Qwen 1 and RecurrentGemma state the sum of gate and up."""
    dense, experts = pair
    return (replace(dense, width=dense.width // 2) if dense else None, experts)


def scaled_hidden(hyper: Hyper, pair: Pair) -> Pair:
    """AFM: "hidden_dim" is the model's width; the feed-forward is a multiple of it."""
    width = int(hyper.need("hidden") * (hyper.ratio("width_ratio") or 3.25))
    return (replace(pair[0], width=width) if pair[0] else None, pair[1])


def shared_without_experts(hyper: Hyper, pair: Pair) -> Pair:
    """Granite hybrids without experts have only the shared one."""
    dense, experts = pair
    width = None if hyper.gguf else hyper.number("shared_feed_forward")
    return (replace(dense, width=width), experts) if dense and width else pair


def parallel_residual(hyper: Hyper, pair: Pair) -> Pair:
    """Arctic: the dense part parallel to the experts is as wide as the model."""
    dense, experts = pair
    if dense is None or experts is None:
        return pair
    return (replace(dense, width=hyper.need("hidden")), experts)
