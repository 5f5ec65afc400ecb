"""Header bytes that were fetched once -> a file each on disk, for the next time.

An entry is one line of JSON (what it is, of which version, how long, since when, its SHA-256), then the
bytes.
Only addresses without query, user and password come here, so no secret does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgekit.errors import SourceError
from edgekit.sources.local import open_file
from edgekit.sources.types import MAX_HEADER_BYTES
from edgekit.units import KIB, LARGEST, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CACHE_BYTES = 512 * MIB  # about a hundred models; the ones not used for longest go first
MAX_MEMORY_BYTES = 2 * MIB  # of one prefix; a longer one lies in a temporary file
MAX_TITLE_BYTES = 8 * KIB  # the line of JSON: an address and two validators
FORMAT = 1

_SUFFIX = ".header"
_PART_SUFFIX = ".part"
_PART_AGE_S = 3600.0  # no header takes an hour to write: its writer is gone
_CHUNK_BYTES = 256 * KIB
_LAST_SECOND = 253_402_300_799  # of the year 9999: every calendar can show it


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRange:
    """The first `length` bytes of one version of a file."""

    version: Version
    linked_etag: str | None
    prefix: IO[bytes]
    length: int
    kept_at: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970


def new_prefix() -> IO[bytes]:
    """For bytes from the start of a file; whoever asked closes it."""
    return tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)


def cache_folder() -> Path | None:
    """EDGEKIT_CACHE, or where this platform keeps what may be deleted; None without a home."""
    if named := os.environ.get("EDGEKIT_CACHE"):
        return Path(named) / "headers"
    try:
        return _platform_folder() / "edgekit" / "headers"
    except RuntimeError:  # Path.home() knows no home
        return None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def load(url: str) -> CachedRange | None:
    """What is kept for this address, checked; a damaged entry is removed."""
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
            os.utime(path)  # used just now: among the last to go
    return entry


def holds(url: str) -> bool:
    """Whether something is kept for this address; it may still turn out to be damaged."""
    path = _path_of(url)
    return path is not None and path.is_file()


def store(url: str, entry: CachedRange) -> bool:
    """Whether it was kept. A folder that cannot be written to is no error, only no cache."""
    path = _path_of(url)
    if path is None:
        return False
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_entry(path, url, entry)
        _prune(path.parent)
    except OSError:
        return False
    return True


def _path_of(url: str) -> Path | None:
    folder = cache_folder()
    return folder / (hashlib.sha256(url.encode()).hexdigest() + _SUFFIX) if folder else None


def _read_entry(file: IO[bytes], url: str) -> CachedRange | None:
    try:
        title = json.loads(file.readline(MAX_TITLE_BYTES))
        length, sha256 = _checked_title(title, url)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    prefix = new_prefix()
    try:
        digest = _copy(file, prefix, length)
    except OSError:
        prefix.close()
        raise
    if prefix.tell() != length or digest != sha256:
        prefix.close()
        return None
    version = Version(
        total_bytes=title["total_bytes"],
        etag=title["etag"],
        last_modified=title["last_modified"],
    )
    return CachedRange(
        version=version,
        linked_etag=title["linked_etag"],
        prefix=prefix,
        length=length,
        kept_at=title["kept_at"],
    )


def _copy(source: IO[bytes], target: IO[bytes], length: int) -> str:
    """The SHA-256 of what was copied."""
    digest = hashlib.sha256()
    for chunk in _chunks(source, length):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _checked_title(title: Any, url: str) -> tuple[int, str]:
    """Length and SHA-256. ValueError, TypeError or KeyError for a title that is not of this address and format."""
    texts = (title["etag"], title["last_modified"], title["linked_etag"])
    length, total_bytes, kept_at = title["length"], title["total_bytes"], title["kept_at"]
    if (
        (title["format"], title["url"]) != (FORMAT, url)
        or not all(text is None or _is_validator(text) for text in texts)
        or not (type(length) is type(total_bytes) is int and 0 <= length <= total_bytes < LARGEST)
        or length > MAX_HEADER_BYTES
        or not (type(kept_at) is int and 0 <= kept_at <= _LAST_SECOND)
    ):
        raise ValueError(title)
    return length, title["sha256"]


def _is_validator(value: object) -> bool:
    return isinstance(value, str) and usable_validator(value) is not None


def _write_entry(path: Path, url: str, entry: CachedRange) -> None:
    """Whole or not at all, also with another process at it: a file of its own, then a rename."""
    digest = hashlib.sha256()
    for chunk in _prefix_chunks(entry):
        digest.update(chunk)
    title = {
        "format": FORMAT,
        "url": url,
        "etag": entry.version.etag,
        "last_modified": entry.version.last_modified,
        "linked_etag": entry.linked_etag,
        "total_bytes": entry.version.total_bytes,
        "length": entry.length,
        "kept_at": entry.kept_at,
        "sha256": digest.hexdigest(),
    }
    line = json.dumps(title).encode() + b"\n"
    if len(line) > MAX_TITLE_BYTES:
        return
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=_PART_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(line)
            file.writelines(_prefix_chunks(entry))
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _prefix_chunks(entry: CachedRange) -> Iterator[bytes]:
    entry.prefix.seek(0)
    return _chunks(entry.prefix, entry.length)


def _chunks(file: IO[bytes], length: int) -> Iterator[bytes]:
    left = length
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


def _prune(folder: Path) -> None:
    """Back under the size limit, oldest use first; what dead writers left goes too."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process prunes as well
            status = path.stat()
            if path.suffix == _SUFFIX:
                entries.append((status.st_mtime, status.st_size, path))
            elif path.suffix == _PART_SUFFIX and time.time() - status.st_mtime > _PART_AGE_S:
                path.unlink()
    total_bytes = sum(size_bytes for _, size_bytes, _ in entries)
    for _, size_bytes, path in sorted(entries):
        if total_bytes <= MAX_CACHE_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total_bytes -= size_bytes


MAX_VALIDATOR_CHARS = 256  # a SHA-256 in quotes has 66


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Which state of a file the bytes are of."""

    total_bytes: int
    etag: str | None = None
    last_modified: str | None = None

    @property
    def validator(self) -> str | None:
        """For If-Range: a strong ETag, else the date; None where the server gives neither."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    @property
    def condition(self) -> dict[str, str]:
        """Headers that make the server answer 304 while the file is still this one."""
        if self.etag is not None:
            return {"if-none-match": self.etag}
        return {"if-modified-since": self.last_modified} if self.last_modified is not None else {}

    def is_same(self, other: Version) -> bool:
        """What both state must agree: one server of several may state less."""
        pairs = ((self.etag, other.etag), (self.last_modified, other.last_modified))
        stated = [
            mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None
        ]
        return self.total_bytes == other.total_bytes and (stated[0] if stated else True)


def usable_validator(text: str | None) -> str | None:
    """None for one that could not be sent back in a header."""
    is_sane = text is not None and len(text) <= MAX_VALIDATOR_CHARS
    return text if is_sane and text and text.isascii() and text.isprintable() else None
