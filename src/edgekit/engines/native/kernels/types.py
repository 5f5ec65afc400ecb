"""The interface of the kernels: the few calls that all arithmetic of a model is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgekit.formats.dtype import TensorType

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8] | memoryview | bytes | bytearray
Starts = NDArray[np.int32]
ActivationKind = Literal["silu", "gelu", "gelu_tanh"]
CacheKind = Literal["f32", "f16", "q8_0"]  # rows of bill/types.py


class BlockError(Exception):
    """Weights that are not finite numbers. The caller, which knows the tensor, makes a WeightsError of it."""

    def __init__(self, block: int) -> None:
        self.block = block  # counted from the start of the bytes that were given
        super().__init__(f"block {block:,} has a scale or a value that is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAttention:
    """Softmax attention of each text's tokens to each other.

    Text i has the rows starts[i]..starts[i + 1]. `slopes` is ALiBi's: -slope * |i - j| is added to
    the scores of a head. `out` may be `q`.
    """

    q: Floats
    k: Floats
    v: Floats
    out: Floats
    starts: Starts
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    slopes: Floats | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAttention:
    """Queries over a span of a cache's cells.

    Cell i is at first_position + i, query t at query_position + t. A query sees the cells up to its
    own position, and of those the last `reach`. Spans may come in any order. Before the first one
    `out` [T, heads * head_dim] is 0 and `state` [T, heads, 2] (the largest score and the sum of
    exponentials) is (-inf, 0); after the last one `settle` divides. A cell that is not a number
    makes the queries that see it not a number either.
    """

    q: Floats
    k: Bytes
    v: Bytes
    out: Floats
    state: Floats
    k_kind: CacheKind
    v_kind: CacheKind
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    cells: int
    first_position: int
    query_position: int
    reach: int | None


class Kernels(Protocol):
    """Arithmetic on arrays that the caller owns. No allocation grows with them.

    Arrays are float32 with a unit inner stride; rows may be apart. Wrong sizes raise ValueError. Several threads may
    call at once, each with its own `out` and `scratch`.
    """

    @property
    def name(self) -> str: ...

    def dequantize(self, kind: TensorType, source: Bytes, into: Floats) -> None:
        """Unpack whole blocks into the start of the flat `into`."""
        ...

    def scratch_floats(self, kind: TensorType, columns: int) -> int:
        """Floats of scratch that `multiply` needs for rows of this length."""
        ...

    def multiply(
        self, kind: TensorType, weights: Bytes, x: Floats, out: Floats, scratch: Floats
    ) -> None:
        """out[T, rows] = x[T, K] @ W.T, where W is rows x K packed in `kind`."""
        ...

    def attention_floats(self, longest_tokens: int, head_dim: int, /) -> int:
        """Floats of scratch that `attention` needs for texts of up to `longest_tokens`."""
        ...

    def attention(self, texts: TextAttention, scratch: Floats, first: int, last: int) -> None:
        """The tasks first..last (excluded). A task is text * heads + head."""
        ...

    def store(self, kind: CacheKind, x: Floats, into: Bytes, /) -> None:
        """Round rows of numbers as GGML does and store them as rows of a cache.

        A number that is too large becomes the largest of the kind. Raises BlockError for one that is not finite.
        """
        ...

    def attend_floats(self, head_dim: int, /) -> int:
        """Floats of scratch that `attend` needs for any number of queries and cells."""
        ...

    def attend(self, span: CacheAttention, scratch: Floats, first: int, last: int) -> None:
        """Add what the queries see in this span, for the key heads first..last (excluded)."""
        ...

    def settle(self, out: Floats, state: Floats, heads: int, head_dim: int, /) -> None:
        """In place: out divided by the sums in `state`; zeros for a query that has seen no cell."""
        ...

    def layer_norm(
        self, x: Floats, out: Floats, weight: Floats, bias: Floats | None, eps: float, /
    ) -> None:
        """Each row to mean 0 and variance 1, times weight, plus bias. `out` may be `x`."""
        ...

    def rms_norm(self, x: Floats, out: Floats, weight: Floats, eps: float) -> None:
        """Each row to a root mean square of 1, times weight. `out` may be `x`."""
        ...

    def activate(self, x: Floats, up: Floats | None, kind: ActivationKind) -> None:
        """In place: x = activation(x), times `up` if there is a gate."""
        ...

    def rope(
        self, x: Floats, cos: Floats, sin: Floats, *, heads: int, head_dim: int, neox: bool
    ) -> None:
        """Rotate the first 2 * cos.shape[1] values of each head, in place; the others stay.

        neox: value i is rotated with value i + half; otherwise values 2i and 2i + 1.
        """
        ...
