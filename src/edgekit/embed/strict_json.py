"""A line from a stranger -> a JSON object, with what it may unpack to counted before it is built."""

from __future__ import annotations

import json
from typing import Any

# 8 MB of "[]," are 2.7 million lists. What a text itself has of these characters counts too, so the limits are
# those of a source file of 4 MB.
CONTAINERS = 200_000
VALUES = 1_000_000

_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}


class NotJsonError(ValueError):
    """The message says why."""


def read_object(line: bytes) -> dict[str, Any]:
    for what, count, limit in (
        ("lists and objects", line.count(b"[") + line.count(b"{"), CONTAINERS),
        ("values", line.count(b","), VALUES),
    ):
        if count > limit:
            raise NotJsonError(f"up to {count:,} {what}; the limit is {limit:,}")
    text = decoded(line)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise NotJsonError("not valid JSON: nested too deeply") from error
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not valid JSON: {error}") from error
    except ValueError as error:  # a number of 5,000 digits
        raise NotJsonError(f"not valid JSON: {error}"[:300]) from error
    if not isinstance(found, dict):
        raise NotJsonError(f"expected an object with fields, found {kind_of(found)}")
    return found


def decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8 at byte {error.start:,} of the line") from error


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a string")


def broken_character(text: str) -> int | None:
    """Where a text has a lone half of a surrogate pair, which JSON can spell and which is no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
