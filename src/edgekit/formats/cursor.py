"""Sequential reads of numbers and strings from a ByteSource, one bounded window at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from typing import TypeVar

from edgekit.errors import HeaderError, check_limit
from edgekit.formats import limits
from edgekit.sources.types import ByteSource, GrowingSource, ModelFile, ModelFiles
from edgekit.units import KIB, MIB

WINDOW_BYTES = 256 * KIB


class BeyondReachError(Exception):
    """The next bytes would need another request, which `may_fetch` does not allow."""


class Cursor:
    """A position in a file that only moves forward."""

    def __init__(self, source: ByteSource, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.name = source.name
        # The caller sets these. At least `min_left_bytes` of the header follow the value being read, so a window of
        # that length never reaches the weights. A request of a remote source asks for `likely_left_bytes` more.
        self.min_left_bytes = 0
        self.likely_left_bytes = 0
        self.may_fetch: Callable[[], bool] = lambda: True  # whether another request may be sent
        self._source = source
        self._window_bytes = window_bytes
        self._end = source.size_bytes
        self._window = b""
        self._start = 0  # offset of the window in the file
        self._index = 0  # position in the window; after a skip it may be beyond the window's end
        self._strings = 0  # number of strings skipped so far
        self._string_bytes = 0  # and their bytes
        self.set_byte_order("<")

    def set_byte_order(self, order: str) -> None:
        """Read numbers as little-endian ("<") or big-endian (">") from here on."""
        self._order = order
        self._u32 = struct.Struct(order + "I")
        self._u64 = struct.Struct(order + "Q")

    @property
    def position(self) -> int:
        return self._start + self._index

    def error(self, what: str, *, offset: int | None = None) -> HeaderError:
        """A HeaderError about this file, for the caller to raise."""
        return HeaderError(what, file=self.name, offset=offset)

    def check_limit(self, what: str, value: int, limit: int) -> None:
        if value > limit:  # tested here too, because working out the position is slow
            check_limit(what, value, limit, file=self.name, offset=self.position)

    def take(self, length: int) -> bytes:
        """The next `length` bytes. The caller has checked `length` against a limit."""
        if self._index + length > len(self._window):
            self._fill(length)
        begin = self._index
        self._index = begin + length
        return self._window[begin : self._index]

    def skip(self, length: int) -> None:
        """Moves forward without reading."""
        self._check_end(length)
        self._index += length

    def u32(self) -> int:
        value: int = self._u32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = self._u64.unpack(self.take(8))[0]
        return value

    def numbers(self, codes: str) -> tuple[int | float, ...]:
        """A number for each of struct's `codes`."""
        packed = self._order + codes
        return struct.unpack(packed, self.take(struct.calcsize(packed)))

    def skip_strings(self, count: int) -> None:
        """Skips `count` strings, each a u64 length and its bytes, without holding them."""
        self._check_end(8 * count)
        left = count
        while left:
            begin = self.position
            skipped = self._skip_in_window(left)
            left -= skipped
            self._strings += skipped
            self._string_bytes += self.position - begin
            if left and not skipped:
                self._fill(
                    8, min_left_bytes=8 * (left - 1), likely_left_bytes=self._guess_bytes(left)
                )

    def _skip_in_window(self, count: int) -> int:
        """Skips the strings that begin in this window, and returns their number.

        This loop runs 400,000 times for Llama 3. It does not check for the end of the window: struct raises there.
        """
        window, index, read_length = self._window, self._index, self._u64.unpack_from
        skipped = 0
        with suppress(struct.error, OverflowError):
            for _ in range(count):
                index += read_length(window, index)[0] + 8
                skipped += 1
        self._index = index
        self._check_end(0)
        return skipped

    def _guess_bytes(self, count: int) -> int:
        """The expected length of the next `count` strings, from those of this file so far.

        Slightly more than their average, because later entries of a vocabulary are longer; but at most 16 times the
        bytes read so far, because the first entries (special tokens, runs of spaces) are not typical.
        """
        average_bytes = count * self._string_bytes // max(1, self._strings)
        extra_bytes = min(max(average_bytes // 8, 64 * KIB), 384 * KIB)
        trusted_bytes = max(16 * self._string_bytes, 128 * KIB)
        return min(average_bytes + extra_bytes, trusted_bytes, 8 * MIB)

    def _check_end(self, length: int) -> None:
        """Raises HeaderError if the next `length` bytes go beyond the file or the longest allowed header."""
        end = self.position + length
        if end > self._end:
            raise self.error(
                f"file is truncated: the header continues to byte {end:,} or beyond, but "
                f"the file has {self._end:,} bytes (an interrupted download?)"
            )
        check_limit("header length", end, limits.HEADER_BYTES, file=self.name)

    def _fill(self, length: int, *, min_left_bytes: int = 0, likely_left_bytes: int = 0) -> None:
        """Moves the window to the current position and fills it with at least `length` bytes.

        The other arguments are added to the caller's estimates of the rest of the header.
        """
        self._check_end(length)
        position = self.position
        min_length = length + min_left_bytes + self.min_left_bytes
        window_length = max(length, min(self._window_bytes, min_length))
        if isinstance(self._source, GrowingSource):
            fetched_bytes = self._source.available_bytes - position
            if fetched_bytes >= length:  # a shorter window needs no request
                window_length = min(window_length, fetched_bytes)
            elif self._source.available_bytes and not self.may_fetch():
                raise BeyondReachError
            else:
                window_length = length  # `ahead` says how much more to fetch
        ahead = likely_left_bytes + self.likely_left_bytes
        self._window = b""  # free the old window first
        self._window = self._source.read(
            position, min(window_length, self._end - position), ahead=ahead
        )
        self._start, self._index = position, 0
        if len(self._window) < length:
            self._end = position + len(self._window)
            self._check_end(length)


_Read = TypeVar("_Read")


def read_file(file: ModelFile, read: Callable[[ByteSource], _Read]) -> _Read:
    """The result of `read`. A source that can cache its bytes does so if `read` succeeds."""
    source = file.open()
    with nullcontext() if file.stays_open else closing(source):
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
    (b"\x1f\x8b", "a gzip-compressed file; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd-compressed file; unpack it first"),
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
        return "it contains only zeros (an interrupted download?)"
    return f"it starts with {first[:8]!r}"
