"""Remote files that are read in two steps: the connection's bytes of the first are there for the second."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from edgekit.sources.types import ByteSource, GrowingSource, ModelFile, ModelFiles


class _HeldSource:
    """A GrowingSource that stays open when a reader closes it."""

    def __init__(self, source: GrowingSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    @property
    def available_bytes(self) -> int:
        return self._source.available_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        return self._source.read(offset, length, ahead=ahead)

    def keep(self) -> None:
        self._source.keep()

    def close(self) -> None:
        """The source closes itself when the last who holds it lets go."""


def held(files: ModelFiles) -> ModelFiles:
    """The same files, each opened once: who reads on appends to what was read, and never starts from byte 0 again."""

    def held_file(file: ModelFile) -> ModelFile:
        @cache
        def open_once() -> ByteSource:
            source = file.open()
            return _HeldSource(source) if isinstance(source, GrowingSource) else source

        return replace(file, open=open_once)

    if not files.origin.is_remote:
        return files
    return replace(files, weights=tuple(map(held_file, files.weights)))
