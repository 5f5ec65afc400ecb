"""Values of a conversion: llama-quantize's input and output, and the accuracy of the sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine, known_as, no_better_than
from edgekit.engines.llamacpp.quantization import MixFacts, SourceTensor, mix_row, quantize
from edgekit.engines.llamacpp.types import Backend
from edgekit.formats.types import GgufTensor
from edgekit.machine.types import DEVICE, HOST
from edgekit.model.types import Model

WITHIN = 0.005  # from a config only: rope tables, and tensors that a converter adds or drops


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    mix: str
    tensors: tuple[GgufTensor, ...] = field(repr=False)
    basis: Basis
    because: str = ""

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """The input of llama-quantize, for any mix."""

    tensors: tuple[SourceTensor, ...] = field(repr=False)
    facts: MixFacts
    basis: Basis
    because: str  # with a placeholder for the name of the mix

    def at_mix(self, mix: str, *, imatrix: bool | None = None) -> MixedModel:
        """The model at a mix. UsageError for an unknown mix, RefusedError where llama-quantize fails."""
        name = mix_row(mix).name
        mixed = quantize(self.tensors, name, self.facts, imatrix=imatrix)
        because = self.because.format(name)
        return MixedModel(mix=name, tensors=mixed, basis=self.basis, because=because)


# Equal on all 43 recorded models compared; other families may have keys that conversion.py does not write.
COMPUTE_WITHIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The converted model, and how well it is known."""

    model: Model
    mixed: MixedModel
    file_bytes: int | None = None  # of a GGUF without tensor directory

    @property
    def note(self) -> str:
        if self.file_bytes is not None:
            return f"computed as {self.mixed.mix}, from the header keys and the file size"
        return f"sizes computed for a {self.mixed.mix} GGUF: {self.mixed.because}"

    def known(self, line: MemoryLine) -> MemoryLine:
        """The line, at most as certain as the conversion."""
        mixed = self.mixed
        if line.component is Component.WEIGHTS:
            line = replace(line, because=f"{line.because} ({mixed.mix})")
        if mixed.basis is Basis.EXACT:
            return line
        if line.basis is Basis.EXACT:
            within = COMPUTE_WITHIN if line.component is Component.COMPUTE else WITHIN
            line = known_as(line, mixed.basis, within)
        return self._as_layers(line)

    def _as_layers(self, line: MemoryLine) -> MemoryLine:
        """True if the tensors were derived from the layers."""
        return no_better_than(line, self.model.geometry.basis, WITHIN)

    def unexplained(self, backend: Backend) -> tuple[MemoryLine, ...]:
        """Bytes by which the file exceeds its mix: other types than named, or a long header."""
        more = 0 if self.file_bytes is None else self.file_bytes - self.mixed.tensor_bytes
        if more <= 0:
            return ()
        line = MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=more,
            pool=HOST if backend is Backend.CPU else DEVICE,
            basis=Basis.MODELLED,
            because=(
                f"difference between the file size and a {self.mixed.mix} of these layers: "
                "header or other tensor types"
            ),
            within=1.0,
        )
        return (line if self.mixed.basis is Basis.EXACT else self._as_layers(line),)
