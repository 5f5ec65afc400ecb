"""The files behind a mapping -> what has happened to them since: deleted, replaced, written to, cut short."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgekit.errors import NotFoundError, SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    path: Path
    what: str  # "was cut from 4,198,400 to 0 bytes"
    fatal: bool = False  # the next page that is read ends the process that maps it


class MappedFiles:
    """Held open, so that what was mapped can be told from what has its name now. Close it in the end."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """NotFoundError, SourceError where one cannot be opened."""
        self._lock = threading.Lock()  # a number that was closed may be another file's by now
        self._held: list[tuple[Path, int, os.stat_result]] = []
        try:
            for path in paths:
                descriptor = _opened(path)
                self._held.append((path, descriptor, os.fstat(descriptor)))
        except BaseException:
            self.close()
            raise
        self.size_bytes = sum(before.st_size for _, _, before in self._held)

    def changes(self) -> tuple[FileChange, ...]:
        """Since they were opened, the worst of each; none once they are closed."""
        with self._lock:
            found = [_change(path, os.fstat(held), before) for path, held, before in self._held]
        return tuple(change for change in found if change is not None)

    def close(self) -> None:
        """Twice is as good as once."""
        with self._lock:
            while self._held:
                os.close(self._held.pop()[1])


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror or error}") from error


def _change(path: Path, now: os.stat_result, before: os.stat_result) -> FileChange | None:
    if now.st_size < before.st_size:
        cut = f"was truncated from {before.st_size:,} to {now.st_size:,} bytes"
        return FileChange(path=path, what=cut, fatal=True)
    if now.st_mtime_ns != before.st_mtime_ns:
        return FileChange(path=path, what="was written to")
    named = None
    with suppress(OSError):
        named = path.stat()
    if named is None:
        return FileChange(path=path, what="was deleted")
    if not os.path.samestat(named, now):
        return FileChange(path=path, what="was replaced by another file")
    return None
