"""Where tensors are: on which device, or on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgekit.machine.types import HOST, Pool, PoolKind

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.slices import Slicer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorPlacement:
    """Where each block is. The output counts as the block after the last."""

    blocks: tuple[Pool, ...]  # every round of every block, those of multi-token prediction included
    own_blocks: int  # how many of them have weights: rounds after the first use the same
    output: Pool
    offload_kqv: bool = True
    host_expert_blocks: int = 0  # how many of the first blocks have their experts on the host
    host_scans: bool = False  # ssm_a stays on the host: the device has no kernel for its scan
    moved: Mapping[str, Pool] = field(default_factory=dict)  # single tensors, by their names: -ot
    overridden: bool = False  # -ot was given, whether it moves anything or not
    slicer: Slicer | None = None  # -sm tensor: what is on device 0 is shared by all of them
    rows: Slicer | None = None  # -sm row: matrices on devices are shared by all of them
    pipelined: bool = True  # -sm layer: devices may work on several micro-batches in turn

    def cache_pool(self, block: int) -> Pool:
        return self.blocks[block] if self.offload_kqv else HOST

    @property
    def ranks(self) -> int:
        """Devices that hold a slice each of what is on device 0."""
        return 1 if self.slicer is None else self.slicer.devices

    @property
    def together(self) -> bool:
        """Everything is on devices: nothing but the token embedding was left on the host, or moved."""
        whole = self.output is not HOST and HOST not in self.blocks
        moved = self.overridden or self.host_expert_blocks
        return whole and self.offload_kqv and not moved

    @property
    def used(self) -> frozenset[Pool]:
        """Devices that hold a block, the output or a tensor that was moved there."""
        found = {*self.blocks, self.output, *self.moved.values()}
        shared = self.slicer or self.rows
        if shared and any(pool.kind is PoolKind.DEVICE for pool in found):
            found |= {Pool(PoolKind.DEVICE, i) for i in range(shared.devices)}
        return frozenset(pool for pool in found if pool.kind is PoolKind.DEVICE)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Those that hold weights of blocks."""
        return tuple(dict.fromkeys(self.blocks[: self.own_blocks]))


@dataclass(slots=True)
class TensorGroup:
    """Tensors stored together, whatever the placement."""

    name: str  # of one of them
    block: int | None
    is_idle: bool
    count: int = 0
    host_bytes: int = 0
    device_bytes: int = 0
