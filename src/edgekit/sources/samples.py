"""The name of a sample -> a header that the package ships, as if its whole file were there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from edgekit.errors import NotFoundError, SourceError
from edgekit.sources.naming import close_names
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The largest header that is shipped has 49 KB; one with a vocabulary would have 16 MB.
MAX_SAMPLE_BYTES = 20_000_000


class HeaderOnly:
    """A ByteSource that knows the size of a file and holds its first bytes.

    A read ends where these bytes end. One that starts after them is an error: weights are not read.
    """

    __slots__ = ("_data", "_name", "_size_bytes")

    def __init__(self, data: bytes, *, name: str, size_bytes: int) -> None:
        self._data = data
        self._name = name
        self._size_bytes = size_bytes

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        if length and len(self._data) <= offset < self._size_bytes:
            raise SourceError(f"{self._name} is only a header: byte {offset:,} is not included")
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


def sample_names() -> tuple[str, ...]:
    return tuple(_index())


def locate_sample(name: str) -> ModelFiles:
    """The sample of that name, in any case; NotFoundError with the names that there are."""
    index = _index()
    wanted = name.lower()
    if wanted not in index:
        near = close_names(wanted, index) or tuple(index)
        raise NotFoundError(f"no such sample: {name!r}", candidates=near)
    entry = index[wanted]
    file, size_bytes = str(entry["file"]), int(entry["size_bytes"])
    title = file.removesuffix(".head.gz")
    weights = ModelFile(
        name=title, open=partial(_open, file, title, size_bytes), size_bytes=size_bytes
    )
    return ModelFiles(
        reference=f"sample:{wanted}",
        label=title,
        origin=Origin.SAMPLE,
        container=Container.GGUF,
        weights=(weights,),
        notes=(str(entry["provenance"]),),
    )


def _open(file: str, title: str, size_bytes: int) -> HeaderOnly:
    import gzip  # only samples are packed

    with (_folder() / file).open("rb") as packed, gzip.GzipFile(fileobj=packed) as plain:
        data = plain.read(MAX_SAMPLE_BYTES + 1)
    if len(data) > MAX_SAMPLE_BYTES:
        raise SourceError(
            f"the sample {file} has more than {MAX_SAMPLE_BYTES:,} bytes: reinstall edgekit"
        )
    return HeaderOnly(data, name=title, size_bytes=size_bytes)


def _index() -> dict[str, dict[str, Any]]:
    import json  # only samples need it

    index: dict[str, dict[str, Any]] = json.loads((_folder() / "index.json").read_bytes())
    return index


def _folder() -> Traversable:
    from importlib.resources import files  # slow to import, and only samples need it

    return files("edgekit") / "samples"
