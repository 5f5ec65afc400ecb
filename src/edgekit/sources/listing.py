"""The listing of a repository -> kept beside the header bytes, for when the hub cannot be asked."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from edgekit.sources import cache
from edgekit.sources.address import has_secrets
from edgekit.sources.ranges import Version
from edgekit.sources.reference import MAX_PATH_CHARS
from edgekit.sources.types import MAX_FILE_BYTES
from edgekit.units import MIB

MAX_LISTING_BYTES = 4 * MIB  # 20,000 files with names of 150 letters; a longer one is not kept

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|(?:^|/)\.{0,2}(?:/|$)")

FileEntry = tuple[str, int | None]  # path in the repository, size in bytes where it is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    entries: tuple[FileEntry, ...]
    kept_at: int  # seconds since 1970: when the hub said so


def file_entry(item: Any) -> FileEntry | None:
    """None for a folder, and for a path that no file in a repository can have."""
    if not isinstance(item, dict) or item.get("type") != "file":
        return None
    path, lfs = item.get("path"), item.get("lfs")
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or _ODD.search(path):
        return None
    # For a large file `size` may be that of its pointer.
    size_bytes = lfs.get("size") if isinstance(lfs, dict) else item.get("size")
    is_size = type(size_bytes) is int and 0 <= size_bytes <= MAX_FILE_BYTES
    return path, size_bytes if is_size else None


def keep_listing(url: str, entries: Iterable[FileEntry]) -> None:
    """In the hub's own form, so that it is checked like one when it is read again."""
    if has_secrets(url):
        return
    items = [{"type": "file", "path": path, "size": size_bytes} for path, size_bytes in entries]
    body = json.dumps(items).encode()
    if len(body) <= MAX_LISTING_BYTES:
        version = Version(total_bytes=len(body))
        prefix = io.BytesIO(body)
        cache.store(
            url,
            cache.CachedRange(version=version, linked_etag=None, prefix=prefix, length=len(body)),
        )


def kept_listing(url: str) -> Listing | None:
    entry = None if has_secrets(url) else cache.load(url)
    if entry is None:
        return None
    with entry.prefix as prefix:
        prefix.seek(0)
        body = prefix.read(MAX_LISTING_BYTES)
    try:
        items = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = map(file_entry, items if isinstance(items, list) else ())
    entries = tuple(entry for entry in found if entry is not None)
    return Listing(entries=entries, kept_at=entry.kept_at) if entries else None
