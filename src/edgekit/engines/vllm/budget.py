"""What vLLM may use of its cards: the same share of each."""

from __future__ import annotations

import math

from edgekit.engines.budgets import devices_of
from edgekit.engines.vllm.types import DEFAULT_UTILIZATION
from edgekit.errors import HardwareError, UsageError
from edgekit.machine.types import DEVICE, Budget, Device, Machine, Vendor
from edgekit.units import GIB, format_bytes

# What is gone before vLLM looks at what is free: a CUDA context (527 MiB on an H200), and among several cards NCCL's
# buffers (users log 1.5 GiB and more).
CONTEXT_BYTES = 6 * GIB // 10
NCCL_BYTES = 3 * GIB // 2
# Without compilation vLLM takes more than its share in the end: up to 223 MiB in 32 starts on an H200.
BEYOND_SHARE_BYTES = GIB // 4
LEAST_SHARE = 0.2  # with less of a card vLLM is not worth starting


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
    """Raises UsageError: vLLM has neither a reserve nor a largest share."""
    limits = {"--reserve": reserve_bytes, "--max-use": max_use}
    for flag, value in limits.items():
        if value is not None:
            raise UsageError(
                f"{flag} does not apply to vLLM, which takes a fixed share: use --gpu-memory-utilization"
            )


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """With all its cards, at the share that vLLM takes by itself."""
    cards = devices(machine)
    return budgets_at(cards, startable_share(cards, DEFAULT_UTILIZATION))


def capacity_bytes(machine: Machine) -> int:
    """The most that weights may take, on all cards together."""
    return sum(card.free_bytes for card in devices(machine))


def budgets_at(
    cards: tuple[Device, ...], utilization: float, *, eager: bool = False
) -> tuple[Budget, ...]:
    """The tightest of the cards that share the model: vLLM asks the same share of each."""
    before = _before_start(cards, eager=eager)
    return (min((_share(one, utilization, before) for one in cards), key=_tightness),)


def startable_share(cards: tuple[Device, ...], wanted: float, *, eager: bool = False) -> float:
    """`wanted`, or the largest --gpu-memory-utilization in hundredths with which vLLM starts on all of them.

    Where that is too little to be worth it, `wanted` again: its budget then says why it does not start.
    """
    share = min(_startable(one, _before_start(cards, eager=eager)) for one in cards)
    return share if LEAST_SHARE <= share < wanted else wanted


def _before_start(cards: tuple[Device, ...], *, eager: bool) -> int:
    """What has to be free in addition to its share."""
    several = NCCL_BYTES if len(cards) > 1 else 0
    return CONTEXT_BYTES + several + (BEYOND_SHARE_BYTES if eager else 0)


def _startable(device: Device, before_bytes: int) -> float:
    started = max(0, device.free_bytes - before_bytes)
    return math.floor(100 * started / max(device.total_bytes, 1)) / 100


def _tightness(budget: Budget) -> tuple[bool, int]:
    return not budget.blocked, budget.available_bytes


def _share(device: Device, utilization: float, before_bytes: int) -> Budget:
    # v1/worker/utils.py request_memory @ 0.32.0
    asked = math.ceil(device.total_bytes * utilization)
    started = max(0, device.free_bytes - before_bytes)
    blocked = ""
    if started < asked:
        share = _startable(device, before_bytes)
        blocked = (
            f"vLLM does not start: it reserves {format_bytes(asked)} of {device.name} "
            f"(--gpu-memory-utilization {utilization:g}), but only {format_bytes(started)} is free once it runs; "
            f"free GPU memory{f', or use {share:g}' if share else ''}"
        )
    return Budget(
        name=device.name,
        pools=frozenset({DEVICE}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=max(0, device.free_bytes - asked),
        has_default_reserve=False,
        is_share=True,
        because=f"not used at --gpu-memory-utilization {utilization:g} of {format_bytes(device.total_bytes)}",
        blocked=blocked,
    )
