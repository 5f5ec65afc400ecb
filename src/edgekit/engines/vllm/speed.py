"""How fast vLLM is."""

from __future__ import annotations

from dataclasses import replace

from edgekit.bill.types import MemoryEstimate, Placement, Task
from edgekit.bill.verdict import Speed
from edgekit.engines.speed import (
    GB,
    MICRO,
    Capabilities,
    Range,
    Reading,
    SequenceRun,
    largest_cards,
    modelled_speed,
    nvidia_flops_per_byte,
    speed_bound,
)
from edgekit.engines.token_reads import token_reads
from edgekit.engines.vllm.estimate import NAME
from edgekit.engines.vllm.placements import devices
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import Device, Machine

READING = Reading(
    near_share=(0.5, 0.92),
    far_share=(0.3, 0.85),
    knee_bytes_per_s=1000 * GB,
    cache_share=0.4,
    layer_s=(60 * MICRO, 15 * MICRO),
    token_s=(4000 * MICRO, 300 * MICRO),  # every step goes through a scheduler in Python
)
# Without CUDA graphs every kernel is launched from Python.
EAGER_READING = replace(READING, layer_s=(400 * MICRO, 60 * MICRO))
# Operations per byte of bandwidth with a prompt: 16 bits, tensor cores.
_NVIDIA: Capabilities = (
    ((0, 0), (3, 60)),
    ((7, 0), (20, 130)),
    ((7, 5), (20, 160)),
    ((8, 0), (25, 160)),
    ((8, 6), (35, 160)),
    ((8, 7), (20, 200)),
    ((8, 9), (50, 300)),
    ((9, 0), (30, 250)),
    ((10, 0), (30, 300)),
    ((12, 0), (50, 350)),
    ((12, 1), (60, 600)),
)


def speed(
    task: Task, placement: Placement, bill: MemoryEstimate, filled: tuple[int, int] | None = None
) -> Speed | None:
    setup: VllmSetup = placement.setup
    cards = largest_cards(placement.cards, setup.world_size)
    # Ranks wait for the slowest.
    slowest = min(cards, key=lambda card: card.bandwidth_bytes_per_s or 0, default=None)
    run = SequenceRun(
        model=task.model,
        load=task.load,
        reads=token_reads(task.model, task.load, bill),
        machine=task.machine,
        cards=() if slowest is None else (slowest,) * len(cards),
        reading=EAGER_READING if setup.enforce_eager else READING,
        flops_per_byte=_flops_per_byte,
        tensor_ranks=setup.tensor_parallel_size,
        pipeline_stages=setup.pipeline_parallel_size,
        single_request=True,
    )
    return modelled_speed(run, filled)


def _flops_per_byte(device: Device) -> Range | None:
    return nvidia_flops_per_byte(device, _NVIDIA)


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, READING) for card in devices(machine))
    ranks = max(len(cards), 1)
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards, ranks=ranks)
