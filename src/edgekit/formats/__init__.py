"""Turns the files of a model into what they say: `read_header`. The weights are never read."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

from edgekit.errors import HeaderLimitError, PrivateAddressError, RemoteInspectError
from edgekit.formats import limits
from edgekit.formats.gguf import read_gguf_model
from edgekit.formats.types import ArrayFact, Depth, ModelHeader, Quantization, Tensor
from edgekit.sources import cached_in_need, locate
from edgekit.sources.types import ByteSource, Container, GrowingSource, ModelFile, ModelFiles, Reach

__all__ = ["ArrayFact", "Depth", "ModelHeader", "Quantization", "Tensor", "read_header"]


def read_header(files: ModelFiles, *, depth: Depth = Depth.TENSORS) -> ModelHeader:
    """What the files say.

    Depth.ARCHITECTURE reads as little as the geometry needs: of a remote GGUF what one request
    brought, of safetensors the config and the index's totals.
    """
    if len(files.weights) > limits.SHARDS:
        raise HeaderLimitError(
            "number of shards", value=len(files.weights), limit=limits.SHARDS, file=files.label
        )
    if files.container is Container.GGUF:
        return read_gguf_model(files, depth)
    from edgekit.formats.safetensors import read_safetensors_model

    return read_safetensors_model(files, depth)


def open_header(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> tuple[ModelFiles, ModelHeader]:
    """Raises EdgekitError. A model that the hub does not give is read from the hub's cache, with a note.

    Whatever the reason: no network, a time-out, a gated model, a repository that is gone. Only a server that may not
    be asked is final.
    """
    name = os.fspath(reference)
    try:
        files = locate(name, reach=reach or Reach())
        if depth is Depth.ARCHITECTURE:
            files = _held(files)
        return files, read_header(files, depth=depth)
    except PrivateAddressError:
        raise
    except RemoteInspectError as error:
        cached = cached_in_need(name, error, reach=reach)
        if cached is None:
            raise
        return cached, read_header(cached, depth=depth)


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


def _held(files: ModelFiles) -> ModelFiles:
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
