"""Turns a GGUF model of one or many files into its header."""

from __future__ import annotations

from dataclasses import replace

from edgekit.errors import HeaderError
from edgekit.formats.gguf import GgufFile, read_gguf
from edgekit.formats.opened import listed_bytes, read_shards
from edgekit.formats.split import check_count, join_shards, stated_tensors
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources.types import ByteSource, Container, ModelFiles


def read_gguf_model(files: ModelFiles, depth: Depth) -> ModelHeader:
    if not files.weights:
        raise HeaderError("there is no GGUF file to read", file=files.label)
    file, file_bytes = _read_files(files, depth)
    tensors = file.tensors
    return ModelHeader(
        name=files.label,
        container=Container.GGUF,
        version=file.version,
        big_endian=file.big_endian,
        keys=file.keys,
        arrays=file.arrays,
        long_strings=file.long_strings,
        tensors=tensors,
        tensor_count=file.tensor_count,
        tensor_bytes=None if tensors is None else sum(tensor.size_bytes for tensor in tensors),
        file_bytes=file_bytes,
        header_bytes=file.header_bytes,
        complete=file.complete,
    )


def _read_files(files: ModelFiles, depth: Depth) -> tuple[GgufFile, int | None]:
    """All shards as one, and their bytes. For the architecture of a remote model the first will do."""

    def read(source: ByteSource, _: int) -> tuple[GgufFile, int]:
        return read_gguf(source, depth), source.size_bytes

    others = range(1, len(files.weights))
    ((first, first_bytes),) = read_shards(files, [0], read)
    if not others:
        return join_shards([first]), first_bytes
    if depth is Depth.ARCHITECTURE and files.origin.is_remote:
        check_count(first, len(files.weights))
        alone = replace(first, tensors=None, header_bytes=None, tensor_count=stated_tensors(first))
        return alone, listed_bytes(files)
    rest = list(read_shards(files, others, read))
    joined = join_shards([first, *(shard for shard, _ in rest)])
    return joined, first_bytes + sum(size for _, size in rest)
