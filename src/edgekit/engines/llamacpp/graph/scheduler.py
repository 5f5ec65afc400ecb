"""A placement -> the backend that holds each tensor and the one that runs each node, and the copies between them.

ggml_backend_sched_split_graph @ 0c1e570. The host is always the last backend.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.graph import cuda
from edgekit.engines.llamacpp.graph.allocator import CPU, Buffer, PlacedGraph
from edgekit.engines.llamacpp.graph.build import Build, Hparams
from edgekit.engines.llamacpp.graph.cuda import Uses, optimized
from edgekit.engines.llamacpp.graph.plan import Target, Values, load_values
from edgekit.engines.llamacpp.graph.tensor import Graph, GraphTensor, Home
from edgekit.engines.llamacpp.types import Context, DeviceSlot, Rules, TensorPlacement
from edgekit.engines.llamacpp.weights import SHARED_TENSORS, block_number, pools_of
from edgekit.machine.types import HOST, Pool, PoolKind

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
HOST_KEY = -1
_NUMBER = re.compile(r"(?<=blk\.)\d+")
Optimize = Callable[
    [list[GraphTensor]], tuple[list[GraphTensor], dict[GraphTensor, list[GraphTensor]]]
]
SEPARATED = frozenset(
    {"MUL_MAT", "ROPE"}
)  # ops that read a weight which exists several times in memory


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
        layer_key=lambda hparams, il: _layer_key(hparams, il, placement),
    )


def _layer_key(hparams: Hparams, il: int, placement: TensorPlacement) -> Hashable:
    """What a layer's placement depends on. A looped block keeps its copies, so each of its layers differs."""
    block = il % hparams.n_block
    looped = il if hparams.n_block < hparams.n_layer else None
    pool = placement.blocks[block]
    device = HOST_KEY if pool is HOST else pool.index
    return device, block < placement.host_expert_blocks, _moved(placement, block), looped


def _moved(placement: TensorPlacement, block: int | None) -> Hashable:
    """The tensors that -ot places in one block (None: outside the blocks), by names without the block number."""
    found = ((name, pool) for name, pool in placement.moved.items() if block_number(name) == block)
    return frozenset((_NUMBER.sub("", name), pool) for name, pool in found)


class _Kind(enum.Enum):
    """How the scheduler treats a device."""

    GPU = enum.auto()
    RPC = enum.auto()  # runs every op, but none whose weights are on the host
    SLICED = enum.auto()  # several GPUs as one; unlike GPU, not for weights on the host


def _backend(pool: Pool, kind: _Kind, values: Values, optimize: Optimize) -> ScheduledBackend:
    buffer = cuda.buffer(f"CUDA{pool.index}")
    match kind:
        case _Kind.RPC:
            return ScheduledBackend(pool=pool, buffer=buffer)
        case _Kind.SLICED:
            return ScheduledBackend(pool=pool, buffer=buffer, supports=cuda.supports)
    wants = cuda.wants(values)
    return ScheduledBackend(
        pool=pool, buffer=buffer, supports=cuda.supports, wants=wants, optimize=optimize
    )


def _placer(
    values: Values, placement: TensorPlacement, kinds: tuple[_Kind, ...], *, piped: bool
) -> Callable[[Build], PlacedGraph]:
    order = {pool: i for i, pool in enumerate(pools(len(kinds)))}

    def place(build: Build) -> PlacedGraph:
        _separate(build, placement)
        uses = Uses(build.graph.nodes)

        def optimize(
            nodes: list[GraphTensor],
        ) -> tuple[list[GraphTensor], dict[GraphTensor, list[GraphTensor]]]:
            return optimized(nodes, uses, build.options.rules)

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
    return pools_of(name, placement, hparams.arch)[0]


def _separate(build: Build, placement: TensorPlacement) -> None:
    """Splits tensors that are once in the file but several times in memory: a tied head, rope factors per block."""
    copies: dict[str, GraphTensor] = {}
    # not split: models without a head, and an embedding that -ot places
    tied = (
        not known_architecture(build.hparams.arch).without_head and EMBEDDING not in placement.moved
    )
    several = {
        leaf
        for leaf in build.graph.leafs
        if leaf.home is Home.WEIGHTS
        and (leaf.name.rsplit(".", 1)[0] in SHARED_TENSORS or (tied and leaf.name == EMBEDDING))
    }
    layers = [il % build.hparams.n_block for il in build.facts]
    marks = [mark.nodes for mark in build.graph.marks]
    for i, node in enumerate(build.graph.nodes):
        if node.op in SEPARATED and not several.isdisjoint(node.src):
            at = bisect_right(marks, i) - 1
            pool = placement.pools.index(placement.blocks[layers[max(at, 0)]])
            node.src = tuple(
                _own_copy(source, pool, copies) if source in several else source
                for source in node.src
            )
    build.graph.leafs.extend(copies.values())


def _own_copy(source: GraphTensor, pool: int, copies: dict[str, GraphTensor]) -> GraphTensor:
    name = HEAD if source.name == EMBEDDING else f"{source.name}@{pool}"
    if name not in copies:
        copies[name] = GraphTensor(
            op="NONE", type=source.type, ne=source.ne, home=Home.WEIGHTS, name=name
        )
    return copies[name]


VIEW_OPS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
MAX_SOURCES = 10  # ggml.h: GGML_MAX_SRC
COPIES = 4  # ggml-backend.cpp: GGML_SCHED_MAX_COPIES, where several devices work in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBackend:
    """A backend. `supports`: it can run a node; `wants`: it runs a node whose weights are on the host.

    `optimize`: the execution order of a split's nodes, and tensors that must stay alive until after some of them.
    """

    pool: Pool
    buffer: Buffer
    supports: Callable[[GraphTensor], bool] = lambda _: True
    wants: Callable[[GraphTensor], bool] = lambda _: False
    optimize: Callable[
        [list[GraphTensor]], tuple[list[GraphTensor], dict[GraphTensor, list[GraphTensor]]]
    ] = lambda nodes: (nodes, {})


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

# Ops that do not follow their weights: those are too small to matter.
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
    """Backends that follow from a tensor's data or weights (backend_id_from_cur)."""
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
                return _near_weight(node, machine.homes[source], machine)
    return None


def _near_weight(node: GraphTensor, home: int, machine: ScheduledMachine) -> int | None:
    """The backend of its weight, or a device for which a large batch is worth copying the weight."""
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
    """Gives nodes without a backend that of their neighbour."""
    current: int | None = None
    host = machine.host
    for node in nodes:
        have = found.get(node)
        if have is not None:
            current = None if devices_only and have == host else have
        elif current is not None and machine.can_run(current, node):
            found[node] = current


def _best(node: GraphTensor, found: Assignment, machine: ScheduledMachine) -> int:
    """The backend that can read most of the node's sources in place."""
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
    """Assigns views to the backend of their source tensor, and unassigned sources to that of their reader."""
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
            # With another weight from the host, the memory of the copies before it is used again.
            reuses_copies = bool(current.inputs) and any(map(is_weight, elsewhere))
            if backend != current.backend or reuses_copies:
                current = _Split(backend=backend, start=i)
                self.splits.append(current)
            if elsewhere:
                self._copy_inputs(node, elsewhere, current)

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


def split(graph: Graph, assignment: Assignment, machine: ScheduledMachine) -> PlacedGraph:
    """The graph as the allocator sees it. Changes the sources of `graph`'s nodes."""
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
        for source in one.inputs:  # held until it is copied; the copy is placed as the split begins
            nodes += [_holding(source), walker.copies[source, one.backend][0]]
            buffers += [assignment[source], one.backend]
        for i, node in enumerate(own, one.start):
            while i == mark:
                marks.append(len(nodes))
                mark = next(pending)
            nodes.append(node)
            buffers.append(assignment[node])
            if node in kept:
                for start in range(0, len(kept[node]), MAX_SOURCES):
                    nodes.append(_holding(*kept[node][start : start + MAX_SOURCES]))
                    buffers.append(one.backend)
    marks += [len(nodes)] * (len(graph.marks) - len(marks))
    leafs, leaf_buffers = _leafs(graph, walker)
    copied = {source for source, _ in walker.copies} if machine.copies > 1 else set()
    return PlacedGraph(
        nodes=nodes,
        leafs=leafs,
        node_buffers=buffers,
        leaf_buffers=leaf_buffers,
        buffers=tuple(backend.buffer for backend in machine.backends),
        marks=marks,
        leafs_of=[i for i, node in enumerate(nodes) if node in copied],
    )


def _holding(*tensors: GraphTensor) -> GraphTensor:
    """A no-op node that only reads the tensors."""
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
    """Leafs and their buffers. With several copies of the inputs, all copies are allocated first and never freed."""
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
