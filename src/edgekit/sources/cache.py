"""The disk cache of header bytes: one file per address.

An entry is a line of JSON (address, version, length, date, SHA-256), then the bytes. Only addresses without query, user
and password are cached, so secrets never are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from edgekit.errors import SourceError
from edgekit.sources.address import has_secrets
from edgekit.sources.folders import cache_root
from edgekit.sources.local import PART_SUFFIX, open_file, replacing
from edgekit.sources.types import MAX_HEADER_BYTES
from edgekit.units import KIB, LARGEST, MIB

MAX_CACHE_BYTES = 512 * MIB  # about a hundred models; the least recently used go first
MAX_MEMORY_BYTES = 2 * MIB  # of one prefix; a longer one goes to a temporary file
MAX_HEADING_BYTES = 8 * KIB  # the line of JSON: an address and two validators
MAX_VALIDATOR_CHARS = 256  # a SHA-256 in quotes has 66
FORMAT = 1

_SUFFIX = ".header"
# Writing a header takes seconds: the writer of an older temporary file has died.
_PART_AGE_S = 3600.0
_CHUNK_BYTES = 256 * KIB
_LAST_SECOND = 253_402_300_799  # the end of the year 9999, the last that every platform can format


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The state of a file on a server."""

    total_bytes: int
    etag: str | None = None
    last_modified: str | None = None

    @property
    def validator(self) -> str | None:
        """For If-Range: a strong ETag, else the date; None if the server sends neither."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    @property
    def condition(self) -> dict[str, str]:
        """Headers that make the server answer 304 if the file is still this one."""
        if self.etag is not None:
            return {"if-none-match": self.etag}
        return {"if-modified-since": self.last_modified} if self.last_modified is not None else {}

    def is_same(self, other: Version) -> bool:
        """Whether the size and the best validator that both have are equal.

        The servers of a cluster may send different validators, so one that only one side has is ignored.
        """
        if self.total_bytes != other.total_bytes:
            return False
        if self.etag is not None and other.etag is not None:
            return self.etag == other.etag
        dates = {self.last_modified, other.last_modified}
        return None in dates or len(dates) == 1


def usable_validator(text: object) -> str | None:
    """The text if it can be sent back in a header, else None."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_VALIDATOR_CHARS:
        return None
    return text if text.isascii() and text.isprintable() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRange:
    """The first `length` bytes of one version of a file."""

    version: Version
    linked_etag: str | None
    prefix: IO[bytes]
    length: int
    cached_at: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970


def new_prefix() -> IO[bytes]:
    """An empty file for the first bytes of another; the caller closes it."""
    return tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)


def cache_folder() -> Path | None:
    """Where EdgeKit stores headers, which may be deleted at any time; None without a home."""
    root = cache_root()
    return None if root is None else root / "headers"


def load(url: str) -> CachedRange | None:
    """The entry for this address, checked; a damaged one is removed."""
    path = _path_of(url)
    if path is None:
        return None
    try:
        with open_file(path) as file:
            entry = _read_entry(file, url)
    except (OSError, SourceError):
        return None
    with contextlib.suppress(OSError):
        if entry is None:
            path.unlink()
        else:
            os.utime(path)  # the most recently used entry is pruned last
    return entry


def holds(url: str) -> bool:
    """Whether there is an entry for this address; it may still turn out to be damaged."""
    path = _path_of(url)
    return path is not None and path.is_file()


def store(url: str, entry: CachedRange) -> None:
    """Store an entry. An unwritable folder is not an error."""
    path = _path_of(url)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_entry(path, url, entry)
        _prune(path.parent)


def _path_of(url: str) -> Path | None:
    """The file of the entry; None without a home, and for an address with secrets, which must not reach the disk."""
    folder = cache_folder()
    if folder is None or has_secrets(url):
        return None
    return folder / (hashlib.sha256(url.encode()).hexdigest() + _SUFFIX)


def _read_entry(file: IO[bytes], url: str) -> CachedRange | None:
    """The entry in the file; None if it is damaged or belongs to another address."""
    try:
        heading = json.loads(file.readline(MAX_HEADING_BYTES))
        validators = (heading["etag"], heading["last_modified"], heading["linked_etag"])
        length, total_bytes, cached_at = (
            heading["length"],
            heading["total_bytes"],
            heading["kept_at"],
        )
        is_valid = (
            (heading["format"], heading["url"]) == (FORMAT, url)
            and all(text == usable_validator(text) for text in validators)
            and (type(length) is type(total_bytes) is int)
            and 0 <= length <= total_bytes < LARGEST
            and length <= MAX_HEADER_BYTES
            and (type(cached_at) is int and 0 <= cached_at <= _LAST_SECOND)
        )
        sha256 = heading["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not is_valid:
        return None
    prefix, digest = new_prefix(), hashlib.sha256()
    try:
        while chunk := file.read(min(length - prefix.tell(), _CHUNK_BYTES)):
            digest.update(chunk)
            prefix.write(chunk)
    except OSError:
        prefix.close()
        raise
    if prefix.tell() != length or digest.hexdigest() != sha256:
        prefix.close()
        return None
    etag, last_modified, linked_etag = validators
    return CachedRange(
        version=Version(total_bytes=total_bytes, etag=etag, last_modified=last_modified),
        linked_etag=linked_etag,
        prefix=prefix,
        length=length,
        cached_at=cached_at,
    )


def _write_entry(path: Path, url: str, entry: CachedRange) -> None:
    digest = hashlib.sha256()
    entry.prefix.seek(0)
    while chunk := entry.prefix.read(_CHUNK_BYTES):
        digest.update(chunk)
    heading = {
        "format": FORMAT,
        "url": url,
        "etag": entry.version.etag,
        "last_modified": entry.version.last_modified,
        "linked_etag": entry.linked_etag,
        "total_bytes": entry.version.total_bytes,
        "length": entry.length,
        "kept_at": entry.cached_at,
        "sha256": digest.hexdigest(),
    }
    line = json.dumps(heading).encode() + b"\n"
    if len(line) > MAX_HEADING_BYTES:
        return
    with replacing(path) as file:
        file.write(line)
        entry.prefix.seek(0)
        shutil.copyfileobj(entry.prefix, file)


def _prune(folder: Path) -> None:
    """Delete the least recently used entries above the size limit, and leftovers of dead writers."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may prune too
            status = path.stat()
            if path.suffix == _SUFFIX:
                entries.append((status.st_mtime, status.st_size, path))
            elif path.suffix == PART_SUFFIX and time.time() - status.st_mtime > _PART_AGE_S:
                path.unlink()
    total_bytes = sum(size_bytes for _, size_bytes, _ in entries)
    for _, size_bytes, path in sorted(entries):
        if total_bytes <= MAX_CACHE_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total_bytes -= size_bytes
