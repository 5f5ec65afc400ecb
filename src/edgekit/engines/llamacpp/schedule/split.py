"""The last passes of ggml_backend_sched_split_graph: where the backend changes, what is copied, what is kept alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edgekit.engines.llamacpp.graph.cgraph import Graph
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.engines.llamacpp.graph.trace import PlacedGraph
from edgekit.engines.llamacpp.schedule.assign import Assignment
from edgekit.engines.llamacpp.schedule.types import (
    MAX_SOURCES,
    VIEW_OPS,
    ScheduledMachine,
    is_weight,
)


@dataclass(slots=True, kw_only=True)
class _Split:
    backend: int
    start: int
    inputs: list[GraphTensor] = field(default_factory=list)


class _Splitter:
    """Walks the nodes in order; sources on another backend are replaced by copies."""

    def __init__(self, graph: Graph, assignment: Assignment, machine: ScheduledMachine) -> None:
        self.graph = graph
        self.machine = machine
        self.assignment = assignment
        self.copies: dict[tuple[GraphTensor, int], list[GraphTensor]] = {}
        self.splits: list[_Split] = []

    def walk(self) -> None:
        nodes, assignment = self.graph.nodes, self.assignment
        first = next((node for node in nodes if node.op not in VIEW_OPS), nodes[0])
        self.splits.append(_Split(backend=assignment[first], start=0))
        for i, node in enumerate(nodes):
            if node.op in VIEW_OPS:
                continue
            current, backend = self.splits[-1], assignment[node]
            elsewhere = [
                source
                for source in node.src
                if assignment[source] != backend and self._is_elsewhere(source, backend)
            ]
            if backend != current.backend or _wants_fresh_split(elsewhere, current):
                current = _Split(backend=backend, start=i)
                self.splits.append(current)
            if elsewhere:
                self._copy_inputs(node, elsewhere, current)

    def _is_elsewhere(self, source: GraphTensor, backend: int) -> bool:
        """Not in memory that the backend can read either."""
        home = self.machine.home_of(source)
        return (self.assignment[source] if home is None else home) != backend

    def _copy_inputs(self, node: GraphTensor, sources: list[GraphTensor], current: _Split) -> None:
        for source in sources:
            key = (source, current.backend)
            if key not in self.copies:
                self.copies[key] = [self._copy(source) for _ in range(self.machine.copies)]
                current.inputs.append(source)
        node.src = tuple(
            self.copies[source, current.backend][0] if source in sources else source
            for source in node.src
        )

    def _copy(self, source: GraphTensor) -> GraphTensor:
        many = self.machine.copies > 1
        return GraphTensor(
            op="NONE",
            type=source.type,
            ne=source.ne,
            strides=source.strides,
            is_input=many,
            is_output=many,
            copied=source if is_weight(source.view_src or source) else None,
        )


def _wants_fresh_split(elsewhere: list[GraphTensor], current: _Split) -> bool:
    """A further weight from the host: the memory of the copies before it can be used again."""
    return bool(current.inputs) and any(map(is_weight, elsewhere))


def split(graph: Graph, assignment: Assignment, machine: ScheduledMachine) -> PlacedGraph:
    """The graph as the allocator gets it. The sources of `graph`'s nodes are changed."""
    walker = _Splitter(graph, assignment, machine)
    walker.walk()
    nodes: list[GraphTensor] = []
    buffers: list[int] = []
    marks: list[int] = []
    pending = iter([*(one.nodes for one in graph.marks), len(graph.nodes) + 1])
    mark = next(pending)
    ends = [one.start for one in walker.splits[1:]] + [len(graph.nodes)]
    for one, end in zip(walker.splits, ends, strict=True):
        own, kept = machine.backends[one.backend].optimize(graph.nodes[one.start : end])
        while one.start == mark:
            marks.append(len(nodes))
            mark = next(pending)
        for tensor, buffer in _inputs(one, walker):
            nodes.append(tensor)
            buffers.append(buffer)
        for i, node in enumerate(own, one.start):
            while i == mark:
                marks.append(len(nodes))
                mark = next(pending)
            nodes.append(node)
            buffers.append(assignment[node])
            if node in kept:
                held = _kept_alive(kept[node])
                nodes += held
                buffers += [one.backend] * len(held)
    marks += [len(nodes)] * (len(graph.marks) - len(marks))
    leafs, leaf_buffers = _leafs(graph, walker)
    return PlacedGraph(
        nodes=nodes,
        leafs=leafs,
        node_buffers=buffers,
        leaf_buffers=leaf_buffers,
        buffers=tuple(backend.buffer for backend in machine.backends),
        marks=marks,
        leafs_of=_with_leafs(nodes, walker) if machine.copies > 1 else (),
    )


def _with_leafs(nodes: list[GraphTensor], walker: _Splitter) -> list[int]:
    """Where nodes are whose copies are leafs."""
    copied = {source for source, _ in walker.copies}
    return [i for i, node in enumerate(nodes) if node in copied]


def _inputs(one: _Split, walker: _Splitter) -> Iterator[tuple[GraphTensor, int]]:
    """Each input is held until it is copied, and its copy is placed when the split begins."""
    for source in one.inputs:
        yield _holding(source), walker.assignment[source]
        yield walker.copies[source, one.backend][0], one.backend


def _kept_alive(tensors: list[GraphTensor]) -> list[GraphTensor]:
    starts = range(0, len(tensors), MAX_SOURCES)
    return [_holding(*tensors[start : start + MAX_SOURCES]) for start in starts]


def _holding(*tensors: GraphTensor) -> GraphTensor:
    """A node that does nothing but to read them."""
    first = tensors[0]
    return GraphTensor(
        op="NONE",
        type=first.type,
        ne=first.ne,
        strides=first.strides,
        src=tensors,
        view_src=first.view_src or first,
    )


def _leafs(graph: Graph, walker: _Splitter) -> tuple[list[GraphTensor], list[int]]:
    """With several copies of the inputs all of them are placed first and never freed."""
    leafs: list[GraphTensor] = []
    buffers: list[int] = []
    assignment, machine = walker.assignment, walker.machine
    if machine.copies > 1:
        for leaf in (one for one in graph.leafs if one.is_input):
            own = walker.copies.get((leaf, assignment[leaf]))
            if own is None:
                leaf.is_output = True
                own = [leaf, *(walker._copy(leaf) for _ in range(machine.copies - 1))]  # noqa: SLF001 - of this file
            leafs += own
            buffers += [assignment[leaf]] * len(own)
        for one in walker.splits:
            for source in one.inputs:
                own = walker.copies[source, one.backend]
                leafs += own
                buffers += [one.backend] * len(own)
    leafs += graph.leafs
    buffers += [assignment.get(leaf, machine.host) for leaf in graph.leafs]
    return leafs, buffers
