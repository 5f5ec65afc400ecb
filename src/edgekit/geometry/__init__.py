"""A header -> what the model is: `read_geometry` and the table it looks in."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.basis import Basis
from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.geometry.architectures import (
    BY_CONFIG,
    BY_GGUF,
    NOT_LANGUAGE_MODELS,
    STANDARD,
    Architecture,
)
from edgekit.geometry.arrange import Word
from edgekit.geometry.feedforward import feed_forwards, halved
from edgekit.geometry.hyper import MAX_LAYERS, Hyper
from edgekit.geometry.keys import TOWER_HIDDEN, TOWER_LAYERS, TOWER_SECTIONS
from edgekit.geometry.positions import native_context, read_rope
from edgekit.geometry.roles import has_output_head
from edgekit.geometry.types import (
    Attention,
    HybridLayer,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    SharedCache,
    Tower,
)
from edgekit.header.types import ModelHeader

__all__ = ["not_a_language_model", "read_geometry"]

_POOLING = ("none", "mean", "cls", "last", "rank")  # llama.h LLAMA_POOLING_TYPE_*


def not_a_language_model(header: ModelHeader) -> str | None:
    """A sentence saying what else the file is, None for everything that may be a language model."""
    if header.keys.get("general.type") == "adapter":
        return "a LoRA adapter: it changes a base model and does not run alone"
    name = header.keys.get("general.architecture") or header.config.get("model_type")
    return NOT_LANGUAGE_MODELS.get(name) if isinstance(name, str) else None


def read_geometry(header: ModelHeader) -> ModelGeometry:
    """What the model is. Unknown names are read by their standard keys and marked ASSUMED."""
    hyper = Hyper(header)
    rows = BY_GGUF if hyper.gguf else BY_CONFIG
    row = rows.get(hyper.architecture)
    known = row or STANDARD
    hyper.defaults = _defaults(hyper, known)
    mtp = _mtp_layers(hyper)
    count = _layer_count(hyper) - (mtp if hyper.gguf else 0)  # GGUF counts them in, configs do not
    if count < 1:
        raise HeaderError(f"{count} layers besides {mtp} for prediction", file=header.name)
    words = known.arrange(hyper, count)
    if row is None:
        _refuse_unreadable(hyper, words)
    rope = read_rope(hyper)
    trained = hyper.number("context")
    layers = _layers(hyper, known, words)
    basis, because = _how_known(
        hyper, row
    )  # after the layers: now every default that was used is noted
    return ModelGeometry(
        architecture=hyper.architecture,
        layers=layers,
        hidden=hyper.need("hidden"),
        vocabulary=_vocabulary(hyper),
        trained_context=trained,
        native_context=native_context(trained, rope, scaled=known.context_is_scaled),
        rope=rope,
        per_layer_embedding=hyper.number("per_layer_embedding") or 0,
        mtp_layers=mtp,
        tied_embeddings=_tied(hyper, known),
        causal=known.causal if hyper.flag("causal") is None else bool(hyper.flag("causal")),
        pooling=_pooling(hyper),
        towers=_towers(header.config),
        basis=basis,
        because=because,
    )


def _defaults(hyper: Hyper, row: Architecture) -> Mapping[str, object]:
    if hyper.gguf:
        return row.gguf_defaults
    return {**row.config_defaults, **row.nested_defaults} if hyper.nested else row.config_defaults


def _layers(hyper: Hyper, row: Architecture, words: tuple[Word, ...]) -> tuple[Layer, ...]:
    mixers = _share(hyper, _mixers(hyper, row, words))
    halves = feed_forwards(
        hyper,
        words,
        gated=row.gated,
        beside=row.beside,
        alternating=row.alternating,
        width=row.width,
    )
    if row.halved:
        halves = halved(halves)
    return tuple(
        Layer(index=i, mixer=mixer, dense=dense, experts=experts)
        for i, (mixer, (dense, experts)) in enumerate(zip(mixers, halves, strict=True))
    )


def _mixers(hyper: Hyper, row: Architecture, words: tuple[Word, ...]) -> tuple[LayerKind, ...]:
    attends = any(word not in {Word.RECURRENT, Word.NONE} for word in words)
    attention = row.attend(hyper, words) if attends else (None,) * len(words)
    needs_state = Word.RECURRENT in words or Word.BOTH in words
    if needs_state and row.recur is None:
        raise _no_recurrence(hyper)
    recurrent = row.recur(hyper) if row.recur is not None and needs_state else None
    mixers: list[LayerKind] = []
    for word, layer in zip(words, attention, strict=True):
        if word is Word.RECURRENT and recurrent is not None:
            mixers.append(recurrent)
        elif word is Word.BOTH and recurrent is not None and isinstance(layer, Attention):
            mixers.append(HybridLayer(attention=layer, recurrent=recurrent))
        else:
            mixers.append(layer or NoCache())
    return tuple(mixers)


def _share(hyper: Hyper, mixers: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """The last layers of Gemma 3n and 4 read the cache of the last layer of their kind that owns one."""
    owners = len(mixers) - (hyper.number("shared_cache_layers") or 0)
    if owners >= len(mixers):
        return mixers
    if owners < 1:
        raise HeaderError("every layer shares a cache and none owns one", file=hyper.header.name)
    source = {m.label: i for i, m in enumerate(mixers[:owners])}
    return mixers[:owners] + tuple(_reader(mixer, source) for mixer in mixers[owners:])


def _reader(mixer: LayerKind, source: Mapping[str, int]) -> LayerKind:
    if not isinstance(mixer, Attention) or mixer.label not in source:
        return mixer
    return SharedCache(attention=mixer, source_layer=source[mixer.label])


def _layer_count(hyper: Hyper) -> int:
    """As stated, or as many as the file lists one by one (Nemotron 3 Ultra)."""
    stated = hyper.number("layers")
    if stated is not None:
        return stated
    listed = hyper.items("layer_types") or hyper.text("pattern_text")
    if not listed or len(listed) > MAX_LAYERS:
        raise hyper.missing("layers")
    return len(listed)


def _mtp_layers(hyper: Hyper) -> int:
    count = hyper.number("mtp_layers") or 0
    tensors = hyper.header.tensors
    if (
        count
        and hyper.gguf
        and tensors is not None
        and not any(".nextn." in t.name for t in tensors)
    ):
        return 0  # the key is there, the blocks were left out of the file
    return count


def _vocabulary(hyper: Hyper) -> int | None:
    tokens = hyper.header.arrays.get("tokenizer.ggml.tokens")
    if tokens is not None and tokens.count:
        return tokens.count
    if (stated := hyper.number("vocabulary")) is not None:
        return stated
    embedding = next((t for t in hyper.header.tensors or () if t.name == "token_embd.weight"), None)
    return embedding.shape[0] if embedding is not None else None


def _tied(hyper: Hyper, row: Architecture) -> bool | None:
    """As config.json states it, else by whether there is an output head, else as the family does it."""
    stated = hyper.top("tie_word_embeddings")
    if not isinstance(stated, bool):
        stated = hyper.raw("tied")
    if isinstance(stated, bool):
        return stated
    if hyper.header.tensors:
        return not has_output_head(hyper.header.tensors)
    return None if hyper.gguf else row.tied


def _pooling(hyper: Hyper) -> str | None:
    number = hyper.number("pooling")
    return _POOLING[number] if number is not None and number < len(_POOLING) else None


def _towers(config: Mapping[str, object]) -> tuple[Tower, ...]:
    inner = config.get("thinker_config")
    places = (config, inner) if isinstance(inner, Mapping) else (config,)
    found: dict[str, Tower] = {}
    for place in places:
        for section, kind in TOWER_SECTIONS:
            part = place.get(section)
            if isinstance(part, Mapping) and part:
                found.setdefault(
                    kind,
                    Tower(
                        kind=kind,
                        layers=_first(part, TOWER_LAYERS),
                        hidden=_first(part, TOWER_HIDDEN),
                    ),
                )
    return tuple(found.values())


def _first(part: Mapping[str, object], spellings: tuple[str, ...]) -> int | None:
    return next((v for s in spellings if isinstance(v := part.get(s), int)), None)


def _refuse_unreadable(hyper: Hyper, words: tuple[Word, ...]) -> None:
    """An unknown architecture is only read when nothing in it hints at a state we would not count."""
    hints = ("conv_kernel", "state_size", "kda_head_dim", "compress_ratios")
    if Word.RECURRENT in words or any(hyper.raw(word) is not None for word in hints):
        raise _no_recurrence(hyper)


def _no_recurrence(hyper: Hyper) -> UnknownArchitectureError:
    return UnknownArchitectureError(
        f"{hyper.header.name}: architecture {hyper.architecture!r} has recurrent or compressed layers "
        "that are not described yet: add a row to geometry/architectures.py"
    )


def _how_known(hyper: Hyper, row: Architecture | None) -> tuple[Basis, str]:
    if row is None:
        return Basis.ASSUMED, (
            f"architecture {hyper.architecture!r} is not in geometry/architectures.py; "
            "read by its standard keys"
        )
    defaulted = sorted(hyper.defaulted & row.nested_defaults.keys())
    if defaulted and not hyper.gguf:
        return Basis.MODELLED, (
            f"config.json does not state {', '.join(defaulted)}: the library's defaults for "
            f"{hyper.architecture} stand in"
        )
    return Basis.EXACT, ""
