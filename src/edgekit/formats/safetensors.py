"""Safetensors and MLX models: config.json, the index, and the header of every shard (8 bytes of length, then JSON).

Format: docs/formats.md, and https://github.com/huggingface/safetensors#format.
What that library refuses to load (gaps, overlaps, bytes left over) is refused here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError, UnknownDtypeError, check_limit, quoted
from edgekit.formats import limits
from edgekit.formats.bounded_json import JsonStream, read_config
from edgekit.formats.cursor import LOOK_BYTES, describe, listed_bytes, read_file, read_shards
from edgekit.formats.dtype import TensorType, by_safetensors
from edgekit.formats.quantization import read_quantization
from edgekit.formats.types import Depth, ModelHeader, Tensor
from edgekit.sources.filenames import base_of
from edgekit.sources.types import ByteSource, Container, ModelFiles

SINGLE_FILE = "model.safetensors"
LENGTH_BYTES = 8
METADATA = "__metadata__"


def read_safetensors_model(files: ModelFiles, depth: Depth) -> ModelHeader:
    """The header of a model. With Depth.ARCHITECTURE, or without weights: only the config and the index's totals."""
    config = read_file(files.config, read_config) if files.config else {}
    if depth is Depth.TENSORS and files.container is Container.SAFETENSORS:
        header = _read_shards(files)
    else:
        totals = read_file(files.index, walk_index) if files.index else Totals()
        header = ModelHeader(
            name=files.label,
            container=files.container,
            tensor_bytes=totals.tensor_bytes,
            parameters=totals.parameters,
            file_bytes=listed_bytes(files),
        )
    quantization = read_quantization(config)
    if quantization is None and files.quantization:  # the quantiser's own file
        quantization = read_quantization({}, read_file(files.quantization, read_config))
    return replace(
        header,
        config=config,
        quantization=quantization,
        mlx=header.mlx or (quantization is not None and quantization.mlx),
    )


def _read_shards(files: ModelFiles) -> ModelHeader:
    """The headers of all shards as one, checked against the index if there is one."""
    if not files.weights:
        raise HeaderError("there is no safetensors file to read", file=files.label)
    shards: dict[int, ModelHeader] = {}
    tensor_count = 0
    for number, shard in enumerate(read_shards(files, range(len(files.weights)), read_safetensors)):
        shards[number] = shard
        tensor_count += shard.tensor_count or 0
        check_limit("tensors in all shards", tensor_count, limits.TENSORS, file=files.label)
    totals, index = Totals(), files.index
    if index and [base_of(file.name) for file in files.weights] == [SINGLE_FILE]:
        listed_files: set[str] = set()

        def note_file(_: str, file: str) -> None:
            listed_files.add(base_of(file))

        read_file(index, lambda source: walk_index(source, note_file))
        if SINGLE_FILE not in listed_files:  # the index of a sharded copy of the same model
            index = None
    if index:
        totals, listed = read_file(index, lambda source: _check_index(source, files, shards))
        shards = {number: shards[number] for number in sorted(listed)}
    else:
        _check_unique(shards)
    tensors = tuple(tensor for shard in shards.values() for tensor in shard.tensors or ())
    return ModelHeader(
        name=files.label,
        container=Container.SAFETENSORS,
        mlx=any(shard.mlx for shard in shards.values()),
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
        parameters=totals.parameters,
        file_bytes=sum(shard.file_bytes or 0 for shard in shards.values()),
        header_bytes=sum(shard.header_bytes or 0 for shard in shards.values()),
    )


def _check_index(
    source: ByteSource, files: ModelFiles, shards: Mapping[int, ModelHeader]
) -> tuple[Totals, set[int]]:
    """The totals of the index, and the numbers of the shards it lists. Each must contain the tensors listed for it.

    A file that the index does not list is not part of the model (a copy in another layout).
    """
    numbers = {base_of(file.name): number for number, file in enumerate(files.weights)}
    names = {
        number: {tensor.name for tensor in shard.tensors or ()} for number, shard in shards.items()
    }
    listed: set[int] = set()

    def check(name: str, file: str) -> None:
        number = numbers.get(base_of(file))
        if number is None:
            what = f"the index lists tensor {quoted(name)} in {quoted(file)}, which is missing"
            raise HeaderError(what, file=source.name)
        if name not in names[number]:
            raise HeaderError(f"tensor {quoted(name)} is not in {quoted(file)}", file=source.name)
        listed.add(number)

    totals = walk_index(source, check)
    _check_unique({number: shards[number] for number in listed})
    return totals, listed


def _check_unique(shards: Mapping[int, ModelHeader]) -> None:
    """Raises HeaderError if a tensor is in two shards."""
    file_of: dict[str, str] = {}
    for shard in shards.values():
        for tensor in shard.tensors or ():
            if tensor.name in file_of:
                what = f"tensor {quoted(tensor.name)} is also in {file_of[tensor.name]}"
                raise HeaderError(what, file=shard.name)
            file_of[tensor.name] = shard.name


# -- model.safetensors.index.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What an index states about all shards together; None if it does not."""

    tensor_bytes: int | None = None
    parameters: int | None = None  # MLX writes it


def walk_index(source: ByteSource, visit: Callable[[str, str], None] | None = None) -> Totals:
    """Calls `visit(tensor, file name of its shard)` for each tensor; HeaderError if none are listed.

    Without `visit`, the index is read no further than its metadata.
    """
    stream = JsonStream(source, start=0, end=source.size_bytes, eager=visit is not None)
    stream.check_limit("length of the index", source.size_bytes, limits.INDEX_BYTES)
    totals, count = Totals(), 0
    for key in stream.pairs():
        if key == "weight_map":
            for tensor in stream.pairs():
                count += 1
                stream.check_limit("tensors in the index", count, limits.TENSORS)
                file = stream.string("name of a shard", limits.KEY_BYTES)
                if visit is not None:
                    visit(tensor, file)
            continue
        value = stream.value(key if key == "metadata" else quoted(key), limits.ENTRY_BYTES)
        if key == "metadata":
            if isinstance(value, dict):
                totals = Totals(
                    tensor_bytes=_whole_number(value.get("total_size")),
                    parameters=_whole_number(value.get("total_parameters")),
                )
            if visit is None:
                return totals
    if visit is not None and not count:
        raise HeaderError("the index lists no tensors (weight_map)", file=source.name)
    return totals


def _whole_number(value: Any) -> int | None:
    """The value as an int; some writers store a float: 13731385408.0."""
    if type(value) is float and math.isfinite(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= limits.ELEMENTS else None


# -- one file


def read_safetensors(source: ByteSource, shard: int = 0) -> ModelHeader:
    """The header of one file, its tensors in the order of their bytes."""
    header_bytes = _read_header_end(source)
    stream = JsonStream(source, start=LENGTH_BYTES, end=header_bytes)
    if source.read(LENGTH_BYTES, 1) != b"{":
        raise stream.error("a safetensors header must start with '{'")
    tensors: dict[str, Tensor] = {}
    file_format = None
    for name in stream.pairs():
        if name == METADATA:
            file_format = _read_format(stream)
        else:
            if name in tensors:
                raise stream.error(f"tensor {quoted(name)} occurs twice")
            stream.check_limit("tensors in one file", len(tensors) + 1, limits.TENSORS_PER_FILE)
            try:
                length = len(name.encode())
            except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
                what = f"tensor name {quoted(name)} is not valid Unicode"
                raise stream.error(what) from error
            if length > limits.NAME_BYTES:  # building the message for every tensor is slow
                what = f"length of tensor name {quoted(name)}"
                stream.check_limit(what, length, limits.NAME_BYTES)
            entry = stream.value(f"tensor {quoted(name)}", limits.ENTRY_BYTES)
            tensors[name] = _read_tensor(source.name, name, entry, header_bytes, shard)
    if stream.peek():
        raise stream.error("unexpected data after the header's last brace")
    ordered = tuple(sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.size_bytes)))
    _check_gaps(source, ordered, header_bytes)
    return ModelHeader(
        name=source.name,
        container=Container.SAFETENSORS,
        mlx=file_format == "mlx",
        tensors=ordered,
        tensor_count=len(ordered),
        file_bytes=source.size_bytes,
        header_bytes=header_bytes,
    )


def _read_header_end(source: ByteSource) -> int:
    """The offset at which the header ends, from the length at the start of the file."""
    size_bytes = source.size_bytes
    if size_bytes == 0:
        raise HeaderError("the file is empty", file=source.name)
    length = int.from_bytes(source.read(0, min(LENGTH_BYTES, size_bytes)), "little")
    end = LENGTH_BYTES + length
    if end <= size_bytes and length <= limits.HEADER_BYTES:
        return end
    first = source.read(0, min(LOOK_BYTES, size_bytes))
    if first[LENGTH_BYTES : LENGTH_BYTES + 1] not in {b"{", b""}:
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
    """Walks the free text that tools write into a file, and returns its format: "pt", "mlx", ..."""
    if stream.peek() == "n":
        stream.value(METADATA, 4)  # null
        return None
    file_format, entries, length = None, 0, 0
    for key in stream.pairs():
        text = stream.string(f"{METADATA} {quoted(key)}", limits.METADATA_BYTES)
        entries, length = entries + 1, length + len(key) + len(text)
        stream.check_limit(f"entries of {METADATA}", entries, limits.METADATA_ENTRIES)
        stream.check_limit(f"length of {METADATA}", length, limits.METADATA_BYTES)
        if key == "format":
            file_format = text[: limits.STORED_ENTRY_BYTES]
    return file_format


def _read_tensor(file: str, name: str, entry: Any, header_bytes: int, shard: int) -> Tensor:
    """The tensor that an entry of the header describes. Errors name the tensor and the file."""
    try:
        kind, shape, begin, size_bytes = _read_entry(entry)
    except UnknownDtypeError as error:
        raise UnknownDtypeError(f"tensor {quoted(name)}: {error.what}", file=file) from error
    except HeaderError as error:
        raise HeaderError(f"tensor {quoted(name)}: {error.what}", file=file) from error
    return Tensor(
        name=name,
        type=kind,
        shape=shape,
        size_bytes=size_bytes,
        offset=header_bytes + begin,
        shard=shard,
    )


def _read_entry(entry: Any) -> tuple[TensorType, tuple[int, ...], int, int]:
    """Type and shape of a tensor, the start of its data and its bytes. HeaderError if these contradict each other."""
    shape, offsets = _counts(entry, "shape"), _counts(entry, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise HeaderError("data_offsets must be a start and an end")
    kind = by_safetensors(_field(entry, "dtype", str))
    check_limit("dimensions", len(shape), limits.SAFETENSORS_DIMENSIONS)
    if math.prod(shape) > limits.ELEMENTS:
        raise HeaderError("the product of its shape overflows an int64")
    size_bytes, span = kind.row_bytes(math.prod(shape)), offsets[1] - offsets[0]
    if span != size_bytes:
        raise HeaderError(
            f"{kind.name} of shape {list(shape)} takes {size_bytes:,} bytes, "
            f"but its data_offsets span {span:,}"
        )
    return kind, shape, offsets[0], size_bytes


def _field(entry: Any, key: str, kind: type) -> Any:
    """The value under `key`; HeaderError if it is missing or of another type than `kind`."""
    value = entry.get(key) if type(entry) is dict else None
    if type(value) is not kind:
        raise HeaderError(f"its entry has no valid {key}")
    return value


def _counts(entry: Any, key: str) -> tuple[int, ...]:
    """The list of counts under `key`, such as a shape; HeaderError if one is not a valid count."""
    values: list[Any] = _field(entry, key, list)
    for value in values:
        if type(value) is not int or not 0 <= value <= limits.ELEMENTS:
            raise HeaderError(f"{key} contains {quoted(value)}, which is not a valid count")
    return tuple(values)


def _check_gaps(source: ByteSource, tensors: tuple[Tensor, ...], header_bytes: int) -> None:
    """Raises HeaderError unless every byte after the header belongs to exactly one tensor."""
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
