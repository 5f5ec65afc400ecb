"""A GGUF file's weights and header, in little memory.

`WeightFile` reads bytes by offset into the caller's buffers. Nothing is mapped: the kernel decides about the pages of a
map larger than the memory. `walk` reads the header through one window of 32 KiB with the parser of formats/. It keeps a
few keys, the places of the vocabulary's arrays, and the tensors that are asked for: less than 100 KiB for one tensor.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from edgekit.engines.native.types import Closeable, Limits
from edgekit.errors import HeaderError, HeaderLimitError, SourceError
from edgekit.formats.cursor import Cursor
from edgekit.formats.gguf import KeyStore, alignment_of, read_directory, read_keys, read_start
from edgekit.formats.types import ArrayFact, Tensor, Value
from edgekit.sources.local import look_up, open_regular, read_exactly, trouble
from edgekit.terminal import quoted
from edgekit.units import KIB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Buffer = memoryview | NDArray[np.uint8]


_ADVISE = getattr(os, "posix_fadvise", None)  # neither macOS nor Windows has it
_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)


class WeightFile(Closeable):
    """A ByteSource that stays open, and notices if the file changes. Several threads may read at once."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Raises SourceError if it is not a readable regular file, HeaderLimitError if it is too large."""
        self._path = path
        self._lock = threading.Lock()  # for systems where reading moves a shared position
        self._closed = False
        self._descriptor, self._status = open_regular(path)
        if self._status.st_size > limits.file_bytes:
            self.close()
            raise HeaderLimitError(
                "size of the file in bytes (Limits.file_bytes can be raised)",
                value=self._status.st_size,
                limit=limits.file_bytes,
                file=str(path),
            )

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self._status.st_size

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - local
        """Exactly `length` bytes, fewer only at the end of the file; for headers, which are read once."""
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        wanted = min(length, max(self.size_bytes - offset, 0))
        with self._lock:
            return read_exactly(self._open(), self._path, offset, wanted)

    def read_into(self, offset: int, buffer: Buffer, *, what: str) -> None:
        """Fills the buffer from `offset`. The SourceError names `what`."""
        try:
            filled = _READ(self, offset, buffer)
        except OSError as error:
            raise SourceError(
                f"{trouble(error, self._path)} ({what}, at byte {offset:,})"
            ) from error
        if filled < buffer.nbytes:
            self._read_rest(offset, buffer, filled, what)

    def _read_rest(self, offset: int, buffer: Any, filled: int, what: str) -> None:
        """A signal may interrupt a read; the end of the file ends it."""
        if filled:
            rest = memoryview(buffer).cast("B")[filled:]
            self.read_into(offset + filled, rest, what=what)
            return
        raise SourceError(
            f"{self.name} ends before byte {offset + buffer.nbytes:,}, inside {what}; it "
            f"had {self.size_bytes:,} bytes when it was opened, so it was truncated while "
            "in use. Restore the file and open it again"
        )

    def read_ahead(self, offset: int, length: int) -> None:
        """Tells the system what will be read soon. Only a hint: it cannot fail."""
        if _ADVISE is not None and not self._closed:
            with contextlib.suppress(OSError):
                _ADVISE(self._descriptor, offset, length, _WILL_NEED)

    def check_unchanged(self) -> None:
        """Raises SourceError if the file has changed: what was read before may be of another model."""
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


def _read_by_offset(file: WeightFile, offset: int, buffer: Any) -> int:
    return os.preadv(file._open(), (buffer,), offset)  # noqa: SLF001 - its other half


def _read_by_seeking(file: WeightFile, offset: int, buffer: Any) -> int:
    """For Windows."""
    with file._lock, open(file._open(), "rb", buffering=0, closefd=False) as raw:  # noqa: SLF001 - its other half
        raw.seek(offset)
        return raw.readinto(buffer) or 0


_READ = _read_by_offset if hasattr(os, "preadv") else _read_by_seeking


WINDOW_BYTES = 32 * KIB
# Everything that is kept of the keys, with their names. Real files have 20 to 60 keys of 30 letters, about
# 12 KiB; four arrays of one number for each of 126 layers are another 20 KiB.
KEPT_BYTES = 48 * KIB
KEPT_STRING_BYTES = 2 * KIB  # a name has 40; longer ones (templates, licences) are not needed
KEPT_NUMBERS = 512  # one for each layer: 126 in the deepest model
KEPT_TENSORS = 4_096  # 126 layers of 16 are 2,016
NAMES_SEEN = 8  # of tensors, for a message that says what the file has instead
_SLOT_BYTES = 136  # a slot of a dict, and a number
_GENERAL = frozenset(
    f"general.{name}"
    for name in (
        "architecture",
        "alignment",
        "basename",
        "file_type",
        "name",
        "quantization_version",
        "size_label",
        "type",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """The parts of a header that are needed. Arrays are places in the file, read on demand."""

    name: str
    keys: Mapping[str, Value]
    arrays: Mapping[str, ArrayFact]  # of the vocabulary, and others that are too long to keep
    tensors: Mapping[str, Tensor]  # those that `wanted` selects
    tensor_count: int  # all of them
    names_seen: tuple[str, ...]  # the first tensors, wanted or not
    file_bytes: int


def walk(file: WeightFile, *, wanted: Callable[[str], bool] | None = None) -> Walked:
    """Reads the whole header once. `wanted` selects the tensors to keep: all of them, if None.

    Raises HeaderError for a file that is broken, truncated, big-endian or one of several shards.
    """
    cursor = Cursor(file, window_bytes=WINDOW_BYTES)
    start = read_start(cursor, file)
    if start.big_endian:
        raise cursor.error(
            "the file is big-endian, which the embedder does not read; convert it with"
            " gguf-py's gguf_convert_endian.py"
        )
    store = _key_store()
    read_keys(cursor, start, store)
    _check_room(cursor, store)
    _check_whole(cursor, store)
    picker = _Picker(cursor, wanted)
    tensors, _ = read_directory(
        cursor,
        start.tensor_count,
        alignment=alignment_of(cursor, store),
        file_bytes=file.size_bytes,
        wanted=picker,
    )
    return Walked(
        name=file.name,
        keys=store.keys,
        arrays=store.arrays,
        tensors={tensor.name: tensor for tensor in tensors},
        tensor_count=start.tensor_count,
        names_seen=tuple(picker.seen),
        file_bytes=file.size_bytes,
    )


def _key_store() -> KeyStore:
    store = KeyStore(
        max_bytes=KEPT_BYTES, max_string_bytes=KEPT_STRING_BYTES, max_numbers=KEPT_NUMBERS
    )

    def wanted(key: str) -> bool:
        """Also counts. Beyond the limit nothing is kept, and the walk ends with an error."""
        if not _is_ours(key, store.keys.get("general.architecture")):
            return False
        store.stored_bytes += getsizeof(key) + _SLOT_BYTES
        return store.stored_bytes <= KEPT_BYTES

    store.wanted = wanted
    return store


def _is_ours(key: str, architecture: Value | None) -> bool:
    """Keys of the model, its vocabulary and its shards. Any key may be the model's own before it is
    known what it is called; converters write that first.
    """
    if key.startswith("general."):
        return key in _GENERAL
    ours = architecture is None or key.startswith(f"{architecture}.")
    return ours or key.startswith(("tokenizer.", "split."))


def _check_room(cursor: Cursor, store: KeyStore) -> None:
    if store.stored_bytes > store.max_bytes:
        raise HeaderLimitError(
            "keys of the model, in bytes",
            value=store.stored_bytes,
            limit=store.max_bytes,
            file=cursor.name,
        )


def _check_whole(cursor: Cursor, store: KeyStore) -> None:
    count = store.keys.get("split.count", 1)
    if count not in (0, 1):
        raise HeaderError(
            f"is one of {quoted(count)} shards, and the embedder reads single files; "
            "merge them: llama-gguf-split --merge FIRST-SHARD.gguf WHOLE.gguf",
            file=cursor.name,
        )


class _Picker:
    """Selects the tensors to keep, and stores the first names."""

    def __init__(self, cursor: Cursor, wanted: Callable[[str], bool] | None) -> None:
        self.seen: list[str] = []
        self._cursor = cursor
        self._wanted = wanted
        self._kept = 0

    def __call__(self, name: str) -> bool:
        if len(self.seen) < NAMES_SEEN:
            self.seen.append(name)
        if self._wanted is not None and not self._wanted(name):
            return False
        self._kept += 1
        self._cursor.check_limit("number of tensors to store", self._kept, KEPT_TENSORS)
        return True
