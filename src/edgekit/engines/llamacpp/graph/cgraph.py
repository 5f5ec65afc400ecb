"""A graph in the making: nodes and leafs in the order in which ggml would have them."""

from __future__ import annotations

from typing import NamedTuple

from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


class Mark(NamedTuple):
    nodes: int
    leafs: int


class Graph:
    """`marks` are the counts of nodes and leafs when a layer began; `unequal`: sizes that were taken to differ.

    Sizes that are polynomials are compared as such. Two that differ may still meet at some load: the graph is built
    anew with that load's numbers then.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphTensor] = []
        self.leafs: list[GraphTensor] = []
        self.marks: list[Mark] = []
        self.unequal: set[tuple[Size, Size]] = set()
        self._seen: set[GraphTensor] = set()

    def expand(self, tensor: GraphTensor) -> None:
        """ggml_build_forward_expand: what it is made from, left to right, then itself."""
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
        """ggml_is_contiguous: a dimension of one element may lie anywhere."""
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
