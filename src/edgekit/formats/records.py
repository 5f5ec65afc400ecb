"""Reads the records of a packaged JSON file into dataclasses, with a clear message if the file is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pkgutil import get_data  # importlib.resources takes 5 ms to import
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from edgekit.errors import EdgekitError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = Mapping[str, Any]
Reader = Callable[[Any], object]
Made = TypeVar("Made", bound="DataclassInstance")

_PLAIN = {"bool": bool, "int": int, "str": str}


def load_records(package: str, file: str, section: str = "records") -> tuple[Record, ...]:
    try:
        content = json.loads(get_data(package, file) or b"")
        return tuple(map(MappingProxyType, content[section]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(f"{file} cannot be read ({error})") from error


def read_fields(
    dataclass_type: type[Made],
    values: Mapping[str, Any],
    readers: Mapping[str, Reader],
    *,
    where: str,
) -> Made:
    """An instance of `dataclass_type` with these values; `where` names the record in errors.

    `readers` maps a field's annotation to the function that converts its value. Other lists become tuples.
    """
    types = {column.name: str(column.type) for column in fields(dataclass_type)}
    try:
        return dataclass_type(
            **{key: _value(types[key], value, readers) for key, value in values.items()}
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise damaged(f"{where}: {what}") from error


def _value(annotation: str, value: object, readers: Mapping[str, Reader]) -> object:
    """The value of one field, converted and checked."""
    if (read := readers.get(annotation)) is not None:
        return read(value)
    expected = _PLAIN.get(annotation)
    if expected is not None and type(value) is not expected:
        raise TypeError(f"{value!r:.40} is not of type {annotation}")
    return tuple(value) if isinstance(value, list) else value


def damaged(what: str) -> EdgekitError:
    return EdgekitError(f"this installation of edgekit is damaged: {what}; install it again")
