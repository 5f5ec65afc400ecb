"""Turns the header of a safetensors file into tensors: 8 bytes of length, then JSON.

Format: docs/formats.md, and https://github.com/huggingface/safetensors#format.
What that library refuses to load (holes, overlaps, bytes left over) is refused here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError, UnknownDtypeError
from edgekit.formats import limits
from edgekit.formats.dtype import by_safetensors
from edgekit.formats.json_stream import JsonStream
from edgekit.formats.lookalikes import LOOK_BYTES, describe
from edgekit.formats.quoting import quoted
from edgekit.formats.types import Tensor
from edgekit.sources.types import ByteSource

_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsFile:
    """What one safetensors file says."""

    name: str
    tensors: tuple[Tensor, ...]  # in the order of their bytes
    header_bytes: int
    file_bytes: int
    format: str | None = None  # who wrote it: "pt", "mlx", ...


def read_safetensors(source: ByteSource, *, shard: int = 0) -> SafetensorsFile:
    header_bytes = _read_length(source)
    stream = JsonStream(source, start=_LENGTH_BYTES, end=header_bytes)
    if source.read(_LENGTH_BYTES, 1) != b"{":
        raise stream.error("a safetensors header must start with '{'")
    tensors: dict[str, Tensor] = {}
    written_by = None
    for name in stream.pairs():
        if name == _METADATA:
            written_by = _read_format(stream)
        else:
            _check_name(stream, name, tensors)
            entry = stream.value(f"tensor {quoted(name)}", limits.ENTRY_BYTES)
            tensors[name] = _tensor(source.name, name, entry, header_bytes, shard)
    if stream.peek():
        raise stream.error("unexpected data after the header's last brace")
    ordered = tuple(sorted(tensors.values(), key=_place))
    _check_layout(source, ordered, header_bytes)
    return SafetensorsFile(
        name=source.name,
        tensors=ordered,
        header_bytes=header_bytes,
        file_bytes=source.size_bytes,
        format=written_by,
    )


def _read_length(source: ByteSource) -> int:
    """Where the header ends."""
    size_bytes = source.size_bytes
    if size_bytes == 0:
        raise HeaderError("the file is empty", file=source.name)
    length = int.from_bytes(source.read(0, min(_LENGTH_BYTES, size_bytes)), "little")
    end = _LENGTH_BYTES + length
    if end <= size_bytes and length <= limits.HEADER_BYTES:
        return end
    first = source.read(0, min(LOOK_BYTES, size_bytes))
    if first[_LENGTH_BYTES : _LENGTH_BYTES + 1] not in {b"{", b""}:
        raise HeaderError(f"not a safetensors file: {describe(first)}", file=source.name)
    if end > size_bytes:
        raise HeaderError(
            f"file is truncated: its header should end at byte {end:,}, but the file has "
            f"{size_bytes:,} bytes (an interrupted download?)",
            file=source.name,
        )
    raise HeaderLimitError(
        "header length", value=length, limit=limits.HEADER_BYTES, file=source.name
    )


def _read_format(stream: JsonStream) -> str | None:
    """Walks the free text that tools leave in a file; only who wrote it is of use."""
    if stream.peek() == "n":
        stream.value(_METADATA, 4)  # null
        return None
    written_by, entries, length = None, 0, 0
    for key in stream.pairs():
        text = stream.string(f"{_METADATA} {quoted(key)}", limits.METADATA_BYTES)
        entries, length = entries + 1, length + len(key) + len(text)
        stream.check_limit(f"entries of {_METADATA}", entries, limits.METADATA_ENTRIES)
        stream.check_limit(f"length of {_METADATA}", length, limits.METADATA_BYTES)
        if key == "format":
            written_by = text[: limits.KEPT_ENTRY_BYTES]
    return written_by


def _check_name(stream: JsonStream, name: str, tensors: dict[str, Tensor]) -> None:
    if name in tensors:
        raise stream.error(f"tensor {quoted(name)} occurs twice")
    stream.check_limit("tensors in one file", len(tensors) + 1, limits.TENSORS_PER_FILE)
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
        raise stream.error(f"tensor name {quoted(name)} is not valid Unicode") from error
    if length > limits.NAME_BYTES:  # the words cost more than the check
        stream.check_limit(f"length of tensor name {quoted(name)}", length, limits.NAME_BYTES)


def _tensor(file: str, name: str, entry: Any, header_bytes: int, shard: int) -> Tensor:
    try:
        shape, (begin, end) = _numbers(entry, "shape"), _offsets(entry)
        kind = by_safetensors(_field(entry, "dtype", str))
        size_bytes = kind.size_bytes(_elements(shape))
    except UnknownDtypeError as error:
        raise UnknownDtypeError(f"tensor {quoted(name)}: {error.what}", file=file) from error
    except HeaderError as error:
        raise HeaderError(f"tensor {quoted(name)}: {error.what}", file=file) from error
    if end - begin != size_bytes:
        raise HeaderError(
            f"tensor {quoted(name)}: {kind.name} of shape {list(shape)} takes "
            f"{size_bytes:,} bytes, but its data_offsets span {end - begin:,}",
            file=file,
        )
    return Tensor(
        name=name,
        type=kind,
        shape=shape,
        size_bytes=size_bytes,
        offset=header_bytes + begin,
        shard=shard,
    )


def _field(entry: Any, key: str, kind: type) -> Any:
    value = entry.get(key) if type(entry) is dict else None
    if type(value) is not kind:
        raise HeaderError(f"its entry has no valid {key}")
    return value


def _numbers(entry: Any, key: str) -> tuple[int, ...]:
    values: list[Any] = _field(entry, key, list)
    for value in values:
        if type(value) is not int or not 0 <= value <= limits.ELEMENTS:
            raise HeaderError(f"{key} contains {quoted(value)}, which is not a valid count")
    return tuple(values)


def _offsets(entry: Any) -> tuple[int, int]:
    values = _numbers(entry, "data_offsets")
    if len(values) != 2 or values[0] > values[1]:
        raise HeaderError("data_offsets must be a start and an end")
    return values[0], values[1]


def _elements(shape: tuple[int, ...]) -> int:
    if len(shape) > limits.SAFETENSORS_DIMENSIONS:
        raise HeaderLimitError("dimensions", value=len(shape), limit=limits.SAFETENSORS_DIMENSIONS)
    count = 1
    for dimension in shape:
        count *= dimension
    if count > limits.ELEMENTS:
        raise HeaderError("the product of its shape overflows an int64")
    return count


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.offset, tensor.size_bytes


def _check_layout(source: ByteSource, tensors: tuple[Tensor, ...], header_bytes: int) -> None:
    """The data is filled from its first byte to the file's last, each byte by one tensor."""
    end = header_bytes
    for tensor in tensors:
        if tensor.offset != end:
            how = "overlaps the one before" if tensor.offset < end else "leaves a gap before it"
            what = f"tensor {quoted(tensor.name)} {how}"
            raise HeaderError(what, file=source.name, offset=tensor.offset)
        end += tensor.size_bytes
        if end > source.size_bytes:
            raise HeaderError(
                f"file is truncated: tensor {quoted(tensor.name)} ends at byte {end:,}, "
                f"but the file has {source.size_bytes:,} bytes (an interrupted download?)",
                file=source.name,
            )
    if end != source.size_bytes:
        raise HeaderError(
            f"{source.size_bytes - end:,} bytes follow the last tensor",
            file=source.name,
            offset=end,
        )
