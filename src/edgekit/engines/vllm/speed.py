"""The speed of vLLM."""

from __future__ import annotations

from edgekit.bill.types import MemoryEstimate, Moment, Placement, Speed, Task
from edgekit.engines.speed import modelled_speed, speed_bound
from edgekit.engines.speed_places import SequenceRun, largest_cards
from edgekit.engines.token_reads import token_reads
from edgekit.engines.vllm.estimate import NAME
from edgekit.engines.vllm.placements import devices
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import Machine
from edgekit.model.types import Model

BATCH_TOKENS = 2048  # of a prompt; more on the largest cards


def speed(task: Task, placement: Placement, bill: MemoryEstimate, moment: Moment) -> Speed | None:
    """The expected speed; all ranks are as fast as the slowest GPU."""
    return modelled_speed(run_of(task, placement, bill), moment)


def run_of(task: Task, placement: Placement, bill: MemoryEstimate) -> SequenceRun:
    setup = VllmSetup.of(placement.setup)
    cards = largest_cards(placement.cards, setup.world_size)
    # All ranks wait for the slowest.
    slowest = min(cards, key=lambda card: card.bandwidth_bytes_per_s or 0, default=None)
    return SequenceRun(
        model=task.model,
        reads=token_reads(task.model, task.load, bill),
        machine=task.machine,
        cards=() if slowest is None else (slowest,) * len(cards),
        backend=NAME,
        is_launched_one_by_one=setup.enforce_eager,
        weights=_weights_format(task.model, setup),
        batch_tokens=setup.max_num_batched_tokens or BATCH_TOKENS,
        tensor_ranks=setup.tensor_parallel_size,
        pipeline_stages=setup.pipeline_parallel_size,
        notes_single_request=True,
    )


def _weights_format(model: Model, setup: VllmSetup) -> str:
    stored = model.header.quantization
    method = setup.quantization or (stored.method if stored is not None else "")
    if not method:
        return "f16"
    if "fp8" in method or (setup.quantization is None and stored is not None and stored.bits == 8):
        return "q8"
    variant = f"{method} {stored.format if stored is not None else ''}".lower()
    return "fp4" if "fp4" in variant else "int4"


def fastest_tokens_per_s(read_bytes: float, held_bytes: int, machine: Machine) -> float | None:
    cards = tuple((card, NAME) for card in devices(machine))
    ranks = max(len(cards), 1)
    return speed_bound(read_bytes, held_bytes, machine, NAME, cards, ranks=ranks)
