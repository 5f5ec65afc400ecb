"""Turns model.safetensors.index.json into totals, and into the shard of each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.json_stream import JsonStream
from edgekit.formats.quoting import quoted
from edgekit.sources.types import ByteSource
from edgekit.units import KIB

_FIRST_BYTES = 64 * KIB  # writers sort their keys, so metadata stands before weight_map


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What an index states about all shards together; None where it does not."""

    tensor_bytes: int | None = None
    parameters: int | None = None  # MLX writes it


def read_totals(source: ByteSource) -> Totals:
    """What the index states. Reads no further than its metadata."""
    stream = _open(source, eager=False)
    for key in stream.pairs():
        if key == "metadata":
            return _totals(stream.value("metadata", limits.ENTRY_BYTES))
        _pass(stream, key, _ignore)
    return Totals()


def walk_index(source: ByteSource, visit: Callable[[str, str], None]) -> Totals:
    """Calls `visit(tensor, file name of its shard)` for each tensor; HeaderError if none are listed."""
    stream = _open(source, eager=True)
    totals, found = Totals(), 0
    for key in stream.pairs():
        if key == "metadata":
            totals = _totals(stream.value("metadata", limits.ENTRY_BYTES))
        else:
            found += _pass(stream, key, visit)
    if not found:
        raise HeaderError("the index lists no tensors (weight_map)", file=source.name)
    return totals


def _open(source: ByteSource, *, eager: bool) -> JsonStream:
    if source.size_bytes > limits.INDEX_BYTES:
        raise HeaderLimitError(
            "length of the index",
            value=source.size_bytes,
            limit=limits.INDEX_BYTES,
            file=source.name,
        )
    return JsonStream(source, start=0, end=source.size_bytes, chunk_bytes=_FIRST_BYTES, eager=eager)


def _pass(stream: JsonStream, key: str, visit: Callable[[str, str], None]) -> int:
    """How many tensors stood there."""
    if key != "weight_map":
        stream.value(quoted(key), limits.ENTRY_BYTES)
        return 0
    count = 0
    for tensor in stream.pairs():
        count += 1
        stream.check_limit("tensors in the index", count, limits.TENSORS)
        visit(tensor, stream.string("name of a shard", limits.KEY_BYTES))
    return count


def _ignore(tensor: str, file: str) -> None:
    pass


def _totals(metadata: Any) -> Totals:
    if not isinstance(metadata, dict):
        return Totals()
    return Totals(
        tensor_bytes=_whole(metadata.get("total_size")),
        parameters=_whole(metadata.get("total_parameters")),
    )


def _whole(value: Any) -> int | None:
    """Some writers divide and leave a float: 13731385408.0."""
    if type(value) is float and math.isfinite(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= limits.ELEMENTS else None
