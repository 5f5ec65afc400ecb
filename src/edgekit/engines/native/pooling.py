"""The vectors of a text's tokens -> one vector, and that vector -> length 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgekit.engines.native.arrays import Floats
from edgekit.engines.native.types import Pooling
from edgekit.errors import HeaderError, UnknownArchitectureError, UsageError, WeightsError
from edgekit.formats.types import Value
from edgekit.terminal import quoted

SMALLEST_LENGTH = 1e-9  # a shorter vector has no direction worth scaling up
_NONE, _RANK = 0, 4  # llama.h: enum llama_pooling_type
_CHOICES = (
    "pooling= (--pooling) mean, cls or last (most BERT models want mean or cls, decoders last)"
)


def choose_pooling(keys: Mapping[str, Value], architecture: str, wish: Pooling | None) -> Pooling:
    """What was chosen, else what the file says. UsageError where neither says anything: a guess
    would give vectors that look right. UnknownArchitectureError for a reranker, HeaderError for
    a pooling that there is not.
    """
    key = f"{architecture}.pooling_type"
    told = keys.get(key)
    if told == _RANK and type(told) is int:
        raise UnknownArchitectureError(
            f"this is a reranker ({key} is {_RANK}): it scores pairs of texts and does "
            "not produce embeddings"
        )
    if wish is not None:
        return wish
    if told is None or (type(told) is int and told == _NONE):
        said = "does not state a pooling" if told is None else f"says no pooling ({key} is {_NONE})"
        raise UsageError(f"the file {said}: set {_CHOICES}, as the model card says")
    for pooling in Pooling:
        if type(told) is int and told == pooling.value:
            return pooling
    raise HeaderError(f"{key} is {quoted(told)}, which is not a known pooling: set {_CHOICES}")


def pool(rows: Floats, pooling: Pooling, into: Floats) -> None:
    """One text's rows [tokens, width] into one vector."""
    if pooling is Pooling.MEAN:
        # Rows are added up one after another; 2,048 of them lose less than 2,048 * 2**-24.
        np.add.reduce(rows, axis=0, out=into)
        into /= np.float32(len(rows))
    else:
        into[:] = rows[0 if pooling is Pooling.CLS else -1]


def scale_row(row: Floats, *, normalize: bool = True) -> None:
    """In place to length 1, where it has a length. WeightsError for a vector that is no vector."""
    length = float(np.sqrt(np.vdot(row, row)))
    if not np.isfinite(length):
        length = _length(row)
    if normalize and length > SMALLEST_LENGTH:
        row /= np.float32(length)


def _length(row: Floats) -> float:
    """In float64, where the squares of large numbers still have room."""
    wide = row.astype(np.float64)
    length = float(np.sqrt(np.vdot(wide, wide)))
    if not np.isfinite(length):
        raise WeightsError(
            "the model's output is not a finite number: its weights are damaged, or were "
            "converted to a type that cannot represent them"
        )
    return length
