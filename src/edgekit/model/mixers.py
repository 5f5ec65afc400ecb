"""Builders of mixers, the attention or recurrence of a layer, from the hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from edgekit.errors import HeaderError
from edgekit.model.hyperparameters import Hyper
from edgekit.model.layers import LayerType, Types
from edgekit.model.types import (
    Attention,
    Cell,
    CompressedAttention,
    CrossAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    NoCache,
    Recurrent,
    Span,
)

Mixers = tuple[LayerKind | None, ...]  # of all layers; None for layers without attention
AttentionBuilder = Callable[[Hyper, Types], Mixers]

_SPANS = {
    LayerType.WINDOW: Span.WINDOW,
    LayerType.BOTH_WINDOW: Span.WINDOW,
    LayerType.CHUNK: Span.CHUNK,
}
_SPAN_KEYS = {
    LayerType.WINDOW: "window",
    LayerType.BOTH_WINDOW: "window",
    LayerType.CHUNK: "chunk",
}
_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_SPARSE = "minimax_m3_sparse"
_ATTENDING = (
    LayerType.FULL,
    LayerType.WINDOW,
    LayerType.CHUNK,
    LayerType.BOTH,
    LayerType.BOTH_WINDOW,
    LayerType.IMAGE,
)


def standard(hyper: Hyper, types: Types) -> tuple[Attention | None, ...]:
    """Grouped-query attention, with separate widths for sliding layers if the file has them."""
    heads = _heads(hyper, len(types))
    return _attentions(hyper, types, heads, _kv_heads(hyper, heads))


def falcon(hyper: Hyper, types: Types) -> Mixers:
    """Falcon: always one KV head, regardless of the config, unless new_decoder_architecture is set."""
    heads = _heads(hyper, len(types))
    if hyper.flag("multi_query") and not hyper.flag("new_decoder") and not hyper.gguf:
        return _attentions(hyper, types, heads, (1,) * len(heads))
    return _attentions(hyper, types, heads, hyper.per_layer("kv_heads", len(types)) or heads)


def chatglm(hyper: Hyper, types: Types) -> Mixers:
    """ChatGLM: the stated count of KV heads is used only if multi_query_attention is on."""
    heads = _heads(hyper, len(types))
    is_off = hyper.flag("multi_query") is False
    stated = None if is_off else hyper.per_layer("kv_heads", len(types))
    return _attentions(hyper, types, heads, stated or heads)


def plamo(hyper: Hyper, types: Types) -> Mixers:
    """PLaMo: the file states how many heads share a KV head."""
    heads = _heads(hyper, len(types))
    group = hyper.number("heads_per_kv_head")
    if hyper.gguf or not group:
        return standard(hyper, types)
    return _attentions(hyper, types, heads, tuple(-(-count // group) for count in heads))


def twice_when_sliding(hyper: Hyper, types: Types) -> Mixers:
    """MiMo-V2: sliding layers have twice as many KV heads, unless the file states their number."""
    layers = standard(hyper, types)
    if hyper.gguf or hyper.number("window_kv_heads"):
        return layers
    return tuple(
        replace(layer, kv_heads=2 * layer.kv_heads)
        if layer is not None and layer.span is Span.WINDOW
        else layer
        for layer in layers
    )


def zamba(hyper: Hyper, types: Types) -> Mixers:
    """Zamba 2: attention reads the hidden state and the embedding side by side, so its heads are twice as wide."""
    heads = hyper.need("heads")
    width = 2 * hyper.need("hidden") // max(heads, 1)
    return tuple(
        layer and replace(layer, key_dim=width, value_dim=width) for layer in standard(hyper, types)
    )


def with_images(hyper: Hyper, types: Types) -> Mixers:
    """Llama 3.2 Vision: some layers attend to the tiles of an image, each with one token more than patches."""
    vision = hyper.header.config.get("vision_config")
    sizes = {**_MLLAMA_IMAGE, **(vision if isinstance(vision, Mapping) else {})}
    image, patch, tiles = (hyper.whole("image_size", sizes[key]) for key in _MLLAMA_IMAGE)
    if not patch:
        raise HeaderError("patch_size is 0", file=hyper.header.name)
    tokens = tiles * ((image // patch) ** 2 + 1)
    return tuple(
        CrossAttention(attention=layer, image_tokens=tokens)
        if layer is not None and kind is LayerType.IMAGE
        else layer
        for kind, layer in zip(types, standard(hyper, types), strict=True)
    )


# transformers' defaults (configuration_mllama.py @ 5.23)
_MLLAMA_IMAGE = {"image_size": 448, "patch_size": 14, "max_num_tiles": 4}


def convolved(hyper: Hyper, types: Types) -> Mixers:
    """Baichuan-M1: keys and values pass through a short convolution before they are cached."""
    mixers: list[HybridLayer | None] = []
    for layer in standard(hyper, types):
        if layer is None:
            mixers.append(None)
            continue
        kernel = _conv_kernel(hyper)
        width = layer.kv_heads * (layer.key_dim + layer.value_dim)
        convolution = Recurrent(
            cell=Cell.KEY_CONV,
            conv_elements=(kernel - 1) * width,  # the last keys and values
            groups=layer.kv_heads,
            conv_kernel=kernel,
        )
        mixers.append(HybridLayer(attention=layer, recurrent=convolution))
    return tuple(mixers)


def _heads(hyper: Hyper, layers: int) -> tuple[int, ...]:
    """The attention heads of each layer."""
    heads = hyper.per_layer("heads", layers)
    if heads is None:
        raise hyper.missing("heads")
    return heads


def _attentions(
    hyper: Hyper, types: Types, heads: tuple[int, ...], kv_heads: tuple[int, ...]
) -> tuple[Attention | None, ...]:
    """Attention with these heads for each layer; None for layers without attention."""
    index_widths = _index_widths(hyper, len(types))
    return tuple(
        _attention(hyper, i, kind, (heads[i], kv_heads[i]), index_widths[i])
        if kind in _ATTENDING
        else None
        for i, kind in enumerate(types)
    )


def gated(hyper: Hyper, types: Types) -> Mixers:
    """Qwen3-Next: the query projection includes an output gate."""
    return tuple(layer and replace(layer, gated=True) for layer in standard(hyper, types))


def gated_with_ngrams(hyper: Hyper, types: Types) -> Mixers:
    """Qwen4-Exp: like Qwen3-Next. Layers with n-gram embeddings also keep the inputs of a dilated convolution."""
    kernel = hyper.number("ngram_taps") or 4
    dilation = hyper.number("ngram_size") or 3
    streams = hyper.number("stream_count") or 4
    elements = (kernel - 1) * dilation * streams * hyper.need("hidden")
    first = 0 if hyper.gguf else 1
    numbers = hyper.items("ngram_layers") or ()
    return tuple(
        replace(gated_delta(hyper), ngram_elements=elements)
        if kind is LayerType.RECURRENT and i + first in numbers
        else layer
        for i, (kind, layer) in enumerate(zip(types, gated(hyper, types), strict=True))
    )


def with_convolutions(hyper: Hyper, types: Types) -> Mixers:
    """Inkling: keys, values and the outputs of attention and feed-forward pass through short convolutions."""
    kernel, hidden = _conv_kernel(hyper), hyper.need("hidden")
    return tuple(
        layer
        and HybridLayer(
            attention=layer,
            recurrent=Recurrent(
                cell=Cell.FOUR_CONVS,
                conv_elements=(kernel - 1)
                * (layer.kv_heads * (layer.key_dim + layer.value_dim) + 2 * hidden),
                groups=layer.kv_heads,
                conv_kernel=kernel,
            ),
        )
        for layer in standard(hyper, types)
    )


def gated_encoder(hyper: Hyper, types: Types) -> Mixers:
    """Clef: the same within the batch, without a cache."""
    return tuple(
        layer and NoCache(attention=replace(layer, gated=True)) for layer in standard(hyper, types)
    )


def encoder(hyper: Hyper, types: Types) -> Mixers:
    """Attention within the batch, without a cache."""
    return tuple(NoCache(attention=layer) for layer in standard(hyper, types))


def _attention(
    hyper: Hyper, layer: int, kind: LayerType, counts: tuple[int, int], index_dim: int
) -> Attention:
    """Heads and widths of one layer: its own values, else those of its type, else those of the model."""
    is_sliding = _SPANS.get(kind) is Span.WINDOW
    heads, kv_heads = counts
    if is_sliding:
        heads = hyper.number("window_heads") or heads
        kv_heads = hyper.number("window_kv_heads") or kv_heads
    elif hyper.flag("values_are_keys") is not False:
        # Gemma 4 ignores the number if the flag is off.
        kv_heads = hyper.number("global_kv_heads") or kv_heads
    even_share = hyper.need("hidden") // heads if heads else 0
    heads = hyper.override("heads", layer) or heads
    kv_heads = hyper.override("kv_heads", layer) or kv_heads
    if heads == 0 or kv_heads == 0 or heads % kv_heads:
        raise HeaderError(
            f"{heads} attention heads cannot be divided evenly among {kv_heads} KV heads",
            file=hyper.header.name,
        )
    key_dim = (
        hyper.override("key_dim", layer)
        or hyper.number("window_key_dim" if is_sliding else "global_key_dim")
        or hyper.number("key_dim")
        or even_share
    )
    # llama.cpp defaults each to hidden / heads; transformers has one head_dim for both.
    value_dim = (
        (hyper.number("window_value_dim") if is_sliding else None)
        or hyper.number("value_dim")
        or (even_share if hyper.gguf else key_dim)
    )
    if not key_dim or not value_dim:
        raise hyper.missing("key_dim")
    window = hyper.override("window", layer) if is_sliding else None
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        span=_SPANS.get(kind, Span.ALL),
        span_tokens=(window or hyper.need(_SPAN_KEYS[kind])) if kind in _SPAN_KEYS else 0,
        index_dim=index_dim,
        values_are_keys=kind is LayerType.FULL and _values_are_keys(hyper),  # Gemma 4
    )


def _values_are_keys(hyper: Hyper) -> bool:
    """Whether V is made from K. In a GGUF of Gemma 4, different KV head counts show it (conversion/gemma.py)."""
    if hyper.gguf and hyper.architecture == "gemma4":
        stated = hyper.raw("kv_heads")
        return isinstance(stated, (list, tuple)) and len(set(stated)) > 1
    return bool(hyper.flag("values_are_keys"))


def _kv_heads(hyper: Hyper, heads: tuple[int, ...]) -> tuple[int, ...]:
    """The KV heads of each layer: as stated, else one if it is multi-query, else as many as heads."""
    if (blocks := hyper.listed("block_configs", len(heads))) is not None:
        counts = []
        for block, count in zip(blocks, heads, strict=True):
            attention = block.get("attention") if isinstance(block, dict) else None
            group = attention.get("n_heads_in_group") if isinstance(attention, dict) else None
            if group is not None and (not isinstance(group, int) or group <= 0 or count % group):
                raise HeaderError(
                    f"block_configs: {count} heads cannot be divided into groups of {group!r:.20}",
                    file=hyper.header.name,
                )
            counts.append(count if group is None else count // group)
        return tuple(counts)
    counts_or_default = hyper.per_layer("kv_heads", len(heads))
    if counts_or_default is not None:
        # a default that does not divide the heads is ignored; a stated number is an error later
        pairs = zip(heads, counts_or_default, strict=True)
        if hyper.states("kv_heads") or all(kv and count % kv == 0 for count, kv in pairs):
            return counts_or_default
    if hyper.flag("multi_query"):
        return (1,) * len(heads)
    if hyper.nested:  # a nested section that omits kv_heads may mean a default of the library
        hyper.defaulted.add("kv_heads")
    return heads


def _index_widths(hyper: Hyper, layers: int) -> tuple[int, ...]:
    """The key width of the sparse indexer in each layer, 0 in layers without one."""
    width = hyper.number("index_dim") or 0
    marks = hyper.listed("index_layers", layers) if width else None
    if marks is None:
        # Every `index_step`-th layer has one, counted from index_offset - 1; the layers before that have one, too.
        step = hyper.number("index_step") or 1
        offset = hyper.number("index_offset")
        first = 1 if offset is None else offset - 1
        return tuple(0 if max(i - first, 0) % step else width for i in range(layers))
    return tuple(width if mark in (1, True, "full") else 0 for mark in marks)


def latent(hyper: Hyper, types: Types) -> Mixers:
    """MLA if the file states the width of the latent, else plain attention (DeepSeek-VL2 tiny)."""
    if not hyper.number("latent_dim") or hyper.flag("use_mla") is False:
        return standard(hyper, types)
    heads = _heads(hyper, len(types))
    index_widths = _index_widths(hyper, len(types))
    layers: list[LatentAttention | None] = []
    for i, kind in enumerate(types):
        if kind not in _ATTENDING:
            layers.append(None)
            continue
        # Sliding layers may have widths of their own (dots3-note).
        own = "window_" if kind is LayerType.WINDOW and hyper.number("window_latent_dim") else ""
        rope_dim = hyper.need("rope_dim")
        head_count = hyper.override("heads", i) or heads[i]
        if own:
            head_count = hyper.number("window_heads") or head_count
        absorbed = True
        if hyper.gguf:
            absorbed = bool(hyper.number("key_dim_mla")) and bool(hyper.number("value_dim_mla"))
            even_share = hyper.need("hidden") // head_count if head_count else 0
            key_dim = hyper.number(f"{own}key_dim_mla" if absorbed else "key_dim") or even_share
            value_dim = (
                hyper.number(f"{own}value_dim_mla" if absorbed else "value_dim") or even_share
            )
        else:
            nope_dim = hyper.override("nope_dim", i) or hyper.need(f"{own}nope_dim")
            key_dim = nope_dim + rope_dim
            even_share = hyper.need("hidden") // max(head_count, 1)
            value_dim = hyper.number(f"{own}value_dim") or even_share
        if key_dim < rope_dim:
            raise HeaderError(
                f"the key dimension {key_dim} is smaller than its rotary part ({rope_dim})",
                file=hyper.header.name,
            )
        layer = LatentAttention(
            heads=head_count,
            latent_dim=hyper.override("latent_dim", i) or hyper.need(f"{own}latent_dim"),
            rope_dim=rope_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            query_rank=hyper.number("query_rank") or 0,
            index_dim=0 if kind is LayerType.WINDOW else index_widths[i],
            absorbed=absorbed,
            span=_SPANS.get(kind, Span.ALL),
            span_tokens=hyper.need(_SPAN_KEYS[kind]) if kind in _SPAN_KEYS else 0,
        )
        layers.append(layer)
    return tuple(layers)


def latent_partly_rotated(hyper: Hyper, types: Types) -> Mixers:
    """Mistral Large 4: every fourth layer's keys are as wide, but no part of them rotates."""
    marks = hyper.listed("rope_layers", len(types))
    step = hyper.number("rope_layer_step") or 4
    return tuple(
        replace(layer, rope_dim=0)
        if isinstance(layer, LatentAttention) and not (marks[i] if marks else (i + 1) % step)
        else layer
        for i, layer in enumerate(latent(hyper, types))
    )


def indexed_after_dense(hyper: Hyper, types: Types) -> Mixers:
    """MiniMax-M3: sparse layers have an index key, the leading dense layers do not.

    A config lists the sparse layers; in a GGUF all layers after leading_dense_block_count are sparse (create_memory
    in llama-model.cpp @ b21e4de).
    """
    layers = standard(hyper, types)
    if hyper.items("index_layers") is not None:
        return layers
    listed = hyper.listed("layer_types", len(types))
    lead = hyper.number("leading_dense") or 0
    sparse = [i >= lead if listed is None else listed[i] == _SPARSE for i in range(len(types))]
    return tuple(
        layer if layer is None or sparse[i] else replace(layer, index_dim=0)
        for i, layer in enumerate(layers)
    )


def compressed(hyper: Hyper, types: Types) -> Mixers:
    """DeepSeek-V4: the file lists the ratio of each layer; only ratio 4 has an indexer."""
    ratios = hyper.per_layer("compress_ratios", len(types))
    if not ratios:  # newer configs list the type of each layer, and the ratio of each type
        kinds = hyper.listed("layer_types", len(types))
        if kinds is None:
            raise hyper.missing("compress_ratios")
        stated = hyper.raw("compress_rates")
        rates = {**_RATES, **(stated if isinstance(stated, Mapping) else {})}
        ratios = tuple(hyper.whole("compress_rates", rates.get(kind, 0)) for kind in kinds)
    index_dim = hyper.number("index_dim") or 0
    return tuple(
        CompressedAttention(
            heads=hyper.need("heads"),
            key_dim=hyper.need("key_dim"),
            window_tokens=hyper.need("window"),
            ratio=ratio,
            index_dim=index_dim if ratio == 4 else 0,
        )
        for ratio in ratios
    )


def compressed_at_sources(hyper: Hyper, types: Types) -> Mixers:
    """DeepSeek-V4.1: the file lists the layers that store compressed keys and those that choose among them."""
    ratios = hyper.per_layer("compress_ratios", len(types))
    if not ratios:
        raise hyper.missing("compress_ratios")
    stores, selects = (hyper.items(name) or () for name in ("key_sources", "index_sources"))
    index_dim = hyper.number("index_dim") or 0
    return tuple(
        CompressedAttention(
            heads=hyper.need("heads"),
            key_dim=hyper.need("key_dim"),
            window_tokens=hyper.need("window"),
            ratio=ratio if i in stores else 0,
            index_dim=index_dim if ratio and i in stores and i in selects else 0,
            overlapping=False,
            selects=i in selects,
        )
        for i, ratio in enumerate(ratios)
    )


# -- recurrences

RecurrentBuilder = Callable[[Hyper], Recurrent]


def mamba(hyper: Hyper, *, inner: int | None = None) -> Recurrent:
    """Mamba, which has no groups and no heads. `inner`: the inner width, if the caller knows it."""
    return _state_space(hyper, Cell.MAMBA, groups=0, heads=0, inner=inner)


def pure_mamba(hyper: Hyper) -> Recurrent:
    """Mamba without attention layers: the file states the inner width as that of a feed-forward."""
    return mamba(hyper, inner=None if hyper.gguf else hyper.number("feed_forward"))


def mamba2(hyper: Hyper) -> Recurrent:
    """Mamba-2: one group and the attention heads, unless the file states its own."""
    groups = hyper.number("state_groups")
    groups = 1 if groups is None else groups
    heads = hyper.number("time_step_rank" if hyper.gguf else "state_heads")
    if not heads and not hyper.gguf:
        heads = hyper.number("heads")
    return _state_space(hyper, Cell.MAMBA2, groups=groups, heads=heads or 0)


def _state_space(
    hyper: Hyper, cell: Cell, *, groups: int, heads: int, inner: int | None = None
) -> Recurrent:
    """The state of Mamba or Mamba-2: the tail of the convolution, and state_size x inner numbers."""
    kernel = _conv_kernel(hyper)
    inner = inner or hyper.number("inner")
    if not inner:
        inner = (hyper.number("state_heads") or 0) * (hyper.number("state_head_dim") or 0)
    if not inner:
        inner = int((hyper.ratio("expand") or 2) * hyper.need("hidden"))
    state_size = hyper.need("state_size")
    is_auto = hyper.text("time_step_rank") is not None  # "auto"
    rank = None if is_auto else hyper.number("time_step_rank")
    return Recurrent(
        cell=cell,
        conv_elements=(kernel - 1) * (inner + 2 * groups * state_size),
        state_elements=state_size * inner,
        inner=inner,
        state_size=state_size,
        groups=groups,
        heads=heads,
        conv_kernel=kernel,
        rank=-(-hyper.need("hidden") // 16) if rank is None else rank,
    )


def gated_delta(hyper: Hyper) -> Recurrent:
    """Qwen3-Next and Qwen3.5: a delta net whose queries, keys and values pass through a short convolution."""
    kernel = _conv_kernel(hyper)
    if hyper.gguf:
        inner, state_size = hyper.need("inner"), hyper.need("state_size")
        groups, heads = hyper.need("state_groups"), hyper.need("time_step_rank")
    else:
        heads, groups = hyper.need("linear_value_heads"), hyper.need("linear_key_heads")
        inner, state_size = heads * hyper.need("linear_value_dim"), hyper.need("linear_key_dim")
    return Recurrent(
        cell=Cell.GATED_DELTA,
        conv_elements=(kernel - 1) * (inner + 2 * groups * state_size),
        state_elements=state_size * inner,
        inner=inner,
        state_size=state_size,
        groups=groups,
        heads=heads,
        conv_kernel=kernel,
    )


def momentary_delta(hyper: Hyper) -> Recurrent:
    """Clef: a gated delta net whose states begin as zeros in every batch, and are not kept."""
    return replace(gated_delta(hyper), conv_elements=0, state_elements=0)


def kimi_delta(hyper: Hyper, *, width: int | None = None) -> Recurrent:
    """Kimi Linear: a head_dim x head_dim state per head, and separate convolutions for Q, K and V."""
    kernel = _conv_kernel(hyper)
    heads = hyper.number("kda_heads") or max(_heads(hyper, hyper.need("layers")))
    width = width or hyper.need("kda_head_dim")
    return _linear_attention(Cell.KIMI_DELTA, heads, width, width, kernel=kernel)


def lightning(hyper: Hyper) -> Recurrent:
    """Lightning attention: a head_dim x head_dim state per head."""
    heads = hyper.need("heads")
    width = hyper.number("key_dim") or hyper.need("hidden") // max(heads, 1)
    return _linear_attention(Cell.LIGHTNING, heads, width, width)


def gated_linear(hyper: Hyper) -> Recurrent:
    """GLA: expand_k x hidden keys and expand_v x hidden values, divided among the heads."""
    heads, hidden = hyper.need("heads"), hyper.need("hidden")
    key_dim = int(hidden * (hyper.ratio("expand_k") or 0.5)) // max(heads, 1)
    value_dim = int(hidden * (hyper.ratio("expand_v") or 1.0)) // max(heads, 1)
    return _linear_attention(Cell.GATED_LINEAR, heads, key_dim, value_dim)


def _linear_attention(
    cell: Cell, heads: int, key_dim: int, value_dim: int, kernel: int = 0
) -> Recurrent:
    """A matrix of key x value per head; with a kernel, Q, K and V of one width pass through convolutions."""
    return Recurrent(
        cell=cell,
        conv_elements=3 * (kernel - 1) * heads * value_dim if kernel else 0,
        state_elements=heads * key_dim * value_dim,
        inner=heads * value_dim,
        state_size=key_dim,
        heads=heads,
        conv_kernel=kernel,
    )


def short_conv(hyper: Hyper) -> Recurrent:
    """LFM2: only the tail of a short convolution is stored."""
    kernel, hidden = _conv_kernel(hyper), hyper.need("hidden")
    return Recurrent(
        cell=Cell.SHORT_CONV, conv_elements=hidden * (kernel - 1), inner=hidden, conv_kernel=kernel
    )


def gated_conv(hyper: Hyper) -> Recurrent:
    """Gear: separate convolutions for the keys and values of all KV heads."""
    heads, width, kernel = hyper.need("heads"), hyper.need("key_dim"), _conv_kernel(hyper)
    groups = hyper.number("kv_heads") or heads
    return Recurrent(
        cell=Cell.GATED_CONV,
        conv_elements=2 * (kernel - 1) * groups * width,
        inner=heads * width,
        state_size=width,
        groups=groups,
        heads=heads,
        conv_kernel=kernel,
    )


def bailing(hyper: Hyper) -> Recurrent:
    """One model_type for two generations: Ling 2.5 has Lightning attention, Ling 3 Kimi's, with a convolution."""
    if not hyper.states("conv_kernel"):
        return lightning(hyper)
    return kimi_delta(hyper, width=hyper.number("kda_head_dim") or hyper.need("key_dim"))


def rwkv(hyper: Hyper) -> Recurrent:
    """RWKV: a state per head, and the hidden states of the previous token."""
    hidden, head_dim = hyper.need("hidden"), hyper.need("wkv_head_size")
    shift = hyper.number("token_shift") or 2
    return Recurrent(
        cell=Cell.RWKV,
        conv_elements=shift * hidden,
        state_elements=hidden * head_dim,
        inner=hidden,
        state_size=head_dim,
        heads=hidden // max(head_dim, 1),
    )


def mlstm(hyper: Hyper) -> Recurrent:
    """xLSTM: per head a matrix of key x value, its normaliser and the largest gate so far."""
    heads, hidden = hyper.need("heads"), hyper.need("hidden")
    key_width = _round_up(hidden * (hyper.ratio("key_factor") or 0.5), 64)
    value_width = _round_up(hidden * (hyper.ratio("value_factor") or 1.0), 64)
    key_dim, value_dim = key_width // max(heads, 1), value_width // max(heads, 1)
    return Recurrent(
        cell=Cell.MLSTM,
        state_elements=heads * (key_dim * value_dim + key_dim + 1),
        inner=value_width,
        state_size=key_dim,
        heads=heads,
    )


def _round_up(value: float, multiple: int) -> int:
    return int((value + multiple - 1) // multiple * multiple)


def query_key_conv(hyper: Hyper) -> Recurrent:
    """Zaya: the inputs of two short convolutions over queries and keys, and half of the last token's values."""
    heads, kv_heads = hyper.need("heads"), hyper.need("kv_heads")
    width = hyper.number("key_dim") or hyper.need("hidden") // max(heads, 1)
    first, second = hyper.number("query_key_taps") or 2, hyper.number("query_key_taps_2") or 2
    return Recurrent(
        cell=Cell.QUERY_KEY_CONV,
        conv_elements=(first + second - 2) * (heads + kv_heads) * width,
        state_elements=kv_heads * width // 2,
        inner=(heads + kv_heads) * width,
        state_size=width,
        groups=kv_heads,
        heads=heads,
        conv_kernel=first,
        rank=second,
    )


def rg_lru(hyper: Hyper) -> Recurrent:
    """Griffin's RG-LRU: one number per channel, and the tail of a convolution."""
    width = hyper.number("lru_width") or hyper.need("hidden")
    kernel = hyper.number("conv_kernel") or 4
    return Recurrent(
        cell=Cell.RG_LRU,
        conv_elements=(kernel - 1) * width,
        state_elements=width,
        inner=width,
        conv_kernel=kernel,
    )


def _conv_kernel(hyper: Hyper) -> int:
    """The length of the short convolution, at least 1."""
    kernel = hyper.need("conv_kernel")
    if kernel < 1:
        raise HeaderError(f"{hyper.spelled('conv_kernel')} is {kernel}", file=hyper.header.name)
    return kernel
