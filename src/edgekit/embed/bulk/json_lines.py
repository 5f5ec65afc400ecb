"""Reads a line of JSON within limits, for bulk jobs and for `edgekit embed --stdio`."""

from __future__ import annotations

import json
from typing import Any

# Limits on one line of JSON, where 8 MB of "[]," would be 2.7 million lists. Brackets inside strings count too.
CONTAINERS = 200_000
VALUES = 1_000_000

_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}


class NotJsonError(ValueError):
    """A line that is not a JSON object within the limits; the message says why."""


def read_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises NotJsonError; a line with too many values is not even parsed."""
    for what, count, limit in (
        ("lists and objects", line.count(b"[") + line.count(b"{"), CONTAINERS),
        ("values", line.count(b","), VALUES),
    ):
        if count > limit:
            raise NotJsonError(f"up to {count:,} {what}; the limit is {limit:,}")
    text = decode_line(line)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise NotJsonError("not valid JSON: nested too deeply") from error
    except ValueError as error:  # also for a number of 5,000 digits
        raise NotJsonError(f"not valid JSON: {error}"[:300]) from error
    if not isinstance(value, dict):
        raise NotJsonError(f"expected an object with fields, found {kind_of(value)}")
    return value


def decode_line(data: bytes) -> str:
    """The text of a line. Raises NotJsonError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8 at byte {error.start:,} of the line") from error


def kind_of(value: object) -> str:
    """The JSON type of a value, for messages: 'a list', 'a number'."""
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a string")


def broken_character(text: str) -> int | None:
    """The index of a lone surrogate, which JSON can spell but UTF-8 cannot encode; None if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
