"""Symbolic dimensions: polynomials over the few numbers that a load sets.

One graph built with them serves every load of the same shape. `U` tokens are `T * S`: T tokens of each of S
sequences, so every division in llama.cpp is exact here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

Monomial: TypeAlias = tuple[
    str, ...
]  # variables in order, one for each factor: T * T * S is ("S", "T", "T")


_cached = lru_cache(maxsize=4096)  # graphs ask for the same few again and again


class Dim:
    """A polynomial that is not constant. Equal polynomials compare equal."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __repr__(self) -> str:
        return " + ".join("*".join((str(c), *m)) for m, c in sorted(self.terms.items()))

    @_cached
    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return _simple(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: Size) -> Size:
        return -self + other

    @_cached
    def __mul__(self, other: Size) -> Size:
        terms: dict[Monomial, int] = {}
        for mine, factor in self.terms.items():
            for theirs, times in _terms(other).items():
                monomial = tuple(sorted(mine + theirs))
                terms[monomial] = terms.get(monomial, 0) + factor * times
        return _simple(terms)

    __rmul__ = __mul__

    @_cached
    def __floordiv__(self, other: Size) -> Size:
        """Exact division; raises if there is a remainder."""
        ((by, divisor),) = _terms(other).items()
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            left = list(monomial)
            for variable in by:
                left.remove(variable)
            if factor % divisor:
                raise ValueError(f"{other} does not divide {self}")
            terms[tuple(left)] = factor // divisor
        return _simple(terms)

    def __rfloordiv__(self, other: int) -> Size:
        if other:
            raise ValueError(f"{self} does not divide {other}")
        return 0


Size: TypeAlias = int | Dim


@lru_cache
def variable(name: str) -> Dim:
    return Dim({(name,): 1})


def product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def value(size: Size, values: Mapping[str, int]) -> int:
    """The value for a load."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        for name in monomial:
            factor *= values[name]  # noqa: PLW2901 - a product in the making
        total += factor
    return total


def _terms(size: Size) -> Mapping[Monomial, int]:
    return size.terms if isinstance(size, Dim) else {(): size}


def _simple(terms: dict[Monomial, int]) -> Size:
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(kept)
