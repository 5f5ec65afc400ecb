"""The size of images from their first bytes, compared with Pillow's own files."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.gateway.images import ImageError, pixels_in

Image = pytest.importorskip("PIL.Image")
FORMATS = {"PNG": "png", "JPEG": "jpeg", "GIF": "gif", "BMP": "bmp", "WEBP": "webp"}


def file_of(name: str, width: int = 31, height: int = 17, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, name, **options)
    return file.getvalue()


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("name", FORMATS)
def test_pixels_of_every_format(name: str) -> None:
    assert pixels_in(url_of(file_of(name), FORMATS[name])) == 31 * 17


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("JPEG", {"progressive": True}),
        ("JPEG", {"comment": b"x" * 60_000}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\x00\x00" + b"x" * 100}),
    ],
    ids=["progressive", "metadata first", "lossless", "extended"],
)
def test_pixels_of_other_kinds(name: str, options: dict[str, Any]) -> None:
    assert pixels_in(url_of(file_of(name, **options))) == 31 * 17


def test_format_is_that_of_the_bytes() -> None:
    """Whatever the URL says: the decoder looks at the bytes too."""
    assert pixels_in(url_of(file_of("JPEG"), "png")) == 31 * 17


def test_small_file_of_a_huge_image() -> None:
    png = bytearray(file_of("PNG"))
    png[16:24] = struct.pack(">II", 60_000, 60_000)
    assert pixels_in(url_of(bytes(png))) == 60_000 * 60_000


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2) for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


ONE_PIXEL = (b"VP8X", bytes(10))
FRAME = (b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383) + bytes(10))
LOSSLESS = (b"VP8L", b"\x2f" + struct.pack("<I", 16_383 | 16_383 << 14))


@pytest.mark.parametrize(
    ("chunks", "pixels"),
    [
        ((ONE_PIXEL, FRAME), 16_383**2),
        ((ONE_PIXEL, LOSSLESS), 16_384**2),
        ((ONE_PIXEL, (b"ICCP", bytes(500_001)), FRAME), 16_383**2),
        (((b"VP8 ", b"\0\0\0\x9d\x01\x2a\x01\0\x01\0"), FRAME), 16_383**2),
        (
            (ONE_PIXEL, (b"ANMF", bytes(16) + FRAME[0] + struct.pack("<I", 20) + FRAME[1])),
            16_383**2,
        ),
    ],
    ids=["frame", "lossless", "metadata first", "second frame", "animation"],
)
def test_webp_frame_that_is_larger_than_its_canvas(
    chunks: tuple[tuple[bytes, bytes], ...], pixels: int
) -> None:
    assert pixels_in(url_of(riff(*chunks), "webp")) == pixels


def test_pixels_of_an_animation_are_those_of_its_canvas() -> None:
    frames = [Image.new("RGBA", (31, 17), (50 * number, 9, 9, 100)) for number in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], icc_profile=b"i" * 501)
    assert pixels_in(url_of(file.getvalue(), "webp")) == 31 * 17


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/svg+xml;base64,AAAA", "must be PNG"),
        ("data:image/png,raw", "must be PNG"),
        ("data:image/png;base64,!!!!", "not valid base64"),
        ("data:image/png;base64,", "not PNG"),
        (url_of(b"P6 99999 99999 255\n"), "not PNG"),
        (url_of(b"8BPS" + bytes(40)), "not PNG"),
        (url_of(file_of("PNG")[:20]), "cut off"),
        (url_of(b"\xff\xd8" + b"\xff\xfe\xff\xff" * 3), "cut off"),
        (url_of(b"\xff\xd8\x00\x00"), "not a valid JPEG"),
        (url_of(b"RIFF\0\0\0\0WEBPnone" + bytes(20)), "unknown kind"),
        (url_of(file_of("PNG")[:16] + bytes(8)), "no pixels"),
        (url_of(riff(ONE_PIXEL)), "unknown kind"),
        (url_of(riff(*[(b"none", b"")] * 5000, FRAME)), "more than 4,096 chunks"),
        (url_of(riff(ONE_PIXEL, FRAME)[:-18]), "cut off"),
        (
            url_of(file_of("PNG")[:8] + b"\0\0\0\4CgBI" + bytes(8) + file_of("PNG")[8:]),
            "unknown kind",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused(url: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        pixels_in(url)


@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=60))
def test_any_bytes_have_a_size_or_are_refused(name: str, more: bytes) -> None:
    data = file_of(name)[:10] + more
    try:
        assert pixels_in(url_of(data)) > 0
    except ImageError:
        return
