"""Turns a file that is not open yet into what a reader makes of it; opens, keeps and closes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from edgekit.sources.types import ByteSource, GrowingSource, ModelFile, ModelFiles

_Read = TypeVar("_Read")


def read_file(file: ModelFile, read: Callable[[ByteSource], _Read]) -> _Read:
    """What `read` makes of the file. A source that can keep its bytes keeps them if all went well."""
    with closing(file.open()) as source:
        result = read(source)
        if isinstance(source, GrowingSource):
            source.keep()
    return result


def read_shards(
    files: ModelFiles, shards: Sequence[int], read: Callable[[ByteSource, int], _Read]
) -> Iterator[_Read]:
    """What `read` makes of each of these weight files, in order; remote ones a few at a time."""

    def read_one(shard: int) -> _Read:
        return read_file(files.weights[shard], lambda source: read(source, shard))

    if not files.origin.is_remote or len(shards) < 2:
        yield from map(read_one, shards)
        return
    from edgekit.sources.http import AT_ONCE, side_by_side

    for start in range(0, len(shards), AT_ONCE):
        yield from side_by_side(read_one, shards[start : start + AT_ONCE])


def listed_bytes(files: ModelFiles) -> int | None:
    """All weight files together, as the listing has them; None where it does not say."""
    sizes = [file.size_bytes for file in files.weights]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
