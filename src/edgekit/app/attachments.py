"""What a prompt has besides its text: images from files, and tools from JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.engines.chat import Image
from edgekit.errors import HeaderLimitError, SourceError, UsageError, one_line, quoted
from edgekit.sources.local import is_regular, look_up, path_of_flag, read_small
from edgekit.units import KIB, MIB, format_bytes

MAX_IMAGE_BYTES = 32 * MIB  # a photo of 50 megapixels has about 20
MAX_IMAGES = 16
MAX_TOOLS_BYTES = 512 * KIB  # more than any window holds
MAX_TOOLS = 128  # as in OpenAI's API
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The first bytes of a file, and from where on more of them.
_IMAGE_TYPES: tuple[tuple[str, bytes, int, bytes], ...] = (
    ("image/png", b"\x89PNG\r\n\x1a\n", 12, b"IHDR"),
    ("image/jpeg", b"\xff\xd8\xff", 0, b"\xff"),
    ("image/gif", b"GIF8", 5, b"a"),
    ("image/webp", b"RIFF", 8, b"WEBP"),
)
EXAMPLE_TOOLS = (
    '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", ...}}}]'
)


def read_image(name: str) -> Image:
    """An image file. Raises SourceError if it cannot be read, UsageError if it is not an image that engines know."""
    data = _read(path_of_flag(name, "--image"), MAX_IMAGE_BYTES, "an image")
    for media_type, first, offset, more in _IMAGE_TYPES:
        if data.startswith(first) and data[offset : offset + len(more)] == more:
            return Image(data=data, media_type=media_type)
    raise UsageError(f"{name} is not a PNG, JPEG, GIF or WebP image")


def image_name(media_type: str) -> str:
    """'image/png' -> 'PNG'."""
    return "WebP" if media_type == "image/webp" else media_type.removeprefix("image/").upper()


def read_tools(text: str) -> tuple[Mapping[str, Any], ...]:
    """The tools in a JSON array or in a file of one, as OpenAI's API takes them. Raises UsageError or SourceError."""
    is_json = text.lstrip()[:1] in {"[", "{"}
    where = "--tools" if is_json else text
    raw = text.encode(errors="replace") if is_json else b""
    if not is_json:
        raw = _read(path_of_flag(text, "--tools"), MAX_TOOLS_BYTES, "a list of tools")
    elif len(raw) > MAX_TOOLS_BYTES:
        raise UsageError(f"--tools takes at most {format_bytes(MAX_TOOLS_BYTES)} of JSON")
    try:
        tools = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({one_line(str(error), 120)})") from error
    if not isinstance(tools, list) or not 1 <= len(tools) <= MAX_TOOLS:
        raise UsageError(f"{where} has to be an array of 1 to {MAX_TOOLS} tools: {EXAMPLE_TOOLS}")
    names = [_name_of(tool, f"{where}: tool {number}") for number, tool in enumerate(tools, 1)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: several tools are called {name}")
    return tuple(tools)


def _name_of(tool: object, where: str) -> str:
    """The name of a tool. Raises UsageError if it is not one."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise UsageError(f'{where} has no "type": "function": {EXAMPLE_TOOLS}')
    if not isinstance(function, dict):
        raise UsageError(f'{where} has no "function": {EXAMPLE_TOOLS}')
    name = function.get("name")
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        raise UsageError(
            f"{where} needs a name of letters, digits, _, - and ., up to 64 (got {quoted(name)})"
        )
    if not isinstance(function.get("description", ""), str):
        raise UsageError(f"{where} ({name}): the description is not text")
    if not isinstance(function.get("parameters", {}), dict):
        raise UsageError(f"{where} ({name}): the parameters are not a JSON Schema (an object)")
    return name


def _read(path: Path, limit: int, kind: str) -> bytes:
    """A whole file. Raises SourceError if it cannot be read, UsageError if it is too large."""
    look_up(path)  # raises with the reason
    if not is_regular(path):
        raise SourceError(f"{path} is not a file")
    try:
        data = read_small(path, limit=limit)
    except HeaderLimitError as error:
        raise UsageError(
            f"{path} has {error.value:,} bytes, too many for {kind}: at most {format_bytes(limit)}"
        ) from error
    if data is None:
        raise SourceError(f"{path} cannot be read: give a file that this user may read")
    return data
