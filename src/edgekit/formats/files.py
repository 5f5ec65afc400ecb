"""Opens a model's files for a reader, and closes them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from edgekit.sources.types import ByteSource, GrowingSource, ModelFile, ModelFiles

_Read = TypeVar("_Read")


def read_file(file: ModelFile, read: Callable[[ByteSource], _Read]) -> _Read:
    """The result of `read`. A source that can cache its bytes does so if `read` succeeds."""
    with closing(file.open()) as source:
        result = read(source)
        if isinstance(source, GrowingSource):
            source.keep()
    return result


def read_shards(
    files: ModelFiles, shards: Sequence[int], read: Callable[[ByteSource, int], _Read]
) -> Iterator[_Read]:
    """The result of `read(source, shard)` for each of these weight files, in order; remote ones a few at a time."""

    def read_one(shard: int) -> _Read:
        return read_file(files.weights[shard], lambda source: read(source, shard))

    if not files.origin.is_remote or len(shards) < 2:
        yield from map(read_one, shards)
        return
    from edgekit.sources.http import AT_ONCE, side_by_side

    for start in range(0, len(shards), AT_ONCE):
        yield from side_by_side(read_one, shards[start : start + AT_ONCE])


def listed_bytes(files: ModelFiles) -> int | None:
    """The size of all weight files by the listing; None if it does not state every size."""
    sizes = [file.size_bytes for file in files.weights]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
