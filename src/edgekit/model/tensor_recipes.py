"""Tensor roles, and the tensor recipe of each architecture: its norms, biases, gates and switches.

A recipe is the "tensors" section of a record in architectures.json. Tests compare it with the parameters of
transformers' and mlx-lm's own classes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.formats.records import Reader
from edgekit.model.architectures import names, read_section, whole_record
from edgekit.model.hyperparameters import MAX_NUMBER, dig


class TensorRole(enum.Enum):
    """The purpose of a tensor. A bias, and the norm of a matrix's output, have the role of the matrix."""

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
    # specific to single families
    RESIDUAL = "residual streams"  # alternating updates, LAuReL, hyper-connections
    LAYER_GATE = "gate of the layer's embedding"
    LAYER_OUT = "out of the layer's embedding"
    SCALE = "scale"
    PREDICTION = "joins token and hidden for prediction"


class TensorKind(enum.Enum):
    """How quantisers treat a tensor."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    EXPERT = "expert"
    NORM = "norm"
    BIAS = "bias"
    CONV = "convolution"
    RAW = "plain array"  # never quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensor:
    """A tensor that the model should have, or one for each of its experts."""

    role: TensorRole
    kind: TensorKind
    shape: tuple[int, ...]  # outermost first: a matrix is (out, in)
    layer: int | None = None  # None: outside the layers
    count: int = 1  # the number of experts, for an expert's tensor

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

    def holds(self, section: Mapping[str, object]) -> bool:
        """Whether it is on: by the first key that this config.json has, else by default."""
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
    ALL = "all heads, concatenated"


class Streams(enum.Enum):
    """How several residual streams are combined."""

    ALTERNATING = "alternating updates"
    HYPER = "hyper-connections"
    HYPER_SUMMED = "hyper-connections whose streams are summed at the end"
    HYPER_LOW_RANK = "hyper-connections with a low-rank mixer"
    HYPER_GATED = "hyper-connections that gate each stream, without a mix of streams"
    SCALED = "residuals with a scale and a bias"


# No config.json has this key: only the tensor count shows whether borrowing layers have K and V matrices.
_BORROWED = Switch(("edgekit borrowed keys",), default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    """Which tensors a model has besides the matrices of its geometry. A `str` field names a width in config.json."""

    # norms of the hidden width
    norms: int = 2  # in a layer with mixer and feed-forward; at most 1 in others
    more_norms: tuple[Switch, ...] = ()  # one more for each switch that is on
    first_norms: int | None = None  # in layer 0, if different
    expert_norms: int = 0  # additional ones in a layer with experts
    norm_bias: Switch = NO
    final_norm: Switch = YES
    embedding_norm: bool = False
    sub_norms: bool = False  # before the output and down matrices
    norm_rank: str = ""  # the rank of a low-rank gate on norms
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
    window_sinks: Switch | None = None  # in sliding layers, if different
    query_gain: bool = False  # one number per head, instead of a norm
    cache_scales: bool = False  # one for K and one for V, in layers that own a cache
    # Layers that read another layer's cache still have K and V matrices.
    borrowed_keys: Switch = _BORROWED
    round_gate: bool = False  # looped models: a vector per head that gates further rounds
    head_temperature: bool = False  # Mistral Large 4: a scale and a bias of each head's scores
    relative: bool = False  # Inkling: learned weights by distance
    rope_norm: bool = False  # dots3.note: of the rotary key of latent attention
    index_pool: str = ""  # GLM-5.3: how many tokens share a key of the indexer
    # feed-forward
    ffn_bias: Switch = NO
    expert_bias: Switch = NO
    router_bias: Switch = NO
    router_is_raw: bool = False  # a plain array in mlx-lm
    router_scales: bool = False  # Gemma 4: one per hidden dimension, one per expert
    correction: Switch = NO  # a bias that only affects which experts are chosen
    shared_switch: Switch = NO  # a gate on the shared expert
    routes_shared: bool = False  # Inkling: the router also weighs the shared experts
    router_width: str = ""  # Zaya: the router is a small network of this width
    shared_mix: bool = False  # Klear: weights, with a bias, of the routed and the shared experts
    latent_norms: int = 0  # of experts with their own hidden width
    latent_norms_if: Switch = YES
    picture_experts: bool = False  # ERNIE-VL: a second set for image tokens
    small_experts: str = ""  # Grove: the width of experts that two others share
    activation: int = 0  # learned parameters of the activation function
    # recurrences
    state_bias: Switch = NO  # of the projection in
    state_out_bias: Switch | None = None  # of the projection out, if different
    conv_bias: Switch = YES
    state_norm: Switch = YES  # Mamba-2's gated norm
    state_head_norms: Switch = NO  # of the queries and keys of Lightning attention
    value_rank: str = ""  # RWKV-7: the rank of the mix with the first layer's values
    whole_forget: Switch = NO  # Kimi's forget gate is one matrix, not low-rank
    whole_output: Switch = NO  # Kimi's output gate is one matrix, not low-rank
    step_norms: bool = False  # of dt, B and C: Jamba and PLaMo 2
    # outside the layers, or in addition to them
    streams: Streams | None = None
    block_residual: Switch = NO  # Kimi K3: attention over the outputs of earlier blocks
    layer_scales: int = 0  # scalars in each layer
    head_scale: bool = False  # a scalar before the output head
    head_bias: Switch = NO
    embedding_width: str = ""  # of the embedding, if it is not the hidden width
    embedding_rows: int = 0  # beyond the vocabulary
    start_state: bool = False  # HRM: a vector that the low stack starts from
    shared_blocks: str = ""  # Zamba 2: how many transformer blocks all hybrid layers share
    embedding_out: bool = False  # projects back to that width before the head
    ngrams: bool = False  # LongCat: hash tables for the preceding tokens
    layer_ngrams: str = ""  # Qwen4-Exp: the layers, counted from 1, with hash tables of their own
    positions: int | None = None  # a learned position table: its rows beyond the context
    token_types: int = 0
    # in a GGUF
    gguf_fused: tuple[str, ...] = ()  # fused matrices
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # usual name -> own; "": none


@lru_cache(maxsize=256)
def tensor_recipe(architecture: str) -> TensorRecipe:
    """The recipe by an architecture's name in a GGUF or config.json; the default one for a name without a record."""
    gguf = architecture not in names(gguf=False)
    if gguf and architecture not in names(gguf=True):
        return PLAIN
    record = whole_record(architecture, gguf=gguf)
    tensors = record.get("gguf_tensors" if gguf and "gguf_tensors" in record else "tensors", {})
    if "attention_bias" in tensors:  # of queries, keys, values and output
        biases = dict.fromkeys(("qkv_bias", "output_bias"), tensors["attention_bias"])
        tensors = biases | {key: value for key, value in tensors.items() if key != "attention_bias"}
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


_READERS: Mapping[str, Reader] = {
    "Switch": _read_switch,
    "Switch | None": _read_switch,
    "tuple[Switch, ...]": lambda stated: tuple(map(_read_switch, stated)),
    "Width | None": lambda stated: Width[stated.upper()],
    "Streams | None": lambda stated: Streams[stated.upper()],
}


def switches(recipe: TensorRecipe) -> dict[str, bool]:
    """Keys of config.json that decide whether tensors exist -> their defaults."""
    defaults: dict[str, bool] = {}
    for recipe_field in fields(recipe):
        value = getattr(recipe, recipe_field.name)
        for switch in value if isinstance(value, tuple) else (value,):
            if isinstance(switch, Switch) and switch.keys:
                key = switch.keys[0]
                defaults[key.removeprefix("!")] = switch.default is not key.startswith("!")
    return defaults


Rows = Iterator[ExpectedTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFamily:
    """A recipe with the config.json of one model."""

    name: str  # the architecture, as its file calls it
    recipe: TensorRecipe
    # The part of config.json that describes the language model; empty without one.
    section: Mapping[str, object]
    hidden: int

    def has(self, switch: Switch) -> bool:
        """Whether the switch is on in this model's config.json."""
        return switch.holds(self.section)

    @property
    def embedding(self) -> int:
        """The width of the token embedding."""
        key = self.recipe.embedding_width
        return self.number(key, self.hidden) if key else self.hidden

    def number(self, key: str, default: int | None = None) -> int:
        """A width that the geometry does not have, by its key in config.json."""
        value = self.section.get(key)
        value = default if value is None else value
        if value is None:
            raise UnknownArchitectureError(
                f"the tensors of {self.name!r} depend on {key}, which only its config.json states"
            )
        return _width(key, value)

    def second(self, key: str) -> int | None:
        """The second width in the list of this key; None if there is only one."""
        value = self.section.get(key)
        return _width(key, value[1]) if isinstance(value, list) and len(value) > 1 else None


def _width(key: str, value: object) -> int:
    """The value of a width in config.json. Raises HeaderError if it is not a valid one."""
    if not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise HeaderError(f"{key} is {value!r:.60}, which is not a valid width", file="config.json")
    return value


def linear(role: TensorRole, out: int, into: int, *, bias: bool = False) -> Rows:
    """A matrix and its bias; nothing if a side is 0."""
    if out and into:
        yield ExpectedTensor(role=role, kind=TensorKind.LINEAR, shape=(out, into))
        if bias:
            yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=(out,))


def array(role: TensorRole, kind: TensorKind, *shape: int) -> ExpectedTensor:
    """A tensor of this shape, outermost dimension first."""
    return ExpectedTensor(role=role, kind=kind, shape=shape)


def norm(family: TensorFamily) -> Rows:
    """A norm of the hidden width."""
    yield array(TensorRole.NORM, TensorKind.NORM, family.hidden)
    if family.has(family.recipe.norm_bias):
        yield array(TensorRole.NORM, TensorKind.BIAS, family.hidden)
