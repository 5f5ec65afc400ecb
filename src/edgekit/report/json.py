"""JSON documents that any reader accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA = 1


def json_text(value: Any) -> str:
    """One valid document for any reader: ASCII only, and what JSON has no number for as a word."""
    return json.dumps(_sayable(value), indent=2, allow_nan=False) + "\n"


def json_line(value: Any) -> str:
    """The same document in one line: what has only plain numbers is written as it is."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError):  # no number, or a mapping of another kind
        return json.dumps(_sayable(value), allow_nan=False, separators=(",", ":"))


def _sayable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "inf", "nan": real configs hold them
    if isinstance(value, Mapping):
        return {key: _sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in value]
    return value
