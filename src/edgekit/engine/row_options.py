"""Options of a row, as JSON gives them -> numbers, words and flags, or an error that names the option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgekit.errors import UsageError

LARGEST = 2**63 - 1


class Options(Mapping[str, Any]):
    """A mapping that remembers what was looked up: the rest has changed nothing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in self._values if name not in self._asked)


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """A whole number, or None where it is not given."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST:
        raise UsageError(f"{name} {value!r:.60} is not a whole number")
    return value


def text(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} {value!r:.60} is not a word")
    return value


def flag(options: Mapping[str, Any], name: str) -> bool | None:
    value = options.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} {value!r:.60} is neither true nor false")
    return value
