"""What a bill takes of one memory."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import CACHES, Component, MemoryEstimate
from edgekit.machine.types import HOST, Budget


def for_bill(budget: Budget, estimate: MemoryEstimate, *, mapped_weights: bool = True) -> Budget:
    """The same budget for a bill that leaves layers, experts or the token embeddings to the CPU.

    Vulkan and ROCm pin some of the CPU's memory, and that counts against the limit: buffers of the graph, and
    weights that are not mapped from the file. Metal pins none.
    """
    if budget.limit_bytes is None:
        return budget
    unpinned = CACHES | {Component.WEIGHTS} if mapped_weights else CACHES
    if estimate.backend == "metal":
        unpinned = frozenset(Component)
    unused = max(0, budget.gpu_only_bytes - estimate.in_pools(budget.pools - {HOST}))
    return replace(
        budget,
        free_bytes=budget.free_bytes - unused,
        gpu_only_bytes=budget.gpu_only_bytes - unused,
        cpu_bytes=estimate.total(lambda line: line.pool == HOST and line.component in unpinned),
    )


def covered_bytes(budget: Budget, estimate: MemoryEstimate) -> int:
    """What the default reserve gives to the first request, as in llama.cpp's --fit: what is missing, where that is
    no more than the first request takes. A reserve that the user gave stays free.
    """
    missing = max(0, estimate.in_pools(budget.pools) - budget.unreserved_bytes)
    if not missing or not budget.has_default_reserve or budget.limit_bytes is not None:
        return 0
    taken = estimate.total(lambda line: line.first_request and line.pool in budget.pools)
    return missing if missing <= taken else 0
