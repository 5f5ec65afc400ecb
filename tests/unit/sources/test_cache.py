"""Entries of the header cache that a disk, or somebody, has damaged."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import pytest

from edgekit.sources import cache
from edgekit.sources.cache import Version

URL = "https://huggingface.co/o/m/resolve/main/m.gguf"
PREFIX = b"GGUF and some more"


@pytest.fixture
def entry() -> Path:
    """The file of the only entry."""
    whole = cache.CachedRange(
        version=Version(
            total_bytes=1000, etag='"a"', last_modified="Tue, 17 Nov 2026 10:00:00 GMT"
        ),
        linked_etag=None,
        prefix=io.BytesIO(PREFIX),
        length=len(PREFIX),
    )
    cache.store(URL, whole)
    folder = cache.cache_folder()
    assert folder is not None
    (path,) = folder.iterdir()
    return path


def read() -> bytes | None:
    result = cache.load(URL)
    if result is None:
        return None
    with result.prefix as prefix:
        prefix.seek(0)
        return prefix.read()


def test_every_flipped_bit_is_harmless_or_removes_the_entry(entry: Path) -> None:
    raw = entry.read_bytes()
    for place in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << bit
            entry.write_bytes(damaged)
            result = read()
            assert result in {None, PREFIX}
            assert entry.exists() is (result is not None)


@pytest.mark.parametrize("value", [[1], {}, 1.5, True, -1, math.inf, 10**400, "\n"])
@pytest.mark.parametrize("name", ["url", "etag", "last_modified", "linked_etag", "total_bytes", "length", "kept_at", "sha256"])  # fmt: skip
def test_a_title_with_a_value_of_another_kind_removes_the_entry(
    entry: Path, name: str, value: object
) -> None:
    title, newline, rest = entry.read_bytes().partition(b"\n")
    changed = {**json.loads(title), name: value}
    entry.write_bytes(json.dumps(changed).encode() + newline + rest)
    assert read() is None
    assert not entry.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_pipe_in_place_of_an_entry_is_not_waited_for(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)
    assert read() is None
