"""Arrangements: rules that give the type of every layer, such as full attention or a sliding window."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import wraps

from edgekit.errors import HeaderError
from edgekit.model.hyperparameters import Hyper


class LayerType(enum.Enum):
    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    RECURRENT = "recurrent"
    BOTH = "both"
    EXPERTS = "experts"  # experts only, no mixer
    NONE = "none"


Arrangement = Callable[[Hyper, int], tuple[LayerType, ...]]

# Names of layer types in layer_types and similar lists.
_STATED = {
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


def stated(hyper: Hyper, layers: int) -> tuple[LayerType, ...] | None:
    """The file's own list of layer types, if it has one."""
    listed = hyper.listed("layer_types", layers)
    if listed is None:
        return None
    for name in listed:
        if not isinstance(name, (str, int)) or name not in _STATED:
            raise HeaderError(
                f"unknown layer type {name!r:.60}: upgrade edgekit, or add it to "
                "model/arrangements.py",
                file=hyper.header.name,
            )
    return tuple(_STATED[name] for name in listed)


def unless_listed(rule: Arrangement) -> Arrangement:
    """The file's own list of layer types if it has one, else `rule`."""

    @wraps(rule)
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        types = stated(hyper, layers)
        return rule(hyper, layers) if types is None else types

    return arrange


@unless_listed
def uniform(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Full attention in every layer, except those of pruned models without attention."""
    return _switched_off(hyper, layers) or (LayerType.FULL,) * layers


def windows(period: int, *, full_first: bool = False) -> Arrangement:
    """Every `period`-th layer has full attention, the rest a sliding window; 0: all slide, if there is a window.

    The file may state another period, list its sliding layers, or spell them out: "LLLG", repeated (EXAONE 4).
    """

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        if not hyper.number("window") or hyper.flag("use_window") is False:
            return (LayerType.FULL,) * layers
        if (marks := hyper.listed("window_pattern", layers)) is not None:
            slides = [bool(mark) for mark in marks]
        elif (text := hyper.text("window_pattern")) is not None:
            if not text or not set(text) <= {"L", "G"}:
                raise HeaderError(
                    f"sliding_window_pattern {text!r:.40}: only L (local) and G (global) are "
                    "supported",
                    file=hyper.header.name,
                )
            slides = [text[i % len(text)] == "L" for i in range(layers)]
        else:
            stated_period = hyper.number("window_pattern")
            step = period if stated_period is None else stated_period
            full_at = 0 if full_first else step - 1
            slides = [step == 0 or i % step != full_at for i in range(layers)]
        return tuple(LayerType.WINDOW if slide else LayerType.FULL for slide in slides)

    return arrange


def from_last(arrangement: Arrangement) -> Arrangement:
    """Muse: the pattern counts backwards from the last layer."""

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        return arrangement(hyper, layers)[::-1]

    return arrange


def also_first(arrangement: Arrangement) -> Arrangement:
    """MiMo-V2: the first layer is full too, unless the file lists its layers."""

    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        types = arrangement(hyper, layers)
        is_listed = hyper.items("layer_types") or hyper.raw("window_pattern")
        return types if is_listed else (LayerType.FULL, *types[1:])

    return arrange


def full_while_dense(arrangement: Arrangement) -> Arrangement:
    """Cohere's mixture of experts: the leading dense layers are full, and the pattern starts after them."""

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        lead = min(hyper.number("leading_dense") or 0, layers)
        return (LayerType.FULL,) * lead + arrangement(hyper, layers - lead)

    return arrange


def windows_at_indices(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Baichuan-M1: the file lists the indices of the sliding layers."""
    listed = hyper.items("window_layer_indices") or ()
    sliding = {index for index in listed if isinstance(index, int)}
    return tuple(LayerType.WINDOW if i in sliding else LayerType.FULL for i in range(layers))


def stated_windows(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Windows only if the file lists them by layer: many files state a window that is not used."""
    if hyper.raw("window_pattern") is None:
        return uniform(hyper, layers)
    return windows(0)(hyper, layers)


def only_with(count: int, arrangement: Arrangement) -> Arrangement:
    """EXAONE 4: only the size with `count` layers has sliding windows."""

    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        return arrangement(hyper, layers) if layers == count else (LayerType.FULL,) * layers

    return arrange


@unless_listed
def late_windows(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Qwen2: a window only if it is switched on, and only from a given layer on."""
    if not hyper.flag("use_window") or not hyper.number("window"):
        return (LayerType.FULL,) * layers
    start = hyper.number("window_from") or 0
    return tuple(LayerType.WINDOW if i >= start else LayerType.FULL for i in range(layers))


def chunks(period: int) -> Arrangement:
    """Llama 4: chunked attention except on every `period`-th layer, which has full attention without rope."""

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        if hyper.raw("window") == 0 or not hyper.number("chunk"):
            return (LayerType.FULL,) * layers
        if hyper.items("rope_layers"):  # an empty list means the default
            roped = hyper.listed("rope_layers", layers) or ()
            return tuple(LayerType.CHUNK if mark else LayerType.FULL for mark in roped)
        step = hyper.number("rope_layer_step") or period
        return tuple(
            LayerType.FULL if (i + 1) % step == 0 else LayerType.CHUNK for i in range(layers)
        )

    return arrange


def interval(period: int, *, offset: int | None = None) -> Arrangement:
    """Attention on every `period`-th layer, a recurrence on the others."""

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        if hyper.items("recurrent_layers") is not None:
            marks = hyper.listed("recurrent_layers", layers) or ()
            return tuple(LayerType.RECURRENT if mark else LayerType.FULL for mark in marks)
        step = hyper.number("full_interval") or period
        stated_offset = hyper.number("full_offset")
        last = step - 1 if offset is None else offset
        full_at = last if stated_offset is None else stated_offset
        return tuple(
            LayerType.FULL if i % step == full_at else LayerType.RECURRENT for i in range(layers)
        )

    return arrange


def mid_interval(period: int) -> Arrangement:
    """PLaMo 2: attention in the middle of every `period` layers."""

    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        step = hyper.number("full_interval") or period
        return interval(step, offset=step // 2)(hyper, layers)

    return arrange


@unless_listed
def groups(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Bailing: the last layer of every group has attention, and so do all layers of an incomplete group."""
    size = hyper.need("full_interval")
    if size < 1:
        raise hyper.missing("full_interval")
    whole = layers - layers % size
    return tuple(
        LayerType.FULL if (i + 1) % size == 0 or i >= whole else LayerType.RECURRENT
        for i in range(layers)
    )


def by_kv_heads(fallback: Arrangement) -> Arrangement:
    """GGUF: layers without KV heads are recurrent; config.json has other keys for that."""

    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        if hyper.gguf and hyper.items("kv_heads") is not None:
            heads = hyper.per_layer("kv_heads", layers) or ()
            return tuple(LayerType.FULL if count else LayerType.RECURRENT for count in heads)
        return fallback(hyper, layers)

    return arrange


def full_at_indices(*, first: int, none_is_empty: bool = False) -> Arrangement:
    """config.json lists the indices of the attention layers, counted from `first`."""

    @unless_listed
    def arrange(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        listed = hyper.items("full_layer_indices")
        if listed is None and not none_is_empty:
            raise hyper.missing("full_layer_indices")
        full = {index - first for index in listed or () if isinstance(index, int)}
        return tuple(LayerType.FULL if i in full else LayerType.RECURRENT for i in range(layers))

    return arrange


def letters(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """Nemotron-H: a letter per layer: M recurrence, * attention, E and - feed-forward only."""
    if hyper.gguf:
        heads = hyper.per_layer("kv_heads", layers) or (0,) * layers
        widths = hyper.per_layer("feed_forward", layers) or (0,) * layers
        return tuple(
            LayerType.FULL if head else LayerType.NONE if width else LayerType.RECURRENT
            for head, width in zip(heads, widths, strict=True)
        )
    if (types := stated(hyper, layers)) is not None:
        return types
    pattern = hyper.text("pattern_text")
    if pattern is None or len(pattern) < layers or not set(pattern) <= set(_LETTERS):
        raise hyper.missing("pattern_text")
    return tuple(_LETTERS[letter] for letter in pattern[:layers])


def repeated(*cycle: LayerType) -> Arrangement:
    """A fixed cycle of types."""

    @unless_listed
    def arrange(_hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
        return tuple(cycle[i % len(cycle)] for i in range(layers))

    return arrange


def griffin(hyper: Hyper, layers: int) -> tuple[LayerType, ...]:
    """RecurrentGemma lists one cycle of its layers; all of its attention has a sliding window."""
    listed = hyper.items("layer_types") or ("recurrent", "recurrent", "attention")
    types = {"recurrent": LayerType.RECURRENT, "attention": LayerType.WINDOW}
    if not set(map(repr, listed)) <= set(map(repr, types)):
        raise HeaderError(f"unknown block_types {listed!r:.60}", file=hyper.header.name)
    return tuple(types[listed[i % len(listed)]] for i in range(layers))


def _switched_off(hyper: Hyper, layers: int) -> tuple[LayerType, ...] | None:
    """Pruned models: some layers have no attention."""
    if (blocks := hyper.listed("block_configs", layers)) is not None:
        return tuple(_block_type(hyper, block) for block in blocks)
    if hyper.gguf and hyper.items("kv_heads") is not None:
        heads = hyper.per_layer("kv_heads", layers) or ()
        return tuple(LayerType.FULL if count else LayerType.NONE for count in heads)
    return None


def _block_type(hyper: Hyper, block: object) -> LayerType:
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise HeaderError("an entry of block_configs has no attention", file=hyper.header.name)
    off = attention.get("no_op") or attention.get("replace_with_linear")
    return LayerType.NONE if off else LayerType.FULL
