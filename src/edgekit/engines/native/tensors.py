"""A model -> its tensors in two kinds: matrices, read by rows, and vectors, held as float32."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.engines.native.types import ModelUse, NativeModel
from edgekit.formats.types import Tensor

SIDE_ROWS = 128  # for a chunk of tokens: more for fewer


def matrices(model: NativeModel) -> Iterator[Tensor]:
    """Everything that is read by rows, in the order in which a pass wants it most: embeddings last."""
    for layer in model.layers:
        yield from (tensor for tensor in layer.values() if len(tensor.shape) == 2)
    head = ("output.weight",) if model.use is ModelUse.GENERATE else ()
    for name in (*head, "position_embd.weight", "token_embd.weight"):
        if name in model.outside:
            yield model.outside[name]


def vectors(model: NativeModel) -> Iterator[Tensor]:
    """Everything that is held: norms, biases, factors, and of the token types the first row."""
    unused = ("cls.",) if model.use is ModelUse.GENERATE else ("cls.", "output.")
    for shelf in (model.outside, *model.layers):
        yield from (
            tensor
            for name, tensor in shelf.items()
            if (len(tensor.shape) == 1 and not name.startswith(unused))
            or name == "token_types.weight"
        )


def side_floats(model: NativeModel, chunk_tokens: int) -> int:
    """A thread's rows of `up` beside those of the gate, where there is one."""
    return chunk_tokens * min(SIDE_ROWS, model.dimensions.inner) if model.gated else 0


def row_bytes(tensor: Tensor) -> int:
    return tensor.type.row_bytes(tensor.shape[1])


def arena_floats(model: NativeModel, pass_tokens: int, chunk_tokens: int) -> int:
    """Keys and values have been used before the feed-forward begins: both lie in one place."""
    size = model.dimensions
    return max(pass_tokens * 2 * size.key, chunk_tokens * size.inner)
