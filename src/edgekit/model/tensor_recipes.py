"""Nouns of a model's tensors: what each is for, how quantisers see it, how large it is."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model.architectures import names, read_section, whole_record
from edgekit.model.hyperparameters import MAX_NUMBER, dig


class TensorRole(enum.Enum):
    """What a tensor is for. A bias, or the norm of a matrix's output, bears the role of its matrix."""

    EMBEDDING = "token embedding"
    POSITION = "position embedding"
    SEGMENT = "token type embedding"
    LAYER_EMBEDDING = "embedding of every layer"
    LAYER_EMBEDDING_IN = "hidden into the embedding of every layer"
    EMBEDDING_IN = "embedding into hidden"
    EMBEDDING_OUT = "hidden into embedding"
    NGRAM = "embedding of the tokens before"
    HEAD = "output head"
    NORM = "norm"
    # attention
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "attention output"
    OUTPUT_DOWN = "attention output down"
    ATTENTION_GATE = "attention gate"
    SINKS = "attention sinks"
    QUERY_DOWN = "query down"
    QUERY_UP = "query up"
    LATENT_DOWN = "latent down"
    LATENT_UP = "latent up"
    INDEX_QUERY = "indexer query"
    INDEX_KEY = "indexer key"
    INDEX_WEIGHTS = "indexer weights"
    COMPRESSOR_KEY = "compressor key"
    COMPRESSOR_GATE = "compressor gate"
    # feed-forward
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    EXPERT_GATE = "expert gate"
    EXPERT_UP = "expert up"
    EXPERT_DOWN = "expert down"
    EXPERTS_IN = "into the experts' width"
    EXPERTS_OUT = "out of the experts' width"
    SHARED_GATE = "shared expert gate"
    SHARED_UP = "shared expert up"
    SHARED_DOWN = "shared expert down"
    SHARED_SWITCH = "shared expert switch"
    ROUTER = "router"
    # recurrences
    STATE_IN = "into the recurrence"
    STATE_GATE = "recurrence gate"
    STATE_BETA = "beta and alpha"
    STATE_LOW = "low-rank gate"
    STATE_LOW_OUT = "out of a low-rank mix"
    STATE_X = "time step, B and C"
    STATE_DT = "time step"
    STATE_A = "A"
    STATE_D = "D"
    STATE_NORM = "recurrence norm"
    STATE_OUT = "out of the recurrence"
    CONV = "short convolution"
    # what single families add
    RESIDUAL = "residual streams"  # alternating updates, LAuReL, hyper-connections
    LAYER_GATE = "gate of the layer's embedding"
    LAYER_OUT = "out of the layer's embedding"
    SCALE = "scale"
    PREDICTION = "joins token and hidden for prediction"


class TensorKind(enum.Enum):
    """How quantisers see it."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    EXPERT = "expert"
    NORM = "norm"
    BIAS = "bias"
    CONV = "convolution"
    RAW = "plain array"  # quantisers leave it alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensor:
    role: TensorRole
    kind: TensorKind
    shape: tuple[int, ...]  # outermost first: a matrix is (out, in)
    layer: int | None = None  # None: outside the layers
    count: int = 1  # of an expert's tensor: as many as there are experts

    @property
    def elements(self) -> int:
        return math.prod(self.shape) * self.count


@dataclass(frozen=True, slots=True)
class Switch:
    """A key of config.json under one of several spellings; "!" inverts it. Without keys it is a constant.

    The default is transformers' @ 5.22, or what the architecture's public files have.
    """

    keys: tuple[str, ...] = ()
    default: bool = False

    def holds(self, section: Mapping[str, Any]) -> bool:
        for key in self.keys:
            value = dig(section, key.removeprefix("!"))
            if value is not None:
                return bool(value) is not key.startswith("!")
        return self.default


YES, NO = Switch(default=True), Switch()


class Width(enum.Enum):
    """How wide a norm or a gate of the heads is."""

    HEAD = "one head, shared by all"
    EACH = "one head, each with its own"
    HEADS = "one number for each head"
    ALL = "all heads side by side"


class Streams(enum.Enum):
    """Families with more than one residual stream."""

    ALTERNATING = "alternating updates"
    HYPER = "hyper-connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    # norms of the hidden width
    norms: int = 2  # in a layer with a mixer and a feed-forward; at most one in a layer that has only one of them
    more_norms: tuple[Switch, ...] = ()  # one more for each that holds
    first_norms: int | None = None  # in layer 0, where it differs
    expert_norms: int = 0  # further ones in a layer with experts
    norm_bias: Switch = NO
    final_norm: Switch = YES
    embedding_norm: bool = False
    sub_norms: bool = False  # before the output and down matrices
    norm_rank: str = ""  # a low-rank gate on norms: the word that states its rank
    # attention
    qkv_bias: Switch = NO
    output_bias: Switch = NO
    head_norm: Width | None = None
    head_norm_if: Switch = YES
    head_norm_bias: bool = False
    gate: Width | None = None
    gate_if: Switch = YES
    latent_gate: Width | None = None  # of latent attention
    latent_gate_if: Switch = YES
    sinks: Switch = NO
    window_sinks: Switch | None = None  # where sliding layers differ
    query_gain: bool = False  # one number for each head, in the place of a norm
    cache_scales: bool = False  # one for keys and one for values, where a layer has its own
    borrowed_keys: Switch = Switch(
        ("edgekit borrowed keys",), default=True
    )  # in layers that read another's cache
    round_gate: bool = (
        False  # looped models: a vector for each head, of what a further round takes in
    )
    # feed-forward
    ffn_bias: Switch = NO
    expert_bias: Switch = NO
    router_bias: Switch = NO
    router_is_raw: bool = False  # mlx-lm keeps it as a plain array
    router_scales: bool = False  # Gemma 4: one for each hidden number, one for each expert
    correction: Switch = NO  # a bias that only chooses experts
    shared_switch: Switch = NO
    shared_mix: bool = (
        False  # Klear: a weight with a bias for the experts, and one for the shared one
    )
    latent_norms: int = 0  # of experts that work at a width of their own
    latent_norms_if: Switch = YES
    picture_experts: bool = False  # ERNIE-VL: a second set, for the tokens of pictures
    small_experts: str = ""  # Grove: the word that states the width of those that two experts share
    activation: int = 0  # learned numbers of the activation function
    # recurrences
    state_bias: Switch = NO  # into the recurrence
    state_out_bias: Switch | None = None  # out of it, where it differs
    conv_bias: Switch = YES
    state_norm: Switch = YES  # Mamba-2's gated norm
    state_head_norms: Switch = NO  # of queries and keys into Lightning attention
    value_rank: str = (
        ""  # RWKV-7: the word that states the rank of a mix with the first layer's values
    )
    whole_forget: Switch = NO  # Kimi's gates, where they are not of low rank
    whole_output: Switch = NO
    step_norms: bool = False  # of dt, B and C: Jamba and PLaMo 2
    # outside the layers, or beside them
    streams: Streams | None = None
    block_residual: Switch = NO  # Kimi K3: attention over what earlier blocks left
    layer_scales: int = 0  # single numbers in each layer
    head_scale: bool = False  # and one at the end
    head_bias: Switch = NO
    embedding_width: str = ""  # the word that states it where it is not the hidden one
    embedding_out: bool = False  # and the way back to it, before the head
    ngrams: bool = False  # LongCat: tables for the tokens before, beside that of the token
    positions: int | None = None  # a learned table has so many rows more than the context
    token_types: int = 0
    # how a GGUF names and holds it
    gguf_fused: tuple[str, ...] = ()  # matrices that are made of several
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # where they differ from most


@lru_cache(maxsize=256)
def tensor_recipe(architecture: str) -> TensorRecipe:
    """By its name in a GGUF or in config.json; the plain one for a name without a record."""
    gguf = architecture not in names(gguf=False)
    if gguf and architecture not in names(gguf=True):
        return PLAIN
    record = whole_record(architecture, gguf=gguf)
    tensors = record.get("gguf_tensors" if gguf and "gguf_tensors" in record else "tensors", {})
    if "attention_bias" in tensors:  # of queries, keys, values and output
        both = dict.fromkeys(("qkv_bias", "output_bias"), tensors["attention_bias"])
        tensors = both | {key: value for key, value in tensors.items() if key != "attention_bias"}
    return read_section(TensorRecipe, tensors, _READERS, where=architecture)


PLAIN = TensorRecipe()


def _read_switch(stated: object) -> Switch:
    """true, false, the key of config.json that decides, or a list of keys that ends with the default."""
    match stated:
        case bool():
            return Switch(default=stated)
        case str():
            return Switch((stated,))
        case [*keys, bool(default)]:
            return Switch(tuple(map(str, keys)), default)
    raise TypeError(f"{stated!r:.40} where a switch belongs")


_READERS: Mapping[str, Callable[[Any], object]] = {
    "Switch": _read_switch,
    "Switch | None": _read_switch,
    "tuple[Switch, ...]": lambda stated: tuple(map(_read_switch, stated)),
    "Width | None": lambda stated: Width[stated.upper()],
    "Streams | None": lambda stated: Streams[stated.upper()],
}


def switches(recipe: TensorRecipe) -> dict[str, bool]:
    """Keys of config.json that decide whether tensors are there -> what holds where it is silent."""
    values = [getattr(recipe, one.name) for one in fields(recipe)]
    listed = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return {
        one.keys[0].removeprefix("!"): one.default is not one.keys[0].startswith("!")
        for one in listed
        if isinstance(one, Switch) and one.keys
    }


Rows = Iterator[ExpectedTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFamily:
    name: str  # the architecture, as its file calls it
    recipe: TensorRecipe
    section: Mapping[str, Any]  # the language model's part of config.json; empty without one
    hidden: int

    def has(self, switch: Switch) -> bool:
        return switch.holds(self.section)

    @property
    def embedding(self) -> int:
        """Numbers of a token in the table, before they become the hidden width."""
        word = self.recipe.embedding_width
        return self.number(word, self.hidden) if word else self.hidden

    def number(self, word: str, default: int | None = None) -> int:
        """A width that geometry has no place for."""
        value = self.section.get(word, default)
        if value is None:
            raise UnknownArchitectureError(
                f"the tensors of {self.name!r} depend on {word}, which only its config.json states"
            )
        return _width(word, value)

    def second(self, word: str) -> int | None:
        """The second of several widths, None where there is one."""
        value = self.section.get(word)
        return _width(word, value[1]) if isinstance(value, list) and len(value) > 1 else None


def _width(word: str, value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise HeaderError(
            f"{word} is {value!r:.60}, which is not a valid width", file="config.json"
        )
    return value


def linear(role: TensorRole, out: int, into: int, *, bias: bool = False) -> Rows:
    """A matrix, and its bias if it has one; nothing where it has no size."""
    if out and into:
        yield ExpectedTensor(role=role, kind=TensorKind.LINEAR, shape=(out, into))
        if bias:
            yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=(out,))


def array(role: TensorRole, kind: TensorKind, *shape: int) -> ExpectedTensor:
    return ExpectedTensor(role=role, kind=kind, shape=shape)


def norm(family: TensorFamily, role: TensorRole = TensorRole.NORM, width: int = 0) -> Rows:
    """A norm as wide as the hidden stream, or as said."""
    yield array(role, TensorKind.NORM, width or family.hidden)
    if family.has(family.recipe.norm_bias):
        yield array(role, TensorKind.BIAS, width or family.hidden)
