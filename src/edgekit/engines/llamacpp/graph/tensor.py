"""A ggml tensor without its data: type, shape, what it is a view of and what it is made from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph.dims import Size, product
from edgekit.formats.dtype import TensorType, by_name

F32, F16, I32, I64 = by_name("F32"), by_name("F16"), by_name("I32"), by_name("I64")

Shape = tuple[Size, Size, Size, Size]


class Home(enum.Enum):
    """Where the data of a tensor lies that the graph allocator does not place."""

    WEIGHTS = "weights"
    CACHE = "cache"


@dataclass(slots=True, kw_only=True, eq=False)
class GraphTensor:
    """`strides` are None while the tensor is contiguous; in bytes otherwise, as ggml's nb."""

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
    layer: int | None = None  # the one a callback names it with
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
    """Up to four dimensions; the missing ones are 1."""
    first, second, third, fourth, *_ = (*dims, 1, 1, 1)
    return (first, second, third, fourth)
