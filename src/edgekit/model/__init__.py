"""`read_geometry`: a model's geometry from its header. The rules of each architecture are in architectures.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


# Hyper-parameters of layers that cannot be read without a record in architectures.json.
_HINTS = (
    "conv_kernel",
    "state_size",
    "kda_head_dim",
    "compress_ratios",
    "window_latent_dim",
    "loop_window",
)
_POOLING = ("none", "mean", "cls", "last", "rank")  # llama.h LLAMA_POOLING_TYPE_*

# Rope types that do not extend the stated context, because it is already the extended one.
_UNSCALED = frozenset(
    {"llama3", "su", "longrope", "mrope", "default", "none", "proportional", "gptj", "xdrope"}
)


def not_a_language_model(header: ModelHeader) -> str | None:
    """A phrase for what the file is instead of a language model; None if it may be one."""
    if header.keys.get("general.type") == "adapter":
        return "a LoRA adapter: it changes a base model and does not run alone"
    if header.config.get("is_encoder_decoder") is True:
        return "an encoder-decoder model: its cross-attention cache is not modelled"
    name = header.keys.get("general.architecture") or header.config.get("model_type")
    return section_by_name("not_a_language_model").get(name) if isinstance(name, str) else None


def read_geometry(header: ModelHeader) -> ModelGeometry:
    """The layers and widths of a model. Unknown architectures are read by standard keys and marked ASSUMED."""
    hyper = Hyper(header)
    record = architecture_of(hyper.architecture, gguf=hyper.gguf)
    architecture = record or STANDARD
    hyper.defaults = (
        architecture.constants if hyper.gguf else architecture.defaults(nested=hyper.nested)
    )
    # llama.cpp subtracts them from block_count whether or not the file has them (n_layer, llama-hparams.cpp @ 0c1e570).
    mtp = hyper.number("mtp_layers") or 0
    stated = _layer_count(hyper)
    if stated + mtp > MAX_LAYERS:
        raise HeaderLimitError(
            f"{hyper.named('layers')} with {hyper.named('mtp_layers')}",
            value=stated + mtp,
            limit=MAX_LAYERS,
            file=header.name,
        )
    count = stated - (mtp if hyper.gguf else 0)  # GGUF includes them in the count, configs do not
    count *= architecture.sublayers
    if count < 1:
        raise HeaderError(
            f"{count} layers are left after {mtp} for token prediction (MTP)", file=header.name
        )
    types = architecture.arrange(hyper, count)
    vocabulary = _vocabulary(hyper)
    if record is None:
        if LayerType.RECURRENT in types or any(hyper.raw(name) is not None for name in _HINTS):
            raise _unknown_layers(hyper)
        if vocabulary is None and not hyper.gguf:
            raise hyper.missing("vocabulary")
    rope = _read_rope(hyper)
    trained = hyper.number("context")
    loops = hyper.number("loops") or 1
    layers = _looped(hyper, _layers(hyper, architecture, types), loops)
    causal = hyper.flag("causal")
    if causal is None:
        causal = architecture.attend is not encoder and not _is_embedder(hyper)
    is_yarn = rope is not None and rope.type == "yarn"
    pooling = hyper.number("pooling")
    basis, because = _basis(hyper, record)  # after the layers, which record the defaults they used
    return ModelGeometry(
        architecture=hyper.architecture,
        layers=layers,
        hidden=hyper.need("hidden"),
        vocabulary=vocabulary,
        trained_context=trained,
        native_context=native_context(
            trained, rope, scaled=architecture.context_is_scaled or (hyper.gguf and not is_yarn)
        ),
        rope=rope,
        loops=loops,
        per_layer_embedding=hyper.number("per_layer_embedding") or 0,
        mtp_layers=mtp,
        tied_embeddings=_tied_embeddings(hyper),
        causal=causal,
        pooling=_POOLING[pooling] if pooling is not None and pooling < len(_POOLING) else None,
        towers=towers_of(header),
        basis=basis,
        because=because,
    )


def _layer_count(hyper: Hyper) -> int:
    """The stated count, or the length of the file's list of layers (Nemotron 3 Ultra)."""
    stated = hyper.number("layers")
    if stated is not None:
        return stated
    is_cycle = hyper.named("layer_types") == "block_types"  # RecurrentGemma repeats it
    listed = (None if is_cycle else hyper.items("layer_types")) or hyper.text("pattern_text")
    if not listed or len(listed) > MAX_LAYERS:
        raise hyper.missing("layers")
    return len(listed)


# -- layers


def _layers(
    hyper: Hyper, architecture: Architecture, types: tuple[LayerType, ...]
) -> tuple[Layer, ...]:
    mixers = _share(hyper, architecture, _mixers(hyper, architecture, types))
    if _is_embedder(hyper):
        mixers = tuple(NoCache(attention=m) if isinstance(m, Attention) else m for m in mixers)
    halves = feed_forwards(
        hyper,
        types,
        gated=architecture.gated or "glu" in (hyper.text("ffn_kind") or ""),
        dense_and_experts=architecture.dense_and_experts or bool(hyper.flag("dense_and_experts")),
        alternating=architecture.alternating,
        width=architecture.width,
    )
    pairs = (architecture.adjust(hyper, pair) for pair in halves)
    return tuple(
        Layer(index=i, mixer=mixer, dense=dense, experts=experts)
        for i, (mixer, (dense, experts)) in enumerate(zip(mixers, pairs, strict=True))
    )


def _mixers(
    hyper: Hyper, architecture: Architecture, types: tuple[LayerType, ...]
) -> tuple[LayerKind, ...]:
    without_attention = {LayerType.RECURRENT, LayerType.NONE, LayerType.EXPERTS}
    has_attention = not without_attention.issuperset(types)
    attending = architecture.attend(hyper, types) if has_attention else (None,) * len(types)
    needs_state = LayerType.RECURRENT in types or LayerType.BOTH in types
    if needs_state and architecture.recur is None:
        raise _unknown_layers(hyper)
    recurrent = architecture.recur(hyper) if architecture.recur and needs_state else None
    mixers: list[LayerKind] = []
    for kind, attention in zip(types, attending, strict=True):
        if kind is LayerType.RECURRENT and recurrent is not None:
            mixers.append(recurrent)
        elif kind is LayerType.BOTH and recurrent is not None and isinstance(attention, Attention):
            mixers.append(HybridLayer(attention=attention, recurrent=recurrent))
        elif kind is LayerType.BOTH:
            raise _unknown_layers(hyper)
        else:
            mixers.append(attention or NoCache())
    return tuple(mixers)


def _share(
    hyper: Hyper, architecture: Architecture, mixers: tuple[LayerKind, ...]
) -> tuple[LayerKind, ...]:
    """Replaces layers that read another layer's cache: the last ones of Gemma 3n and 4, every other one of Hunyuan."""
    factor = hyper.number("share_factor") if hyper.flag("share_caches") else None
    if factor is not None and factor > 1:
        return tuple(
            SharedCache(attention=m, source_layer=i - i % factor)
            if i % factor and isinstance(m, Attention)
            else m
            for i, m in enumerate(mixers)
        )
    shared = hyper.number("shared_cache_layers") or 0
    if architecture.cache_owners:
        shared = max(len(mixers) - architecture.cache_owners, 0)
    owners = len(mixers) - shared
    if owners < 1:
        raise HeaderError(
            "every layer shares another layer's KV cache, and none has its own",
            file=hyper.header.name,
        )
    source = {m.label: i for i, m in enumerate(mixers[:owners])}
    return mixers[:owners] + tuple(
        SharedCache(attention=m, source_layer=source[m.label])
        if isinstance(m, Attention) and m.label in source
        else m
        for m in mixers[owners:]
    )


def _looped(hyper: Hyper, layers: tuple[Layer, ...], loops: int) -> tuple[Layer, ...]:
    """The layers of all rounds, for models that run their layers several times and hold a cache for every round.

    IQuest's second round attends to a short window, and to the first round's cache.
    """
    window = hyper.number("loop_window") or 0
    count = len(layers) * loops
    if count > MAX_LAYERS:
        raise HeaderLimitError(
            hyper.spelled("loops"), value=count, limit=MAX_LAYERS, file=hyper.header.name
        )
    rounds = []
    for i in range(count):
        layer = replace(layers[i % len(layers)], index=i)
        if i >= len(layers) and window and isinstance(layer.mixer, Attention):
            mixer = replace(layer.mixer, span=Span.WINDOW, span_tokens=window)
            layer = replace(layer, mixer=mixer)
        rounds.append(layer)
    return tuple(rounds)


def _is_embedder(hyper: Hyper) -> bool:
    """Whether it is a decoder with bidirectional attention and so no cache. With a tower it still generates text."""
    return hyper.raw("bidirectional") is True and not hyper.nested


def _unknown_layers(hyper: Hyper) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"{hyper.header.name}: unknown architecture: {hyper.architecture!r} has a kind of "
        "layer that edgekit does not know yet; upgrade edgekit, or add a record to "
        "model/architectures.json"
    )


def _basis(hyper: Hyper, record: Architecture | None) -> tuple[Basis, str]:
    """The basis of the geometry, and why it is not EXACT."""
    if record is None:
        return Basis.ASSUMED, (
            f"unknown architecture {hyper.architecture!r}: read by its standard keys (no "
            "record in model/architectures.json)"
        )
    if hyper.gguf and hyper.number("mtp_layers") and hyper.header.tensors is None:
        return Basis.MODELLED, (
            "not checked whether the file includes the layers for token prediction "
            "(MTP): the layer count may be off by one"
        )
    defaulted = sorted(hyper.defaulted - record.constants.keys())
    if defaulted and not hyper.gguf:
        return Basis.MODELLED, (
            f"config.json does not state {', '.join(defaulted)}: used the library's "
            f"defaults for {hyper.architecture}"
        )
    return Basis.EXACT, ""


# -- outside the layers


def _vocabulary(hyper: Hyper) -> int | None:
    tokens = hyper.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is not None and tokens.count:
        return tokens.count
    if (stated := hyper.number("vocabulary")) is not None:
        return stated
    embedding = next((t for t in hyper.header.tensors or () if t.name == "token_embd.weight"), None)
    return embedding.shape[0] if embedding is not None and embedding.shape else None


def _tied_embeddings(hyper: Hyper) -> bool | None:
    """From config.json, else from the absence of an output head, else the architecture's default."""
    stated = hyper.header.config.get("tie_word_embeddings")
    if not isinstance(stated, bool):
        stated = hyper.raw("tied")
    if isinstance(stated, bool):
        return stated
    if hyper.header.tensors:
        return not has_output_head(hyper.header.tensors)
    record = None if hyper.gguf else architecture_of(hyper.architecture, gguf=False)
    return None if record is None else record.tied_by_default


def towers_of(header: ModelHeader) -> tuple[Tower, ...]:
    """Encoders of images and sound: parts of a config.json, or the content of an mmproj GGUF."""
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
    def first_size(spellings: tuple[str, ...]) -> int | None:
        values = (part.get(spelling) for spelling in spellings)
        return next((v for v in values if type(v) is int and 0 < v <= MAX_NUMBER), None)

    return Tower(kind=kind, layers=first_size(layers), hidden=first_size(hidden))


def _read_rope(hyper: Hyper) -> Rope | None:
    if hyper.gguf:
        kind, factor = hyper.text("rope_type"), hyper.ratio("rope_factor")
        original = hyper.number("rope_original")
        # llama.cpp treats a missing type as "linear" and a missing factor as no scaling.
        if kind in {None, "none"} and factor in {None, 0.0, 1.0} and original is None:
            return None
        return Rope(type=kind or "linear", factor=factor, original_context=original)
    scaling = hyper.raw("rope_scaling")
    if isinstance(scaling, Mapping) and isinstance(scaling.get("full_attention"), Mapping):
        scaling = scaling["full_attention"]  # an entry per layer type
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if not isinstance(kind, str) or kind == "default":
        return None
    original = scaling.get("original_max_position_embeddings")
    if type(original) is not int or not 0 < original < 2**31:
        original = hyper.number("rope_original")
    factor = scaling.get("factor")
    if factor is not None:
        factor = hyper.real("the rope scaling's factor", factor)
    return Rope(type=kind, factor=factor, original_context=original)


def native_context(trained: int | None, rope: Rope | None, *, scaled: bool) -> int | None:
    """The context length after rope scaling. `scaled`: the stated length already includes it."""
    if trained is None or scaled or rope is None or rope.type in _UNSCALED:
        return trained
    factor = rope.factor
    if factor is None or not 1 <= factor <= 1e6:
        return trained
    if rope.type in {"yarn", "deepseek_yarn"} and rope.original_context:
        return max(trained, int(rope.original_context * factor))
    return int(trained * factor)
