"""What vLLM may use of a machine, and how it can split a model into ranks and stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from edgekit.bill.types import Placement, Task
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
    """With all GPUs, at the default --gpu-memory-utilization or the largest that starts."""
    cards = devices(machine)
    return budgets_at(cards, startable_share(cards, DEFAULT_UTILIZATION))


def capacity_bytes(machine: Machine) -> int:
    """The free memory of all GPUs together."""
    return sum(card.free_bytes for card in devices(machine))


def budgets_at(
    cards: tuple[Device, ...], utilization: float, *, eager: bool = False
) -> tuple[Budget, ...]:
    """The tightest of the GPUs that share the model: vLLM takes the same share of each."""
    before = _before_start(cards, eager=eager)
    every = (_share(one, utilization, before) for one in cards)
    return (min(every, key=lambda budget: (not budget.blocked, budget.available_bytes)),)


def startable_share(cards: tuple[Device, ...], utilization: float, *, eager: bool = False) -> float:
    """`utilization`, or the largest --gpu-memory-utilization in hundredths with which vLLM starts on all GPUs.

    If that is not worth starting, `utilization` again: its budget then explains why vLLM does not start.
    """
    share = min(_startable(one, _before_start(cards, eager=eager)) for one in cards)
    return share if LEAST_SHARE <= share < utilization else utilization


def _before_start(cards: tuple[Device, ...], *, eager: bool) -> int:
    """Memory that has to be free in addition to the share."""
    several = NCCL_BYTES if len(cards) > 1 else 0
    return CONTEXT_BYTES + several + (BEYOND_SHARE_BYTES if eager else 0)


def _startable(device: Device, before_bytes: int) -> float:
    started = max(0, device.free_bytes - before_bytes)
    return math.floor(100 * started / max(device.total_bytes, 1)) / 100


def _share(device: Device, utilization: float, before_bytes: int) -> Budget:
    # v1/worker/utils.py request_memory @ 0.32.0
    requested = math.ceil(device.total_bytes * utilization)
    started = max(0, device.free_bytes - before_bytes)
    blocked = ""
    if started < requested:
        share = _startable(device, before_bytes)
        blocked = (
            f"vLLM does not start: it reserves {format_bytes(requested)} of {device.name} "
            f"(--gpu-memory-utilization {utilization:g}), but only {format_bytes(started)} is free once it runs; "
            f"free GPU memory{f', or use {share:g}' if share else ''}"
        )
    return Budget(
        name=device.name,
        pools=frozenset({DEVICE}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=max(0, device.free_bytes - requested),
        has_default_reserve=False,
        is_share=True,
        because=f"not used at --gpu-memory-utilization {utilization:g} of {format_bytes(device.total_bytes)}",
        blocked=blocked,
    )


def placements(task: Task) -> Iterator[Placement]:
    """All GPUs first, then fewer. Raises HardwareError if there are too few or only older ones."""
    machine, start = task.machine, task.start
    setup = VllmSetup.of(start.setup or VllmSetup())
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
            # lowered until vLLM starts, if GPUs are in use or NCCL needs memory
            share = startable_share(own, shared.gpu_memory_utilization, eager=shared.enforce_eager)
            shared = replace(shared, gpu_memory_utilization=share)
        yield _placement(shared, own)


def _shapes(cards: int, nodes: int) -> Iterator[tuple[int, int]]:
    """Ranks x stages: heads are split within a machine, layers between machines, which needs less traffic."""
    powers = [2**power for power in range(cards.bit_length())]
    yield from ((size, 1) for size in powers)
    if cards not in powers:
        yield 1, cards  # three GPUs split layers, not heads
    for count in range(2, nodes + 1):
        yield powers[-1], count
        if cards not in powers:
            yield 1, cards * count


def _placement(setup: VllmSetup, cards: tuple[Device, ...]) -> Placement:
    """Without the GPU's memory in the setup: the estimate is what the requests need, not the whole pool."""
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
