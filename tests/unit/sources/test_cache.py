"""Damaged entries of the header cache."""

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
    """The file of a new entry, the only one."""
    cached = cache.CachedRange(
        version=Version(
            total_bytes=1000, etag='"a"', last_modified="Tue, 17 Nov 2026 10:00:00 GMT"
        ),
        linked_etag=None,
        prefix=io.BytesIO(PREFIX),
        length=len(PREFIX),
    )
    cache.store(URL, cached)
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


def test_flipped_bit_is_harmless_or_removes_the_entry(entry: Path) -> None:
    raw = entry.read_bytes()
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            entry.write_bytes(damaged)
            result = read()
            assert result in {None, PREFIX}
            assert entry.exists() is (result is not None)


@pytest.mark.parametrize("value", [[1], {}, 1.5, True, -1, math.inf, 10**400, "\n"])
@pytest.mark.parametrize("name", ["url", "etag", "last_modified", "linked_etag", "total_bytes", "length", "kept_at", "sha256"])  # fmt: skip
def test_entry_with_an_invalid_value_in_its_first_line_is_removed(
    entry: Path, name: str, value: object
) -> None:
    first_line, newline, rest = entry.read_bytes().partition(b"\n")
    altered = {**json.loads(first_line), name: value}
    entry.write_bytes(json.dumps(altered).encode() + newline + rest)
    assert read() is None
    assert not entry.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_pipe_in_place_of_an_entry_does_not_block(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)
    assert read() is None
