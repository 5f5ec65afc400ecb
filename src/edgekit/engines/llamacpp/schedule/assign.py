"""The first four passes of ggml_backend_sched_split_graph: every tensor gets a backend."""

from __future__ import annotations

from collections.abc import Iterable

from edgekit.engines.llamacpp.graph.cgraph import Graph
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Home
from edgekit.engines.llamacpp.schedule.types import VIEW_OPS, ScheduledMachine

Assignment = dict[GraphTensor, int]

# Their weights are too small to decide where they run.
INDIFFERENT = frozenset({"ROPE", "FLASH_ATTN_EXT"})


def assign(graph: Graph, machine: ScheduledMachine) -> Assignment:
    found = _by_location((*graph.leafs, *graph.nodes), machine)
    working = [node for node in graph.nodes if node.op not in VIEW_OPS]
    _expand(working, found, machine, devices_only=True)
    _expand(reversed(working), found, machine, devices_only=True)
    _expand(working, found, machine, devices_only=False)
    _expand(reversed(working), found, machine, devices_only=False)
    for node in working:
        if node not in found:
            found[node] = _best(node, found, machine)
    _settle(graph.nodes, found, machine)
    return found


def _by_location(tensors: Iterable[GraphTensor], machine: ScheduledMachine) -> Assignment:
    """Where tensors must be because of what they are made from (backend_id_from_cur)."""
    found: Assignment = {}
    homes, host = machine.homes, machine.host
    for tensor in tensors:
        chosen = homes.get(tensor.view_src or tensor)
        if chosen is None:
            chosen = host if tensor.is_input else _by_weight(tensor, machine)
        if chosen is not None:
            found[tensor] = chosen
    return found


def _by_weight(node: GraphTensor, machine: ScheduledMachine) -> int | None:
    if node.op not in INDIFFERENT:
        for source in node.src:
            if source.home is Home.WEIGHTS:
                return _beside(node, machine.homes[source], machine)
    return None


def _beside(node: GraphTensor, home: int, machine: ScheduledMachine) -> int | None:
    """Where its weight lies, or on a device that finds a large batch worth the copy of the weight."""
    if home == machine.host:
        for backend in range(machine.host):
            if machine.can_run(backend, node) and machine.backends[backend].wants(node):
                return backend
    return home if machine.can_run(home, node) else None


def _expand(
    nodes: Iterable[GraphTensor],
    found: Assignment,
    machine: ScheduledMachine,
    *,
    devices_only: bool,
) -> None:
    """Nodes without a backend take that of their neighbour."""
    current: int | None = None
    host = machine.host
    for node in nodes:
        have = found.get(node)
        if have is not None:
            current = None if devices_only and have == host else have
        elif current is not None and machine.can_run(current, node):
            found[node] = current


def _best(node: GraphTensor, found: Assignment, machine: ScheduledMachine) -> int:
    """The backend that can read most of its sources where they are."""
    best, most = machine.host, -1
    for backend in range(len(machine.backends)):
        if machine.can_run(backend, node):
            readable = sum(1 for source in node.src if _known(source, found) == backend)
            if readable > most:
                best, most = backend, readable
    return best


def _known(source: GraphTensor, found: Assignment) -> int | None:
    have = found.get(source)
    return found.get(source.view_src) if have is None and source.view_src is not None else have


def _settle(nodes: Iterable[GraphTensor], found: Assignment, machine: ScheduledMachine) -> None:
    """Views go with what they are views of, sources with their reader."""
    for node in nodes:
        if node not in found and node.view_src is not None and node.view_src in found:
            found[node] = found[node.view_src]
        for source in node.src:
            if source in found:
                continue
            chosen = found.get(node) if source.view_src is None else found.get(source.view_src)
            if chosen is not None:
                found[source] = chosen
        if node not in found:
            found[node] = next(i for i in range(len(machine.backends)) if machine.can_run(i, node))
