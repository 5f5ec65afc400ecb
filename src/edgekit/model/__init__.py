"""A header -> what the model is: `read_geometry` and the table it looks in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.basis import Basis
from edgekit.errors import HeaderError, HeaderLimitError, UnknownArchitectureError
from edgekit.formats.types import ModelHeader
from edgekit.model.architectures import STANDARD, Architecture, architecture_of, section_by_name
from edgekit.model.arrangements import LayerType
from edgekit.model.feedforward import feed_forwards
from edgekit.model.hyperparameters import (
    MAX_LAYERS,
    MAX_NUMBER,
    TOWER_HIDDEN,
    TOWER_LAYERS,
    TOWER_SECTIONS,
    Hyper,
)
from edgekit.model.mixers import encoder
from edgekit.model.roles import has_output_head
from edgekit.model.types import (
    Attention,
    HybridLayer,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    Rope,
    SharedCache,
    Span,
    Tower,
)

__all__ = ["not_a_language_model", "read_geometry"]


# Words that speak of memory for which a row must say the rule.
_HINTS = (
    "conv_kernel",
    "state_size",
    "kda_head_dim",
    "compress_ratios",
    "window_latent_dim",
    "loop_window",
)


def not_a_language_model(header: ModelHeader) -> str | None:
    """A sentence saying what else the file is, None for everything that may be a language model."""
    if header.keys.get("general.type") == "adapter":
        return "a LoRA adapter: it changes a base model and does not run alone"
    if header.config.get("is_encoder_decoder") is True:
        return "an encoder-decoder model: its cross-attention cache is not modelled"
    name = header.keys.get("general.architecture") or header.config.get("model_type")
    return section_by_name("not_a_language_model").get(name) if isinstance(name, str) else None


def read_geometry(header: ModelHeader) -> ModelGeometry:
    """What the model is. Unknown names are read by their standard keys and marked ASSUMED."""
    hyper = Hyper(header)
    row = architecture_of(hyper.architecture, gguf=hyper.gguf)
    known = row or STANDARD
    hyper.defaults = known.constants if hyper.gguf else known.defaults(nested=hyper.nested)
    mtp = _mtp_layers(hyper)
    stated = _layer_count(hyper)
    if stated + mtp > MAX_LAYERS:
        raise HeaderLimitError(
            f"{hyper.named('layers')} with {hyper.named('mtp_layers')}",
            value=stated + mtp,
            limit=MAX_LAYERS,
            file=header.name,
        )
    count = stated - (mtp if hyper.gguf else 0)  # GGUF counts them in, configs do not
    count *= known.sublayers
    if count < 1:
        raise HeaderError(
            f"{count} layers are left after {mtp} for token prediction (MTP)", file=header.name
        )
    words = known.arrange(hyper, count)
    vocabulary = vocabulary_of(hyper)
    if row is None:
        _refuse_unreadable(hyper, words)
        if vocabulary is None and not hyper.gguf:
            raise hyper.missing("vocabulary")
    rope = read_rope(hyper)
    trained = hyper.number("context")
    loops = hyper.number("loops") or 1
    layers = _looped(hyper, _layers(hyper, known, words), loops)
    encodes = known.attend is encoder or _is_embedder(hyper)
    basis, because = _how_known(hyper, row)  # after the layers, which note the defaults they used
    return ModelGeometry(
        architecture=hyper.architecture,
        layers=layers,
        hidden=hyper.need("hidden"),
        vocabulary=vocabulary,
        trained_context=trained,
        native_context=native_context(
            trained, rope, scaled=known.context_is_scaled or (hyper.gguf and not _is_yarn(rope))
        ),
        rope=rope,
        loops=loops,
        per_layer_embedding=hyper.number("per_layer_embedding") or 0,
        mtp_layers=mtp,
        tied_embeddings=tied_embeddings(hyper),
        causal=not encodes if hyper.flag("causal") is None else bool(hyper.flag("causal")),
        pooling=pooling_of(hyper),
        towers=towers_of(header),
        basis=basis,
        because=because,
    )


def _layers(hyper: Hyper, row: Architecture, words: tuple[LayerType, ...]) -> tuple[Layer, ...]:
    mixers = _share(hyper, row, _mixers(hyper, row, words))
    if _is_embedder(hyper):
        mixers = tuple(NoCache(attention=m) if isinstance(m, Attention) else m for m in mixers)
    halves = feed_forwards(
        hyper,
        words,
        gated=row.gated or "glu" in (hyper.text("ffn_kind") or ""),
        beside=row.dense_and_experts or bool(hyper.flag("beside_experts")),  # Grok 2
        alternating=row.alternating,
        width=row.width,
    )
    pairs = (row.adjust(hyper, pair) for pair in halves)
    return tuple(
        Layer(index=i, mixer=mixer, dense=dense, experts=experts)
        for i, (mixer, (dense, experts)) in enumerate(zip(mixers, pairs, strict=True))
    )


def _mixers(hyper: Hyper, row: Architecture, words: tuple[LayerType, ...]) -> tuple[LayerKind, ...]:
    attends = any(
        word not in {LayerType.RECURRENT, LayerType.NONE, LayerType.EXPERTS} for word in words
    )
    attending = row.attend(hyper, words) if attends else (None,) * len(words)
    needs_state = LayerType.RECURRENT in words or LayerType.BOTH in words
    if needs_state and row.recur is None:
        raise _no_recurrence(hyper)
    recurrent = row.recur(hyper) if row.recur is not None and needs_state else None
    mixers: list[LayerKind] = []
    for word, layer in zip(words, attending, strict=True):
        if word is LayerType.RECURRENT and recurrent is not None:
            mixers.append(recurrent)
        elif word is LayerType.BOTH and recurrent is not None and isinstance(layer, Attention):
            mixers.append(HybridLayer(attention=layer, recurrent=recurrent))
        elif word is LayerType.BOTH:
            raise _no_recurrence(hyper)
        else:
            mixers.append(layer or NoCache())
    return tuple(mixers)


def _share(hyper: Hyper, row: Architecture, mixers: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """Layers that read another's cache: the last ones of Gemma 3n and 4, every other one of Hunyuan."""
    factor = hyper.number("share_factor") if hyper.flag("share_caches") else None
    if factor is not None and factor > 1:
        return tuple(
            SharedCache(attention=m, source_layer=i - i % factor)
            if i % factor and isinstance(m, Attention)
            else m
            for i, m in enumerate(mixers)
        )
    shared = hyper.number("shared_cache_layers") or 0
    if row.cache_owners:
        shared = max(len(mixers) - row.cache_owners, 0)
    owners = len(mixers) - shared
    if owners < 1:
        raise HeaderError(
            "every layer shares another layer's KV cache, and none has its own",
            file=hyper.header.name,
        )
    source = {m.label: i for i, m in enumerate(mixers[:owners])}
    return mixers[:owners] + tuple(_reader(mixer, source) for mixer in mixers[owners:])


def _looped(hyper: Hyper, layers: tuple[Layer, ...], loops: int) -> tuple[Layer, ...]:
    """Models that run their layers several times hold a cache for every round."""
    window = hyper.number("loop_window") or 0
    count = len(layers) * loops
    if count > MAX_LAYERS:
        raise HeaderLimitError(
            hyper.spelled("loops"), value=count, limit=MAX_LAYERS, file=hyper.header.name
        )
    rounds = (replace(layers[i % len(layers)], index=i) for i in range(count))
    return tuple(
        _again(layer, window) if i >= len(layers) else layer for i, layer in enumerate(rounds)
    )


def _again(layer: Layer, window: int) -> Layer:
    """IQuest's second round looks at a short window, and at the first round's cache."""
    if not window or not isinstance(layer.mixer, Attention):
        return layer
    return replace(layer, mixer=replace(layer.mixer, span=Span.WINDOW, span_tokens=window))


def _reader(mixer: LayerKind, source: Mapping[str, int]) -> LayerKind:
    if not isinstance(mixer, Attention) or mixer.label not in source:
        return mixer
    return SharedCache(attention=mixer, source_layer=source[mixer.label])


def _layer_count(hyper: Hyper) -> int:
    """As stated, or as many as the file lists one by one (Nemotron 3 Ultra)."""
    stated = hyper.number("layers")
    if stated is not None:
        return stated
    whole = hyper.named("layer_types") != "block_types"  # RecurrentGemma's is one cycle of many
    listed = (hyper.items("layer_types") if whole else None) or hyper.text("pattern_text")
    if not listed or len(listed) > MAX_LAYERS:
        raise hyper.missing("layers")
    return len(listed)


def _mtp_layers(hyper: Hyper) -> int:
    """llama.cpp takes them off block_count whether or not the file has them (n_layer, llama-hparams.cpp @ 0c1e570)."""
    return hyper.number("mtp_layers") or 0


def _refuse_unreadable(hyper: Hyper, words: tuple[LayerType, ...]) -> None:
    """An unknown architecture is only read when nothing in it hints at memory we would not count."""
    if LayerType.RECURRENT in words or any(hyper.raw(word) is not None for word in _HINTS):
        raise _no_recurrence(hyper)


def _no_recurrence(hyper: Hyper) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"{hyper.header.name}: unknown architecture: {hyper.architecture!r} has a kind of "
        "layer that edgekit does not know yet; upgrade edgekit, or add a record to "
        "model/architectures.json"
    )


def _how_known(hyper: Hyper, row: Architecture | None) -> tuple[Basis, str]:
    if row is None:
        return Basis.ASSUMED, (
            f"unknown architecture {hyper.architecture!r}: read by its standard keys (no "
            "record in model/architectures.json)"
        )
    if hyper.gguf and hyper.number("mtp_layers") and hyper.header.tensors is None:
        return Basis.MODELLED, (
            "not checked whether the file includes the layers for token prediction "
            "(MTP): the layer count may be off by one"
        )
    defaulted = sorted(hyper.defaulted - row.constants.keys())
    if defaulted and not hyper.gguf:
        return Basis.MODELLED, (
            f"config.json does not state {', '.join(defaulted)}: used the library's "
            f"defaults for {hyper.architecture}"
        )
    return Basis.EXACT, ""


def _is_embedder(hyper: Hyper) -> bool:
    """A decoder that was made to look both ways keeps nothing; beside a tower it still generates."""
    return hyper.raw("bidirectional") is True and not hyper.nested


def _is_yarn(rope: Rope | None) -> bool:
    return rope is not None and rope.type == "yarn"


_POOLING = ("none", "mean", "cls", "last", "rank")  # llama.h LLAMA_POOLING_TYPE_*


def vocabulary_of(hyper: Hyper) -> int | None:
    tokens = hyper.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is not None and tokens.count:
        return tokens.count
    if (stated := hyper.number("vocabulary")) is not None:
        return stated
    embedding = next((t for t in hyper.header.tensors or () if t.name == "token_embd.weight"), None)
    return embedding.shape[0] if embedding is not None and embedding.shape else None


def tied_embeddings(hyper: Hyper) -> bool | None:
    """As config.json states it, else by whether there is an output head, else as the family does it."""
    stated = hyper.header.config.get("tie_word_embeddings")
    if not isinstance(stated, bool):
        stated = hyper.raw("tied")
    if isinstance(stated, bool):
        return stated
    if hyper.header.tensors:
        return not has_output_head(hyper.header.tensors)
    row = None if hyper.gguf else architecture_of(hyper.architecture, gguf=False)
    return None if row is None else row.tied_by_default


def pooling_of(hyper: Hyper) -> str | None:
    number = hyper.number("pooling")
    return _POOLING[number] if number is not None and number < len(_POOLING) else None


def towers_of(header: ModelHeader) -> tuple[Tower, ...]:
    """Encoders of pictures and sound: parts of a config.json, or the content of an mmproj GGUF."""
    inner = header.config.get("thinker_config")
    places = (header.config, inner) if isinstance(inner, Mapping) else (header.config,)
    found: dict[str, Tower] = {}
    for place in places:
        for section, kind in TOWER_SECTIONS:
            part = place.get(section)
            if isinstance(part, Mapping) and part:
                found.setdefault(kind, _tower(kind, part, TOWER_LAYERS, TOWER_HIDDEN))
    for kind in ("vision", "audio"):
        prefix = f"clip.{kind}."
        part = {k.removeprefix(prefix): v for k, v in header.keys.items() if k.startswith(prefix)}
        if part:
            found[kind] = _tower(kind, part, ("block_count",), ("embedding_length",))
    return tuple(found.values())


def _tower(
    kind: str, part: Mapping[str, object], layers: tuple[str, ...], hidden: tuple[str, ...]
) -> Tower:
    return Tower(kind=kind, layers=_first(part, layers), hidden=_first(part, hidden))


def _first(part: Mapping[str, object], spellings: tuple[str, ...]) -> int | None:
    """The first that is a size: not a bool, not below one, not beyond what any width is."""
    return next(
        (v for s in spellings if type(v := part.get(s)) is int and 0 < v <= MAX_NUMBER), None
    )


# Types whose stated window already is the long one, or that stretch nothing.
_UNSCALED = frozenset(
    {"llama3", "su", "longrope", "mrope", "default", "none", "proportional", "gptj", "xdrope"}
)


def read_rope(hyper: Hyper) -> Rope | None:
    if hyper.gguf:
        kind, factor = hyper.text("rope_type"), hyper.ratio("rope_factor")
        original = hyper.number("rope_original")
        # llama.cpp reads "linear" where no type is written, and no factor means none.
        if kind in {None, "none"} and factor in {None, 0.0, 1.0} and original is None:
            return None
        return Rope(type=kind or "linear", factor=factor, original_context=original)
    scaling = hyper.raw("rope_scaling")
    if not isinstance(scaling, Mapping):
        return None
    full = scaling.get("full_attention")  # one entry for each layer type
    return _from_config(full if isinstance(full, Mapping) else scaling, hyper)


def _from_config(scaling: Mapping[str, Any], hyper: Hyper) -> Rope | None:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind == "default":
        return None
    original = scaling.get("original_max_position_embeddings")
    if not _whole(original):
        original = hyper.number("rope_original")
    factor = scaling.get("factor")
    known = None if factor is None else hyper.real("the rope scaling's factor", factor)
    return Rope(type=kind, factor=known, original_context=original)


def native_context(trained: int | None, rope: Rope | None, *, scaled: bool) -> int | None:
    """The window after scaling; `scaled`: the stated one counts it already."""
    if trained is None or scaled or rope is None or rope.type in _UNSCALED:
        return trained
    factor = rope.factor
    if factor is None or not 1 <= factor <= 1e6:
        return trained
    if rope.type in {"yarn", "deepseek_yarn"} and rope.original_context:
        return max(trained, int(rope.original_context * factor))
    return int(trained * factor)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
