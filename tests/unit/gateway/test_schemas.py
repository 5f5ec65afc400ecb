"""JSON schemas that are small as text, and large or endless when an engine builds them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from edgekit.gateway.schemas import MAX_COPIES, MAX_OPTIONAL, SchemaError, check_schema


def typed(levels: int, *types: str) -> dict[str, Any]:
    """An object of these types at every level."""
    inner: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        inner = {"type": [*types], "properties": {"a": inner}, "required": ["a"]}
    return inner


def doubled(levels: int) -> dict[str, Any]:
    """Every definition has the next one twice."""
    both = [{"p": {"allOf": [{"$ref": f"#/d/{level + 1}"}] * 2}} for level in range(levels)]
    objects: list[Any] = [{"properties": properties} for properties in both]
    return {"allOf": [{"$ref": "#/d/0"}], "d": [*objects, {"properties": {}}]}


def unions(levels: int) -> dict[str, Any]:
    twice: list[Any] = [{"anyOf": [{"$ref": f"#/d/{level + 1}"}] * 2} for level in range(levels)]
    return {"$ref": "#/d/0", "d": [*twice, {"type": "null"}]}


def chain(length: int) -> dict[str, Any]:
    refs: list[Any] = [{"items": {"$ref": f"#/d/{number + 1}"}} for number in range(length)]
    return {"$ref": "#/d/0", "d": [*refs, {"type": "null"}]}


def optional(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {} for index in range(number)}}


RECURSIVE = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#/d/node"}]}}}


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        ({"allOf": [{"$ref": "#/d/a"}], "d": {"a": {"$ref": "#/d/a"}}}, "$ref"),
        ({"allOf": [{"$ref": "#/d/a"}], "d": {"a": {"$ref": "#/d/b"}, "b": {"$ref": "#/d/a"}}}, "$ref"),
        ({"allOf": [{"$ref": "#"}]}, "$ref"),
        ({"properties": {"x": {"allOf": [{"$ref": "#/properties/x"}]}}}, "$ref"),
        ({"properties": {"schema": {"allOf": [{"$ref": "#/d/a"}]}}, "d": {"a": {"$ref": "#/d/a"}}}, "$ref"),
        ({"$ref": "#/d/node", "d": {"node": RECURSIVE}}, "allOf"),
        (typed(2, "object", "object"), "type"),
        (typed(12, "object", "array"), ""),
        (doubled(13), ""),
        (doubled(100), ""),
        (doubled(400), "$ref"),
        (unions(13), "anyOf"),
        (unions(400), "anyOf"),
        (chain(600), "$ref"),
        ({"d": [{}], "items": [{"$ref": "#/d/" + "0" * 5}]}, "$ref"),
        (optional(MAX_OPTIONAL + 1), "properties"),
        ({"allOf": [{"anyOf": [{"$ref": "#/d"}] * 9}], "d": optional(50)}, "properties"),
        ({"items": [optional(MAX_OPTIONAL)] * 5}, "properties"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_refused(schema: dict[str, Any], key: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema)
    assert caught.value.key == key


class Colour(BaseModel):
    name: str
    alpha: float | None = None


class Node(BaseModel):
    colour: Colour
    other: Colour | None = None
    children: list[Node]
    next: Node | None = None
    kind: int | str | list[int | str] | dict[str, Node]


@pytest.mark.parametrize(
    "schema",
    [
        Node.model_json_schema(),
        # As pydantic before 2.9 wrote every field with a description.
        {"properties": {"a": {"allOf": [{"$ref": "#/d/a"}]}, "b": {"allOf": [{"$ref": "#/d/a"}]}}, "d": {"a": optional(20)}},
        # Any JSON.
        {"anyOf": [{"type": ["string", "number", "boolean", "null"]}, {"type": "array", "items": {"$ref": "#"}}, {"type": "object", "additionalProperties": {"$ref": "#"}}]},
        typed(30, "object", "null"),
        typed(5, "object", "array", "null"),
        optional(MAX_OPTIONAL),
        {**optional(3000), "required": [f"p{index}" for index in range(3000)]},
        {"properties": {"$ref": {"type": "string"}, "type": {"enum": ["a"]}, "allOf": {}, "required": {}}},
        {"$ref": "#/nowhere/5"},
        chain(300),
        doubled(7),
        True,
        None,
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_schemas_in_use_pass(schema: object) -> None:
    check_schema(schema)


def test_message_has_the_number_and_the_limit() -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(doubled(12))
    assert f"more objects; the limit is {MAX_COPIES:,}" in str(caught.value)


KEYS = st.sampled_from(["type", "allOf", "anyOf", "oneOf", "$ref", "properties", "required", "items", "d"])  # fmt: skip
WORDS = st.sampled_from(["object", "array", "#", "#/d", "#/d/0", "#/items", "#/allOf/0", "#/d/+0", "a"])  # fmt: skip


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | WORDS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=20,
    )
)
def test_any_value_passes_or_is_refused(value: object) -> None:
    with suppress(SchemaError):
        check_schema(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/d/node", "d": {"node": RECURSIVE}},
        optional(MAX_OPTIONAL + 1),
        doubled(13),
        typed(12, "object", "array"),
        chain(600),
    ],
    ids=lambda value: str(value)[:60],
)
def test_engines_that_do_not_expand_schemas_get_them(schema: dict[str, Any]) -> None:
    check_schema(schema, expands=False)
    with pytest.raises(SchemaError):
        check_schema(schema)


def test_references_to_themselves_are_refused_for_every_engine() -> None:
    with pytest.raises(SchemaError, match="leads to itself"):
        check_schema({"$ref": "#/d/a", "d": {"a": {"$ref": "#/d/a"}}}, expands=False)
