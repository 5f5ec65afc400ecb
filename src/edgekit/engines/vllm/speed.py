"""The speed of vLLM."""

from __future__ import annotations

from functools import partial

from edgekit.bill.types import MemoryEstimate, Placement, Speed, Task
from edgekit.engines.speed import (
    SequenceRun,
    flops_per_byte,
    largest_cards,
    modelled_speed,
    reading,
    speed_bound,
)
from edgekit.engines.token_reads import token_reads
from edgekit.engines.vllm.estimate import NAME
from edgekit.engines.vllm.placements import devices
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import Machine

READING = reading("vLLM")
EAGER_READING = reading("vLLM without CUDA graphs")


def speed(
    task: Task, placement: Placement, bill: MemoryEstimate, filled: tuple[int, int] | None = None
) -> Speed | None:
    """The expected speed; all ranks are as fast as the slowest GPU."""
    setup = VllmSetup.of(placement.setup)
    cards = largest_cards(placement.cards, setup.world_size)
    # All ranks wait for the slowest.
    slowest = min(cards, key=lambda card: card.bandwidth_bytes_per_s or 0, default=None)
    run = SequenceRun(
        model=task.model,
        load=task.load,
        reads=token_reads(task.model, task.load, bill),
        machine=task.machine,
        cards=() if slowest is None else (slowest,) * len(cards),
        reading=EAGER_READING if setup.enforce_eager else READING,
        flops_per_byte=partial(flops_per_byte, engine="vllm"),
        tensor_ranks=setup.tensor_parallel_size,
        pipeline_stages=setup.pipeline_parallel_size,
        notes_single_request=True,
    )
    return modelled_speed(run, filled)


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, READING) for card in devices(machine))
    ranks = max(len(cards), 1)
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards, ranks=ranks)
