"""Tensors without data: symbolic sizes, tensors (type, shape, view and sources), and the graph that holds them.

A size is a number or a polynomial over the few numbers that a load sets, so one graph serves every load of the same
shape. A batch has T tokens of each of S sequences, T * S in all: every division in llama.cpp is exact here too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from edgekit.errors import EdgekitError
from edgekit.formats.dtype import TensorType, by_name

# Sorted variables, one for each factor: T * T * S is ("S", "T", "T").
Monomial: TypeAlias = tuple[str, ...]


_cached = lru_cache(maxsize=4096)  # a graph computes the same few polynomials many times


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
        for left, factor in self.terms.items():
            for right, right_factor in _terms(other).items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + factor * right_factor
        return _simple(terms)

    __rmul__ = __mul__

    @_cached
    def __floordiv__(self, other: Size) -> Size:
        """Exact division; raises if there is a remainder."""
        ((names, divisor),) = _terms(other).items()
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            remaining = list(monomial)
            for name in names:
                remaining.remove(name)
            if factor % divisor:
                raise ValueError(f"{other} does not divide {self}")
            terms[tuple(remaining)] = factor // divisor
        return _simple(terms)

    def __rfloordiv__(self, other: int) -> Size:
        if other:
            raise ValueError(f"{self} does not divide {other}")
        return 0


Size: TypeAlias = int | Dim


@lru_cache
def variable(name: str) -> Dim:
    """A size that a load sets."""
    return Dim({(name,): 1})


def product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def value(size: Size, values: Mapping[str, int]) -> int:
    """The value of a size for a load."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        for name in monomial:
            factor *= values[name]  # noqa: PLW2901 - a running product
        total += factor
    return total


def _terms(size: Size) -> Mapping[Monomial, int]:
    return size.terms if isinstance(size, Dim) else {(): size}


def _simple(terms: dict[Monomial, int]) -> Size:
    """The polynomial without its zero terms: a number if it is constant."""
    nonzero = {monomial: factor for monomial, factor in terms.items() if factor}
    if not nonzero:
        return 0
    if len(nonzero) == 1 and () in nonzero:
        return nonzero[()]
    return Dim(nonzero)


F32, F16, I32, I64 = by_name("F32"), by_name("F16"), by_name("I32"), by_name("I64")

Shape = tuple[Size, Size, Size, Size]


class Home(enum.Enum):
    """What holds the data of tensors that the graph allocator does not place."""

    WEIGHTS = "weights"
    CACHE = "cache"


@dataclass(slots=True, kw_only=True, eq=False)
class GraphTensor:
    """A tensor. `strides` are None for a contiguous tensor, else bytes as in ggml's nb."""

    op: str
    type: TensorType
    ne: Shape
    src: tuple[GraphTensor, ...] = ()
    strides: Shape | None = None
    view_src: GraphTensor | None = None
    home: Home | None = None
    is_input: bool = False
    is_output: bool = False
    name: str = ""
    # The weight, or the view of a weight, that this tensor is a copy of.
    copied: GraphTensor | None = None

    @property
    def nb(self) -> Shape:
        return self.strides or contiguous_strides(self.type, self.ne)

    @property
    def elements(self) -> Size:
        return product(self.ne)

    @property
    def bytes(self) -> Size:
        """ggml_nbytes."""
        if self.strides is None:
            return row_bytes(self.type, self.ne[0]) * self.ne[1] * self.ne[2] * self.ne[3]
        nb = self.strides
        if self.type.block_elements == 1:
            size: Size = self.type.block_bytes + (self.ne[0] - 1) * nb[0]
        else:
            size = self.ne[0] * nb[0] // self.type.block_elements
        for i in (1, 2, 3):
            size = size + (self.ne[i] - 1) * nb[i]
        return size


def contiguous_strides(kind: TensorType, ne: Shape) -> Shape:
    row = row_bytes(kind, ne[0])
    return (kind.block_bytes, row, row * ne[1], row * ne[1] * ne[2])


def row_bytes(kind: TensorType, elements: Size) -> Size:
    return elements * kind.block_bytes // kind.block_elements


def shape(*dims: Size) -> Shape:
    """A shape of four dimensions; missing ones are 1."""
    first, second, third, fourth, *_ = (*dims, 1, 1, 1)
    return (first, second, third, fourth)


class NoGraphError(EdgekitError):
    """No graph is known for the architecture, or the file does not describe one."""


def number(size: Size) -> int:
    """A size as an int, for graphs that are only built for loads with numbers (Build.only_numbers)."""
    if isinstance(size, Dim):
        raise NoGraphError(f"{size} is not known yet")
    return size


class ShapeError(NoGraphError):
    """Two tensors have incompatible shapes: llama.cpp would not load such a file."""


class MissingTensorError(NoGraphError):
    """The file lacks a weight that its architecture requires."""


class Mark(NamedTuple):
    """Numbers of nodes and leafs in the graph when a layer begins."""

    nodes: int
    leafs: int


class Graph:
    """A graph. `marks`: node and leaf counts at the start of each layer; `unequal`: pairs of sizes assumed to differ.

    Different polynomials may have equal values for some load: then the graph is rebuilt with that load's numbers.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphTensor] = []
        self.leafs: list[GraphTensor] = []
        self.marks: list[Mark] = []
        self.unequal: set[tuple[Size, Size]] = set()
        self._visited: set[GraphTensor] = set()

    def expand(self, tensor: GraphTensor) -> None:
        """ggml_build_forward_expand: adds the sources from left to right, then the tensor itself."""
        visited, nodes, leafs = self._visited, self.nodes, self.leafs
        if tensor in visited:
            return
        visited.add(tensor)
        stack = [(tensor, iter(tensor.src))]
        while stack:
            current, sources = stack[-1]
            for source in sources:
                if source in visited:
                    continue
                visited.add(source)
                if source.src:
                    stack.append((source, iter(source.src)))
                    break
                (leafs if source.op == "NONE" else nodes).append(source)
            else:
                stack.pop()
                (leafs if current.op == "NONE" else nodes).append(current)

    def mark(self) -> None:
        self.marks.append(Mark(len(self.nodes), len(self.leafs)))

    def same(self, left: Size, right: Size) -> bool:
        """True if the sizes are equal; records an assumption if they are polynomials that differ."""
        if left == right:
            return True
        if not (isinstance(left, int) and isinstance(right, int)):
            self.unequal.add((left, right))
        return False

    def is_contiguous(self, tensor: GraphTensor) -> bool:
        """ggml_is_contiguous: a dimension of one element may have any stride."""
        kind, nb = tensor.type, tensor.strides
        if nb is None:
            return True
        expected_stride: Size = kind.block_bytes
        if not self.same(tensor.ne[0], kind.block_elements) and not self.same(
            nb[0], expected_stride
        ):
            return False
        expected_stride = expected_stride * tensor.ne[0] // kind.block_elements
        for i in (1, 2, 3):
            if not self.same(tensor.ne[i], 1) and not self.same(nb[i], expected_stride):
                return False
            expected_stride = expected_stride * tensor.ne[i]
        return True
