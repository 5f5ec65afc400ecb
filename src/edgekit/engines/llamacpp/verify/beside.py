"""What a process really held, and its bill -> what it held beside it: libraries, the vocabulary, threads, scratch.

Caches and states are written all over when they are made, so they count as held in full. Compute buffers are only as
full as the longest prompt so far made them: nothing of them is taken off after a short prompt, all of it after a long
one, and the larger result stands. So the number is never less than what there was, by a few megabytes of results more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgekit.bill.types import CACHES, Component, MemoryEstimate
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.llamacpp.verify.types import Resident
from edgekit.machine.types import PoolKind


def beside_bytes(
    resident: Sequence[Resident], estimate: MemoryEstimate, setup: LlamaCppSetup
) -> int | None:
    """On the host. None where the system does not tell, or where weights were rearranged: that is only modelled."""
    if setup.repack:
        return None
    return max(_each(resident, estimate, setup), default=None)


def _each(
    resident: Sequence[Resident], estimate: MemoryEstimate, setup: LlamaCppSetup
) -> Iterator[int]:
    known = set(CACHES) if setup.use_mmap else {*CACHES, Component.WEIGHTS}
    for one in resident:
        if one.model_bytes is None:  # before anything was decoded
            continue
        held = one.resident_bytes + one.swapped_bytes - one.model_bytes
        yield max(0, held - _on_host(estimate, known))
        known |= {Component.COMPUTE, Component.OUTPUT}


def _on_host(estimate: MemoryEstimate, components: set[Component]) -> int:
    return estimate.total(
        lambda line: line.component in components and line.pool.kind is PoolKind.HOST
    )
