"""Nouns of the built-in engine: what a family of models has in common, and what one file's model is."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edgekit.engines.native.arrays import Floats
from edgekit.formats.types import Tensor, Value
from edgekit.units import MB


class FileFacts(Protocol):
    """What is known of a file: its keys, and its tensors by name."""

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> Mapping[str, Value]: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


class ModelUse(enum.Enum):
    """What a model is run for; the value is how such a model is called."""

    EMBED = "an embedding model"
    GENERATE = "a model that generates text"

    @property
    def engine(self) -> str:
        """Who does it, as a message names it."""
        return "the built-in encoder" if self is ModelUse.EMBED else "the built-in engine"


class Position(enum.Enum):
    """How a layer learns where a token stands."""

    LEARNED = "learned"  # a row for each place, added to the token's
    ROPE_NEOX = "rope, halves"  # value i turns with value i + half
    ROPE_NORM = "rope, pairs"  # values 2i and 2i + 1 turn together
    ALIBI = "alibi"  # scores fall with the distance

    @property
    def turns(self) -> bool:
        return self in {Position.ROPE_NEOX, Position.ROPE_NORM}


class NativeNorm(enum.Enum):
    """The value is the key that holds its epsilon, after the architecture's name."""

    LAYER = "attention.layer_norm_epsilon"
    RMS = "attention.layer_norm_rms_epsilon"


class Activation(enum.Enum):
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"


class Need(enum.Enum):
    """Whether a model must have a tensor."""

    YES = "yes"
    MAY = "may"
    UNUSED = "unused"  # it may be there, what the model is run for does not need it


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRule:
    """A tensor of a family: its name, and its shape in the words of `Dimensions`."""

    name: str  # without "blk.N."
    shape: tuple[str, ...]  # outermost first; () for any
    need: Need = Need.YES


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFamily:
    """What the architectures' graphs differ in; all else is one and the same forward pass."""

    architecture: str
    position: Position
    norm: NativeNorm
    norm_first: bool  # before attention and feed-forward (decoders), or after their sums (BERT)
    activation: Activation
    causal: bool  # where the file does not say: {architecture}.attention.causal
    outside: tuple[TensorRule, ...]
    layer: tuple[TensorRule, ...]
    head: tuple[
        TensorRule, ...
    ] = ()  # what makes the next token of a vector; unused by an embedding
    uses: frozenset[ModelUse] = frozenset({ModelUse.EMBED})
    window_period: int | None = (
        None  # of so many layers all but the last have a window, where the file has one
    )
    scales_tokens: bool = False  # a token's row is multiplied by the root of the width
    shared_scale_layers: int | None = None  # with so many, scores are scaled by width / heads

    def outside_for(self, use: ModelUse) -> tuple[TensorRule, ...]:
        """The tensors outside of the layers."""
        if use is ModelUse.GENERATE:
            return (*self.outside, *self.head)
        return (*self.outside, *(replace(rule, need=Need.UNUSED) for rule in self.head))


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
class NativeRope:
    """How fast which value turns, and how large it is afterwards."""

    base: float
    interpolate: float  # what a place is multiplied with: 1 / factor
    yarn_from: float | None  # the pair where interpolation begins; None: no YaRN
    yarn_to: float
    magnitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModel:
    """One file's model: checked, and all there. Nothing of its weights was read."""

    family: NativeFamily
    dimensions: Dimensions
    epsilon: float
    causal: bool
    rope: NativeRope | None
    outside: Mapping[str, Tensor]
    layers: tuple[Mapping[str, Tensor], ...]  # by name without "blk.N."
    window_tokens: int | None  # a text that is longer would need a sliding window
    use: ModelUse = ModelUse.EMBED
    windows: tuple[
        int | None, ...
    ] = ()  # of each layer, when generating: the last tokens it sees; None: all
    local_rope: NativeRope | None = None  # of the layers with a window
    embedding_scale: float = 1.0  # what a token's row is multiplied with
    query_scale: float  # what scores are multiplied with

    @property
    def head(self) -> Tensor:
        """What a vector is multiplied with for the next token: its own matrix, or the embedding once more."""
        return self.outside.get("output.weight", self.outside["token_embd.weight"])

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate, of its own or in one tensor with up."""
        first = self.layers[0]
        return (
            "ffn_gate.weight" in first
            or first["ffn_up.weight"].shape[0] == 2 * self.dimensions.inner
        )


class Pooling(enum.Enum):
    """How the tokens' vectors become one; the number is GGUF's pooling_type."""

    MEAN = 1
    CLS = 2
    LAST = 3

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is refused. Each can be raised by whoever knows better."""

    file_bytes: int = 5_000 * MB  # a 7B model at four bits has 4.2 GB
    held_tensor_bytes: int = (
        100 * MB
    )  # a tensor that must be held whole; streamed ones may be larger
    tokens: int = 2048  # of one text, with its special tokens
    text_bytes: int = (
        4 * MB
    )  # of one text before it is cut into tokens: 2,048 tokens are about 10 KB


Checkpoint = Callable[[float], None]
"""Called between tiles with the share of the pass that is done; what it raises ends the pass."""


class Encoder(Protocol):
    """Turns tokens into vectors, some texts at a time, inside the memory it was planned with."""

    @property
    def width(self) -> int:
        """Floats in a vector."""
        ...

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """One pooled vector for each text into the rows of `into`, not scaled yet."""
        ...

    def close(self) -> None: ...
