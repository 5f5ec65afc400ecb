"""What is done -> a journal beside the output, one line a mark, and back after a kill.

The first line says whose job it is; each further one is a Mark. Every line begins with a checksum of itself, and counts
only if that is right; a mark is written only after everything it covers is on the disk. The lock on the file is the
system's own, and ends with its process.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgekit.embed.bulk.types import ResumeMark
from edgekit.errors import OutputError, SourceError, UsageError
from edgekit.sources.local import open_file, try_lock

VERSION = 2
LINE_BYTES = 64 * 1024  # whose job it is has about 1 KB, a mark 200 bytes
_CHECK = b'{"check":"'  # how every line begins; then come so many hexadecimal digits
_CHECK_DIGITS = 16


class Journal:
    """Open and locked, until `close` or `remove`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_locked(path)
        self._bytes = 0

    def read(self) -> tuple[dict[str, Any], ResumeMark] | None:
        """Whose job, and its last sound mark; None where there is none. UsageError where it is not a journal.

        A mark that is cut off or damaged is passed over: the one before it covers less work, and all of it is there.
        """
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = file.readline(LINE_BYTES)
            begin = file.seek(max(size_bytes - LINE_BYTES, len(first)))
            lines = file.read().splitlines(keepends=True)
        if not first:
            return None
        try:
            told = _job(first)
            self._bytes, mark = _last_sound(lines, begin)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(
                f"{self._path} is damaged, or from another version of EdgeKit: --overwrite starts over"
            ) from error
        return told, mark

    def begin(self, job: Mapping[str, Any]) -> None:
        """A new job; what was there is forgotten."""
        os.ftruncate(self._descriptor, 0)
        self._bytes = 0
        self._append({"journal": VERSION, **job})
        sync_folder(self._path.parent)

    def add(self, mark: ResumeMark) -> None:
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
        data = _checked(json.dumps(line, separators=(",", ":")).encode())
        os.lseek(self._descriptor, self._bytes, os.SEEK_SET)
        os.ftruncate(self._descriptor, self._bytes)
        write_all(self._descriptor, data)
        os.fsync(self._descriptor)
        self._bytes += len(data)


def read_job(path: Path) -> dict[str, Any] | None:
    """Whose unfinished job a journal is of, without a lock; None where there is none that can be read."""
    try:
        with open_file(path) as file:
            return _job(file.readline(LINE_BYTES))
    except (OSError, SourceError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _checked(record: bytes) -> bytes:
    """A line of the journal: a JSON object, with its checksum as the first key."""
    import hashlib  # only for a job that has a journal: 3 MiB with OpenSSL

    check = hashlib.blake2b(record, digest_size=_CHECK_DIGITS // 2).hexdigest().encode()
    return _CHECK + check + (b'",' if record != b"{}" else b'"') + record[1:] + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is cut off or damaged."""
    record = b"{" + line[len(_CHECK) + _CHECK_DIGITS + 1 :].removeprefix(b",").rstrip(b"\n")
    if _checked(record) != line:
        return None
    told: dict[str, Any] = json.loads(record)
    return told


def _job(line: bytes) -> dict[str, Any]:
    told = _record(line)
    if told is None or told["journal"] != VERSION:
        raise ValueError("not a journal of this version")
    return told


def _last_sound(lines: Sequence[bytes], begin: int) -> tuple[int, ResumeMark]:
    """The last mark whose checksum is right, and where its line ends. ValueError where there are marks, but none is."""
    end = begin + sum(map(len, lines))
    for line in reversed(lines):
        if (told := _record(line)) is not None:
            return end, ResumeMark(**told)
        end -= len(line)
    if any(line.endswith(b"\n") for line in lines):
        raise ValueError("no mark is sound")
    return begin, ResumeMark()


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
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OutputError(f"{path} is not a regular file: move it away")
        if not try_lock(descriptor):
            os.close(descriptor)
            raise UsageError(
                f"another job is writing to {path.with_suffix('')}: wait for it, or name another output"
            )
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # its owner has just finished and removed it
