"""What a model has outside its layers: vocabulary, tied embeddings, pooling, towers, rope scaling, native context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.formats.types import ModelHeader
from edgekit.model.architectures import architecture_of
from edgekit.model.hyperparameters import (
    MAX_NUMBER,
    TOWER_HIDDEN,
    TOWER_LAYERS,
    TOWER_SECTIONS,
    Hyper,
)
from edgekit.model.roles import has_output_head
from edgekit.model.types import Rope, Tower

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
