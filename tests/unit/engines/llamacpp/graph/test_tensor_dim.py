"""Sizes as polynomials over the variables of a load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.engines.llamacpp.graph.tensor import Dim, Size, product, value, variable

T, S, C = variable("T"), variable("S"), variable("C")
AT = {"T": 512, "S": 4, "C": 4096}

sizes = st.recursive(
    st.integers(-9, 9) | st.sampled_from([T, S, C]),
    lambda smaller: (
        st.tuples(smaller, smaller).map(lambda pair: pair[0] + pair[1] * 2)
        | st.tuples(smaller, smaller).map(lambda pair: pair[0] * pair[1])
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (7, 7),
        (T * S, 512 * 4),
        (T * S + 3, 512 * 4 + 3),
        (3 * T - 1, 3 * 512 - 1),
        (2 - T, 2 - 512),
        (T * S // S, 512),
        (8 * T * C // (4 * T), 2 * 4096),
        (product((T, 2, S)), 512 * 2 * 4),
    ],
)
def test_value(size: Size, number: int) -> None:
    assert value(size, AT) == number


def test_constant_polynomial_is_a_number() -> None:
    assert T - T == 0
    assert T * 0 == 0
    assert T // T == 1
    assert 0 // T == 0


def test_equal_polynomials_compare_equal() -> None:
    assert T * S == S * T
    assert (T + S) * 2 == 2 * S + 2 * T
    assert hash(T * S + 1) == hash(1 + S * T)
    assert T != S
    assert T != 512


@pytest.mark.parametrize("quotient", [lambda: T // S, lambda: 3 * T // 2, lambda: 5 // T])
def test_inexact_division_raises(quotient: Callable[[], Size]) -> None:
    with pytest.raises(ValueError):
        quotient()


def test_repr() -> None:
    assert repr(2 * T * S + 3) == "3 + 2*S*T"


@given(sizes, sizes)
def test_arithmetic_equals_that_of_numbers(first: Size, second: Size) -> None:
    a, b = value(first, AT), value(second, AT)
    assert value(first + second, AT) == a + b
    assert value(first - second, AT) == a - b
    assert value(first * second, AT) == a * b
    if isinstance(first, Dim) and first == second:
        assert a == b
