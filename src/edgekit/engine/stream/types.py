"""Nouns of the built-in engine: what a family of models has in common, and what one file's model is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edgekit.header.types import Tensor, Value


class Facts(Protocol):
    """What is known of a file: its keys, and its tensors by name."""

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> Mapping[str, Value]: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


class Position(enum.Enum):
    """How a layer learns where a token stands."""

    LEARNED = "learned"  # a row for each place, added to the token's
    ROPE_NEOX = "rope, halves"  # value i turns with value i + half
    ROPE_NORM = "rope, pairs"  # values 2i and 2i + 1 turn together
    ALIBI = "alibi"  # scores fall with the distance

    @property
    def turns(self) -> bool:
        return self in {Position.ROPE_NEOX, Position.ROPE_NORM}


class Norm(enum.Enum):
    """The value is the key that holds its epsilon, after the architecture's name."""

    LAYER = "attention.layer_norm_epsilon"
    RMS = "attention.layer_norm_rms_epsilon"


class Activation(enum.Enum):
    GELU = "gelu"
    SILU = "silu"


class Need(enum.Enum):
    """Whether a model must have a tensor."""

    YES = "yes"
    MAY = "may"
    UNUSED = "unused"  # it may be there, an embedding does not need it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A tensor of a family: its name, and its shape in the words of `Dimensions`."""

    name: str  # without "blk.N."
    shape: tuple[str, ...]  # outermost first; () for any
    need: Need = Need.YES


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the architectures' graphs differ in; all else is one and the same forward pass."""

    architecture: str
    position: Position
    norm: Norm
    norm_first: bool  # before attention and feed-forward (decoders), or after their sums (BERT)
    activation: Activation
    causal: bool  # where the file does not say: {architecture}.attention.causal
    outside: tuple[Rule, ...]
    layer: tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Every number of a model that a shape is made of."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    vocabulary: int
    rotary: int  # values of a head that turn; 0 where none does

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How fast which value turns, and how large it is afterwards."""

    base: float
    interpolate: float  # what a place is multiplied with: 1 / factor
    yarn_from: float | None  # the pair where interpolation begins; None: no YaRN
    yarn_to: float
    magnitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One file's model: checked, and all there. Nothing of its weights was read."""

    family: Family
    dimensions: Dimensions
    epsilon: float
    causal: bool
    rope: Rope | None
    outside: Mapping[str, Tensor]
    layers: tuple[Mapping[str, Tensor], ...]  # by name without "blk.N."
    window_tokens: int | None  # a text that is longer would need a sliding window

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate, of its own or in one tensor with up."""
        first = self.layers[0]
        return (
            "ffn_gate.weight" in first
            or first["ffn_up.weight"].shape[0] == 2 * self.dimensions.inner
        )
