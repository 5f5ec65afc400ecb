"""What the scheduler is told about the backends. The host is always the last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph.dims import Size
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Home
from edgekit.engines.llamacpp.graph.trace import Buffer
from edgekit.machine.types import Pool

VIEW_OPS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
MAX_SOURCES = 10  # ggml.h: GGML_MAX_SRC
COPIES = 4  # ggml-backend.cpp: GGML_SCHED_MAX_COPIES, where several devices work in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBackend:
    """`supports`: whether it can run a node; `wants`: whether it runs one whose weights lie on the host.

    `optimize`: the order in which it runs the nodes of a split, and for some of them what is freed only after them.
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
    """`homes`: the backend in whose memory each weight or cache lies; `copies` of every input that is copied."""

    backends: tuple[ScheduledBackend, ...]
    homes: Mapping[GraphTensor, int]
    copies: int = 1

    @property
    def host(self) -> int:
        return len(self.backends) - 1

    def home_of(self, tensor: GraphTensor) -> int | None:
        """Where the data of a weight, a cache or a view of one lies; None for what the allocator places."""
        return self.homes.get(tensor.view_src or tensor)

    def can_run(self, backend: int, node: GraphTensor) -> bool:
        """A device runs nothing on data that lies on another device."""
        host = len(self.backends) - 1
        if backend < host and host > 1:
            for source in node.src:
                if self.homes.get(source, host) not in (backend, host):
                    return False
        return self.backends[backend].supports(node)


def is_weight(tensor: GraphTensor) -> bool:
    return tensor.home is Home.WEIGHTS


def strided_bytes(tensor: GraphTensor) -> Size:
    """What a copy of a view takes more than its elements, because it keeps the view's strides (ggml_nbytes)."""
    if tensor.strides is None:
        return 0
    kind, ne, nb = tensor.type, tensor.ne, tensor.nb
    row = ne[0] * nb[0] // kind.block_elements if kind.block_elements > 1 else (ne[0] - 1) * nb[0]
    total = row + (0 if kind.block_elements > 1 else kind.block_bytes)
    for dimension, stride in zip(ne[1:], nb[1:], strict=True):
        total = total + (dimension - 1) * stride
    return total - tensor.bytes
