"""What an engine would build from a JSON schema, which may be far more than its text.

llama.cpp copies a schema for each of its types, expands `allOf` with everything that it refers to, and needs time with
the cube of the number of optional properties. Reading an endless or very deep schema, it crashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_COPIES = (
    4096  # objects of a schema that are built once more: 8,192 took up to 150 MB and a second
)
MAX_ALTERNATIVES = 4096
MAX_OPTIONAL = 256  # in one object: 800 took 2 seconds, 1,600 took 15
MAX_OPTIONAL_CUBED = 4 * MAX_OPTIONAL**3  # of all objects together: a second
MAX_REFERENCES = 512  # for each, llama.cpp copies the whole schema
MAX_LEVELS = 2048  # of all that is referred to; llama.cpp crashed at 4,000
_MANY = 10**9  # larger numbers are not told apart
_UNIONS = ("allOf", "anyOf", "oneOf")
_WITH_SCHEMAS_INSIDE = frozenset(
    {"object", "array", "string"}
)  # llama.cpp reads `allOf` in strings


class SchemaError(ValueError):
    """The schema is refused, at this key ("": all of it together); the message says why."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def check_schema(root: object, *, expands: bool = True) -> None:
    """Raises SchemaError for references that lead to themselves.

    `expands`: the engine expands it as llama.cpp does; raises also if it becomes much more than its text.
    """
    try:
        schema = _Schema(root)
        schema.check() if expands else schema.check_references()
    except RecursionError:
        raise SchemaError("$ref", "nested too deep through references") from None


class _Schema:
    def __init__(self, root: object) -> None:
        self._root = root
        self._depths: dict[int, int] = {}
        self._unions: dict[int, tuple[int, int] | None] = {}  # None: being computed
        self._built: dict[tuple[int, bool], int | None] = {}

    def check_references(self) -> None:
        for item in _objects(self._root):
            self._union(item)

    def check(self) -> None:
        objects = list(_objects(self._root))
        references = {item["$ref"] for item in objects if isinstance(item.get("$ref"), str)}
        if len(references) > MAX_REFERENCES:
            raise SchemaError(
                "$ref", f"{len(references):,} references; the limit is {MAX_REFERENCES:,}"
            )
        levels = sum(map(self._levels, [self._root, *map(self._target, references)]))
        if levels > MAX_LEVELS:
            raise SchemaError("$ref", f"{levels:,} levels; the limit is {MAX_LEVELS:,}")
        optional_cubed = 0
        for item in objects:
            types = item.get("type")
            if isinstance(types, list) and len(set(map(str, types))) < len(types):
                raise SchemaError("type", "a type occurs twice")
            alternatives, properties = self._union(item)
            if alternatives > MAX_ALTERNATIVES:
                raise SchemaError(
                    "anyOf", f"{alternatives:,} alternatives; the limit is {MAX_ALTERNATIVES:,}"
                )
            optional = properties if "allOf" in item else _optional(item)
            if optional > MAX_OPTIONAL:
                raise SchemaError(
                    "properties",
                    f"{optional:,} optional properties in one object; the limit is {MAX_OPTIONAL:,}: name them in"
                    " `required`",
                )
            optional_cubed += optional**3
        if optional_cubed > MAX_OPTIONAL_CUBED:
            raise SchemaError("properties", "too many optional properties: name them in `required`")
        copies = self._size(self._root, is_part=False) - len(objects)
        if copies > MAX_COPIES:
            raise SchemaError(
                "", f"it expands to {copies:,} more objects; the limit is {MAX_COPIES:,}"
            )

    def _union(self, item: object) -> tuple[int, int]:
        """The alternatives of all unions within each other, and their properties, through references."""
        if not isinstance(item, dict):
            return 1, 0
        parts = list(self._parts(item))
        if not parts:
            return 1, len(_mapping(item.get("properties")))
        key = id(item)
        if key in self._unions:
            known = self._unions[key]
            if known is None:
                raise SchemaError("$ref", "a reference leads to itself")
            return known
        self._unions[key] = None
        alternatives, properties = 0, len(_mapping(item.get("properties")))
        for part in parts:
            more, theirs = self._union(part)
            alternatives, properties = alternatives + more, properties + theirs
        self._unions[key] = known = min(alternatives, _MANY), min(properties, _MANY)
        return known

    def _parts(self, item: Mapping[str, Any]) -> Iterator[object]:
        if "$ref" in item:
            yield self._target(item["$ref"])
            return
        for union in _UNIONS:
            if isinstance(item.get(union), list):
                yield from item[union]

    def _size(self, item: object, *, is_part: bool) -> int:
        """The objects that are built. What a part of `allOf` refers to is built there anew, all else once."""
        if isinstance(item, list):
            total = 0
            for part in item:
                total += self._size(part, is_part=is_part)
            return total
        if not isinstance(item, dict):
            return 0
        key = id(item), is_part
        if key in self._built:
            known = self._built[key]
            if known is None:
                raise SchemaError(
                    "allOf", "it contains itself through a reference: refer to it without allOf"
                )
            return known
        self._built[key] = None
        total = 1
        if is_part and "$ref" in item:
            total += self._size(self._target(item["$ref"]), is_part=True)
        for name, value in item.items():
            total += self._size(value, is_part=name == "allOf" or (is_part and name in _UNIONS))
        types = item.get("type")
        if isinstance(types, list):
            total *= max(1, len(_WITH_SCHEMAS_INSIDE.intersection(map(str, types))))
        self._built[key] = total = min(total, _MANY)
        return total

    def _levels(self, value: object) -> int:
        """How deep it is nested, without what it refers to."""
        if not isinstance(value, dict | list):
            return 0
        if id(value) not in self._depths:
            deepest = 0
            for inner in value.values() if isinstance(value, dict) else value:
                deepest = max(deepest, self._levels(inner))
            self._depths[id(value)] = deepest + 1
        return self._depths[id(value)]

    def _target(self, reference: object) -> object:
        """What a reference within the schema is for; None if it is not there, which engines refuse."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        target = self._root
        for name in reference[1:].split("/")[1:]:
            if isinstance(target, dict):
                target = target.get(name)
            elif isinstance(target, list) and name.strip("+ ")[:1].isdecimal():
                index = int(name) if name.isdecimal() and len(name) < 8 else -1
                if str(index) != name:  # one place under many names would be built many times
                    raise SchemaError("$ref", f"{name[:20]!r} is not the number of an entry")
                target = target[index] if index < len(target) else None
            else:
                return None
        return target


def _optional(item: Mapping[str, Any]) -> int:
    required = item.get("required")
    names = (
        {name for name in required if isinstance(name, str)}
        if isinstance(required, list)
        else set()
    )
    return len(_mapping(item.get("properties")).keys() - names)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Iterator[dict[str, Any]]:
    level = [value]
    while level:
        item = level.pop()
        if isinstance(item, dict):
            yield item
            level += item.values()
        elif isinstance(item, list):
            level += item
