"""The JSON renderer: fields of an answer -> a document that any reader accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

SCHEMA = 1
Json = dict[str, Any]  # an object of a JSON document


def fields(value: object, names: str) -> Json:
    """The named attributes: `fields(plan, "label model=task.label budget_because? pooling=pooling.label")`.

    `key=path` gives an attribute another key; the value is null if any part of the path is. An enum becomes its value,
    a tuple a list. A field that ends in `?` is null if it is empty.
    """
    answer: Json = {}
    for key, path, is_optional in _parsed(names):
        field = value
        for name in path:
            field = None if field is None else getattr(field, name)
        if isinstance(field, Enum):
            field = field.value
        elif isinstance(field, tuple):
            field = list(field)
        answer[key] = field if field or not is_optional else None
    return answer


@cache
def _parsed(names: str) -> tuple[tuple[str, tuple[str, ...], bool], ...]:
    """The key of each field, its path, and whether it ends in `?`. Cached: answers have thousands of lines."""
    parsed = []
    for word in names.split():
        key, _, path = word.removesuffix("?").partition("=")
        parsed.append((key, tuple((path or key).split(".")), word.endswith("?")))
    return tuple(parsed)


def error_json(error: Exception) -> Json:
    return {"type": type(error).__name__, "message": str(error)}


def json_text(value: object) -> str:
    """Indented, ASCII only; infinite numbers and NaN become strings."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def json_line(value: object) -> str:
    """A document as one line, otherwise like `json_text`."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError):  # an infinite number, or a mapping that is not a dict
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: object) -> object:
    """The value with infinite numbers and NaN, which JSON lacks, as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "inf" or "nan"; some config.json files have them
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
