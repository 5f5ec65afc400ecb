"""A placement -> the backend that holds each tensor and the one that runs each node, and the copies between them.

ggml_backend_sched_split_graph @ 0c1e570. The host is always the last backend.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.graph import cuda
from edgekit.engines.llamacpp.graph.allocator import CPU, Buffer, PlacedGraph
from edgekit.engines.llamacpp.graph.build import Build, Hparams
from edgekit.engines.llamacpp.graph.cuda import KeepAlive
from edgekit.engines.llamacpp.graph.plan import Target, Values, load_values
from edgekit.engines.llamacpp.graph.tensor import Graph, GraphTensor, Home
from edgekit.engines.llamacpp.types import Context, DeviceSlot, Rules, TensorPlacement
from edgekit.engines.llamacpp.weights import SHARED_TENSORS, block_number, pools_of
from edgekit.machine.types import HOST, Pool, PoolKind

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
HOST_KEY = -1
_NUMBER = re.compile(r"(?<=blk\.)\d+")
SEPARATED = frozenset({"MUL_MAT", "ROPE"})  # they read weights that memory holds several times


def pools(devices: int) -> tuple[Pool, ...]:
    """The pools of the target's buffers, the host last."""
    return (*(Pool(PoolKind.DEVICE, i) for i in range(devices)), HOST)


def spread(context: Context, placement: TensorPlacement, devices: tuple[DeviceSlot, ...]) -> Target:
    """The target for a placement on these devices and the host. Devices that share every tensor count as one.

    Follows llama.cpp's own dry run (llama-fit-params). A real load runs the first norm of a device's first layer on
    that device, which saves a copy of the hidden state.
    """
    values = load_values(context)
    batches = tuple(
        min(number, cuda.OFFLOAD_BATCH)
        for number in (values["T"], values["S"], values["N"], context.n_tokens)
    )
    kinds = tuple(_Kind.RPC if device.rpc else _Kind.GPU for device in devices)
    if placement.ranks > 1:
        kinds = (_Kind.SLICED,)
    waits = _Kind.RPC in kinds and context.rules < Rules.RPC_PIPELINED
    piped = len(kinds) > 1 and placement.together and placement.pipelined and not waits

    def layer_key(hparams: Hparams, il: int) -> Hashable:
        """What a layer's placement depends on. A looped block keeps its copies, so each of its layers differs."""
        block = il % hparams.n_block
        looped = il if hparams.n_block < hparams.n_layer else None
        pool = placement.blocks[block]
        device = HOST_KEY if pool is HOST else pool.index
        return device, block < placement.host_expert_blocks, _moved(placement, block), looped

    return Target(
        key=("spread", placement, kinds, batches),
        outside=(
            placement.output,
            placement.offload_kqv,
            _moved(placement, None),
            kinds,
            piped,
            batches,
        ),
        place=_placer(values, placement, kinds, piped=piped),
        layer_key=layer_key,
    )


def _moved(placement: TensorPlacement, block: int | None) -> Hashable:
    """The tensors that -ot places in one block (None: outside the blocks), by names without the block number."""
    return frozenset(
        (_NUMBER.sub("", name), pool)
        for name, pool in placement.moved.items()
        if block_number(name) == block
    )


class _Kind(enum.Enum):
    """How the scheduler treats a device."""

    GPU = enum.auto()
    RPC = enum.auto()  # runs every op, except those whose weights are on the host
    SLICED = enum.auto()  # several GPUs as one; does not run ops whose weights are on the host


def _backend(pool: Pool, kind: _Kind, values: Values, optimize: Optimize) -> ScheduledBackend:
    backend = ScheduledBackend(pool=pool, buffer=cuda.buffer(f"CUDA{pool.index}"))
    if kind is not _Kind.RPC:
        backend = replace(backend, supports=cuda.supports)
    if kind is _Kind.GPU:
        backend = replace(backend, offloads=cuda.offloads(values), optimize=optimize)
    return backend


def _placer(
    values: Values, placement: TensorPlacement, kinds: tuple[_Kind, ...], *, piped: bool
) -> Callable[[Build], PlacedGraph]:
    order = {pool: i for i, pool in enumerate(pools(len(kinds)))}

    def place(build: Build) -> PlacedGraph:
        _separate(build, placement)
        optimize = partial(
            cuda.optimized, uses=cuda.Uses(build.graph.nodes), rules=build.options.rules
        )
        devices = zip(order, kinds, strict=False)
        backends = (
            *(_backend(pool, kind, values, optimize) for pool, kind in devices),
            ScheduledBackend(pool=HOST, buffer=CPU),
        )
        homes = {
            leaf: order[_home(leaf, placement, build.hparams)]
            for leaf in build.graph.leafs
            if leaf.home is not None
        }
        machine = ScheduledMachine(backends=backends, homes=homes, copies=COPIES if piped else 1)
        return split(build.graph, assign(build.graph, machine), machine)

    return place


def _home(tensor: GraphTensor, placement: TensorPlacement, hparams: Hparams) -> Pool:
    if tensor.home is Home.CACHE:
        return placement.cache_pool(int(tensor.name.rsplit("_l", 1)[1]) % hparams.n_block)
    name, _, pool = tensor.name.partition("@")
    if pool and name not in placement.moved:
        return placement.pools[int(pool)]
    return pools_of(name, block_number(name), placement, hparams.arch)[0]


def _separate(build: Build, placement: TensorPlacement) -> None:
    """Splits a tensor of the file that memory holds several times: a tied head, or the rope factors of each block."""
    copies: dict[str, GraphTensor] = {}

    def copy_in(pool: int, source: GraphTensor) -> GraphTensor:
        name = HEAD if source.name == EMBEDDING else f"{source.name}@{pool}"
        if name not in copies:
            copies[name] = GraphTensor(
                op="NONE", type=source.type, ne=source.ne, home=Home.WEIGHTS, name=name
            )
        return copies[name]

    # The embedding is not split if the model has no head or if -ot places it.
    has_head = not known_architecture(build.hparams.arch).without_head
    tied = has_head and EMBEDDING not in placement.moved
    copied = {
        leaf
        for leaf in build.graph.leafs
        if leaf.home is Home.WEIGHTS
        and (leaf.name.rsplit(".", 1)[0] in SHARED_TENSORS or (tied and leaf.name == EMBEDDING))
    }
    layers = [il % build.hparams.n_block for il in build.facts]
    marks = [mark.nodes for mark in build.graph.marks]
    for i, node in enumerate(build.graph.nodes):
        if node.op in SEPARATED and not copied.isdisjoint(node.src):
            layer = layers[max(bisect_right(marks, i) - 1, 0)]
            pool = placement.pools.index(placement.blocks[layer])
            node.src = tuple(
                copy_in(pool, source) if source in copied else source for source in node.src
            )
    build.graph.leafs.extend(copies.values())


VIEW_OPS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
MAX_SOURCES = 10  # ggml.h: GGML_MAX_SRC
COPIES = 4  # ggml-backend.cpp: GGML_SCHED_MAX_COPIES, for a pipeline of several devices


# The nodes of a split -> these nodes in execution order, and the tensors that must stay alive until after some of them.
Optimize = Callable[[list[GraphTensor]], tuple[list[GraphTensor], KeepAlive]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBackend:
    """A backend. `supports`: it can run a node. `offloads`: it copies weights from the host to run a node."""

    pool: Pool
    buffer: Buffer
    supports: Callable[[GraphTensor], bool] = lambda _: True
    offloads: Callable[[GraphTensor], bool] = lambda _: False
    optimize: Optimize = lambda nodes: (nodes, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMachine:
    """The backends. `homes`: which one holds each weight or cache; `copies`: buffers per copied input."""

    backends: tuple[ScheduledBackend, ...]
    homes: Mapping[GraphTensor, int]
    copies: int = 1

    @property
    def host(self) -> int:
        return len(self.backends) - 1

    def home_of(self, tensor: GraphTensor) -> int | None:
        """The backend that holds a weight, a cache or a view of one; None for tensors that the allocator places."""
        return self.homes.get(tensor.view_src or tensor)

    def can_run(self, backend: int, node: GraphTensor) -> bool:
        """True if the backend can run the node: never if a source is on another device."""
        host = len(self.backends) - 1
        if backend < host and host > 1:
            for source in node.src:
                if self.homes.get(source, host) not in (backend, host):
                    return False
        return self.backends[backend].supports(node)


def is_weight(tensor: GraphTensor) -> bool:
    return tensor.home is Home.WEIGHTS


Assignment = dict[GraphTensor, int]

# Ops that may run on another backend than that of their weights, which are too small to matter.
INDIFFERENT = frozenset({"ROPE", "FLASH_ATTN_EXT"})


def assign(graph: Graph, machine: ScheduledMachine) -> Assignment:
    """The backend of each tensor."""
    assignment: Assignment = {}
    # Backends that follow from a tensor's data or weights (backend_id_from_cur).
    for tensor in (*graph.leafs, *graph.nodes):
        backend = machine.home_of(tensor)
        if backend is None:
            backend = machine.host if tensor.is_input else _by_weight(tensor, machine)
        if backend is not None:
            assignment[tensor] = backend
    nodes = [node for node in graph.nodes if node.op not in VIEW_OPS]
    for devices_only in (True, False):
        _expand(nodes, assignment, machine, devices_only=devices_only)
        _expand(reversed(nodes), assignment, machine, devices_only=devices_only)
    for node in nodes:
        if node not in assignment:
            assignment[node] = _best(node, assignment, machine)
    # Views are assigned to the backend of their source tensor, and unassigned sources to that of their reader.
    for node in graph.nodes:
        if node not in assignment and node.view_src is not None and node.view_src in assignment:
            assignment[node] = assignment[node.view_src]
        for source in node.src:
            if source in assignment:
                continue
            backend = assignment.get(node if source.view_src is None else source.view_src)
            if backend is not None:
                assignment[source] = backend
        if node not in assignment:
            assignment[node] = next(
                i for i in range(len(machine.backends)) if machine.can_run(i, node)
            )
    return assignment


def _by_weight(node: GraphTensor, machine: ScheduledMachine) -> int | None:
    """The backend of its first weight, or a device for which a large batch is worth copying the weight."""
    if node.op in INDIFFERENT:
        return None
    weight = next((source for source in node.src if source.home is Home.WEIGHTS), None)
    if weight is None:
        return None
    home = machine.homes[weight]
    if home == machine.host:
        for backend in range(machine.host):
            if machine.can_run(backend, node) and machine.backends[backend].offloads(node):
                return backend
    return home if machine.can_run(home, node) else None


def _expand(
    nodes: Iterable[GraphTensor],
    assignment: Assignment,
    machine: ScheduledMachine,
    *,
    devices_only: bool,
) -> None:
    """Gives each node without a backend that of the node before it."""
    current: int | None = None
    host = machine.host
    for node in nodes:
        backend = assignment.get(node)
        if backend is not None:
            current = None if devices_only and backend == host else backend
        elif current is not None and machine.can_run(current, node):
            assignment[node] = current


def _best(node: GraphTensor, assignment: Assignment, machine: ScheduledMachine) -> int:
    """The backend that can read most of the node's sources in place."""
    sources: list[int | None] = []  # the backend of each
    for source in node.src:
        assigned = assignment.get(source)
        if assigned is None and source.view_src is not None:
            assigned = assignment.get(source.view_src)
        sources.append(assigned)
    best, most = machine.host, -1
    for backend in range(len(machine.backends)):
        if machine.can_run(backend, node) and sources.count(backend) > most:
            best, most = backend, sources.count(backend)
    return best


@dataclass(slots=True, kw_only=True)
class _Split:
    backend: int
    start: int
    inputs: list[GraphTensor] = field(default_factory=list)


class _Splitter:
    """Walks the nodes in order and replaces sources on other backends by copies."""

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
            elsewhere = [  # neither assigned to the backend nor in memory that it can read
                source
                for source in node.src
                if assignment[source] != backend and self.machine.home_of(source) != backend
            ]
            # Another weight from the host starts a new split, which reuses the memory of earlier copies.
            copies_weight = bool(current.inputs) and any(map(is_weight, elsewhere))
            if backend != current.backend or copies_weight:
                current = _Split(backend=backend, start=i)
                self.splits.append(current)
            if elsewhere:
                for source in elsewhere:
                    if (source, backend) not in self.copies:
                        copies = [self.copy(source) for _ in range(self.machine.copies)]
                        self.copies[source, backend] = copies
                        current.inputs.append(source)
                node.src = tuple(
                    self.copies[source, backend][0] if source in elsewhere else source
                    for source in node.src
                )

    def copy(self, source: GraphTensor) -> GraphTensor:
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


def split(graph: Graph, assignment: Assignment, machine: ScheduledMachine) -> PlacedGraph:
    """The graph as the allocator sees it. Changes the sources of `graph`'s nodes."""
    splitter = _Splitter(graph, assignment, machine)
    splitter.walk()
    nodes: list[GraphTensor] = []
    buffers: list[int] = []
    marks: list[int] = []
    pending = iter([*(one.nodes for one in graph.marks), len(graph.nodes) + 1])
    mark = next(pending)
    ends = [one.start for one in splitter.splits[1:]] + [len(graph.nodes)]
    for one, end in zip(splitter.splits, ends, strict=True):
        ordered, alive = machine.backends[one.backend].optimize(graph.nodes[one.start : end])
        while one.start == mark:
            marks.append(len(nodes))
            mark = next(pending)
        # An input is alive until it is copied; the copy is placed as the split begins.
        for source in one.inputs:
            nodes += [_reader(source), splitter.copies[source, one.backend][0]]
            buffers += [assignment[source], one.backend]
        for i, node in enumerate(ordered, one.start):
            while i == mark:
                marks.append(len(nodes))
                mark = next(pending)
            nodes.append(node)
            buffers.append(assignment[node])
            tensors = alive.get(node, [])
            for start in range(0, len(tensors), MAX_SOURCES):
                nodes.append(_reader(*tensors[start : start + MAX_SOURCES]))
                buffers.append(one.backend)
    marks += [len(nodes)] * (len(graph.marks) - len(marks))
    leafs, leaf_buffers = _leafs(graph, splitter)
    copied = {source for source, _ in splitter.copies} if machine.copies > 1 else set()
    return PlacedGraph(
        nodes=nodes,
        leafs=leafs,
        node_buffers=buffers,
        leaf_buffers=leaf_buffers,
        buffers=tuple(backend.buffer for backend in machine.backends),
        marks=marks,
        leafs_of=[i for i, node in enumerate(nodes) if node in copied],
    )


def _reader(*tensors: GraphTensor) -> GraphTensor:
    """A no-op node that reads the tensors, so that they stay alive until then."""
    first = tensors[0]
    return GraphTensor(
        op="NONE",
        type=first.type,
        ne=first.ne,
        strides=first.strides,
        src=tensors,
        view_src=first.view_src or first,
    )


def _leafs(graph: Graph, splitter: _Splitter) -> tuple[list[GraphTensor], list[int]]:
    """Leafs and their buffers. With several copies of the inputs, all copies are allocated first and never freed."""
    leafs: list[GraphTensor] = []
    buffers: list[int] = []
    assignment, machine = splitter.assignment, splitter.machine
    if machine.copies > 1:
        for leaf in (one for one in graph.leafs if one.is_input):
            copies = splitter.copies.get((leaf, assignment[leaf]))
            if copies is None:
                leaf.is_output = True
                copies = [leaf, *(splitter.copy(leaf) for _ in range(machine.copies - 1))]
            leafs += copies
            buffers += [assignment[leaf]] * len(copies)
        for one in splitter.splits:
            for source in one.inputs:
                copies = splitter.copies[source, one.backend]
                leafs += copies
                buffers += [one.backend] * len(copies)
    leafs += graph.leafs
    buffers += [assignment.get(leaf, machine.host) for leaf in graph.leafs]
    return leafs, buffers
