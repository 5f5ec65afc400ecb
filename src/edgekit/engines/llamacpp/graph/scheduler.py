"""A placement -> the backend that holds each tensor and the one that runs each node, and the copies between them.

ggml_backend_sched_split_graph @ 0c1e570. The host is always the last backend.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
    is_blocking = _Kind.RPC in kinds and context.rules < Rules.RPC_PIPELINED
    is_pipelined = len(kinds) > 1 and placement.together and placement.pipelined and not is_blocking

    def layer_key(hparams: Hparams, il: int) -> Hashable:
        """What a layer's placement depends on. Layers of a looped block differ: copies made by the first are reused."""
        block = hparams.block_of(il)
        loop_layer = il if hparams.n_block < hparams.n_layer else None
        pool = placement.blocks[block]
        device = HOST_KEY if pool is HOST else pool.index
        return (
            device,
            block < placement.host_expert_blocks,
            _overridden(placement, block),
            loop_layer,
        )

    return Target(
        key=("spread", placement, kinds, batches),
        divided=HOST in placement.blocks and len({*placement.blocks, placement.output}) > 1,
        outside=(
            placement.output,
            placement.blocks[-1:],  # it may be a router after the last layer
            placement.offload_kqv,
            _overridden(placement, None),
            kinds,
            is_pipelined,
            batches,
        ),
        place=partial(
            _place, values=values, placement=placement, kinds=kinds, is_pipelined=is_pipelined
        ),
        layer_key=layer_key,
    )


def _overridden(placement: TensorPlacement, block: int | None) -> Hashable:
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
    """The backend of a device. An RPC device supports every op; only a plain GPU offloads and reorders nodes."""
    backend = ScheduledBackend(pool=pool, buffer=cuda.buffer(f"CUDA{pool.index}"))
    if kind is not _Kind.RPC:
        backend = replace(backend, supports=cuda.supports)
    if kind is _Kind.GPU:
        backend = replace(backend, offloads=cuda.offloads(values), optimize=optimize)
    return backend


def _place(
    build: Build,
    *,
    values: Values,
    placement: TensorPlacement,
    kinds: tuple[_Kind, ...],
    is_pipelined: bool,
) -> PlacedGraph:
    """Assigns a graph's tensors to the devices and the host, and adds the copies between them."""
    backend_numbers = {pool: i for i, pool in enumerate(pools(len(kinds)))}
    _separate_copies(build, placement)
    readers = Counter(source for node in build.graph.nodes for source in node.src)
    optimize = partial(cuda.optimize_order, readers=readers, rules=build.options.rules)
    devices = zip(backend_numbers, kinds, strict=False)
    backends = (
        *(_backend(pool, kind, values, optimize) for pool, kind in devices),
        ScheduledBackend(pool=HOST, buffer=CPU),
    )
    homes = {
        leaf: backend_numbers[_home(leaf, placement, build.hparams)]
        for leaf in build.graph.leafs
        if leaf.home is not None
    }
    machine = ScheduledMachine(backends=backends, homes=homes, copies=COPIES if is_pipelined else 1)
    return split(build.graph, assign(build.graph, machine), machine)


def _home(tensor: GraphTensor, placement: TensorPlacement, hparams: Hparams) -> Pool:
    """The pool that holds a weight or a cache."""
    if tensor.home is Home.CACHE:
        layer = int(tensor.name.rsplit("_l", 1)[1])
        # Loops run the same blocks; a router's cache is after the last layer.
        block = layer % hparams.n_block if layer < hparams.n_layer else layer
        return placement.cache_pool(block)
    name, _, pool = tensor.name.partition("@")
    if pool and name not in placement.moved:
        return placement.pools[int(pool)]
    return pools_of(name, block_number(name), placement, hparams.arch)[0]


def _separate_copies(build: Build, placement: TensorPlacement) -> None:
    """Creates a tensor for each copy of a weight that memory holds: a tied head, or the rope factors of a block."""
    copies: dict[str, GraphTensor] = {}

    def copy_in(pool: int, source: GraphTensor) -> GraphTensor:
        """The copy in the pool with this index."""
        name = HEAD if source.name == EMBEDDING else f"{source.name}@{pool}"
        if name not in copies:
            copies[name] = GraphTensor(
                op="NONE", type=source.type, ne=source.ne, home=Home.WEIGHTS, name=name
            )
        return copies[name]

    # A tied embedding is not copied if the model has no head or if -ot places it.
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


# The nodes of a split -> the nodes in execution order, and the tensors to keep alive until certain nodes have run.
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

# Ops whose weights are so small that they need not run where their weights are.
INDIFFERENT = frozenset({"ROPE", "FLASH_ATTN_EXT"})


def assign(graph: Graph, machine: ScheduledMachine) -> Assignment:
    """The backend of each tensor (the first four passes of ggml_backend_sched_split_graph)."""
    assignment: Assignment = {}
    # First, tensors whose data or weights determine the backend (backend_id_from_cur).
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
    # A view runs on the backend of the tensor it views; an unassigned source runs on the backend of its reader.
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
    """The backend that holds the node's first weight, or a device that copies the weight to run a large batch."""
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
    """Assigns each node without a backend to the backend of the node before it, if that can run it.

    `devices_only`: the host's backend is not passed on.
    """
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
    source_backends: list[int | None] = []
    for source in node.src:
        assigned = assignment.get(source)
        if assigned is None and source.view_src is not None:
            assigned = assignment.get(source.view_src)
        source_backends.append(assigned)
    best_backend, most_sources = machine.host, -1
    for backend in range(len(machine.backends)):
        if machine.can_run(backend, node) and source_backends.count(backend) > most_sources:
            best_backend, most_sources = backend, source_backends.count(backend)
    return best_backend


@dataclass(slots=True, kw_only=True)
class _Split:
    """Consecutive nodes that run on one backend, and the tensors that are copied there before they run."""

    backend: int
    start: int
    inputs: list[GraphTensor] = field(default_factory=list)


# The copies of a source on a backend: several if the machine keeps several per input.
Copies = dict[tuple[GraphTensor, int], list[GraphTensor]]


def _split_nodes(
    graph: Graph, assignment: Assignment, machine: ScheduledMachine
) -> tuple[list[_Split], Copies]:
    """Divides the nodes into splits, and replaces their sources on other backends by copies."""
    nodes = graph.nodes
    first = next((node for node in nodes if node.op not in VIEW_OPS), nodes[0])
    splits = [_Split(backend=assignment[first], start=0)]
    copies: Copies = {}
    for i, node in enumerate(nodes):
        if node.op in VIEW_OPS:
            continue
        current, backend = splits[-1], assignment[node]
        elsewhere = [  # sources that are neither assigned to the backend nor in memory that it can read
            source
            for source in node.src
            if assignment[source] != backend and machine.home_of(source) != backend
        ]
        # A further weight that must be copied starts a new split, which reuses the memory of earlier copies.
        copies_weight = bool(current.inputs) and any(map(is_weight, elsewhere))
        if backend != current.backend or copies_weight:
            current = _Split(backend=backend, start=i)
            splits.append(current)
        for source in elsewhere:
            if (source, backend) not in copies:
                copies[source, backend] = [_copy(source, machine) for _ in range(machine.copies)]
                current.inputs.append(source)
        if elsewhere:
            node.src = tuple(
                copies[source, backend][0] if source in elsewhere else source for source in node.src
            )
    return splits, copies


def _copy(source: GraphTensor, machine: ScheduledMachine) -> GraphTensor:
    """A copy of the source for another backend. With several copies per input, they are never freed."""
    stays_allocated = machine.copies > 1
    return GraphTensor(
        op="NONE",
        type=source.type,
        ne=source.ne,
        strides=source.strides,
        is_input=stays_allocated,
        is_output=stays_allocated,
        copied=source if is_weight(source.view_src or source) else None,
    )


def split(graph: Graph, assignment: Assignment, machine: ScheduledMachine) -> PlacedGraph:
    """The graph as the allocator sees it, with copies between backends. Changes the sources of `graph`'s nodes."""
    splits, copies = _split_nodes(graph, assignment, machine)
    nodes: list[GraphTensor] = []
    buffers: list[int] = []
    positions: list[int] = []  # where each node of `graph`, and what is inserted before it, begins
    ends = [part.start for part in splits[1:]] + [len(graph.nodes)]
    for part, end in zip(splits, ends, strict=True):
        ordered, alive = machine.backends[part.backend].optimize(graph.nodes[part.start : end])
        split_position = len(nodes)
        # An input is alive until it is copied; the copy is placed as the split begins.
        for source in part.inputs:
            nodes += [_reader(source), copies[source, part.backend][0]]
            buffers += [assignment[source], part.backend]
        for node in ordered:
            positions.append(len(nodes))
            nodes.append(node)
            buffers.append(assignment[node])
            tensors = alive.get(node, [])
            for start in range(0, len(tensors), MAX_SOURCES):
                nodes.append(_reader(*tensors[start : start + MAX_SOURCES]))
                buffers.append(part.backend)
        positions[part.start] = split_position
    positions.append(len(nodes))
    leafs, leaf_buffers = _leafs(graph, splits, copies, assignment, machine)
    copied = {source for source, _ in copies} if machine.copies > 1 else set()
    return PlacedGraph(
        nodes=nodes,
        leafs=leafs,
        node_buffers=buffers,
        leaf_buffers=leaf_buffers,
        buffers=tuple(backend.buffer for backend in machine.backends),
        marks=[positions[mark.nodes] for mark in graph.marks],
        leafs_of=[i for i, node in enumerate(nodes) if node in copied],
    )


def _reader(*tensors: GraphTensor) -> GraphTensor:
    """A no-op node that reads the tensors: they stay alive until it has run."""
    first = tensors[0]
    return GraphTensor(
        op="NONE",
        type=first.type,
        ne=first.ne,
        strides=first.strides,
        src=tensors,
        view_src=first.view_src or first,
    )


def _leafs(
    graph: Graph,
    splits: Sequence[_Split],
    copies: Copies,
    assignment: Assignment,
    machine: ScheduledMachine,
) -> tuple[list[GraphTensor], list[int]]:
    """Leafs and their buffers. With several copies of the inputs, all copies are allocated first and never freed."""
    leafs: list[GraphTensor] = []
    buffers: list[int] = []
    if machine.copies > 1:
        for leaf in (leaf for leaf in graph.leafs if leaf.is_input):
            leaf_copies = copies.get((leaf, assignment[leaf]))
            if leaf_copies is None:
                leaf.is_output = True
                leaf_copies = [leaf, *(_copy(leaf, machine) for _ in range(machine.copies - 1))]
            leafs += leaf_copies
            buffers += [assignment[leaf]] * len(leaf_copies)
        for part in splits:
            for source in part.inputs:
                leafs += copies[source, part.backend]
                buffers += [part.backend] * machine.copies
    leafs += graph.leafs
    buffers += [assignment.get(leaf, machine.host) for leaf in graph.leafs]
    return leafs, buffers
