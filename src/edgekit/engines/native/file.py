"""Reads the weights and the header of a GGUF file with little memory.

`WeightFile` reads bytes at an offset into the caller's buffers. The file is not memory-mapped, because the system would
decide which pages of a large map stay in memory. `scan_header` reads the header through a window of 32 KiB with the
parser of formats/. It stores a few keys, the offsets of the vocabulary's arrays, and the tensors that the caller
selects: less than 100 KiB for one tensor.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import getsizeof
from typing import TYPE_CHECKING, Self

from edgekit.errors import HeaderError, HeaderLimitError, SourceError, quoted
from edgekit.formats.cursor import Cursor
from edgekit.formats.gguf import KeyStore, alignment_of, read_directory, read_keys, read_start
from edgekit.formats.types import ArrayFact, ModelHeader, Tensor, Value
from edgekit.sources.local import look_up, open_regular, path_error, read_exactly
from edgekit.units import KIB, LARGEST, MB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Buffer = memoryview | NDArray[np.uint8]


ADVISE = getattr(os, "posix_fadvise", None)  # neither macOS nor Windows has it


def read_ahead(descriptor: int, offset: int, length: int) -> None:
    """Hints to the system what will be read soon. Never fails."""
    if ADVISE is not None:
        with contextlib.suppress(OSError):
            ADVISE(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Larger files, tensors and texts are refused. A caller can raise each limit."""

    file_bytes: int = 5_000 * MB  # a 7B model at four bits has 4.2 GB
    held_tensor_bytes: int = 100 * MB  # a tensor that stays in memory; others may be larger
    tokens: int = 2048  # in one text, with its special tokens
    text_bytes: int = 4 * MB  # in one text; 2,048 tokens are about 10 KB


ANY_SIZE = Limits(file_bytes=LARGEST)  # streamed weights may have any size


class Closeable(ABC):
    """An object that is closed at the end of its `with` statement."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class WeightFile(Closeable):
    """A ByteSource that stays open and notices if the file changes. Several threads may read at once."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Raises SourceError if `path` is not a readable regular file, HeaderLimitError if the file is too large."""
        self._path = path
        self.name = str(path)
        self._lock = threading.Lock()  # for systems where a read moves the file position
        self._closed = False
        self._descriptor, self._status = open_regular(path)
        self.size_bytes = self._status.st_size  # when it was opened
        if self.size_bytes > limits.file_bytes:
            self.close()
            raise HeaderLimitError(
                "size of the file in bytes (Limits.file_bytes can be raised)",
                value=self.size_bytes,
                limit=limits.file_bytes,
                file=str(path),
            )

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - local
        """Reads exactly `length` bytes; fewer only at the end of the file. Used for headers, which are read once."""
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        length = min(length, max(self.size_bytes - offset, 0))
        with self._lock:
            return read_exactly(self._open(), self._path, offset, length)

    def read_into(self, offset: int, buffer: Buffer, *, what: str) -> None:
        """Fills the buffer from `offset`. Raises a SourceError that names `what` if the file ends or cannot be read."""
        view = buffer if isinstance(buffer, memoryview) else buffer.data
        count = 0
        while count < len(view):  # a signal may interrupt a read
            try:
                length = _READ(self, offset + count, view[count:])
            except OSError as error:
                raise SourceError(
                    f"{path_error(error, self._path)} ({what}, at byte {offset + count:,})"
                ) from error
            if not length:
                raise SourceError(
                    f"{self.name} ends before byte {offset + len(view):,}, inside {what}; it "
                    f"had {self.size_bytes:,} bytes when it was opened, so it was truncated while "
                    "in use. Restore the file and open it again"
                )
            count += length

    def read_ahead(self, offset: int, length: int) -> None:
        """Hints to the system that this part of the file will be read soon."""
        if not self._closed:
            read_ahead(self._descriptor, offset, length)

    def check_unchanged(self) -> None:
        """Raises SourceError if the file has changed since it was opened."""
        now = os.fstat(self._open())
        if now.st_size < self.size_bytes:
            raise self._changed(f"truncated from {self.size_bytes:,} to {now.st_size:,} bytes")
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self._status.st_mtime_ns):
            raise self._changed("written to")
        if not os.path.samestat(look_up(self._path), self._status):
            raise self._changed("replaced by another file with the same name")

    def _changed(self, how: str) -> SourceError:
        return SourceError(
            f"{self.name} was {how} while in use: nothing computed from it can be trusted. Open it"
            " again when it is complete"
        )

    def _open(self) -> int:
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        return self._descriptor

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


def _read_by_offset(file: WeightFile, offset: int, buffer: memoryview) -> int:
    return os.preadv(file._open(), (buffer,), offset)  # noqa: SLF001 - of this module


def _read_by_seeking(file: WeightFile, offset: int, buffer: memoryview) -> int:
    """The same for Windows, which has no preadv."""
    with file._lock, open(file._open(), "rb", buffering=0, closefd=False) as raw:  # noqa: SLF001 - of this module
        raw.seek(offset)
        return raw.readinto(buffer) or 0


_READ = _read_by_offset if hasattr(os, "preadv") else _read_by_seeking


WINDOW_BYTES = 32 * KIB
# Limit for all stored keys and their names. Real files have 20 to 60 keys of 30 characters, about 12 KiB; four arrays
# with one number for each of 126 layers take another 20 KiB.
STORED_BYTES = 48 * KIB
STORED_STRING_BYTES = 2 * KIB  # names have 40; longer texts (templates, licences) are not needed
STORED_NUMBERS = 512  # in an array; the deepest model has 126 layers
STORED_TENSORS = 4_096  # 126 layers with 16 tensors are 2,016
FIRST_NAMES = 8  # tensors that an error message lists if the expected one is missing
_SLOT_BYTES = 136  # a slot of a dict, and a number
_GENERAL = frozenset({
    "general.architecture", "general.alignment", "general.basename", "general.file_type",
    "general.name", "general.quantization_version", "general.size_label", "general.type",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The parts of a header that the engine needs. Long arrays stay in the file, and only their offsets are here."""

    name: str
    keys: Mapping[str, Value]
    arrays: Mapping[str, ArrayFact]  # the vocabulary's, and others that are too long to store
    tensors: Mapping[str, Tensor]  # only the selected tensors
    tensor_count: int  # all tensors of the file
    first_names: tuple[str, ...]  # names of the first tensors, selected or not
    file_bytes: int

    @classmethod
    def of(cls, header: ModelHeader) -> FileHeader:
        tensors = {tensor.name: tensor for tensor in header.tensors or ()}
        return cls(
            name=header.name,
            keys=header.keys,
            arrays=header.arrays,
            tensors=tensors,
            tensor_count=len(tensors),
            first_names=tuple(tensors)[:FIRST_NAMES],
            file_bytes=header.file_bytes or 0,
        )


def scan_header(file: WeightFile, *, selects: Callable[[str], bool] = lambda _: True) -> FileHeader:
    """Reads the header once. `selects` decides by its name whether a tensor is stored.

    Raises HeaderError for a file that is damaged, truncated, big-endian or one of several shards.
    """
    cursor = Cursor(file, window_bytes=WINDOW_BYTES)
    start = read_start(cursor, file)
    if start.big_endian:
        raise cursor.error(
            "the file is big-endian, which the embedder does not read; convert it with"
            " gguf-py's gguf_convert_endian.py"
        )
    store = KeyStore(
        max_bytes=STORED_BYTES, max_string_bytes=STORED_STRING_BYTES, max_numbers=STORED_NUMBERS
    )

    def store_key(key: str) -> bool:
        """Whether to store a key: it belongs to the model, its vocabulary or its shards, and the limit is not exceeded.

        Until the architecture is known, any key may belong to the model; converters write the architecture first.
        """
        architecture = store.keys.get("general.architecture")
        if key.startswith("general."):
            is_needed = key in _GENERAL
        else:
            prefixes = (f"{architecture}.", "tokenizer.", "split.")
            is_needed = architecture is None or key.startswith(prefixes)
        if is_needed:
            store.stored_bytes += getsizeof(key) + _SLOT_BYTES
        return is_needed and store.stored_bytes <= STORED_BYTES

    store.wanted = store_key
    read_keys(cursor, start, store)
    if store.stored_bytes > store.max_bytes:
        raise HeaderLimitError(
            "keys of the model, in bytes",
            value=store.stored_bytes,
            limit=store.max_bytes,
            file=cursor.name,
        )
    shards = store.keys.get("split.count", 1)
    if shards not in (0, 1):
        raise HeaderError(
            f"is one of {quoted(shards)} shards, and the embedder reads single files; "
            "merge them: llama-gguf-split --merge FIRST-SHARD.gguf WHOLE.gguf",
            file=cursor.name,
        )
    first_names: list[str] = []
    selected_count = 0

    def select(name: str) -> bool:
        nonlocal selected_count
        if len(first_names) < FIRST_NAMES:
            first_names.append(name)
        if not selects(name):
            return False
        selected_count += 1
        cursor.check_limit("number of tensors to store", selected_count, STORED_TENSORS)
        return True

    tensors, _ = read_directory(
        cursor,
        start.tensor_count,
        alignment=alignment_of(cursor, store),
        file_bytes=file.size_bytes,
        wanted=select,
    )
    return FileHeader(
        name=file.name,
        keys=store.keys,
        arrays=store.arrays,
        tensors={tensor.name: tensor for tensor in tensors},
        tensor_count=start.tensor_count,
        first_names=tuple(first_names),
        file_bytes=file.size_bytes,
    )
