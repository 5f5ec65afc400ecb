"""A ggml tensor without its data: type, shape, view and sources; and the graph that tensors are collected in."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph.dims import Size, product
from edgekit.errors import EdgekitError
from edgekit.formats.dtype import TensorType, by_name

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
    layer: int | None = None  # the layer that llama.cpp's graph callback names it with
    copied: GraphTensor | None = None  # the weight, or view of one, that this is a copy of

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


class ShapeError(NoGraphError):
    """Two tensors have incompatible shapes: llama.cpp would not load such a file."""


class MissingTensorError(NoGraphError):
    """The file lacks a weight that its architecture requires."""


class Mark(NamedTuple):
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
        self._seen: set[GraphTensor] = set()

    def expand(self, tensor: GraphTensor) -> None:
        """ggml_build_forward_expand: adds the sources from left to right, then the tensor itself."""
        seen, nodes, leafs = self._seen, self.nodes, self.leafs
        if tensor in seen:
            return
        seen.add(tensor)
        stack = [(tensor, iter(tensor.src))]
        while stack:
            current, sources = stack[-1]
            for source in sources:
                if source in seen:
                    continue
                seen.add(source)
                if source.src:
                    stack.append((source, iter(source.src)))
                    break
                (leafs if source.op == "NONE" else nodes).append(source)
            else:
                stack.pop()
                (leafs if current.op == "NONE" else nodes).append(current)

    def mark(self) -> None:
        self.marks.append(Mark(len(self.nodes), len(self.leafs)))

    def same(self, one: Size, other: Size) -> bool:
        if one == other:
            return True
        if not (isinstance(one, int) and isinstance(other, int)):
            self.unequal.add((one, other))
        return False

    def is_contiguous(self, tensor: GraphTensor) -> bool:
        """ggml_is_contiguous: a dimension of one element may have any stride."""
        kind, nb = tensor.type, tensor.strides
        if nb is None:
            return True
        follows: Size = kind.block_bytes
        if not self.same(tensor.ne[0], kind.block_elements) and not self.same(nb[0], follows):
            return False
        follows = follows * tensor.ne[0] // kind.block_elements
        for i in (1, 2, 3):
            if not self.same(tensor.ne[i], 1) and not self.same(nb[i], follows):
                return False
            follows = follows * tensor.ne[i]
        return True
