"""A placement -> the buffers a graph is spread over: which backend holds what, and which runs what."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from edgekit.engine.llamacpp.graph import Target
from edgekit.engine.llamacpp.graph.llama.build import Build
from edgekit.engine.llamacpp.graph.llama.hparams import Hparams
from edgekit.engine.llamacpp.graph.plan import load_values
from edgekit.engine.llamacpp.graph.tensor import Home, Tensor
from edgekit.engine.llamacpp.graph.trace import CPU, Placed
from edgekit.engine.llamacpp.placement import (
    SHARED_TENSORS,
    WITHOUT_HEAD,
    Placement,
    block_number,
    pools_of,
)
from edgekit.engine.llamacpp.schedule import cuda
from edgekit.engine.llamacpp.schedule.assign import assign
from edgekit.engine.llamacpp.schedule.fusion import Uses, kept_alive
from edgekit.engine.llamacpp.schedule.split import split
from edgekit.engine.llamacpp.schedule.types import COPIES, Backend, Machine
from edgekit.engine.llamacpp.types import Context
from edgekit.memory.types import HOST, Pool, PoolKind

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
SEPARATED = frozenset({"MUL_MAT", "ROPE"})  # ops that read what lies in several places


def pools(devices: int) -> tuple[Pool, ...]:
    """One for each buffer of the target, the host last."""
    return (*(Pool(PoolKind.DEVICE, i) for i in range(devices)), HOST)


def spread(context: Context, placement: Placement, devices: int) -> Target:
    """The target for a placement on so many devices and the host.

    As llama.cpp's own dry run (llama-fit-params) has it. A real load keeps the norm of a layer that begins another
    device with that layer, which saves a copy of the hidden state there.
    """
    full = placement.output is not HOST and HOST not in placement.blocks
    batches = tuple(
        min(number, cuda.OFFLOAD_BATCH)
        for number in (context.n_tokens, context.n_outputs, context.n_seq_max)
    )
    return Target(
        key=("spread", placement, devices, batches),
        place=_placer(context, placement, devices, full=full),
        layer_key=lambda hparams, il: _layer_key(hparams, il, placement),
    )


def _layer_key(hparams: Hparams, il: int, placement: Placement) -> Hashable:
    """Layers differ by where they are, and by the types of weights on the host: those may be copied."""
    host_experts = il < placement.host_expert_blocks
    if placement.blocks[il] is not HOST and not host_experts:
        return placement.blocks[il]
    own = hparams.by_layer.get(il, {})
    types = frozenset((name, tensor.type.name) for name, tensor in own.items())
    return placement.blocks[il], host_experts, types


def _placer(
    context: Context, placement: Placement, devices: int, *, full: bool
) -> Callable[[Build], Placed]:
    values = load_values(context)
    order = {pool: i for i, pool in enumerate(pools(devices))}
    piped = devices > 1 and full and placement.offload_kqv and not placement.host_expert_blocks

    def place(build: Build) -> Placed:
        architecture = build.hparams.arch
        _separate(build, placement)
        uses = Uses(build.graph.nodes)
        backends = (
            *(
                Backend(
                    pool=pool,
                    buffer=cuda.buffer(f"CUDA{pool.index}"),
                    supports=cuda.supports,
                    wants=cuda.wants(values),
                    keeps=lambda nodes: kept_alive(nodes, uses),
                )
                for pool in order
                if pool is not HOST
            ),
            Backend(pool=HOST, buffer=CPU),
        )

        homes: dict[Tensor, int] = {}

        def where(tensor: Tensor) -> int:
            home = homes.get(tensor)
            if home is None:
                home = homes[tensor] = order[_home(tensor, placement, architecture)]
            return home

        machine = Machine(backends=backends, where=where, copies=COPIES if piped else 1)
        return split(build.graph, assign(build.graph, machine), machine)

    return place


def _home(tensor: Tensor, placement: Placement, architecture: str) -> Pool:
    if tensor.home is Home.CACHE:
        return placement.cache_pool(int(tensor.name.rsplit("_l", 1)[1]))
    name, _, pool = tensor.name.partition("@")
    if pool:
        return placement.pools[int(pool)]
    return pools_of(name, placement, architecture)[0]


def _separate(build: Build, placement: Placement) -> None:
    """What is one tensor in the file and several in memory becomes several: a tied head, factors of every block."""
    copies: dict[str, Tensor] = {}
    tied = build.hparams.arch not in WITHOUT_HEAD  # those read the embedding where it is
    layers = list(build.facts)
    marks = [mark.nodes for mark in build.graph.marks]
    current = -1
    for i, node in enumerate(build.graph.nodes):
        while current + 1 < len(marks) and i >= marks[current + 1]:
            current += 1
        layer = layers[current] if current >= 0 else 0
        if node.op in SEPARATED:
            node.src = tuple(
                _own_copy(node, source, placement, layer, copies, tied=tied) for source in node.src
            )
    build.graph.leafs.extend(copies.values())


def _own_copy(
    node: Tensor,
    source: Tensor,
    placement: Placement,
    layer: int,
    copies: dict[str, Tensor],
    *,
    tied: bool,
) -> Tensor:
    if source.home is not Home.WEIGHTS or block_number(source.name) is not None:
        return source
    if source.name == EMBEDDING and node.op == "MUL_MAT" and tied:
        name = HEAD
    elif source.name.rsplit(".", 1)[0] in SHARED_TENSORS:
        name = f"{source.name}@{placement.pools.index(placement.blocks[layer])}"
    else:
        return source
    if name not in copies:
        copies[name] = Tensor(
            op="NONE", type=source.type, ne=source.ne, home=Home.WEIGHTS, name=name
        )
    return copies[name]
