"""A graph -> what is allocated and freed in each buffer, in order: ggml_gallocr_alloc_graph_impl @ 0c1e570.

Which block a tensor takes depends only on which nodes read it, not on sizes. The offsets do depend on sizes: running
the events finds them (allocator.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.tensor import Graph, GraphTensor, NoGraphError, Shape

# ggml_op_can_inplace: these may overwrite a source that no other node reads.
IN_PLACE = frozenset(
    {
        "ADD",
        "ADD1",
        "ADD_ID",
        "CLAMP",
        "DIAG_MASK_INF",
        "DIAG_MASK_ZERO",
        "DIV",
        "FILL",
        "LOG",
        "MUL",
    }
    | {"RMS_NORM", "ROPE", "ROPE_BACK", "SCALE", "SOFT_MAX", "SQR", "SQRT", "SUB", "UNARY"}
)

_IN_LAYER = re.compile(r"((?:.*\.)?blk\.)(\d+)(\..*)")

ALLOCATE, FREE = 0, 1


# An event: allocate or free, the block number in order of allocation, the index of its size, and -1, or the index of a
# second size if only the part beyond that is freed. Plain tuples of ints: there are hundreds of thousands, and the
# garbage collector does not track them.
Event: TypeAlias = tuple[int, int, int, int]
WHOLE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer with its allocation rules. `extra`: bytes that a tensor takes there in addition to its size."""

    name: str
    alignment: int
    extra: Callable[[GraphTensor], Size] | None = None

    def bytes_of(self, tensor: GraphTensor) -> Size:
        extra = self.extra
        return tensor.bytes if extra is None else tensor.bytes + extra(tensor)


CPU = Buffer(name="CPU", alignment=32)  # ggml-impl.h: TENSOR_ALIGNMENT


class Weight(NamedTuple):
    """The size of a copied weight: otherwise equal layers may have weights of different types."""

    before: str  # its name is `before`, the number of the layer, `after`
    layer: int
    after: str
    ne: Shape


@dataclass(slots=True, kw_only=True)
class Log:
    """The events of one buffer, divided at the start of each layer."""

    buffer: Buffer
    sizes: list[Size | Weight] = field(default_factory=list)
    parts: list[list[Event]] = field(default_factory=lambda: [[]])
    slots: int = 0
    _known: dict[Hashable, int] = field(default_factory=dict)

    def size_of(self, tensor: GraphTensor) -> int:
        """The index of a size; equal sizes share one."""
        extra = self.buffer.extra
        more = 0 if extra is None else extra(tensor)
        key = tensor.copied or (tensor.type.name, tensor.ne, tensor.strides, more)
        index = self._known.get(key)
        if index is None:
            size = _weight(tensor) or tensor.bytes + more
            index = self._known.setdefault(size, len(self.sizes))
            if index == len(self.sizes):
                self.sizes.append(size)
            self._known[key] = index
        return index


def _weight(tensor: GraphTensor) -> Weight | None:
    """The layer weight that a tensor is a copy of, if it is one."""
    if tensor.copied is None:
        return None
    matched = _IN_LAYER.fullmatch((tensor.copied.view_src or tensor.copied).name)
    if matched is None:
        return None
    if tensor.strides is not None:
        raise NoGraphError(f"only a part of {tensor.copied.name} is copied: its size is not known")
    before, number, after = matched.groups()
    return Weight(before, int(number), after, tensor.ne)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGraph:
    """A graph and the buffer of each of its nodes and leafs."""

    nodes: Sequence[GraphTensor]
    leafs: Sequence[GraphTensor]
    node_buffers: Sequence[int]
    leaf_buffers: Sequence[int]
    buffers: tuple[Buffer, ...]
    marks: Sequence[int] = ()  # indices of the nodes where the layers begin
    leafs_of: Sequence[int] = ()  # indices of nodes for which leafs were added

    @classmethod
    def in_one(cls, graph: Graph, buffer: Buffer) -> PlacedGraph:
        return cls(
            nodes=graph.nodes,
            leafs=graph.leafs,
            node_buffers=(0,) * len(graph.nodes),
            leaf_buffers=(0,) * len(graph.leafs),
            buffers=(buffer,),
            marks=[mark.nodes for mark in graph.marks],
        )


class Block(NamedTuple):
    buffer: int
    slot: int
    size: int


def trace(placed: PlacedGraph, same: Callable[[Size, Size], bool]) -> tuple[Log, ...]:
    """One log per buffer. `same` decides whether two sizes are equal."""
    run = _Run(placed, same)
    run.leafs()
    run.count()
    run.nodes()
    return run.logs


class _Run:
    def __init__(self, placed: PlacedGraph, same: Callable[[Size, Size], bool]) -> None:
        self.placed = placed
        self.same = same
        self.logs = tuple(Log(buffer=buffer) for buffer in placed.buffers)
        self.children: dict[GraphTensor, int] = {}
        self.views: dict[GraphTensor, int] = {}
        self.owned: dict[GraphTensor, Block] = {}

    def leafs(self) -> None:
        for leaf, buffer in zip(self.placed.leafs, self.placed.leaf_buffers, strict=True):
            self.allocate(leaf, buffer)

    def count(self) -> None:
        """Counts readers and views; allocates inputs that are nodes before anything else."""
        children, views = self.children, self.views
        for node, buffer in zip(self.placed.nodes, self.placed.node_buffers, strict=True):
            if node.view_src is not None and node.op != "NONE":
                views[node.view_src] = views.get(node.view_src, 0) + 1
            if node.is_input:
                self.allocate(node, buffer)
            for source in node.src:
                children[source] = children.get(source, 0) + 1
                if source.is_input:
                    self.allocate(source, buffer)

    def nodes(self) -> None:
        marks, buffers = Counter(self.placed.marks), self.placed.node_buffers
        children, views, owned = self.children, self.views, self.owned
        for i, node in enumerate(self.placed.nodes):
            if i in marks:
                self.begin(marks[i])
            buffer = buffers[i]
            for source in node.src:
                if source.view_src is None and source.home is None and source not in owned:
                    self.allocate(source, buffer)
            if node.view_src is None:
                self.allocate(node, buffer)
            for source in node.src:
                left = children[source] = children[source] - 1
                if not left and source.home is None and not views.get(source):
                    self.release(source)

        self.begin(marks[len(self.placed.nodes)])

    def begin(self, layers: int) -> None:
        """Starts a new part for each layer that begins at this node; several if a layer has no nodes left."""
        for log in self.logs:
            log.parts += ([] for _ in range(layers))

    def allocate(self, tensor: GraphTensor, buffer: int) -> None:
        if tensor.view_src is not None or tensor.home is not None or tensor in self.owned:
            return
        if tensor.op in IN_PLACE and self.reuse(tensor):
            return
        log = self.logs[buffer]
        slot, size = log.slots, log.size_of(tensor)
        self.owned[tensor] = Block(buffer, slot, size)
        log.parts[-1].append((ALLOCATE, slot, size, WHOLE))
        log.slots += 1

    def reuse(self, tensor: GraphTensor) -> bool:
        """Reuses the block of a source that only this op reads."""
        for source in tensor.src:
            block = self.owned.get(source)
            if block is None or source.is_output or not self.alike(tensor, source):
                continue
            if self.children[source] == 1 and not self.views.get(source):
                del self.owned[source]
                self.owned[tensor] = self.trim(tensor, block)
                return True
        return False

    def alike(self, one: GraphTensor, other: GraphTensor) -> bool:
        """ggml_are_same_layout."""
        return (
            one.type is other.type
            and (one.ne == other.ne or all(map(self.same, one.ne, other.ne)))
            and (one.strides is other.strides is None or all(map(self.same, one.nb, other.nb)))
        )

    def trim(self, tensor: GraphTensor, block: Block) -> Block:
        log = self.logs[block.buffer]
        size = log.size_of(tensor)
        if size == block.size:
            return block
        log.parts[-1].append((FREE, block.slot, block.size, size))
        return block._replace(size=size)

    def release(self, source: GraphTensor) -> None:
        """Frees a source, or the tensor it is a view of, after its last reader."""
        whole = source.view_src
        if whole is None:
            self.free(source)
            return
        self.views[whole] -= 1
        if not self.views[whole] and not self.children.get(whole):
            self.free(whole)

    def free(self, tensor: GraphTensor) -> None:
        block = None if tensor.is_output else self.owned.pop(tensor, None)
        if block is not None:
            self.logs[block.buffer].parts[-1].append((FREE, block.slot, block.size, WHOLE))
