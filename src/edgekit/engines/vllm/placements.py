"""How vLLM shares a model among cards: every number of ranks and stages that it starts with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.task import Placement, Task
from edgekit.engines.budgets import names_of
from edgekit.engines.vllm.budget import budgets_at, devices, startable_share
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION, Gpu, VllmSetup
from edgekit.errors import HardwareError
from edgekit.machine.types import Device

# Fields of the setup that say where the model goes.
PLACED = frozenset({"tensor_parallel_size", "pipeline_parallel_size"})
LEAST_CAPABILITY = (7, 0)


def placements(task: Task) -> Iterator[Placement]:
    """All cards first, then fewer. Raises HardwareError where the machine has too few, or only older ones."""
    machine, start = task.machine, task.start
    setup: VllmSetup = start.setup or VllmSetup()
    found = devices(machine)
    one_node = tuple(
        card for card in found if (card.capability or LEAST_CAPABILITY) >= LEAST_CAPABILITY
    )
    if not one_node:
        raise HardwareError(f"vLLM needs a Volta GPU or newer, and {names_of(found)} is older")
    cards = one_node * task.nodes
    largest = sorted(cards, key=lambda card: -card.free_bytes)
    if setup.world_size > len(cards):
        raise HardwareError(
            f"vLLM should use {setup.world_size} GPUs, but {machine.name} has {len(cards)}"
        )
    if start.settled & PLACED:
        shapes = [(setup.tensor_parallel_size, setup.pipeline_parallel_size)]
    else:
        shapes = list(_shapes(len(one_node), task.nodes))[::-1]
    for ranks, stages in shapes:
        own = tuple(largest[: ranks * stages])
        shared = replace(setup, tensor_parallel_size=ranks, pipeline_parallel_size=stages)
        if "gpu_memory_utilization" not in start.settled:
            # its share of a card that is in use already, or shared with NCCL, is lowered until it starts
            share = startable_share(own, shared.gpu_memory_utilization, eager=shared.enforce_eager)
            shared = replace(shared, gpu_memory_utilization=share)
        yield _placement(shared, own)


def _shapes(cards: int, nodes: int) -> Iterator[tuple[int, int]]:
    """Ranks x stages: heads are divided inside of a machine, layers between machines, for that needs less traffic."""
    powers = [2**power for power in range(cards.bit_length())]
    yield from ((size, 1) for size in powers)
    if cards not in powers:
        yield 1, cards  # three cards share layers, not heads
    for count in range(2, nodes + 1):
        yield powers[-1], count
        if cards not in powers:
            yield 1, cards * count


def _placement(setup: VllmSetup, cards: tuple[Device, ...]) -> Placement:
    """The card's memory is the budget's business: the bill is that of the requests, not of the whole pool."""
    one = min(cards, key=lambda card: card.total_bytes)
    gpu = Gpu(name=one.name, memory_bytes=None, total_bytes=one.total_bytes)
    if one.capability is not None:
        gpu = replace(gpu, capability=one.capability)
    ranks, stages = setup.tensor_parallel_size, setup.pipeline_parallel_size
    shape = [f"tensor parallel {ranks}"] if ranks > 1 else []
    shape += [f"pipeline parallel {stages}"] if stages > 1 else []
    because = f"{'on' if len(cards) == 1 else 'shared by'} {names_of(cards)}"
    because += f", {' x '.join(shape)}" if shape else ""
    if setup.gpu_memory_utilization != DEFAULT_UTILIZATION:
        because += f", {setup.gpu_memory_utilization:g} of its memory"
    return Placement(
        setup=replace(setup, gpu=gpu),
        budgets=budgets_at(cards, setup.gpu_memory_utilization, eager=setup.enforce_eager),
        because=because,
        cards=cards,
        whole=True,
    )
