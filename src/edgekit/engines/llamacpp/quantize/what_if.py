"""A model and a mix's name -> what its GGUF would weigh: "what would this be at Q4_K_M?"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from edgekit.basis import Basis
from edgekit.engines.llamacpp.architectures import conversion
from edgekit.engines.llamacpp.quantize.layout import ROPE_TABLES, gguf_tensor_count, gguf_tensors
from edgekit.engines.llamacpp.quantize.mixing import (
    Met,
    facts_of_geometry,
    facts_of_header,
    in_order,
    laid_tensors,
    mix_met,
    mix_row,
)
from edgekit.engines.llamacpp.quantize.table import MixFacts
from edgekit.formats.types import GgufTensor, ModelHeader
from edgekit.model.hyperparameters import config_words
from edgekit.model.tensor_recipes import switches, tensor_recipe
from edgekit.model.types import ModelGeometry

WITHIN = 0.005  # of a config alone: rope tables, and tensors a converter adds or drops


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    mix: str
    tensors: tuple[GgufTensor, ...] = field(repr=False)
    basis: Basis
    because: str = ""

    @property
    def within(self) -> float | None:
        """How far off it may be, as a share."""
        return WITHIN if self.basis is Basis.MODELLED else None

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return self.tensor_bytes * 8 / max(sum(tensor.elements for tensor in self.tensors), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """The tensors that a mix is made of, whatever the mix."""

    met: tuple[Met, ...] = field(repr=False)
    facts: MixFacts
    basis: Basis
    because: str  # with a place for the name of the mix


def lay(header: ModelHeader, geometry: ModelGeometry) -> Laid:
    """From the directory of a GGUF where there is one, else from the tensors its geometry implies.

    UnknownArchitectureError for a family without a list of tensors.
    """
    if header.keys and header.tensors:
        laid = laid_tensors(header)
        told = f"{len(laid):,} tensors, with the types that llama-quantize assigns"
        return Laid(
            met=in_order(laid), facts=facts_of_header(header), basis=Basis.EXACT, because=told
        )
    laid = _counted(geometry, config_words(header), header.tensor_count if header.keys else None)
    facts = facts_of_geometry(geometry, conversion(geometry.architecture).to)
    named = geometry.architecture.replace("{", "{{").replace("}", "}}")
    told = f"{len(laid):,} tensors of a {named} model, with the types that llama-quantize assigns"
    return Laid(met=in_order(laid), facts=facts, basis=Basis.MODELLED, because=told)


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


def at_mix(
    header: ModelHeader, geometry: ModelGeometry, mix: str, *, imatrix: bool | None = None
) -> MixedModel:
    """From the directory of a GGUF where there is one, else from the tensors its geometry implies.

    UsageError for an unknown mix, UnknownArchitectureError for a family without a list of tensors, RefusedError where
    llama-quantize itself gives up.
    """
    mix_row(mix)
    return laid_at_mix(lay(header, geometry), mix, imatrix=imatrix)


def laid_at_mix(laid: Laid, mix: str, *, imatrix: bool | None = None) -> MixedModel:
    """The same of tensors that were laid out before."""
    name = mix_row(mix).name
    mixed = mix_met(laid.met, name, laid.facts, imatrix=imatrix)
    return MixedModel(mix=name, tensors=mixed, basis=laid.basis, because=laid.because.format(name))
