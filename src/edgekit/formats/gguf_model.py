"""Turns a GGUF model of one or many files into its header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.files import listed_bytes, read_shards
from edgekit.formats.gguf import GgufFile, read_gguf
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources.types import ByteSource, Container, ModelFiles
from edgekit.terminal import quoted


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


# Keys that tools/gguf-split writes: the shard's number from 0, how many there are, tensors in all.
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_SAME_MODEL = (_COUNT, _TENSORS, "general.architecture", "general.name")


def join_shards(shards: Sequence[GgufFile]) -> GgufFile:
    """One file for all shards, in order. HeaderError when they do not belong together."""
    first = shards[0]
    check_count(first, len(shards))
    if len(shards) == 1:
        return first
    for index, shard in enumerate(shards):
        _check_shard(first, shard, index)
    tensors = [
        replace(tensor, shard=index)
        for index, shard in enumerate(shards)
        for tensor in shard.tensors or ()
    ]
    _check_tensors(first, [tensor.name for tensor in tensors])
    return replace(
        first,
        tensors=tuple(tensors),
        tensor_count=len(tensors),
        header_bytes=sum(shard.header_bytes or 0 for shard in shards),
    )


def stated_tensors(first: GgufFile) -> int | None:
    """Tensors in all shards, where that key was read."""
    stated = first.keys.get(_TENSORS)
    return stated if isinstance(stated, int) else None


def check_count(first: GgufFile, given: int) -> None:
    """HeaderError when `first` says that there are more shards, or fewer."""
    # The key stands last: a header that was not read to its end may not have shown it.
    count = first.keys.get(_COUNT, 1 if first.complete else given) or 1
    if count != given:
        number = first.keys.get(_NUMBER)
        which = f"shard {number + 1}" if isinstance(number, int) else "a file"
        raise HeaderError(
            f"this is {which} of {quoted(count)}, but {given} were found; put all shards "
            "in one folder and name the first",
            file=first.name,
        )


def _check_shard(first: GgufFile, shard: GgufFile, index: int) -> None:
    number = shard.keys.get(_NUMBER)
    if number != index:
        said = f"shard {number + 1}" if isinstance(number, int) else "not a shard"
        raise HeaderError(
            (
                f"shard {index + 1} was expected here, but the file is {said}; was one shard "
                "given twice?"
            ),
            file=shard.name,
        )
    for key in _SAME_MODEL:
        mine, theirs = first.keys.get(key), shard.keys.get(key)
        if theirs is not None and theirs != mine:
            raise HeaderError(
                (
                    f"belongs to another model: {key} is {quoted(theirs)}, but {quoted(mine)} "
                    "in the first shard"
                ),
                file=shard.name,
            )


def _check_tensors(first: GgufFile, names: list[str]) -> None:
    if len(names) > limits.TENSORS:
        raise HeaderLimitError(
            "tensors in all shards", value=len(names), limit=limits.TENSORS, file=first.name
        )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise HeaderError(f"tensor {quoted(name)} is in two shards", file=first.name)
        seen.add(name)
    stated = first.keys.get(_TENSORS, len(names))
    if stated != len(names):
        raise HeaderError(
            f"the shards have {len(names):,} tensors, but the first shard lists {quoted(stated)}",
            file=first.name,
        )
