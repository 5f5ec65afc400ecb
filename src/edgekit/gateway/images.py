"""How many pixels an image has, from its first bytes: a file of 100 KB may decode to gigabytes."""

from __future__ import annotations

import base64
import binascii
import re
import struct

HEAD_CHARS = (
    400_000  # of base64: a JPEG may have 64 KiB of metadata, several times, before its size
)
MAX_CHUNKS = 4096  # of a WebP file; an animation has one to three for each frame
_URL = re.compile(r"data:image/(png|jpe?g|gif|bmp|webp);base64,", re.IGNORECASE)
# Markers of JPEG's frames, which have the size; C4, C8 and CC are tables.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


class ImageError(ValueError):
    """The image is refused; the message says why."""


def pixels_in(url: str) -> int:
    """The pixels of the image in a data URL. ImageError if it is not an image of a common format."""
    match = _URL.match(url)
    if match is None:
        raise ImageError(f"images must be PNG, JPEG, GIF, BMP or WebP in base64 (got {url[:40]!r})")
    try:
        data = _bytes(url[match.end() : match.end() + HEAD_CHARS])
        if data[8:12] == b"WEBP":  # its frames may be anywhere
            data = _bytes(url[match.end() :])
    except binascii.Error as error:
        raise ImageError("an image is not valid base64") from error
    try:
        width, height = _size(data)
    except (struct.error, IndexError) as error:
        raise ImageError("an image is cut off, or its size is unknown") from error
    if width <= 0 or height <= 0:
        raise ImageError("an image has no pixels")
    return width * height


def _bytes(text: str) -> bytes:
    return base64.b64decode(text[: len(text) // 4 * 4], validate=True)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        if data[12:16] != b"IHDR":  # decoders skip some chunks before it
            raise ImageError("an image is PNG of an unknown kind")
        return struct.unpack_from(">II", data, 16)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", data, 6)
    if data.startswith(b"BM"):
        if struct.unpack_from("<I", data, 14)[0] == 12:  # OS/2
            return struct.unpack_from("<HH", data, 18)
        width, height = struct.unpack_from("<ii", data, 18)
        return abs(width), abs(height)  # negative: the rows run downwards
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp_size(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    raise ImageError("an image is not PNG, JPEG, GIF, BMP or WebP")


def _webp_size(data: bytes) -> tuple[int, int]:
    """The largest width and height of the canvas and all frames: some decoders do not compare them."""
    sizes: list[tuple[int, int]] = []
    place, chunks, has_frame = 12, 0, False
    while place + 8 <= len(data):
        chunks += 1
        if chunks > MAX_CHUNKS:
            raise ImageError(f"an image is WebP with more than {MAX_CHUNKS:,} chunks")
        kind, (size_bytes,) = data[place : place + 4], struct.unpack_from("<I", data, place + 4)
        place += 8
        has_frame = has_frame or kind in {b"VP8 ", b"VP8L"}
        match kind:
            case b"VP8 ":
                width, height = struct.unpack_from("<HH", data, place + 6)
                sizes.append((width & 0x3FFF, height & 0x3FFF))
            case b"VP8L":
                (bits,) = struct.unpack_from("<I", data, place + 1)
                sizes.append(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
            case b"VP8X":
                sizes.append(_size24(data, place + 4))
            case b"ANMF":
                sizes.append(_size24(data, place + 6))
                place += 16  # its frame is read next
                continue
        place += size_bytes + size_bytes % 2
    if not has_frame:
        raise ImageError("an image is WebP of an unknown kind")
    return max(width for width, _ in sizes), max(height for _, height in sizes)


def _size24(data: bytes, place: int) -> tuple[int, int]:
    """Width and height in 24 bits each, less 1."""
    width, high, height, higher = struct.unpack_from("<HBHB", data, place)
    return (width | high << 16) + 1, (height | higher << 16) + 1


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """From the first frame; segments before it are skipped by their length."""
    place = 2
    while data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
        elif marker in _ALONE:
            place += 2
        elif marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        else:
            place += 2 + max(struct.unpack_from(">H", data, place + 2)[0], 2)
    raise ImageError("an image is not a valid JPEG")
