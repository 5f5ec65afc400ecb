"""The families of models that the built-in engine runs: one row each in FAMILIES, their tensors in tensors.tsv.

What a family's graph does with its tensors is in src/models/{bert,nomic-bert,jina-bert-v2,qwen2,qwen3,llama,
gemma3}.cpp and llama-model.cpp (create_tensor_qkv, llama_model_rope_type), llama.cpp @ b21e4de. Two things differ:
GELU is the exact one that these models were trained with (ggml has the tanh form, in half precision), and a tensor
without a row is refused, where ggml would load it and not use it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pkgutil import get_data  # importlib.resources takes 5 ms to import

from edgekit.errors import UnknownArchitectureError, quoted

TABLE = "engines/native/families.py"


class ModelUse(enum.Enum):
    """What a model is run for; the value describes such a model."""

    EMBED = "an embedding model"
    GENERATE = "a model that generates text"

    @property
    def engine(self) -> str:
        """What runs it, for messages."""
        return "the built-in encoder" if self is ModelUse.EMBED else "the built-in engine"


class Position(enum.Enum):
    """How a layer learns the position of a token."""

    LEARNED = "learned"  # a row for each position, added to the token's
    ROPE_NEOX = "rope, halves"  # value i is rotated with value i + half
    ROPE_NORM = "rope, pairs"  # values 2i and 2i + 1 are rotated together
    ALIBI = "alibi"  # scores fall with the distance

    @property
    def is_rotary(self) -> bool:
        return self in {Position.ROPE_NEOX, Position.ROPE_NORM}


class Pooling(enum.Enum):
    """How the vectors of a text's tokens become one vector; the number is GGUF's pooling_type."""

    MEAN = 1
    CLS = 2
    LAST = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class NativeNorm(enum.Enum):
    """The value is the key of its epsilon, after the architecture's name."""

    LAYER = "attention.layer_norm_epsilon"
    RMS = "attention.layer_norm_rms_epsilon"


class Activation(enum.Enum):
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SILU = "silu"


class Need(enum.Enum):
    """Whether a model must have a tensor."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    UNUSED = "unused"  # it may be in the file; what the model is run for does not need it


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A row of tensors.tsv."""

    name: str  # without "blk.N."
    shape: tuple[str, ...]  # outermost first, in the words of model.py; () for any
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFamily:
    """How the architectures' graphs differ; everything else is the same forward pass."""

    architecture: str
    position: Position
    norm: NativeNorm
    norm_first: bool  # before attention and feed-forward (decoders), or after their sums (BERT)
    activation: Activation
    causal: bool  # unless the file says otherwise: {architecture}.attention.causal
    outside: tuple[TensorRule, ...]  # tensors outside the layers
    layer: tuple[TensorRule, ...]  # tensors of each layer
    uses: frozenset[ModelUse] = frozenset({ModelUse.EMBED})
    window_period: int | None = None  # one layer in `window_period` sees the whole context
    scales_tokens: bool = False  # a token's row is multiplied by the root of the width
    # A model with this many layers scales scores by width / heads instead of the head size.
    shared_scale_layers: int | None = None

    def outside_for(self, use: ModelUse) -> tuple[TensorRule, ...]:
        """The tensors outside the layers; embedding does not use those of the next token."""
        if use is ModelUse.GENERATE:
            return (*self.outside, *_GROUPS["head"])
        return (*self.outside, *(replace(rule, need=Need.UNUSED) for rule in _GROUPS["head"]))


def _read_groups() -> dict[str, tuple[TensorRule, ...]]:
    groups: dict[str, tuple[TensorRule, ...]] = {}
    for line in (get_data("edgekit.engines.native", "tensors.tsv") or b"").decode().splitlines():
        if not line.startswith("#"):
            group, need, name, *shape = line.split("\t")
            rule = TensorRule(name, tuple(shape[0].split()) if shape else (), Need(need))
            groups[group] = (*groups.get(group, ()), rule)
    return groups


_GROUPS = _read_groups()


def _tensors(groups: str) -> tuple[TensorRule, ...]:
    return tuple(rule for group in groups.split() for rule in _GROUPS[group])


def _bert(
    architecture: str, position: Position, activation: Activation, *, outside: str, layer: str
) -> NativeFamily:
    return NativeFamily(
        architecture=architecture,
        position=position,
        norm=NativeNorm.LAYER,
        norm_first=False,
        activation=activation,
        causal=False,
        outside=_tensors(f"bert_outside scores {outside}"),
        layer=_tensors(f"qkv attention_out attention_out_bias bert_norms {layer}"),
    )


def _decoder(
    architecture: str, position: Position, *, outside: str = "", layer: str = ""
) -> NativeFamily:
    return NativeFamily(
        architecture=architecture,
        position=position,
        norm=NativeNorm.RMS,
        norm_first=True,
        activation=Activation.SILU,
        causal=True,
        outside=_tensors(f"decoder_outside scores {outside}"),
        layer=_tensors(f"decoder_norms qkv attention_out gate up_down {layer}"),
        uses=frozenset({ModelUse.EMBED, ModelUse.GENERATE}),
    )


# Llama's row is Mistral's too: its files say llama.
FAMILIES: tuple[NativeFamily, ...] = (
    _bert("bert", Position.LEARNED, Activation.GELU, outside="token_types positions", layer="up_down up_down_bias"),
    _bert("nomic-bert", Position.ROPE_NEOX, Activation.SILU, outside="token_types", layer="up_down gate"),
    _bert("jina-bert-v2", Position.ALIBI, Activation.GELU, outside="jina_token_types", layer="jina"),
    _decoder("qwen2", Position.ROPE_NEOX),
    _decoder("qwen3", Position.ROPE_NEOX, layer="head_norms"),
    _decoder("llama", Position.ROPE_NORM, outside="rope_factors", layer="attention_out_bias up_down_bias gate_bias"),
    replace(
        _decoder("gemma3", Position.ROPE_NEOX, layer="head_norms post_norms"),
        activation=Activation.GELU_TANH,
        uses=frozenset({ModelUse.GENERATE}),
        window_period=6,
        scales_tokens=True,
        shared_scale_layers=62,  # the 27B
    ),
)  # fmt: skip


def families_for(use: ModelUse) -> tuple[str, ...]:
    """The architectures of all families that can be run for this."""
    return tuple(family.architecture for family in FAMILIES if use in family.uses)


def family_of(architecture: object, use: ModelUse = ModelUse.EMBED) -> NativeFamily:
    """The family of an architecture. Raises UnknownArchitectureError if none can be run for this use."""
    for family in FAMILIES:
        if family.architecture == architecture and use in family.uses:
            return family
    raise UnknownArchitectureError(
        f"architecture {quoted(architecture)} is not supported by {use.engine}, which "
        f"{('knows' if use is ModelUse.EMBED else 'generates with')} "
        f"{', '.join(families_for(use))}: use engine llama.cpp, or add a row to {TABLE}"
    )
