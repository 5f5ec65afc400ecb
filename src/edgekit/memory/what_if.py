"""A model and a mix's name -> what its GGUF would weigh: "what would this be at Q4_K_M?"."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit.basis import Basis
from edgekit.geometry.types import ModelGeometry
from edgekit.header.types import ModelHeader
from edgekit.memory.gguf_layout import gguf_tensors
from edgekit.memory.mixing import (
    LaidTensor,
    facts_of_geometry,
    facts_of_header,
    laid_tensors,
    mix_row,
    mix_tensors,
)

# model_types that a GGUF knows by another name, as far as the rules of a mix ask for it.
_IN_GGUF = {
    "mistral": "llama",
    "mixtral": "llama",
    "nemotron-nas": "deci",
    "decilm": "deci",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
}
WITHIN = 0.005  # of a config alone: rope tables, and tensors a converter adds or drops


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    mix: str
    tensors: tuple[LaidTensor, ...] = field(repr=False)
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


def at_mix(
    header: ModelHeader, geometry: ModelGeometry, mix: str, *, imatrix: bool | None = None
) -> MixedModel:
    """From the directory of a GGUF where there is one, else from the tensors its geometry implies.

    UsageError for an unknown mix, UnknownArchitectureError for a family without a list of tensors, RefusedError where
    llama-quantize itself gives up.
    """
    name = mix_row(mix).name
    if header.keys and header.tensors:
        laid, facts = laid_tensors(header), facts_of_header(header)
        basis, because = (
            Basis.EXACT,
            f"{len(laid):,} tensors of the file, each at the type {name} gives it",
        )
    else:
        laid = gguf_tensors(geometry, header.config or None)
        facts = facts_of_geometry(
            geometry, _IN_GGUF.get(geometry.architecture, geometry.architecture)
        )
        basis, because = (
            Basis.MODELLED,
            f"{len(laid):,} tensors that a {geometry.architecture} has, at {name}",
        )
    mixed = mix_tensors(laid, name, facts, imatrix=imatrix)
    return MixedModel(mix=name, tensors=mixed, basis=basis, because=because)
