"""Images and tools that go with a prompt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.projectors import png

from edgekit.app.attachments import MAX_IMAGE_BYTES, MAX_TOOLS, read_image, read_tools
from edgekit.errors import SourceError, UsageError

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        (b"GIF89a\x01\x00", "image/gif"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
    ids=["png", "jpeg", "gif", "webp"],
)
def test_image_type_is_read_from_the_first_bytes(
    tmp_path: Path, data: bytes, media_type: str
) -> None:
    path = tmp_path / "misnamed.txt"
    path.write_bytes(data)
    image = read_image(str(path))
    assert (image.media_type, image.data) == (media_type, data)


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG", b"BM6", b"RIFF\x24\x00\x00\x00WAVEfmt ", b"<svg>"]
)
def test_other_files_are_not_images(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not a PNG, JPEG, GIF or WebP image"):
        read_image(str(path))


def test_image_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    with path.open("wb") as file:
        file.write(png())
        file.truncate(MAX_IMAGE_BYTES + 1)
    with pytest.raises(UsageError, match=r"at most 32\.00 MiB"):
        read_image(str(path))


def test_image_that_is_a_folder_pipe_or_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, problem in ((tmp_path, "not a file"), (tmp_path / "pipe", "not a file")):
        with pytest.raises(SourceError, match=problem):
            read_image(str(path))
    with pytest.raises(SourceError, match="no such file"):
        read_image(str(tmp_path / "none.png"))


def test_tools_are_read_from_json_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEATHER]), "utf-8-sig")
    assert read_tools(str(path)) == read_tools(json.dumps([WEATHER])) == (WEATHER,)


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 10_000, "is not JSON"),
        ("[]", "array of 1 to 128 tools"),
        (json.dumps(WEATHER), "array of 1 to 128 tools"),
        (json.dumps([WEATHER] * (MAX_TOOLS + 1)), "array of 1 to 128 tools"),
        (json.dumps([WEATHER, WEATHER]), "several tools are called weather"),
        ('["weather"]', 'tool 1 has no "type": "function"'),
        ('[{"type": "function"}]', 'tool 1 has no "function"'),
        ('[{"type": "function", "function": {"name": "a b"}}]', "needs a name of letters"),
        (
            '[{"type": "function", "function": {"name": "f", "description": 1}}]',
            "description is not text",
        ),
        (
            '[{"type": "function", "function": {"name": "f", "parameters": []}}]',
            "not a JSON Schema",
        ),
    ],
)
def test_invalid_tools_are_refused(tools: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_tools(tools)
