"""Nouns of a model's tensors: what each is for, how quantisers see it, how large it is."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


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
