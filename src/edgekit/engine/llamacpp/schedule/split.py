"""The last passes of ggml_backend_sched_split_graph: where the backend changes, what is copied, what is kept alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edgekit.engine.llamacpp.graph.cgraph import Graph
from edgekit.engine.llamacpp.graph.tensor import Tensor
from edgekit.engine.llamacpp.graph.trace import Placed
from edgekit.engine.llamacpp.schedule.assign import Assignment
from edgekit.engine.llamacpp.schedule.types import (
    MAX_SOURCES,
    VIEW_OPS,
    Machine,
    is_weight,
)


@dataclass(slots=True, kw_only=True)
class _Split:
    backend: int
    start: int
    inputs: list[Tensor] = field(default_factory=list)


class _Splitter:
    """Walks the nodes in order; sources on another backend are replaced by copies."""

    def __init__(self, graph: Graph, assignment: Assignment, machine: Machine) -> None:
        self.graph = graph
        self.machine = machine
        self.assignment = assignment
        self.copies: dict[tuple[Tensor, int], list[Tensor]] = {}
        self.splits: list[_Split] = []

    def walk(self) -> None:
        nodes, assignment = self.graph.nodes, self.assignment
        first = next((node for node in nodes if node.op not in VIEW_OPS), nodes[0])
        self.splits.append(_Split(backend=assignment[first], start=0))
        for i, node in enumerate(nodes):
            if node.op in VIEW_OPS:
                continue
            current = self.splits[-1]
            if assignment[node] != current.backend or self._wants_fresh_split(node, current):
                current = _Split(backend=assignment[node], start=i)
                self.splits.append(current)
            self._copy_inputs(node, current)

    def _is_elsewhere(self, source: Tensor, backend: int) -> bool:
        """Neither assigned to the backend nor in memory that it can read."""
        if self.assignment[source] == backend:
            return False
        home = self.machine.home_of(source)
        return (self.assignment[source] if home is None else home) != backend

    def _wants_fresh_split(self, node: Tensor, current: _Split) -> bool:
        """A further weight from the host: the memory of the copies before it can be used again."""
        return bool(current.inputs) and any(
            is_weight(source) and self._is_elsewhere(source, current.backend) for source in node.src
        )

    def _copy_inputs(self, node: Tensor, current: _Split) -> None:
        sources = list(node.src)
        for j, source in enumerate(sources):
            if not self._is_elsewhere(source, current.backend):
                continue
            key = (source, current.backend)
            if key not in self.copies:
                self.copies[key] = [self._copy(source) for _ in range(self.machine.copies)]
                current.inputs.append(source)
            sources[j] = self.copies[key][0]
        node.src = tuple(sources)

    def _copy(self, source: Tensor) -> Tensor:
        many = self.machine.copies > 1
        return Tensor(
            op="NONE",
            type=source.type,
            ne=source.ne,
            strides=source.strides,
            is_input=many,
            is_output=many,
            name=f"copy of {source.name}",
        )


def split(graph: Graph, assignment: Assignment, machine: Machine) -> Placed:
    """The graph as the allocator gets it. The sources of `graph`'s nodes are changed."""
    walker = _Splitter(graph, assignment, machine)
    walker.walk()
    nodes: list[Tensor] = []
    buffers: list[int] = []
    marks: list[int] = []
    pending = iter([*(one.nodes for one in graph.marks), len(graph.nodes) + 1])
    mark = next(pending)
    ends = [one.start for one in walker.splits[1:]] + [len(graph.nodes)]
    for one, end in zip(walker.splits, ends, strict=True):
        kept = machine.backends[one.backend].keeps(graph.nodes[one.start : end])
        if one.start == mark:
            marks.append(len(nodes))
            mark = next(pending)
        for tensor, buffer in _inputs(one, walker):
            nodes.append(tensor)
            buffers.append(buffer)
        for i in range(one.start, end):
            if i == mark:
                marks.append(len(nodes))
                mark = next(pending)
            nodes.append(graph.nodes[i])
            buffers.append(assignment[graph.nodes[i]])
            for tensor in _kept_alive(kept.get(graph.nodes[i], ())):
                nodes.append(tensor)
                buffers.append(one.backend)
    leafs, leaf_buffers = _leafs(graph, walker)
    return Placed(
        nodes=nodes,
        leafs=leafs,
        node_buffers=buffers,
        leaf_buffers=leaf_buffers,
        buffers=tuple(backend.buffer for backend in machine.backends),
        marks=marks,
        # One split for each backend, and the host's at the start: none lies within a layer.
        repeats=machine.copies == 1 or len(walker.splits) <= len(machine.backends),
    )


def _inputs(one: _Split, walker: _Splitter) -> Iterator[tuple[Tensor, int]]:
    """Each input is held until it is copied, and its copy is placed when the split begins."""
    for source in one.inputs:
        held = Tensor(
            op="NONE",
            type=source.type,
            ne=source.ne,
            strides=source.strides,
            src=(source,),
            view_src=source.view_src or source,
        )
        yield held, walker.assignment[source]
        yield walker.copies[source, one.backend][0], one.backend


def _kept_alive(tensors: list[Tensor] | tuple[()]) -> Iterator[Tensor]:
    for start in range(0, len(tensors), MAX_SOURCES):
        some = tuple(tensors[start : start + MAX_SOURCES])
        first = some[0]
        yield Tensor(
            op="NONE",
            type=first.type,
            ne=first.ne,
            strides=first.strides,
            src=some,
            view_src=first.view_src or first,
        )


def _leafs(graph: Graph, walker: _Splitter) -> tuple[list[Tensor], list[int]]:
    """With several copies of the inputs all of them are placed first and never freed."""
    leafs: list[Tensor] = []
    buffers: list[int] = []
    assignment, machine = walker.assignment, walker.machine
    if machine.copies > 1:
        for leaf in (one for one in graph.leafs if one.is_input):
            own = walker.copies.get((leaf, assignment[leaf]))
            if own is None:
                leaf.is_output = True
                own = [leaf, *(walker._copy(leaf) for _ in range(machine.copies - 1))]  # noqa: SLF001
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
