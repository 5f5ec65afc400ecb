"""Turns the bytes of a config.json into a mapping, within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats import limits
from edgekit.formats.json_stream import explain
from edgekit.formats.lookalikes import LOOK_BYTES, describe
from edgekit.sources.types import ByteSource


def read_config(source: ByteSource) -> Mapping[str, Any]:
    """The object in the file. Of a key that occurs twice the last counts, as everywhere in Python."""
    _check(source, "length", source.size_bytes, limits.CONFIG_BYTES)
    raw = source.read(0, source.size_bytes)
    # Counted before anything is built: four million empty lists would take 300 MB.
    _check(source, "lists and objects", raw.count(b"[") + raw.count(b"{"), limits.CONFIG_CONTAINERS)
    _check(source, "values", raw.count(b","), limits.CONFIG_VALUES)
    try:
        config = json.loads(raw.decode("utf-8-sig"))
    except RecursionError as error:
        raise HeaderError("nested too deeply", file=source.name) from error
    except UnicodeDecodeError as error:
        raise HeaderError("not UTF-8", file=source.name, offset=error.start) from error
    except ValueError as error:
        raise HeaderError(_what_it_is(raw, error), file=source.name) from error
    if not isinstance(config, dict):
        raise HeaderError(f"holds a {type(config).__name__}, not an object", file=source.name)
    _check(source, "nesting", _depth(config), limits.CONFIG_DEPTH)
    return config


def _depth(value: Any) -> int:
    """How many lists and objects lie in one another; counted level by level, not by recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [v for one in level for v in (one.values() if isinstance(one, dict) else one)]
        level = [v for v in inner if isinstance(v, (dict, list))]
    return depth


def _what_it_is(raw: bytes, error: ValueError) -> str:
    if not raw.strip():
        return "the file is empty"
    looks = describe(raw[:LOOK_BYTES])
    return f"not JSON: {explain(error) if looks.endswith('JSON text') else looks}"


def _check(source: ByteSource, what: str, value: int, limit: int) -> None:
    if value > limit:
        raise HeaderLimitError(what, value=value, limit=limit, file=source.name)
