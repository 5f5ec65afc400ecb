"""A path -> the bytes of a model's weights, read by offset into buffers that belong to the caller.

Nothing is mapped: a map of a file larger than the memory is at the kernel's mercy, a buffer is not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgekit.engines.native.types import Limits
from edgekit.errors import HeaderLimitError, SourceError
from edgekit.sources.local import look_up, open_regular, read_exactly, trouble

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Buffer = memoryview | NDArray[np.uint8]
else:
    Buffer = Any

_ADVISE = getattr(os, "posix_fadvise", None)  # neither macOS nor Windows has it
_WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)


class WeightFile:
    """A ByteSource that stays open, and knows whether the file is still the one it opened.

    Several threads may read at once. Closing is for the last of them.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        """SourceError where there is no regular file to read, HeaderLimitError where it is too large."""
        self._path = path
        self._lock = threading.Lock()  # for systems on which reading moves a common position
        self._closed = False
        self._descriptor, self._status = open_regular(path)
        try:
            _check_size(path, self._status.st_size, limits)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """As it was when it was opened."""
        return self._status.st_size

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - local
        """Exactly `length` bytes, fewer only where the file ends; for headers, which are read once."""
        if offset < 0 or length < 0:
            raise ValueError(f"read of {length} bytes at {offset}")
        wanted = min(length, max(self.size_bytes - offset, 0))
        with self._lock:
            return read_exactly(self._open(), self._path, offset, wanted)

    def read_into(self, offset: int, buffer: Buffer, *, what: str) -> None:
        """Fills the buffer with what lies at `offset`. SourceError names `what` when that fails."""
        try:
            filled = _READ(self, offset, buffer)
        except OSError as error:
            raise SourceError(
                f"{trouble(error, self._path)} ({what}, at byte {offset:,})"
            ) from error
        if filled < buffer.nbytes:
            self._read_rest(offset, buffer, filled, what)

    def _read_rest(self, offset: int, buffer: Any, filled: int, what: str) -> None:
        """A signal may cut a read short; the end of the file does."""
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
        """Tells the system what is wanted soon. Only a hint: it cannot fail."""
        if _ADVISE is not None and not self._closed:
            with contextlib.suppress(OSError):
                _ADVISE(self._descriptor, offset, length, _WILL_NEED)

    def check_unchanged(self) -> None:
        """SourceError when what was read before and what is read next may be of different models."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_size(path: Path, size_bytes: int, limits: Limits) -> None:
    if size_bytes > limits.file_bytes:
        raise HeaderLimitError(
            "size of the file in bytes (Limits.file_bytes can be raised)",
            value=size_bytes,
            limit=limits.file_bytes,
            file=str(path),
        )


def _read_by_offset(file: WeightFile, offset: int, buffer: Any) -> int:
    return os.preadv(file._open(), (buffer,), offset)  # noqa: SLF001 - its other half


def _read_by_seeking(file: WeightFile, offset: int, buffer: Any) -> int:
    """For Windows."""
    with file._lock, open(file._open(), "rb", buffering=0, closefd=False) as raw:  # noqa: SLF001 - its other half
        raw.seek(offset)
        return raw.readinto(buffer) or 0


_READ = _read_by_offset if hasattr(os, "preadv") else _read_by_seeking
