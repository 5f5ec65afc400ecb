"""A placement -> the target of a graph: which backend holds what, and which runs what."""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.engines.llamacpp.graph import Target, cuda
from edgekit.engines.llamacpp.graph.build import Build
from edgekit.engines.llamacpp.graph.cuda import Uses, optimized
from edgekit.engines.llamacpp.graph.hparams import Hparams
from edgekit.engines.llamacpp.graph.plan import load_values
from edgekit.engines.llamacpp.graph.program import Values
from edgekit.engines.llamacpp.graph.scheduler import (
    COPIES,
    ScheduledBackend,
    ScheduledMachine,
    assign,
    split,
)
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Home
from edgekit.engines.llamacpp.graph.trace import CPU, PlacedGraph
from edgekit.engines.llamacpp.placement import (
    SHARED_TENSORS,
    block_number,
    pools_of,
)
from edgekit.engines.llamacpp.types import Context, DeviceSlot, TensorPlacement
from edgekit.engines.llamacpp.versions import Rules
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
