"""The speed of MLX."""

from __future__ import annotations

from functools import partial

from edgekit.bill.types import MemoryEstimate, Placement, Speed, Task
from edgekit.engines.mlx.estimate import NAME
from edgekit.engines.mlx.placements import devices
from edgekit.engines.speed import (
    METAL_READING,
    SequenceRun,
    flops_per_byte,
    modelled_speed,
    speed_bound,
)
from edgekit.engines.token_reads import token_reads
from edgekit.machine.types import Machine


def speed(
    task: Task, placement: Placement, bill: MemoryEstimate, filled: tuple[int, int] | None = None
) -> Speed | None:
    """The expected speed on the Mac's GPU."""
    run = SequenceRun(
        model=task.model,
        load=task.load,
        reads=token_reads(task.model, task.load, bill),
        machine=task.machine,
        cards=placement.cards,
        reading=METAL_READING,
        flops_per_byte=partial(flops_per_byte, engine="mlx"),
        notes_single_request=(task.load.sequences or 1) > 1,
    )
    return modelled_speed(run, filled)


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, METAL_READING) for card in devices(machine))
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards)
