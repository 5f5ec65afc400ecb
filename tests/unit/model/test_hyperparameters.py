"""GgufKeys: values by their GGUF names, checked as they are read. (Hyper: test_geometry.py)"""

from __future__ import annotations

from typing import Any

import pytest

from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.model.hyperparameters import MAX_NUMBER, GgufKeys


def keys(**values: Any) -> GgufKeys:
    return GgufKeys({f"llama.{name}": value for name, value in values.items()}, "llama", "m.gguf")


def test_get_returns_any_value_under_the_prefix() -> None:
    assert keys(name="x").get("name") == "x"
    assert keys().get("name") is None


@pytest.mark.parametrize(
    ("value", "options", "expected"),
    [
        (32, {}, 32),
        (None, {"default": 7}, 7),
        ((8, 8, 8), {}, 8),
        ((8, 4, 2), {"layer": 0}, 8),
        ((8, 4, 2), {"layer": 2}, 2),
        ((8, 4, 2), {"layer": 3, "default": 1}, 1),
        (MAX_NUMBER, {}, MAX_NUMBER),
    ],
)
def test_whole_number_of_a_key_or_of_a_layer(
    value: object, options: dict[str, int], expected: int
) -> None:
    assert keys(count=value).whole("count", **options) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "key llama.count is missing"),
        ("many", "llama.count is 'many', not a whole number"),
        (True, "llama.count is True, not a whole number"),
        (4.0, "llama.count is 4.0, not a whole number"),
        (0, "llama.count is 0, but must be at least 1"),
        ((8, 4), "llama.count is a list, but must be a single number"),
        (9, "llama.count: 9 is over the limit of 8"),
    ],
)
def test_whole_number_that_is_invalid_is_an_error(value: object, message: str) -> None:
    with pytest.raises(HeaderError, match=f"^m.gguf: {message}$"):
        keys(count=value).whole("count", least=1, most=8)


def test_whole_number_over_its_limit_is_a_limit_error() -> None:
    with pytest.raises(HeaderLimitError):
        keys(count=MAX_NUMBER + 1).whole("count")


def test_per_layer_values_of_a_number_list_or_default() -> None:
    assert keys(heads=4).per_layer("heads", 3) == (4, 4, 4)
    assert keys(heads=(4, 2, 1, 1)).per_layer("heads", 3) == (4, 2, 1)
    assert keys(heads=(True, False)).per_layer("heads", 2) == (1, 0)
    assert keys().per_layer("heads", 2, default=(8, 9, 9)) == (8, 9)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "key llama.heads is missing"),
        ((4, 2), "llama.heads lists 2 layers, but the model has 3"),
        ((4, "2", 1), "llama.heads is '2', not a whole number"),
        ((4, -2, 1), "llama.heads is -2, but must be at least 0"),
    ],
)
def test_per_layer_values_that_are_invalid_are_an_error(value: object, message: str) -> None:
    with pytest.raises(HeaderError, match=f"^m.gguf: {message}$"):
        keys(heads=value).per_layer("heads", 3)


def test_number_and_flag_with_defaults() -> None:
    assert keys(base=10_000).number("base") == 10_000.0
    assert keys().number("base", default=0.5) == 0.5
    assert keys(causal=False).flag("causal", default=True) is False
    assert keys().flag("causal", default=True) is True


@pytest.mark.parametrize("value", ["x", True, -1.0, float("inf"), float("nan"), None])
def test_number_that_is_invalid_is_an_error(value: object) -> None:
    with pytest.raises(HeaderError):
        keys(base=value).number("base")


@pytest.mark.parametrize("value", ["x", 1, None])
def test_flag_that_is_invalid_is_an_error(value: object) -> None:
    with pytest.raises(HeaderError):
        keys(causal=value).flag("causal")
