"""The JSON object in a request, read within limits."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from edgekit.gateway.errors import GatewayError

MAX_DEPTH = 64  # schemas of tools nest the deepest: 10 to 20
# Counted before anything is built. Empty lists take 64 bytes each, here and in the engine.
MAX_CONTAINERS = 262_144
MAX_STRINGS = 262_144  # keys too: about 50 bytes each, however short
MAX_VALUES = 1_048_576  # the tokens of a prompt, and of the longest windows
_STRING = re.compile(rb'"[^"]*+"?')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_INT64 = 2**63


def read_object(raw: bytes) -> dict[str, Any]:
    """The object. GatewayError for anything else, for numbers that JSON does not have, and beyond the limits."""
    # Linear in time and memory, whatever is in it: no step builds more than one copy of the body.
    unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    _check_count("strings", unescaped.count(b'"') // 2, MAX_STRINGS)
    structure = _STRING.sub(b"", unescaped)
    brackets = structure.translate(None, _NOT_BRACKETS)
    _check_count("lists and objects", len(brackets) // 2, MAX_CONTAINERS)
    _check_count("values", structure.count(b","), MAX_VALUES)
    depth = deepest = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    _check_count("levels of nesting", deepest, MAX_DEPTH)
    try:
        value = json.loads(
            raw.decode(), parse_constant=_constant, parse_float=_finite, parse_int=_int64
        )
    except UnicodeDecodeError as error:
        raise GatewayError(f"the body is not UTF-8 (byte {error.start:,})", status=400) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise GatewayError(f"the body is not JSON: {error.msg} in {place}", status=400) from error
    if not isinstance(value, dict):
        raise GatewayError(
            "the body must be a JSON object, sent with Content-Type: application/json", status=400
        )
    return value


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise GatewayError(f"the body has too many {what}: the limit is {limit:,}", status=400)


def _constant(name: str) -> NoReturn:
    raise GatewayError(f"the body is not JSON: {name} is not a number of JSON", status=400)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise GatewayError(f"a number in the body is too large: {text[:20]}", status=400)
    return value


def _int64(text: str) -> int:
    # Counted first: reading thousands of digits takes time.
    if len(text) > 20 or not -_INT64 <= (value := int(text)) < _INT64:
        raise GatewayError(f"a number in the body is too large: {text[:20]}...", status=400)
    return value
