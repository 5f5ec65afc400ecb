"""How tensor parallelism splits each tensor -> its shape on one rank.

COLUMN splits the rows of a matrix (its outputs), ROW the columns (its inputs): linear.py, vocab_parallel_embedding.py
and the model files @ 0.32.0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from edgekit.errors import RefusedError
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.types import Cell, Recurrent

VOCABULARY_PADDING = 64  # vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE


class Cut(enum.Enum):
    VOCABULARY = "rows, padded first"
    COLUMN = "rows"
    KV = "rows, by KV heads: some ranks hold the same ones"
    ROW = "columns"
    WHOLE = "every rank has all of it"


CUTS: Mapping[TensorRole, Cut] = {
    TensorRole.EMBEDDING: Cut.VOCABULARY,
    TensorRole.HEAD: Cut.VOCABULARY,
    TensorRole.QUERY: Cut.COLUMN,
    TensorRole.KEY: Cut.KV,
    TensorRole.VALUE: Cut.KV,
    TensorRole.OUTPUT: Cut.ROW,
    TensorRole.SINKS: Cut.COLUMN,
    TensorRole.ATTENTION_GATE: Cut.COLUMN,
    TensorRole.QUERY_UP: Cut.COLUMN,
    TensorRole.LATENT_UP: Cut.COLUMN,
    TensorRole.GATE: Cut.COLUMN,
    TensorRole.UP: Cut.COLUMN,
    TensorRole.DOWN: Cut.ROW,
    TensorRole.EXPERT_GATE: Cut.COLUMN,
    TensorRole.EXPERT_UP: Cut.COLUMN,
    TensorRole.EXPERT_DOWN: Cut.ROW,
    TensorRole.SHARED_GATE: Cut.COLUMN,
    TensorRole.SHARED_UP: Cut.COLUMN,
    TensorRole.SHARED_DOWN: Cut.ROW,
    TensorRole.STATE_IN: Cut.COLUMN,
    TensorRole.STATE_GATE: Cut.COLUMN,
    TensorRole.STATE_BETA: Cut.COLUMN,
    TensorRole.STATE_X: Cut.ROW,
    TensorRole.STATE_DT: Cut.COLUMN,
    TensorRole.STATE_A: Cut.COLUMN,
    TensorRole.STATE_D: Cut.COLUMN,
    TensorRole.STATE_OUT: Cut.ROW,
    TensorRole.CONV: Cut.COLUMN,
}


def cut_of(tensor: ExpectedTensor, state: Recurrent | None = None) -> Cut:
    if tensor.kind is TensorKind.NORM:
        gated = tensor.role is TensorRole.STATE_NORM and _is_mamba2(state)
        return Cut.COLUMN if gated else Cut.WHOLE
    cut = CUTS.get(tensor.role, Cut.WHOLE)
    # A bias that is added after the sum over ranks is not split.
    return Cut.WHOLE if cut is Cut.ROW and tensor.kind is TensorKind.BIAS else cut


def on_rank(
    tensor: ExpectedTensor, ranks: int, *, kv_heads: int = 0, state: Recurrent | None = None
) -> tuple[int, ...]:
    """The shape on one of `ranks`. Raises RefusedError if it cannot be split."""
    first, *rest = tensor.shape
    match cut_of(tensor, state):
        case Cut.VOCABULARY:
            return (share(padded(first), ranks, "a padded vocabulary"), *rest)
        case Cut.KV if kv_heads:
            return (first // kv_heads * max(1, kv_heads // ranks), *rest)
        case Cut.COLUMN | Cut.KV:
            rows = first + _copied_groups(tensor, ranks, state)
            return (share(rows, ranks, tensor.role.value), *rest)
        case Cut.ROW:
            return (first, share(rest[0], ranks, tensor.role.value), *rest[1:])
        case _:
            return tensor.shape


def _copied_groups(tensor: ExpectedTensor, ranks: int, state: Recurrent | None) -> int:
    """Additional rows of Mamba-2's B and C if there are more ranks than groups."""
    if state is None or not _is_mamba2(state) or state.groups % ranks == 0:
        return 0
    copied = tensor.role in {TensorRole.STATE_IN, TensorRole.CONV}
    return 2 * (ranks - state.groups) * state.state_size if copied else 0


def _is_mamba2(state: Recurrent | None) -> bool:
    return state is not None and state.cell is Cell.MAMBA2


def share(size: int, ranks: int, what: str) -> int:
    """The part of one rank. Raises RefusedError if it is not a whole number."""
    if size % ranks:
        raise RefusedError(f"{what} of {size} is not divisible by tensor parallel size {ranks}")
    return size // ranks


def padded(vocabulary: int) -> int:
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def stages(layers: int, count: int) -> tuple[range, ...]:
    """Remaining layers go to the stages before the last, from the back, because the last one has the head."""
    sizes = [layers // count] * count
    for i in range(2, layers % count + 2):
        sizes[-i] += 1
    starts = [sum(sizes[:i]) for i in range(count)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
