"""A model in another format, or at another mix -> the GGUF it would be, before anything is converted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from edgekit.basis import Basis
from edgekit.engines.llamacpp.architectures import conversion_of, known_architecture
from edgekit.engines.llamacpp.converted import WITHIN, Converted, MixedModel, SourceModel
from edgekit.engines.llamacpp.gguf_keys import gguf_architecture, gguf_keys
from edgekit.engines.llamacpp.gguf_tensors import ROPE_TABLES, gguf_tensor_count, gguf_tensors
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.quantization import (
    USUAL_MIXES,
    facts_of_geometry,
    facts_of_header,
    in_order,
    laid_tensors,
)
from edgekit.errors import HeaderError, RefusedError
from edgekit.formats.mixes import stated_mix
from edgekit.formats.types import GgufTensor, ModelHeader, Tensor
from edgekit.model.hyperparameters import config_words
from edgekit.model.tensor_recipes import switches, tensor_recipe
from edgekit.model.types import (
    Attention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    Model,
    ModelGeometry,
    SharedCache,
    Span,
)
from edgekit.sources.filenames import quant_tag
from edgekit.sources.types import Container
from edgekit.units import MIB

LONGEST_HEADER = 16 * MIB  # Gemma's vocabulary of 262,144 tokens: 15.8 MB


def likely_mix(model: Model) -> str:
    """The one that the file's key or name states, unless the file is too small for it; else the nearest by size."""
    size, tag = model.header.file_bytes, quant_tag(model.header.name)
    stated = stated_mix(model.header.keys) or (tag if tag in USUAL_MIXES else None)
    if stated is not None and (size is None or _tensor_bytes(model, stated) <= size * (1 + WITHIN)):
        return stated
    if size is None:
        raise HeaderError(
            "neither the quantisation nor the size of the file is known: read its whole header",
            file=model.header.name,
        )
    # They are sorted: the first that is no larger than the file. What is left over is added.
    place = bisect_left(USUAL_MIXES, -size, key=lambda name: -_tensor_bytes(model, name))
    return USUAL_MIXES[min(place, len(USUAL_MIXES) - 1)]


def _tensor_bytes(model: Model, mix: str) -> int:
    return mixed_model(_with_head(model, mix), mix).tensor_bytes


def mixed_model(model: Model, mix: str) -> MixedModel:
    """The model at that mix. Its tensors are laid out once, for all mixes."""
    source = prepare(model).source_model.get(lambda: source_model(model.header, model.geometry))
    return source.at_mix(mix)


def _is_gguf(model: Model) -> bool:
    return model.header.container is Container.GGUF


def convert(model: Model, mix: str) -> Converted:
    """Raises RefusedError for a model_type that llama.cpp's converter does not have."""
    name = model.geometry.architecture
    if not _is_gguf(model) and conversion_of(name).unsupported:
        raise RefusedError(
            f"llama.cpp's converter does not support {name}, so there is no GGUF of it to run"
        )
    unread = _is_gguf(model) and model.header.tensors is None
    if unread:
        model = _with_head(model, mix)
    mixed = mixed_model(model, mix)
    tensors = tuple(
        Tensor(name=one.name, type=one.type, shape=one.shape, size_bytes=one.size_bytes, offset=0)
        for one in mixed.tensors
    )
    geometry = model.geometry if _is_gguf(model) else _in_llama_cpp(model.geometry)
    header = replace(
        model.header,
        keys=model.header.keys or gguf_keys(geometry, model.header.config),
        container=Container.GGUF,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
    )
    return Converted(
        model=Model(header=header, geometry=geometry),
        mixed=mixed,
        file_bytes=model.header.file_bytes if unread else None,
    )


def _with_head(model: Model, mix: str) -> Model:
    """Keys do not say whether the output head is a matrix of its own; the size of the file does."""
    if model.geometry.tied_embeddings is not None:
        return model
    apart, tied = prepare(model).apart_and_tied.get(lambda: _heads(model))
    size = model.header.file_bytes
    if size is None:
        return apart

    def misfit(one: Model) -> tuple[bool, bool, int]:
        """Not of that size, another number of tensors, how far from the size."""
        mixed = mixed_model(one, mix)
        away = abs(size - mixed.tensor_bytes)
        other = len(mixed.tensors) != (model.header.tensor_count or len(mixed.tensors))
        return away > LONGEST_HEADER + size // 200, other, away

    return prepare(model).likely_heads.get(mix, lambda: min((apart, tied), key=misfit))


def _heads(model: Model) -> tuple[Model, Model]:
    """The model with an output head of its own, and with the embedding as its head."""
    apart, tied = (replace(model.geometry, tied_embeddings=one) for one in (False, True))
    return Model(header=model.header, geometry=apart), Model(header=model.header, geometry=tied)


def _in_llama_cpp(geometry: ModelGeometry) -> ModelGeometry:
    """What llama.cpp's loader makes of the layers that a config.json describes."""
    name = geometry.architecture
    changes: dict[str, Any] = {}
    if not conversion_of(name).keeps_windows:
        changes["span"], changes["span_tokens"] = Span.ALL, 0
    if known_architecture(name).full_heads:
        changes["absorbed"] = False
    layers = tuple(
        replace(layer, mixer=_changed(layer.mixer, changes)) for layer in geometry.layers
    )
    blocks = 0 if conversion_of(name).drops_prediction else geometry.mtp_layers
    return replace(
        geometry, layers=layers, mtp_layers=blocks, architecture=gguf_architecture(geometry)
    )


def _changed(kind: LayerKind, changes: dict[str, Any]) -> LayerKind:
    match kind:
        case LatentAttention():
            return replace(kind, **changes)
        case Attention():
            return _attention(kind, changes)
        case HybridLayer() | SharedCache():
            return replace(kind, attention=_attention(kind.attention, changes))
        case _:
            return kind


def _attention(kind: Attention, changes: dict[str, Any]) -> Attention:
    return replace(kind, **{name: value for name, value in changes.items() if name != "absorbed"})


def source_model(header: ModelHeader, geometry: ModelGeometry) -> SourceModel:
    """From the directory of a GGUF where there is one, else from the tensors its geometry implies.

    UnknownArchitectureError for a family without a list of tensors.
    """
    if header.keys and header.tensors:
        laid = laid_tensors(header)
        return SourceModel(
            tensors=in_order(laid),
            facts=facts_of_header(header),
            basis=Basis.EXACT,
            because=f"{len(laid):,} tensors, with the types that llama-quantize assigns",
        )
    laid = _counted(geometry, config_words(header), header.tensor_count if header.keys else None)
    facts = facts_of_geometry(geometry, conversion_of(geometry.architecture).to)
    named = geometry.architecture.replace("{", "{{").replace("}", "}}")
    because = (
        f"{len(laid):,} tensors of a {named} model, with the types that llama-quantize assigns"
    )
    return SourceModel(tensors=in_order(laid), facts=facts, basis=Basis.MODELLED, because=because)


def _counted(
    geometry: ModelGeometry, words: Mapping[str, Any], count: int | None
) -> tuple[GgufTensor, ...]:
    """Keys do not state every switch, nor tables of rope factors: the number of tensors in the file tells them.

    Where no two switches make up for the difference, the tensors are those that most files of the family have.
    """
    first = gguf_tensors(geometry, words)
    if count is None or len(first) == count:
        return first
    usual = switches(tensor_recipe(geometry.architecture))
    bare = replace(geometry, mtp_layers=0)  # a file may leave out the blocks of prediction
    for one in dict.fromkeys((geometry, bare)):
        for turned in (few for size in range(3) for few in combinations(usual, size)):
            section = {**words, **{word: not words.get(word, usual[word]) for word in turned}}
            left = count - gguf_tensor_count(one, section)
            if left in {0, 1, 2}:
                return gguf_tensors(one, {**section, ROPE_TABLES: left})
    return first
