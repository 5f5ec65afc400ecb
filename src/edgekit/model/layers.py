"""The layers of a model: rules for the type of each (full attention, sliding window, ...) and for its feed-forward."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec

from edgekit.errors import HeaderError
from edgekit.model.hyperparameters import Hyper
from edgekit.model.types import Experts, FeedForward


class LayerType(enum.Enum):
    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    RECURRENT = "recurrent"
    BOTH = "both"
    BOTH_WINDOW = "both, attention with a window"
    IMAGE = "attention to an image"
    EXPERTS = "experts"  # experts only, no mixer
    NONE = "none"


Types = tuple[LayerType, ...]  # of all layers
Arrangement = Callable[[Hyper, int], Types]
P = ParamSpec("P")

# Names in layer_types and similar lists.
_TYPES = {
    "full_attention": LayerType.FULL,
    "attention": LayerType.FULL,
    "sliding_attention": LayerType.WINDOW,
    "chunked_attention": LayerType.CHUNK,
    "linear_attention": LayerType.RECURRENT,
    "deepseek_sparse_attention": LayerType.FULL,
    "indexed_attention": LayerType.FULL,
    "minimax_m3_sparse": LayerType.FULL,
    "compressed_sparse_attention": LayerType.FULL,
    "heavily_compressed_attention": LayerType.FULL,
    "mamba": LayerType.RECURRENT,
    "mamba2": LayerType.RECURRENT,
    "conv": LayerType.RECURRENT,
    "conv_mixer": LayerType.RECURRENT,
    "recurrent": LayerType.RECURRENT,
    "hybrid": LayerType.BOTH,
    "hybrid_sliding": LayerType.BOTH_WINDOW,
    "moe": LayerType.EXPERTS,
    "mlp": LayerType.NONE,
    0: LayerType.RECURRENT,  # attn_type_list of MiniMax-01: 0 lightning, 1 softmax
    1: LayerType.FULL,
}
_LETTERS = {
    "M": LayerType.RECURRENT,
    "*": LayerType.FULL,
    "E": LayerType.EXPERTS,
    "-": LayerType.NONE,
}


def listed_types(hyper: Hyper, layers: int) -> Types | None:
    """The file's own list of layer types, if it has one."""
    names = hyper.listed("layer_types", layers)
    if names is None:
        return None
    for name in names:
        if not isinstance(name, (str, int)) or name not in _TYPES:
            raise HeaderError(
                f"unknown layer type {name!r:.60}: upgrade edgekit, or add it to model/layers.py",
                file=hyper.header.name,
            )
    return tuple(_TYPES[name] for name in names)


def unless_listed(
    rule: Callable[Concatenate[Hyper, int, P], Types],
) -> Callable[Concatenate[Hyper, int, P], Types]:
    """The file's own list of layer types if it has one, else `rule`."""

    @wraps(rule)
    def arrange(hyper: Hyper, layers: int, /, *args: P.args, **kwargs: P.kwargs) -> Types:
        types = listed_types(hyper, layers)
        return rule(hyper, layers, *args, **kwargs) if types is None else types

    return arrange


def _either(marks: Iterable[object], on: LayerType, off: LayerType = LayerType.FULL) -> Types:
    """The type of each layer: `on` if its mark is true, else `off`."""
    return tuple(on if mark else off for mark in marks)


@unless_listed
def uniform(hyper: Hyper, layers: int) -> Types:
    """Full attention in every layer. In pruned models, some layers have no attention."""
    if (blocks := hyper.listed("block_configs", layers)) is not None:
        types = []
        for block in blocks:
            attention = block.get("attention") if isinstance(block, dict) else None
            if not isinstance(attention, dict):
                raise HeaderError(
                    "an entry of block_configs has no attention", file=hyper.header.name
                )
            is_removed = attention.get("no_op") or attention.get("replace_with_linear")
            types.append(LayerType.NONE if is_removed else LayerType.FULL)
        return tuple(types)
    if hyper.gguf and hyper.items("kv_heads") is not None:
        return _either(hyper.per_layer("kv_heads", layers) or (), LayerType.FULL, LayerType.NONE)
    return (LayerType.FULL,) * layers


@unless_listed
def recurrent(_hyper: Hyper, layers: int) -> Types:
    return (LayerType.RECURRENT,) * layers


@unless_listed
def hybrid(_hyper: Hyper, layers: int) -> Types:
    """Attention and a recurrence in every layer."""
    return (LayerType.BOTH,) * layers


@unless_listed
def windows(hyper: Hyper, layers: int, *, period: int, full_first: bool = False) -> Types:
    """Every `period`-th layer has full attention, the others a sliding window. With period 0 all layers slide.

    The file may state another period, list its sliding layers, or spell out a cycle: "LLLG" (EXAONE 4). Without a
    window all layers have full attention.
    """
    if not hyper.number("window") or hyper.flag("use_window") is False:
        return (LayerType.FULL,) * layers
    if (marks := hyper.listed("window_pattern", layers)) is not None:
        return _either(marks, LayerType.WINDOW)
    if (text := hyper.text("window_pattern")) is not None:
        if not text or not set(text) <= {"L", "G"}:
            raise HeaderError(
                f"sliding_window_pattern {text!r:.40}: only L (local) and G (global) are supported",
                file=hyper.header.name,
            )
        return _either((text[i % len(text)] == "L" for i in range(layers)), LayerType.WINDOW)
    stated_period = hyper.number("window_pattern")
    step = period if stated_period is None else stated_period
    full_at = 0 if full_first else step - 1
    return _either((step == 0 or i % step != full_at for i in range(layers)), LayerType.WINDOW)


@unless_listed
def windows_from_last(hyper: Hyper, layers: int, *, period: int) -> Types:
    """Muse: the pattern of `windows` counts backwards from the last layer."""
    return windows(hyper, layers, period=period, full_first=True)[::-1]


def windows_and_first(hyper: Hyper, layers: int, *, period: int) -> Types:
    """MiMo-V2: like `windows`, but the first layer also has full attention, unless the file lists its layers."""
    types = windows(hyper, layers, period=period)
    is_listed = hyper.items("layer_types") or hyper.raw("window_pattern")
    return types if is_listed else (LayerType.FULL, *types[1:])


@unless_listed
def windows_after_dense(hyper: Hyper, layers: int, *, period: int) -> Types:
    """Cohere's mixture of experts: full attention in the leading dense layers, then the pattern of `windows`."""
    lead = min(hyper.number("leading_dense") or 0, layers)
    return (LayerType.FULL,) * lead + windows(hyper, layers - lead, period=period)


@unless_listed
def hybrid_windows(hyper: Hyper, layers: int, *, period: int) -> Types:
    """Inkling: attention with convolutions. The file lists the sliding layers; by default every `period`-th is full."""
    listed = hyper.items("window_layer_indices")
    sliding = range(layers) if listed is None else listed
    return _either(
        (i in sliding and (listed is not None or (i + 1) % period) for i in range(layers)),
        LayerType.BOTH_WINDOW,
        LayerType.BOTH,
    )


def images_at_indices(hyper: Hyper, layers: int) -> Types:
    """Llama 3.2 Vision: the file lists the indices of the layers that attend to an image."""
    listed = hyper.items("image_layer_indices")
    if listed is None:
        raise hyper.missing("image_layer_indices")
    return _either((i in listed for i in range(layers)), LayerType.IMAGE)


def windows_at_indices(hyper: Hyper, layers: int) -> Types:
    """Baichuan-M1: the file lists the indices of the sliding layers."""
    listed = hyper.items("window_layer_indices") or ()
    sliding = {index for index in listed if isinstance(index, int)}
    return _either((i in sliding for i in range(layers)), LayerType.WINDOW)


def stated_windows(hyper: Hyper, layers: int) -> Types:
    """Windows only if the file says which layers slide: many files state a window that no layer uses."""
    if hyper.raw("window_pattern") is None:
        return uniform(hyper, layers)
    return windows(hyper, layers, period=0)


def windows_with_layers(hyper: Hyper, layers: int, *, count: int, period: int) -> Types:
    """EXAONE 4: the model with `count` layers has the pattern of `windows`; other sizes have full attention."""
    if layers != count:
        return (LayerType.FULL,) * layers
    return windows(hyper, layers, period=period)


@unless_listed
def late_windows(hyper: Hyper, layers: int) -> Types:
    """Qwen2: a sliding window from the layer `window_from` on, if the file switches it on."""
    if not hyper.flag("use_window") or not hyper.number("window"):
        return (LayerType.FULL,) * layers
    start = hyper.number("window_from") or 0
    return _either((i >= start for i in range(layers)), LayerType.WINDOW)


@unless_listed
def chunks(hyper: Hyper, layers: int, *, period: int) -> Types:
    """Llama 4: chunked attention except on every `period`-th layer, which has full attention without rope."""
    if hyper.raw("window") == 0 or not hyper.number("chunk"):
        return (LayerType.FULL,) * layers
    if hyper.items("rope_layers"):  # an empty list means the default
        return _either(hyper.listed("rope_layers", layers) or (), LayerType.CHUNK)
    step = hyper.number("rope_layer_step") or period
    return _either(((i + 1) % step for i in range(layers)), LayerType.CHUNK)


@unless_listed
def interval(hyper: Hyper, layers: int, *, period: int, offset: int | None = None) -> Types:
    """Attention on every `period`-th layer, a recurrence on the others."""
    if hyper.items("recurrent_layers") is not None:
        return _either(hyper.listed("recurrent_layers", layers) or (), LayerType.RECURRENT)
    step = hyper.number("full_interval") or period
    stated_offset = hyper.number("full_offset")
    last = step - 1 if offset is None else offset
    full_at = last if stated_offset is None else stated_offset
    return _either((i % step != full_at for i in range(layers)), LayerType.RECURRENT)


def mid_interval(hyper: Hyper, layers: int, *, period: int) -> Types:
    """PLaMo 2: attention in the middle of every `period` layers."""
    step = hyper.number("full_interval") or period
    return interval(hyper, layers, period=step, offset=step // 2)


@unless_listed
def groups(hyper: Hyper, layers: int) -> Types:
    """Bailing: the last layer of every group has attention, and so do all layers of an incomplete group."""
    size = hyper.need("full_interval")
    if size < 1:
        raise hyper.missing("full_interval")
    complete = layers - layers % size
    return _either(((i + 1) % size and i < complete for i in range(layers)), LayerType.RECURRENT)


def by_kv_heads(hyper: Hyper, layers: int, *, fallback: Arrangement) -> Types:
    """In a GGUF, layers without KV heads are recurrent. A config.json is read by the `fallback` rule."""
    if hyper.gguf and hyper.items("kv_heads") is not None:
        heads = hyper.per_layer("kv_heads", layers) or ()
        return _either(heads, LayerType.FULL, LayerType.RECURRENT)
    return fallback(hyper, layers)


@unless_listed
def full_at_indices(hyper: Hyper, layers: int, *, first: int, none_is_empty: bool = False) -> Types:
    """config.json lists the indices of the attention layers, counted from `first`."""
    listed = hyper.items("full_layer_indices")
    if listed is None and not none_is_empty:
        raise hyper.missing("full_layer_indices")
    full = {index - first for index in listed or () if isinstance(index, int)}
    return _either((i not in full for i in range(layers)), LayerType.RECURRENT)


def letters(hyper: Hyper, layers: int) -> Types:
    """Nemotron-H: a letter per layer: M is a recurrence, * attention, E experts and - a feed-forward only.

    A GGUF has no letters: its attention layers have KV heads, and its feed-forward layers have a width.
    """
    if hyper.gguf:
        heads = hyper.per_layer("kv_heads", layers) or (0,) * layers
        widths = hyper.per_layer("feed_forward", layers) or (0,) * layers
        without_heads = _either(widths, LayerType.NONE, LayerType.RECURRENT)
        return tuple(
            LayerType.FULL if count else other
            for count, other in zip(heads, without_heads, strict=True)
        )
    if (types := listed_types(hyper, layers)) is not None:
        return types
    pattern = hyper.text("pattern_text")
    if pattern is None or len(pattern) < layers or not set(pattern) <= set(_LETTERS):
        raise hyper.missing("pattern_text")
    return tuple(_LETTERS[letter] for letter in pattern[:layers])


def griffin(hyper: Hyper, layers: int) -> Types:
    """RecurrentGemma: the file lists one cycle of layers; every attention layer has a sliding window."""
    cycle = hyper.items("layer_types") or ("recurrent", "recurrent", "attention")
    if any(name not in ("recurrent", "attention") for name in cycle):
        raise HeaderError(f"unknown block_types {cycle!r:.60}", file=hyper.header.name)
    types = [LayerType.RECURRENT if name == "recurrent" else LayerType.WINDOW for name in cycle]
    return tuple(types[i % len(types)] for i in range(layers))


# -- layers that run more than once --------------------------------------------------------------

RoundsRule = Callable[[Hyper, int], tuple[int, int]]  # layers as stated -> stored layers, rounds


def stated_rounds(hyper: Hyper, layers: int) -> tuple[int, int]:
    """All layers run as often as the file says: once for most models."""
    return layers, hyper.number("loops") or 1


def two_stacks(hyper: Hyper, layers: int) -> tuple[int, int]:
    """HRM: a high stack, and a low one that runs several times before it, both in several cycles.

    Files state the layers of one stack; newer ones also those of all runs. Both stacks together count as one round:
    the runs are H x (L + 1), of which each round has two.
    """
    stack = hyper.number("stack_layers") or layers
    runs = hyper.need("high_cycles") * (hyper.need("low_cycles") + 1)
    if runs % 2:
        raise HeaderError(f"{runs} runs of two stacks are not supported", file=hyper.header.name)
    return 2 * stack, runs // 2


# -- feed-forwards: dense, experts, or both ----------------------------------------------------

Pair = tuple[FeedForward | None, Experts | None]  # the dense and the expert part of a layer
WidthRule = Callable[[Hyper], int]  # the width if the file does not state one
PairRule = Callable[[Hyper, Pair], Pair]  # corrects a width that has another meaning in a family


def feed_forwards(
    hyper: Hyper,
    types: Types,
    *,
    gated: bool,
    dense_and_experts: bool,
    alternating: bool,
    width: WidthRule,
) -> tuple[Pair, ...]:
    """The dense and the expert part of each layer.

    `dense_and_experts`: layers with experts have a dense part too. `alternating`: a layer is either a mixer or a
    feed-forward, and LayerType.NONE and EXPERTS are the feed-forwards.
    """
    count = len(types)
    # An alternating model may have no dense feed-forward at all, only recurrences and experts.
    needs_widths = LayerType.NONE in types or not alternating
    widths = _dense_widths(hyper, count, width) if needs_widths else (0,) * count
    experts = _experts(hyper, width, gated=gated)
    has_experts = _routed_layers(hyper, count) if experts is not None else (False,) * count
    has_dense = tuple(dense_and_experts or not routed for routed in has_experts)
    needs_dense = not all(has_experts)
    if alternating:
        needs_dense = LayerType.NONE in types
        expert_types = {LayerType.EXPERTS}
        if hyper.gguf and experts is not None:  # a GGUF does not tell experts from dense layers
            expert_types.add(LayerType.NONE)
        has_experts = tuple(kind in expert_types for kind in types)
        has_dense = tuple(kind is LayerType.NONE and kind not in expert_types for kind in types)
    # The tensors of a GGUF show which layers have a dense part; a pruned model lists the layers without one.
    may_be_missing = hyper.gguf or width is not stated_width or hyper.states("block_configs")
    if needs_dense and not any(widths) and not may_be_missing:
        raise hyper.missing("feed_forward")
    return tuple(
        (
            FeedForward(width=dense_width, gated=gated) if with_dense and dense_width else None,
            experts if with_experts else None,
        )
        for dense_width, with_dense, with_experts in zip(
            widths, has_dense, has_experts, strict=True
        )
    )


def _experts(hyper: Hyper, rule: WidthRule, *, gated: bool) -> Experts | None:
    """The experts of a layer that has them; None if the model has none."""
    count = hyper.number("experts") or 0
    if count <= 1:
        return None
    used = hyper.number("experts_used") or 0
    if not 0 < used <= count:
        raise HeaderError(f"invalid expert counts: {used} used of {count}", file=hyper.header.name)
    width = _largest(hyper, "expert_feed_forward") or hyper.number("feed_forward") or rule(hyper)
    if not width:
        raise hyper.missing("expert_feed_forward")
    shared_width = hyper.number("shared_feed_forward")
    if shared_width is None:
        shared_width = _largest(hyper, "shared_experts") * width
    latent = hyper.number("expert_latent") or 0
    return Experts(
        count=count, used=used, width=width, shared_width=shared_width, latent=latent, gated=gated
    )


def _largest(hyper: Hyper, name: str) -> int:
    """The number of this name, or the largest in its list (Hunyuan, ERNIE-VL); 0 if it is missing."""
    listed = hyper.items(name)
    if listed is None:
        return hyper.number(name) or 0
    return max((hyper.whole(name, item) for item in listed), default=0)


def _routed_layers(hyper: Hyper, layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts."""
    if (types := hyper.listed("mlp_layer_types", layers)) is not None:
        return tuple(kind != "dense" for kind in types)
    if (marks := hyper.listed("moe_step", layers)) is not None:
        return tuple(bool(mark) for mark in marks)
    if (text := hyper.text("moe_layers")) is not None:  # Step lists them as text: "4,5,6"
        numbers = [part.strip() for part in text.split(",") if part.strip()]
        if not all(part.isdecimal() and len(part) < 9 for part in numbers):
            raise HeaderError(f"moe_layers_enum is {text!r:.60}", file=hyper.header.name)
        named = set(map(int, numbers))
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


def _dense_widths(hyper: Hyper, layers: int, rule: WidthRule) -> tuple[int, ...]:
    """The width of each layer's dense feed-forward, after the corrections that a file states."""
    stated = _stated_widths(hyper, layers, rule)
    widths = [hyper.override("feed_forward", i) or width for i, width in enumerate(stated)]
    if hyper.flag("width_is_raw"):
        # LFM2's own code shrinks the stated width by a third and rounds it.
        scale, multiple = hyper.ratio("width_scale") or 1.0, hyper.number("width_multiple") or 1
        widths = [_round_up(int(int(2 * width / 3) * scale), multiple) for width in widths]
    if hyper.flag("wide_shared_ffn"):  # twice as wide in layers without a cache of their own
        owners = layers - (hyper.number("shared_cache_layers") or 0)
        widths = [width * 2 if i >= owners else width for i, width in enumerate(widths)]
    return tuple(widths)


def _stated_widths(hyper: Hyper, layers: int, rule: WidthRule) -> tuple[int, ...]:
    """The width of each layer's dense feed-forward: as stated, else derived from a ratio, else by `rule`."""
    widths = hyper.per_layer("dense_feed_forward", layers)
    widths = widths or hyper.per_layer("feed_forward", layers)
    if widths is not None:
        return widths
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
    """The rule of most families: the file must state the width, unless it is a GGUF or has experts."""
    if hyper.number("experts") or hyper.gguf:
        return 0
    raise hyper.missing("feed_forward")


def four_times_hidden(hyper: Hyper) -> int:
    """The rule of GPT-2 and similar models, whose files do not state the width."""
    return 4 * hyper.need("hidden")


def two_thirds(hyper: Hyper) -> int:
    """flash-linear-attention: two thirds of hidden x ratio, because the feed-forward is gated."""
    ratio = hyper.ratio("width_ratio") or 4
    return _round_up(int(hyper.need("hidden") * ratio * 2 / 3), 256)


def up_projection(hyper: Hyper) -> int:
    """xLSTM: a multiple of the hidden width, rounded up."""
    factor = hyper.ratio("up_factor") or 2.667
    multiple = hyper.number("up_multiple") or 64
    return int((hyper.need("hidden") * factor + multiple - 1) // multiple * multiple)


def eight_thirds(hyper: Hyper) -> int:
    """Lille: 8/3 of the hidden width, rounded to the nearest multiple of 256."""
    return 256 * round(int(8 * hyper.need("hidden") / 3) / 256)


def _divisible(hyper: Hyper, ratio: object) -> int:
    """OpenELM: ratio x hidden, rounded to a multiple of the divisor, but never down by more than a tenth."""
    divisor = hyper.number("width_divisor") or 8
    exact = hyper.real("ffn_multipliers", ratio) * hyper.need("hidden")
    rounded = max(divisor, int(exact + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * exact else rounded


def _block_width(hyper: Hyper, block: object) -> int:
    """The width of the feed-forward in an entry of block_configs; 0 if it was pruned."""
    feed_forward = block.get("ffn") if isinstance(block, dict) else None
    if (
        not isinstance(feed_forward, dict)
        or feed_forward.get("no_op")
        or feed_forward.get("replace_with_linear")
    ):
        return 0
    scale = feed_forward.get("ffn_mult")
    if scale is None:
        return hyper.whole("feed_forward", feed_forward.get("intermediate_size") or 0)
    hidden = hyper.need("hidden")
    return _round_up(int(2 * hyper.real("ffn_mult", scale) * hidden / 3), 256)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def as_stated(_: Hyper, pair: Pair) -> Pair:
    """No correction: the rule of most families."""
    return pair


def halved(_: Hyper, pair: Pair) -> Pair:
    """Qwen 1 and RecurrentGemma state the width of gate and up together."""
    dense, experts = pair
    return (replace(dense, width=dense.width // 2) if dense else None, experts)


def scaled_hidden(hyper: Hyper, pair: Pair) -> Pair:
    """AFM: "hidden_dim" is the model's width; the feed-forward is a multiple of it."""
    dense, experts = pair
    width = int(hyper.need("hidden") * (hyper.ratio("width_ratio") or 3.25))
    return (replace(dense, width=width) if dense else None, experts)


def shared_without_experts(hyper: Hyper, pair: Pair) -> Pair:
    """Granite hybrids without experts: the dense feed-forward has the width stated for the shared expert."""
    dense, experts = pair
    width = None if hyper.gguf else hyper.number("shared_feed_forward")
    return (replace(dense, width=width), experts) if dense and width else pair


def parallel_residual(hyper: Hyper, pair: Pair) -> Pair:
    """Arctic: the dense feed-forward next to the experts has the hidden width."""
    dense, experts = pair
    if dense is None or experts is None:
        return pair
    return (replace(dense, width=hyper.need("hidden")), experts)
