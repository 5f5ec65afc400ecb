"""What vLLM may use of a machine, and how it can split a model into ranks and stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.types import Load, Placement, Setup, Task
from edgekit.engines.choices import devices_of, names_of
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION, Gpu, VllmSetup
from edgekit.errors import HardwareError, UsageError
from edgekit.machine.types import DEVICE, Budget, Device, Machine, Vendor
from edgekit.units import GIB, format_bytes

# Fields of the setup that say where the model goes.
PLACED = frozenset({"tensor_parallel_size", "pipeline_parallel_size"})
LEAST_CAPABILITY = (7, 0)
# Memory in use before vLLM measures what is free: a CUDA context (527 MiB on an H200), and with several GPUs NCCL's
# buffers (users report 1.5 GiB and more).
CONTEXT_BYTES = 6 * GIB // 10
NCCL_BYTES = 3 * GIB // 2
# Without compilation vLLM exceeds its share: by up to 223 MiB in 32 starts on an H200.
BEYOND_SHARE_BYTES = GIB // 4
LEAST_SHARE = 0.2  # a smaller share of a GPU is not worth starting vLLM


def devices(machine: Machine) -> tuple[Device, ...]:
    return devices_of(machine, (Vendor.NVIDIA,))


def busy_users(load: Load, setup: Setup) -> int:
    """As many as the caller asked for, with --users or --max-num-seqs.

    The default of --max-num-seqs, 256, is only a limit: it says nothing about how many there will be.
    """
    return load.sequences or VllmSetup.of(setup).max_num_seqs or 1


def check_runs(machine: Machine) -> None:
    """Raises HardwareError where the machine has no NVIDIA GPU."""
    if not devices(machine):
        here = f"this is: {machine.name}"
        if not machine.what_if:
            here = "this machine has none (--device checks another machine)"
        elif not machine.devices and not machine.processor:  # RAM alone
            here = "none given (add --device or --vram)"
        raise HardwareError(f"vLLM needs an NVIDIA GPU; {here}")


def check_limits(reserve_bytes: int | None, max_use: float | None) -> None:
    """Raises UsageError for --reserve and --max-use, which vLLM does not have."""
    limits = {"--reserve": reserve_bytes, "--max-use": max_use}
    for flag, value in limits.items():
        if value is not None:
            raise UsageError(
                f"{flag} does not apply to vLLM, which takes a fixed share: use --gpu-memory-utilization"
            )


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """The budget with all GPUs, at the default --gpu-memory-utilization or the largest that starts."""
    cards = devices(machine)
    return budgets_at(cards, startable_share(cards, DEFAULT_UTILIZATION))


def capacity_bytes(machine: Machine) -> int:
    """The free memory of all GPUs together."""
    return sum(card.free_bytes for card in devices(machine))


def budgets_at(
    cards: tuple[Device, ...], utilization: float, *, eager: bool = False
) -> tuple[Budget, ...]:
    """The budget of the tightest GPU that shares the model: vLLM takes the same share of each."""
    by_card = []
    for card in cards:
        requested = math.ceil(card.total_bytes * utilization)  # worker/utils.py request_memory
        startable_bytes, share = _startable_memory(card, cards, eager=eager)
        blocked = ""
        if startable_bytes < requested:
            advice = f"free GPU memory, or use {share:g}" if share else "free GPU memory"
            blocked = (
                f"vLLM does not start: it reserves {format_bytes(requested)} of {card.name} "
                f"(--gpu-memory-utilization {utilization:g}), but only {format_bytes(startable_bytes)} "
                f"is free once it runs; {advice}"
            )
        budget = Budget(
            name=card.name,
            pools=frozenset({DEVICE}),
            total_bytes=card.total_bytes,
            free_bytes=card.free_bytes,
            reserve_bytes=max(0, card.free_bytes - requested),
            has_default_reserve=False,
            is_share=True,
            because=f"not used at --gpu-memory-utilization {utilization:g} of {format_bytes(card.total_bytes)}",
            blocked=blocked,
        )
        by_card.append(budget)
    return (min(by_card, key=lambda budget: (not budget.blocked, budget.available_bytes)),)


def startable_share(cards: tuple[Device, ...], utilization: float, *, eager: bool = False) -> float:
    """`utilization`, or the largest --gpu-memory-utilization in hundredths with which vLLM starts on all GPUs.

    If that is not worth starting, `utilization` again: its budget then explains why vLLM does not start.
    """
    share = min(_startable_memory(card, cards, eager=eager)[1] for card in cards)
    return share if LEAST_SHARE <= share < utilization else utilization


def _startable_memory(card: Device, cards: tuple[Device, ...], *, eager: bool) -> tuple[int, float]:
    """Bytes that are free on the card once vLLM runs, and the largest share, in hundredths, with which it starts."""
    free = max(0, card.free_bytes - _outside_bytes(cards, eager=eager))
    return free, math.floor(100 * free / max(card.total_bytes, 1)) / 100


def outside_bytes(placement: Placement) -> int:
    """What vLLM takes of each GPU in addition to its share."""
    eager = VllmSetup.of(placement.setup).enforce_eager
    return _outside_bytes(placement.cards, eager=eager)


def _outside_bytes(cards: tuple[Device, ...], *, eager: bool) -> int:
    size = CONTEXT_BYTES + (NCCL_BYTES if len(cards) > 1 else 0)
    return size + (BEYOND_SHARE_BYTES if eager else 0)


def placements(task: Task) -> Iterator[Placement]:
    """Placements on all GPUs first, then on fewer. Raises HardwareError if the GPUs are too few or too old."""
    machine, start = task.machine, task.start
    setup = VllmSetup.of(start.setup or VllmSetup())
    gpus = devices(machine)
    one_node = tuple(
        card for card in gpus if (card.capability or LEAST_CAPABILITY) >= LEAST_CAPABILITY
    )
    if not one_node:
        raise HardwareError(f"vLLM needs a Volta GPU or newer, and {names_of(gpus)} is older")
    cards = one_node * task.nodes
    largest = sorted(cards, key=lambda card: -card.free_bytes)
    if setup.world_size > len(cards):
        raise HardwareError(
            f"vLLM should use {setup.world_size} GPUs, but {machine.name} has {len(cards)}"
        )
    if start.fixed_flags & PLACED:
        shapes = [(setup.tensor_parallel_size, setup.pipeline_parallel_size)]
    else:
        shapes = list(_shapes(len(one_node), task.nodes))[::-1]
    for ranks, stages in shapes:
        chosen = tuple(largest[: ranks * stages])
        share = setup.gpu_memory_utilization
        if "gpu_memory_utilization" not in start.fixed_flags:
            # lowered until vLLM starts, if GPUs are in use or NCCL needs memory
            share = startable_share(chosen, share, eager=setup.enforce_eager)
        smallest = min(chosen, key=lambda card: card.total_bytes)
        # without the GPU's memory: the estimate is what the requests need, not the whole pool
        gpu = Gpu(name=smallest.name, memory_bytes=None, total_bytes=smallest.total_bytes)
        if smallest.capability is not None:
            gpu = replace(gpu, capability=smallest.capability)
        shape = [f"tensor parallel {ranks}"] if ranks > 1 else []
        shape += [f"pipeline parallel {stages}"] if stages > 1 else []
        because = f"{'on' if len(chosen) == 1 else 'shared by'} {names_of(chosen)}"
        because += f", {' x '.join(shape)}" if shape else ""
        if share != DEFAULT_UTILIZATION:
            because += f", {share:g} of its memory"
        yield Placement(
            setup=replace(
                setup,
                gpu=gpu,
                tensor_parallel_size=ranks,
                pipeline_parallel_size=stages,
                gpu_memory_utilization=share,
            ),
            budgets=budgets_at(chosen, share, eager=setup.enforce_eager),
            because=because,
            cards=chosen,
            whole=True,
        )


def _shapes(cards: int, nodes: int) -> Iterator[tuple[int, int]]:
    """Pairs of ranks and stages: heads are split within a machine, layers between machines to save traffic."""
    powers = [2**power for power in range(cards.bit_length())]
    yield from ((size, 1) for size in powers)
    if cards not in powers:
        yield 1, cards  # three GPUs split layers, not heads
    for count in range(2, nodes + 1):
        yield powers[-1], count
        if cards not in powers:
            yield 1, cards * count
