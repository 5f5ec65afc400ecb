"""A model's files as bytes: opening and closing them, and recognising files of the wrong format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from edgekit.sources.types import ByteSource, GrowingSource, ModelFile, ModelFiles

_Read = TypeVar("_Read")


def read_file(file: ModelFile, read: Callable[[ByteSource], _Read]) -> _Read:
    """The result of `read`. A source that can cache its bytes does so if `read` succeeds."""
    with closing(file.open()) as source:
        result = read(source)
        if isinstance(source, GrowingSource):
            source.keep()
    return result


def read_shards(
    files: ModelFiles, shards: Sequence[int], read: Callable[[ByteSource, int], _Read]
) -> Iterator[_Read]:
    """The result of `read(source, shard)` for each of these weight files, in order; remote ones a few at a time."""

    def read_one(shard: int) -> _Read:
        return read_file(files.weights[shard], lambda source: read(source, shard))

    if not files.origin.is_remote or len(shards) < 2:
        yield from map(read_one, shards)
        return
    from edgekit.sources.http import AT_ONCE, side_by_side

    for start in range(0, len(shards), AT_ONCE):
        yield from side_by_side(read_one, shards[start : start + AT_ONCE])


def listed_bytes(files: ModelFiles) -> int | None:
    """The size of all weight files by the listing; None if it does not state every size."""
    sizes = [file.size_bytes for file in files.weights]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


LOOK_BYTES = 512  # enough for an HTML doctype after blank lines, or a whole Git LFS pointer

_OLD_GGML = "a GGML file from before GGUF, which no current engine loads; convert the model again"
_PYTORCH = "a PyTorch checkpoint; convert it to safetensors or GGUF"
_WEB_PAGE = "a web page, perhaps a login or error page saved under the model's name"

# (first bytes, what the file is); text is compared in lower case, without leading white space
_BYTES: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", "a GGUF file"),
    (b"FUGG", "a GGUF file with its bytes swapped"),
    (b"lmgg", _OLD_GGML),
    (b"fmgg", _OLD_GGML),
    (b"tjgg", _OLD_GGML),
    (b"algg", "a GGML LoRA adapter from before GGUF"),
    (b"PK\x03\x04", f"a zip archive, probably {_PYTORCH}"),
    (b"\x80\x02", f"a Python pickle, probably {_PYTORCH}"),
    (b"\x80\x04", f"a Python pickle, probably {_PYTORCH}"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"\x89HDF", "an HDF5 file"),
)
_TEXTS: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer instead of the model itself; run `git lfs pull` to get the model",
    ),
    (b"<!doctype", _WEB_PAGE),
    (b"<html", _WEB_PAGE),
    (b"<?xml", _WEB_PAGE),
    (b"{", "JSON text"),
)


def describe(first: bytes) -> str:
    """'it looks like a web page ...', for the end of a sentence. `first`: up to LOOK_BYTES."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    matches = [what for start, what in _BYTES if first.startswith(start)]
    matches += [what for start, what in _TEXTS if text.startswith(start)]
    if matches:
        return f"it looks like {matches[0]}"
    if first[8:9] == b"{" and first[7:8] == b"\0":
        return "it looks like a safetensors file"
    if first and not first.strip(b"\0"):
        return "it looks like nothing but zeros (an interrupted download?)"
    return f"it starts with {first[:8]!r}"
