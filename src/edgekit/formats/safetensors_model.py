"""Turns a safetensors or MLX model (config, index, shards) into its header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.config import read_config
from edgekit.formats.index import Totals, read_totals, walk_index
from edgekit.formats.opened import listed_bytes, read_file, read_shards
from edgekit.formats.quantization import read_quantization
from edgekit.formats.quoting import quoted
from edgekit.formats.safetensors import SafetensorsFile, read_safetensors
from edgekit.formats.types import Depth, ModelHeader, Quantization
from edgekit.sources.naming import base_of
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles

_WHOLE = "model.safetensors"


def read_safetensors_model(files: ModelFiles, depth: Depth) -> ModelHeader:
    """Depth.ARCHITECTURE, or no weights at all: only the config and what the index states."""
    config = read_file(files.config, read_config) if files.config else {}
    if depth is Depth.TENSORS and files.container is Container.SAFETENSORS:
        return _read_shards(files, config)
    totals = read_file(files.index, read_totals) if files.index else Totals()
    quantization = _read_quantization(files, config)
    return ModelHeader(
        name=files.label,
        container=files.container,
        mlx=quantization is not None and quantization.mlx,
        config=config,
        quantization=quantization,
        tensor_bytes=totals.tensor_bytes,
        parameters=totals.parameters,
        file_bytes=listed_bytes(files),
    )


def _read_quantization(files: ModelFiles, config: Mapping[str, Any]) -> Quantization | None:
    """From the config; the file beside it is opened only if that says nothing."""
    found = read_quantization(config)
    if found is None and files.quantization:
        found = read_quantization({}, read_file(files.quantization, read_config))
    return found


def _read_shards(files: ModelFiles, config: Mapping[str, Any]) -> ModelHeader:
    shards = _read_all(files)
    totals = Totals()
    if files.index and _is_indexed(files, files.index):
        totals, listed = read_file(files.index, lambda source: _check_index(source, files, shards))
        shards = {number: shards[number] for number in sorted(listed)}
    else:
        _check_unique(shards)
    quantization = _read_quantization(files, config)
    tensors = tuple(tensor for shard in shards.values() for tensor in shard.tensors)
    return ModelHeader(
        name=files.label,
        container=Container.SAFETENSORS,
        mlx=(quantization is not None and quantization.mlx)
        or any(shard.format == "mlx" for shard in shards.values()),
        config=config,
        quantization=quantization,
        tensors=tensors,
        tensor_count=len(tensors),
        tensor_bytes=sum(tensor.size_bytes for tensor in tensors),
        parameters=totals.parameters,
        file_bytes=sum(shard.file_bytes for shard in shards.values()),
        header_bytes=sum(shard.header_bytes for shard in shards.values()),
    )


def _read_all(files: ModelFiles) -> dict[int, SafetensorsFile]:
    if not files.weights:
        raise HeaderError("there is no safetensors file to read", file=files.label)

    def read(source: ByteSource, shard: int) -> SafetensorsFile:
        return read_safetensors(source, shard=shard)

    shards: dict[int, SafetensorsFile] = {}
    tensor_count = 0
    for number, shard in enumerate(read_shards(files, range(len(files.weights)), read)):
        shards[number] = shard
        tensor_count += len(shard.tensors)
        if tensor_count > limits.TENSORS:
            raise HeaderLimitError(
                "tensors in all shards", value=tensor_count, limit=limits.TENSORS, file=files.label
            )
    return shards


def _is_indexed(files: ModelFiles, index: ModelFile) -> bool:
    """False for a whole model.safetensors beside the index of a copy of it in shards."""
    names = [base_of(file.name) for file in files.weights]
    if names != [_WHOLE]:
        return True
    listed: set[str] = set()
    read_file(index, lambda source: walk_index(source, lambda _, file: listed.add(base_of(file))))
    return _WHOLE in listed


def _check_index(
    source: ByteSource, files: ModelFiles, shards: Mapping[int, SafetensorsFile]
) -> tuple[Totals, set[int]]:
    """The totals, and the shards that the index lists: each must hold what the index says.

    A file that the index does not list is not part of the model (a copy in another layout).
    """
    numbers = {base_of(file.name): number for number, file in enumerate(files.weights)}
    holdings = {
        number: {tensor.name for tensor in shard.tensors} for number, shard in shards.items()
    }
    listed: set[int] = set()

    def check(name: str, file: str) -> None:
        number = numbers.get(base_of(file))
        if number is None:
            what = f"the index lists tensor {quoted(name)} in {quoted(file)}, which is missing"
            raise HeaderError(what, file=source.name)
        if name not in holdings[number]:
            raise HeaderError(f"tensor {quoted(name)} is not in {quoted(file)}", file=source.name)
        listed.add(number)

    totals = walk_index(source, check)
    _check_unique({number: shards[number] for number in listed})
    return totals, listed


def _check_unique(shards: Mapping[int, SafetensorsFile]) -> None:
    seen: dict[str, str] = {}
    for shard in shards.values():
        for tensor in shard.tensors:
            if tensor.name in seen:
                what = f"tensor {quoted(tensor.name)} is also in {seen[tensor.name]}"
                raise HeaderError(what, file=shard.name)
            seen[tensor.name] = shard.name
