"""A graph -> the bytes that each buffer needs: ggml-alloc.c @ 0c1e570.

`trace` lists what is allocated and freed, in order (ggml_gallocr_alloc_graph_impl): which block a tensor reuses depends
only on which nodes read it, not on sizes. `high_water` runs a program of such events with a load's sizes: best fit in a
sorted free list (ggml_dyn_tallocr).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

from edgekit.engines.llamacpp.graph.tensor import (
    Graph,
    GraphTensor,
    NoGraphError,
    Shape,
    Size,
    value,
)
from edgekit.errors import RefusedError

# ggml_op_can_inplace: these may overwrite a source that no other node reads.
IN_PLACE = frozenset(
    {
        *("ADD", "ADD1", "ADD_ID", "CLAMP", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "DIV", "FILL"),
        *("LOG", "MUL", "RMS_NORM", "ROPE", "ROPE_BACK", "SCALE", "SOFT_MAX", "SQR", "SQRT"),
        *("SUB", "UNARY"),
    }
)

_IN_LAYER = re.compile(r"((?:.*\.)?blk\.)(\d+)(\..*)")

ALLOCATE, FREE = 0, 1


# An event has four numbers: ALLOCATE or FREE; the slot (blocks are numbered in the order of allocation); the index of
# the block's size; and WHOLE, or the index of a second size if only the part beyond it is freed. Events are plain
# tuples: there are hundreds of thousands, and the garbage collector does not track tuples of ints.
Event: TypeAlias = tuple[int, int, int, int]
WHOLE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer with its allocation rules. `extra_bytes`: bytes that a tensor takes there in addition to its size."""

    name: str
    alignment: int
    extra_bytes: Callable[[GraphTensor], Size] | None = None

    def bytes_of(self, tensor: GraphTensor) -> Size:
        extra_bytes = self.extra_bytes
        return tensor.bytes if extra_bytes is None else tensor.bytes + extra_bytes(tensor)


CPU = Buffer(name="CPU", alignment=32)  # ggml-impl.h: TENSOR_ALIGNMENT


# Weights of which a graph copies slices: layers with other types of these are not alike.
SLICED = ("ple_conv1d.weight",)


class Weight(NamedTuple):
    """The size of a copied weight, by name: layers that are otherwise equal may have weights of different types."""

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
    _indices: dict[Hashable, int] = field(default_factory=dict)

    def events(self, start: int, end: int | None = None) -> tuple[Event, ...]:
        """The events of the parts from `start` to `end`, or to the last."""
        return tuple(chain.from_iterable(self.parts[start:end]))

    def size_of(self, tensor: GraphTensor) -> int:
        """The index of the tensor's size in `sizes`; equal sizes share one."""
        extra = 0 if self.buffer.extra_bytes is None else self.buffer.extra_bytes(tensor)
        key = tensor.copied or (tensor.type.name, tensor.ne, tensor.strides, extra)
        index = self._indices.get(key)
        if index is None:
            size = _weight(tensor) or tensor.bytes + extra
            index = self._indices.setdefault(size, len(self.sizes))
            if index == len(self.sizes):
                self.sizes.append(size)
            self._indices[key] = index
        return index


def _weight(tensor: GraphTensor) -> Weight | None:
    """The weight of a layer that this tensor is a copy of; None if it is not a copy."""
    if tensor.copied is None:
        return None
    match = _IN_LAYER.fullmatch((tensor.copied.view_src or tensor.copied).name)
    if match is None:
        return None
    if tensor.strides is not None:
        if match[0].endswith(SLICED):
            return None
        raise NoGraphError(f"only a part of {tensor.copied.name} is copied: its size is not known")
    before, number, after = match.groups()
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
        """The graph with all tensors in one buffer."""
        return cls(
            nodes=graph.nodes,
            leafs=graph.leafs,
            node_buffers=(0,) * len(graph.nodes),
            leaf_buffers=(0,) * len(graph.leafs),
            buffers=(buffer,),
            marks=[mark.nodes for mark in graph.marks],
        )


class Block(NamedTuple):
    """Memory that a tensor takes: its buffer, its slot there, and the index of its size."""

    buffer: int
    slot: int
    size: int


def trace(placed: PlacedGraph, same: Callable[[Size, Size], bool]) -> tuple[Log, ...]:
    """One log per buffer. `same` decides whether two sizes are equal."""
    tracer = _Tracer(placed, same)
    for leaf, buffer in zip(placed.leafs, placed.leaf_buffers, strict=True):
        tracer.allocate(leaf, buffer)
    tracer.allocate_inputs_and_count()
    tracer.allocate_nodes()
    return tracer.logs


class _Tracer:
    """Allocates and frees the tensors of a graph in order. `children` counts a tensor's readers that have not run."""

    def __init__(self, placed: PlacedGraph, same: Callable[[Size, Size], bool]) -> None:
        self.placed = placed
        self.same = same
        self.logs = tuple(Log(buffer=buffer) for buffer in placed.buffers)
        self.children: dict[GraphTensor, int] = {}
        self.views: dict[GraphTensor, int] = {}
        self.blocks: dict[GraphTensor, Block] = {}

    def allocate_inputs_and_count(self) -> None:
        """Allocates the inputs, before all other nodes, and counts how many nodes read and view each tensor."""
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

    def allocate_nodes(self) -> None:
        """Runs all nodes: allocates each one, then frees the sources that no later node reads."""
        marks, buffers = Counter(self.placed.marks), self.placed.node_buffers
        children, views, blocks = self.children, self.views, self.blocks
        for i, node in enumerate(self.placed.nodes):
            if i in marks:
                self.start_parts(marks[i])
            buffer = buffers[i]
            for source in node.src:
                if source.view_src is None and source.home is None and source not in blocks:
                    self.allocate(source, buffer)
            if node.view_src is None:
                self.allocate(node, buffer)
            for source in node.src:
                readers = children[source] = children[source] - 1
                if not readers and source.home is None and not views.get(source):
                    self.release(source)

        self.start_parts(marks[len(self.placed.nodes)])

    def start_parts(self, layers: int) -> None:
        """Starts a part of each log for every layer that begins at this node: several if a layer has no nodes."""
        for log in self.logs:
            log.parts += ([] for _ in range(layers))

    def allocate(self, tensor: GraphTensor, buffer: int) -> None:
        """Gives the tensor a block, unless it has one, is a view, or is a weight or cache."""
        if tensor.view_src is not None or tensor.home is not None or tensor in self.blocks:
            return
        if tensor.op in IN_PLACE and self.reuse(tensor):
            return
        log = self.logs[buffer]
        slot, size = log.slots, log.size_of(tensor)
        self.blocks[tensor] = Block(buffer, slot, size)
        log.parts[-1].append((ALLOCATE, slot, size, WHOLE))
        log.slots += 1

    def reuse(self, tensor: GraphTensor) -> bool:
        """Reuses the block of a source that only this op reads."""
        for source in tensor.src:
            block = self.blocks.get(source)
            if block is None or source.is_output or not self.has_same_layout(tensor, source):
                continue
            if self.children[source] == 1 and not self.views.get(source):
                del self.blocks[source]
                self.blocks[tensor] = self.trim(tensor, block)
                return True
        return False

    def has_same_layout(self, first: GraphTensor, second: GraphTensor) -> bool:
        """ggml_are_same_layout: equal types, shapes and strides."""
        return (
            first.type is second.type
            and (first.ne == second.ne or all(map(self.same, first.ne, second.ne)))
            and (
                first.strides is second.strides is None or all(map(self.same, first.nb, second.nb))
            )
        )

    def trim(self, tensor: GraphTensor, block: Block) -> Block:
        """The block with the size of its new tensor; the rest of the block is freed."""
        log = self.logs[block.buffer]
        size = log.size_of(tensor)
        if size == block.size:
            return block
        log.parts[-1].append((FREE, block.slot, block.size, size))
        return block._replace(size=size)

    def release(self, source: GraphTensor) -> None:
        """Frees a source, or the tensor it is a view of, after its last reader."""
        viewed = source.view_src
        if viewed is None:
            self.free(source)
            return
        self.views[viewed] -= 1
        if not self.views[viewed] and not self.children.get(viewed):
            self.free(viewed)

    def free(self, tensor: GraphTensor) -> None:
        block = None if tensor.is_output else self.blocks.pop(tensor, None)
        if block is not None:
            self.logs[block.buffer].parts[-1].append((FREE, block.slot, block.size, WHOLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Consecutive events, which may run in rounds.

    In rounds, slots below `slots` are blocks of the previous round, and the next `slots` are blocks of this round.
    """

    events: tuple[Event, ...]
    base: int = 0  # the first slot of the first round in the program's numbering
    slots: int = 0  # blocks that a round allocates
    carried: tuple[int, ...] = ()  # slots of the previous round that this one frees
    round_sizes: tuple[int, ...] = ()  # indices of the sizes that differ between rounds
    rounds: tuple[tuple[int, ...], ...] = ()  # those sizes, for each round


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The allocations of one buffer. `sizes` become bytes with a load's values; `fixed` are bytes by index."""

    alignment: int
    sections: tuple[Section, ...]
    sizes: tuple[Size, ...]
    slots: int
    round_sizes: int = 0  # number of sizes that differ between rounds, indexed after `sizes`
    fixed: tuple[tuple[int, int], ...] = ()


ENDLESS = 2**63 - 1  # the last free block: SIZE_MAX / 2

# Starts and lengths of the free blocks, and the offsets of the blocks that a round allocated.
_Snapshot = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def high_water(program: Program, values: Mapping[str, int]) -> int:
    """The bytes that the buffer needs: the highest end of a block at any time."""
    align = program.alignment
    sizes = [-(-value(size, values) // align) * align for size in program.sizes]
    for i, size in program.fixed:
        sizes[i] = size
    heap = _Heap(sizes + [0] * program.round_sizes)
    offsets = [0] * program.slots
    for section in program.sections:
        if section.rounds:
            _repeat(heap, section, offsets)
        else:
            heap.play(section.events, offsets)
    return heap.top


def _repeat(heap: _Heap, section: Section, offsets: list[int]) -> None:
    """Runs a section once per round. Rounds with the same sizes and the same start state share their result."""
    slots, base = section.slots, section.base
    previous = offsets[max(0, base - slots) : base]
    # Offsets of the blocks of the previous round, then of this one.
    window = [0] * (slots - len(previous)) + previous + [0] * slots
    # States are numbered, because their tuples are long to hash. A round's result: the number of the state after it,
    # and what to restore instead of running it.
    state_numbers = {_state(heap, section, window): 0}
    results: dict[tuple[int, tuple[int, ...]], tuple[int, _Snapshot]] = {}
    state = 0
    to_restore: _Snapshot | None = None  # set after rounds that were not run
    for sizes in section.rounds:
        if (result := results.get((state, sizes))) is not None:
            state, to_restore = result
            continue
        if to_restore is not None:
            heap.starts, heap.lengths, window[:slots] = map(list, to_restore)
            to_restore = None
        for i, size in zip(section.round_sizes, sizes, strict=True):
            heap.sizes[i] = size
        heap.play(section.events, window)
        window[:slots] = window[slots:]
        state_after = _state(heap, section, window)
        number_after = state_numbers.setdefault(state_after, len(state_numbers))
        snapshot = tuple(heap.starts), tuple(heap.lengths), tuple(window[:slots])
        results[state, sizes] = number_after, snapshot
        state = number_after
    if to_restore is not None:
        heap.starts, heap.lengths, window[:slots] = map(list, to_restore)
    offsets[base + slots : base + 2 * slots] = window[:slots]


def _state(heap: _Heap, section: Section, window: Sequence[int]) -> tuple[int, ...]:
    """Everything that the next round depends on: the free list, and the offsets of the blocks it will free."""
    return (*heap.starts, *heap.lengths, *(window[i] for i in section.carried))


class _Heap:
    """The free list of one buffer, in offset order. `sizes`: bytes by size index; `top`: the highest end of a block."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.starts = [0]
        self.lengths = [ENDLESS]
        self.top = 0

    def play(self, events: Sequence[Event], offsets: list[int]) -> None:
        """Allocates and frees blocks. `offsets`: the block of each slot, read and written."""
        starts, lengths, sizes, top = self.starts, self.lengths, self.sizes, self.top
        for kind, slot, index, tail in events:
            size = sizes[index]
            if kind:  # FREE
                offset = offsets[slot]
                if tail >= 0:
                    offset += sizes[tail]
                    size -= sizes[tail]
                    if not size:
                        continue
                _free(starts, lengths, offset, size)
                continue
            # If several blocks fit equally well, ggml takes the last.
            best, fit = 0, ENDLESS + 1
            for i, length in enumerate(lengths):
                if size <= length <= fit:
                    best, fit = i, length
            if fit > ENDLESS:
                raise RefusedError(
                    "the compute graph is too large for llama.cpp to count its bytes: "
                    "use a shorter context or smaller batches"
                )
            offset = starts[best]
            offsets[slot] = offset
            if fit == size:
                del starts[best], lengths[best]
            else:
                starts[best] = offset + size
                lengths[best] = fit - size
            top = max(top, offset + size)
        self.top = top


def _free(starts: list[int], lengths: list[int], offset: int, size: int) -> None:
    """Merges the block with its neighbours in the free list, or inserts it in offset order."""
    end = offset + size
    for i, start in enumerate(starts):
        stop = start + lengths[i]
        if stop == offset:  # the free block ends where this one begins
            lengths[i] += size
            if i + 1 < len(starts) and starts[i + 1] == end:
                lengths[i] += lengths[i + 1]
                del starts[i + 1], lengths[i + 1]
            return
        if start == end:  # the free block begins where this one ends
            starts[i] = offset
            lengths[i] += size
            if i and starts[i - 1] + lengths[i - 1] == offset:
                lengths[i - 1] += lengths[i]
                del starts[i], lengths[i]
            return
    i = 0
    while i < len(starts) and starts[i] < offset:
        i += 1
    starts.insert(i, offset)
    lengths.insert(i, size)
