"""The value types of a model, independent of engines.

A LayerKind says what a layer must store: streams (numbers per token) and states (numbers per sequence). The engines'
modules decide how that is stored (cells, pages, padding, cache type).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

from edgekit.formats.types import ModelHeader
from edgekit.units import Basis


class Span(enum.Enum):
    """The tokens that a stream holds."""

    ALL = "all"
    WINDOW = "window"  # the last `span_tokens` tokens
    CHUNK = "chunk"  # the tokens since the last multiple of `span_tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Numbers that are stored for every token, or for every `tokens_per_row` tokens."""

    name: str
    elements: int
    span: Span = Span.ALL
    span_tokens: int = 0  # 0 for Span.ALL
    tokens_per_row: int = 1


@lru_cache(maxsize=1024)  # called for every layer of every placement
def _streams(
    widths: tuple[tuple[str, int], ...], span: Span, span_tokens: int
) -> tuple[Stream, ...]:
    """A stream for each name and width; names of width 0 are left out."""
    return tuple(
        Stream(name=name, elements=elements, span=span, span_tokens=span_tokens)
        for name, elements in widths
        if elements
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Numbers that are stored once per sequence, independent of its length."""

    name: str
    elements: int


class LayerKind:
    """What one layer stores: nothing by default."""

    __slots__ = ()

    @property
    def label(self) -> str:
        return "no cache"

    @property
    def streams(self) -> tuple[Stream, ...]:
        return ()

    @property
    def states(self) -> tuple[State, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class CachedLayer(LayerKind):
    """The streams and states that an engine, or one of its devices, caches for a layer if it is not all of them."""

    streams: tuple[Stream, ...] = ()
    states: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(LayerKind):
    """Keys and values of every KV head. `span` says which tokens are cached: all, a sliding window, or a chunk."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    span: Span = Span.ALL
    span_tokens: int = 0
    index_dim: int = 0  # width of a sparse indexer's key, if the layer has one
    gated: bool = False  # the query projection includes an output gate and is twice as wide
    values_are_keys: bool = False  # no value projection: V is made from K (both are still stored)

    @property
    def label(self) -> str:
        sparse = " + indexer" if self.index_dim else ""
        return _SPAN_LABELS[self.span] + sparse

    @property
    def streams(self) -> tuple[Stream, ...]:
        widths = (
            ("k", self.kv_heads * self.key_dim),
            ("v", self.kv_heads * self.value_dim),
            ("index", self.index_dim),
        )
        return _streams(widths, self.span, self.span_tokens)


_SPAN_LABELS = {
    Span.ALL: "full attention",
    Span.WINDOW: "sliding window",
    Span.CHUNK: "chunked attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(LayerKind):
    """MLA: one latent and one rotary key per token represent all heads.

    `absorbed` is False for a GGUF from before April 2025, whose tensors do not allow that: its cache has the keys and
    values of every head. Some engines always cache those, so their widths are always given.
    """

    heads: int
    latent_dim: int  # kv_lora_rank
    rope_dim: int
    key_dim: int  # per head, rotary part included
    value_dim: int
    query_rank: int = 0  # q_lora_rank, 0 when queries are not compressed
    index_dim: int = 0
    absorbed: bool = True
    span: Span = Span.ALL
    span_tokens: int = 0

    @property
    def label(self) -> str:
        expanded = "" if self.absorbed else " in full heads"
        return "latent attention (MLA)" + expanded + (" + indexer" if self.index_dim else "")

    @property
    def streams(self) -> tuple[Stream, ...]:
        latent = (("latent", self.latent_dim + self.rope_dim),)
        full = (("k", self.heads * self.key_dim), ("v", self.heads * self.value_dim))
        widths = (*(latent if self.absorbed else full), ("index", self.index_dim))
        return _streams(widths, self.span, self.span_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(LayerKind):
    """DeepSeek-V4: a short window of raw keys, and one compressed key per `ratio` tokens (K is also V).

    In V4.1 some layers store compressed keys and others read those, and blocks do not overlap.
    """

    heads: int
    key_dim: int
    window_tokens: int
    ratio: int  # 0: stores the window only
    index_dim: int = 0
    overlapping: bool = True  # blocks of 4 tokens share half of their tokens
    selects: bool = False  # V4.1: has an indexer, which may read the index keys of an earlier layer

    @property
    def label(self) -> str:
        return f"compressed 1:{self.ratio} attention" if self.ratio else "sliding window"

    @property
    def streams(self) -> tuple[Stream, ...]:
        raw = Stream(
            name="k", elements=self.key_dim, span=Span.WINDOW, span_tokens=self.window_tokens
        )
        packed = (("compressed k", self.key_dim), ("index", self.index_dim))
        return (
            raw,
            *(
                Stream(name=name, elements=elements, tokens_per_row=self.ratio)
                for name, elements in packed
                if elements and self.ratio
            ),
        )

    @property
    def states(self) -> tuple[State, ...]:
        """The compressor's window: keys and scores of the tokens that are not compressed yet."""
        if not self.ratio:
            return ()
        if not self.overlapping:
            open_rows = self.ratio - 1
            return (State(name="compressor", elements=2 * open_rows * self.key_dim),)
        # llama-kv-cache-dsv4.cpp @ b21e4de: blocks of CSA (ratio 4) overlap, so it holds two rows of two widths
        overlap = 2 if self.ratio == 4 else 1
        rows = overlap * self.ratio
        return tuple(
            State(name=name, elements=2 * rows * overlap * width)  # 2: keys and scores
            for name, width in (("compressor", self.key_dim), ("indexer", self.index_dim))
            if width
        )


class Cell(enum.Enum):
    """Families of recurrent layers."""

    MAMBA = "mamba"
    MAMBA2 = "mamba-2"
    GATED_DELTA = "gated delta net"
    KIMI_DELTA = "kimi delta attention"
    LIGHTNING = "lightning attention"
    GATED_LINEAR = "gated linear attention"
    SHORT_CONV = "short convolution"
    GATED_CONV = "gated convolution"  # Gear: of keys and values, instead of attention
    KEY_CONV = "convolved keys and values"  # Baichuan-M1: before they are cached
    RWKV = "rwkv"
    RG_LRU = "rg-lru"
    MLSTM = "matrix LSTM"
    QUERY_KEY_CONV = "convolved queries and keys"  # Zaya: before attention
    FOUR_CONVS = (
        "four short convolutions"  # Inkling: keys, values, and the outputs of a layer's halves
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(LayerKind):
    """A state of fixed size: the tail of a short convolution, and the recurrence itself."""

    cell: Cell
    conv_elements: int = 0
    state_elements: int = 0
    inner: int = 0  # d_inner, or heads x value width
    state_size: int = 0  # d_state, or key width
    groups: int = 0
    heads: int = 0
    conv_kernel: int = 0
    rank: int = 0  # dt_rank, or the width of a low-rank gate
    ngram_elements: int = 0  # Qwen4-Exp: inputs of the convolution over n-gram embeddings

    @property
    def label(self) -> str:
        return self.cell.value

    @property
    def states(self) -> tuple[State, ...]:
        kinds = (
            ("conv", self.conv_elements),
            ("state", self.state_elements),
            ("n-gram conv", self.ngram_elements),
        )
        return tuple(State(name=name, elements=count) for name, count in kinds if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridLayer(LayerKind):
    """Attention and a recurrence in one layer (Falcon-H1)."""

    attention: Attention
    recurrent: Recurrent

    @property
    def label(self) -> str:
        return f"{self.attention.label} + {self.recurrent.label}"

    @property
    def streams(self) -> tuple[Stream, ...]:
        return self.attention.streams

    @property
    def states(self) -> tuple[State, ...]:
        return self.recurrent.states


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache(LayerKind):
    """Attention that reads the cache of an earlier layer and has no cache of its own (Gemma 3n and 4)."""

    attention: Attention
    source_layer: int

    @property
    def label(self) -> str:
        return f"shared cache ({self.attention.label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache(LayerKind):
    """A layer that stores nothing: a feed-forward layer, or an encoder's attention within the batch."""

    attention: Attention | None = None

    @property
    def label(self) -> str:
        return "no cache" if self.attention is None else "encoder attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention(LayerKind):
    """Attention to the tokens of an image instead of those of the text (Llama 3.2 Vision).

    Keys and values are computed once from the image, so they do not grow with the context.
    """

    attention: Attention
    image_tokens: int  # of one image in its largest form

    @property
    def label(self) -> str:
        return "cross-attention to an image"

    @property
    def states(self) -> tuple[State, ...]:
        widths = self.attention.key_dim + self.attention.value_dim
        elements = self.image_tokens * self.attention.kv_heads * widths
        return (State(name="image keys and values", elements=elements),)


def attention_of(kind: LayerKind) -> Attention | LatentAttention | None:
    """The attention in a layer of any kind, whether or not it has its own cache."""
    match kind:
        case Attention() | LatentAttention():
            return kind
        case HybridLayer() | SharedCache() | CrossAttention() | NoCache():
            return kind.attention
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """A dense feed-forward; a gated one has three matrices instead of two."""

    width: int
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts, of which `used` run for each token, and shared experts that always run."""

    count: int
    used: int
    width: int
    shared_width: int = 0  # of all shared experts
    latent: int = 0  # width of the experts' input, if it is not the hidden width
    gated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    index: int
    mixer: LayerKind
    dense: FeedForward | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rope scaling: how a model was extended beyond the context it was trained on."""

    type: str
    factor: float | None = None
    original_context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder for images or sound that feeds the language model."""

    kind: str  # "vision", "audio"
    layers: int | None
    hidden: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    architecture: str  # as the file spells it
    layers: tuple[Layer, ...] = field(repr=False)
    hidden: int
    vocabulary: int | None  # None: not in the part that was read
    trained_context: int | None  # as the file states it
    native_context: int | None  # after rope scaling: the longest that may be requested
    rope: Rope | None = None
    loops: int = 1  # how often the layers run; `layers` has every round
    per_layer_embedding: int = 0  # width of each layer's own embedding table
    mtp_layers: int = 0  # multi-token-prediction blocks after the last layer
    tied_embeddings: bool | None = None
    causal: bool = True
    pooling: str | None = None
    towers: tuple[Tower, ...] = ()
    basis: Basis = Basis.EXACT
    because: str = ""  # why the basis is not EXACT: "unknown architecture 'x': read by ..."

    @property
    def doubt(self) -> str:
        """Why figures are only a rough estimate, in few words: "unknown architecture 'x'"; empty if they are not."""
        return self.because.partition(":")[0] if self.basis is Basis.ASSUMED else ""

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model: an encoder, or a decoder whose file states a pooling."""
        return not self.causal or self.pooling in {"mean", "cls", "last"}

    @property
    def ranks(self) -> bool:
        """Whether it is a reranking model, which scores a text for a query."""
        return self.pooling == "rank"


def block_count(geometry: ModelGeometry) -> int:
    """Layers and multi-token-prediction blocks together, as files count them."""
    return len(geometry.layers) + geometry.mtp_layers


def stored_layers(geometry: ModelGeometry) -> tuple[Layer, ...]:
    """The layers that a file has: those of the first round, because later rounds use the same weights."""
    return geometry.layers[: len(geometry.layers) // geometry.loops]


def embeds_in_one_batch(geometry: ModelGeometry) -> bool:
    """Whether an input must be embedded in one batch; it can be split if only its last token is pooled."""
    return not geometry.causal or geometry.pooling != "last"


P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A header and its geometry, with results cached by engines."""

    header: ModelHeader
    geometry: ModelGeometry = field(repr=False)
    _prepared: dict[type[Any], Any] = field(default_factory=dict, init=False, repr=False)

    def prepared(self, kind: type[P]) -> P:
        """The model's instance of this class, created without arguments on first use.

        Each engine has such a class, for results that the next load can reuse.
        """
        prepared: P | None = self._prepared.get(kind)
        if prepared is None:
            prepared = self._prepared.setdefault(kind, kind())
        return prepared

    def forget(self) -> None:
        """Frees the cached results of engines."""
        self._prepared.clear()


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST_RESULTS = 256  # per CachedBy: a search over the placements of a large model needs about twenty


class Cached(Generic[V]):
    """A result that is computed once for a model. Two threads may both compute it, which is harmless."""

    __slots__ = ("_result",)

    def __init__(self) -> None:
        self._result: tuple[V] | None = None

    def get(self, make: Callable[[], V]) -> V:
        """The result of the first call of `make` that returned."""
        result = self._result
        if result is None:
            result = self._result = (make(),)
        return result[0]


class CachedBy(Generic[K, V]):
    """Like `Cached`, for results that depend on a key. The oldest are dropped."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result of the first call of `make` for this key that returned."""
        results = self._results
        try:
            return results[key]
        except KeyError:
            pass
        result = make()
        while len(results) >= MOST_RESULTS:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread was faster
                del results[next(iter(results))]
        results[key] = result
        return result
