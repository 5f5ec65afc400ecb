"""What is done -> a journal beside the output, one line a mark, and back after a kill.

The first line says whose job it is; each further one a Mark. A line counts when it is whole: a mark is written only
after all that it vouches for is on the disk. The lock on the file is the system's own, and dies with its process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from edgekit.embed.bulk.types import Mark
from edgekit.errors import OutputError, UsageError
from edgekit.source.places import try_lock

VERSION = 1
LINE_BYTES = 64 * 1024  # whose job it is has about 1 KB, a mark 200 bytes

_NAMES = {field.name for field in fields(Mark)}


class Journal:
    """Open and locked, until `close` or `remove`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_locked(path)
        self._bytes = 0

    def read(self) -> tuple[dict[str, Any], Mark] | None:
        """Whose job, and its last whole mark; None where there is none. UsageError where it is no journal."""
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = file.readline(LINE_BYTES)
            begin = file.seek(max(size_bytes - LINE_BYTES, len(first)))
            whole, newline, _ = file.read().rpartition(
                b"\n"
            )  # what follows was cut off by the kill
        if not first:
            return None
        self._bytes = begin + len(whole) + len(newline)
        try:
            told = _job(first)
            mark = _mark(whole.rpartition(b"\n")[2]) if whole else Mark()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(
                f"{self._path} is no journal that this version understands: --overwrite starts over"
            ) from error
        return told, mark

    def begin(self, job: Mapping[str, Any]) -> None:
        """A new job; what was there is forgotten."""
        os.ftruncate(self._descriptor, 0)
        self._bytes = 0
        self._append({"journal": VERSION, **job})
        sync_folder(self._path.parent)

    def add(self, mark: Mark) -> None:
        """Everything up to the mark is on the disk already: the caller has seen to that."""
        known = asdict(mark)
        self._append({name: value for name, value in known.items() if value not in (None, False)})

    def remove(self) -> None:
        if sys.platform == "win32":  # where an open file cannot be removed
            self.close()
        self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        os.lseek(self._descriptor, self._bytes, os.SEEK_SET)
        os.ftruncate(self._descriptor, self._bytes)
        write_all(self._descriptor, data)
        os.fsync(self._descriptor)
        self._bytes += len(data)


def read_job(path: Path) -> dict[str, Any] | None:
    """Whose unfinished job a journal is of, without a lock; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            return _job(file.readline(LINE_BYTES))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _job(line: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(line)
    if told["journal"] != VERSION:
        raise ValueError
    return told


def _mark(line: bytes) -> Mark:
    told = json.loads(line)
    if not isinstance(told, dict) or not told.keys() <= _NAMES:
        raise ValueError
    for name, value in told.items():
        wanted = {"digest": str, "done": bool}.get(name, int)
        if type(value) is not wanted or (isinstance(value, int) and value < 0):
            raise ValueError
    return Mark(**told)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """A new name is safe only when its folder is. Not every system can be asked for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_locked(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        if not try_lock(descriptor):
            os.close(descriptor)
            raise UsageError(
                f"another job is writing to {path.with_suffix('')}: wait for it, or name another output"
            )
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its owner has just finished and removed it
