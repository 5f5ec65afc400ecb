"""A machine and an engine -> what the engine may use, and why: free memory less a reserve."""

from __future__ import annotations

import math

from edgekit.errors import HardwareError
from edgekit.machine.types import (
    DEVICE,
    HOST,
    Budget,
    Device,
    HostMemory,
    Machine,
    Pool,
    System,
    Vendor,
    pool_of,
)
from edgekit.units import GIB, KIB, MIB, format_bytes

LLAMACPP_RESERVE_BYTES = GIB
LLAMACPP_WINDOWS_RESERVE_BYTES = 2 * GIB  # the desktop's compositor takes its share
MLX_SMALL_BYTES = 16 * GIB  # up to here a fixed reserve, beyond it a share
MLX_SMALL_RESERVE_BYTES = 3 * GIB
MLX_RESERVE_PERCENT = 20
# What is gone before vLLM looks at what is free: a CUDA context (527 MiB on an H200), and among several cards NCCL's
# buffers (users log 1.5 GiB and more).
VLLM_CONTEXT_BYTES = 6 * GIB // 10
NCCL_BYTES = 3 * GIB // 2
# Without compilation vLLM takes more than its share in the end: up to 223 MiB in 32 starts on an H200.
VLLM_BEYOND_SHARE_BYTES = GIB // 4
# Of the built-in engine, beside its bill: Python, numpy, tokenizers and the command itself (51 MiB measured on Linux),
# and for each thread its stack and small arrays (embed/budget.py measures them).
STREAM_PROCESS_BYTES = 64 * MIB
STREAM_THREAD_BYTES = 256 * KIB
LEAST_SHARE = 0.2  # with less of a card vLLM is not worth starting

# Whose devices an engine computes on, the most trusted way first: llama.cpp through CUDA, Metal, then Vulkan.
VENDORS = {
    "llama.cpp": (Vendor.NVIDIA, Vendor.APPLE, Vendor.AMD, Vendor.INTEL),
    "vllm": (Vendor.NVIDIA,),
    "mlx": (Vendor.APPLE,),
    "stream": (),
}
_NEEDS = {
    "vllm": "vLLM needs an NVIDIA GPU",
    "mlx": "MLX needs a Mac with Apple silicon",
}
_LACKS = {"vllm": "has none", "mlx": "is not one"}


def devices_for(machine: Machine, engine: str) -> tuple[Device, ...]:
    """The devices that the engine would use together: those of one vendor. None for a machine without any."""
    for vendor in VENDORS[engine]:
        found = tuple(one for one in machine.devices if one.vendor is vendor)
        if found:
            return found
    return ()


def check_runs(machine: Machine, engine: str) -> None:
    """Raises HardwareError where the machine has nothing that the engine runs on."""
    if engine in _NEEDS and not devices_for(machine, engine):
        here = f"this is: {machine.name}"
        if not machine.what_if:
            here = f"this machine {_LACKS[engine]} (--device checks another machine)"
        elif engine == "vllm" and not machine.devices and not machine.processor:  # RAM alone
            here = "none given (add --device or --vram)"
        raise HardwareError(f"{_NEEDS[engine]}; {here}")


def llamacpp_budgets(machine: Machine, devices: tuple[Device, ...]) -> tuple[Budget, ...]:
    """One for each card and one for the RAM, each with the reserve. RAM of unknown size is not judged."""
    reserve, because = _llamacpp_reserve(machine)
    found = [
        _card(pool_of(place), device, reserve, because)
        for place, device in enumerate(devices)
        if not device.unified
    ]
    if machine.host is not None:
        found.append(_ram(machine.host, devices, reserve, because))
    return tuple(found)


def mlx_reserve_bytes(total_bytes: int) -> int:
    """What macOS keeps of a unified memory of that size."""
    if total_bytes <= MLX_SMALL_BYTES:
        return MLX_SMALL_RESERVE_BYTES
    return total_bytes * MLX_RESERVE_PERCENT // 100


def mlx_budgets(machine: Machine, devices: tuple[Device, ...]) -> tuple[Budget, ...]:
    """The unified memory."""
    if machine.host is None:
        raise HardwareError("RAM unknown: add --ram 32G")
    total = machine.host.total_bytes
    reserve = mlx_reserve_bytes(total)
    because = f"{MLX_RESERVE_PERCENT} % of {format_bytes(total)} for macOS"
    if total <= MLX_SMALL_BYTES:
        because = "3 GiB for macOS (Macs with up to 16 GiB)"
    return (_ram(machine.host, devices[:1], reserve, because),)


def stream_budgets(
    machine: Machine, *, vocabulary_bytes: int = 0, threads: int = 1
) -> tuple[Budget, ...]:
    """The RAM alone. The bill is exact, so only what the process itself takes is held back."""
    if machine.host is None:
        raise HardwareError("RAM unknown: add --ram 32G")
    reserve = STREAM_PROCESS_BYTES + threads * STREAM_THREAD_BYTES + vocabulary_bytes
    because = "for Python, its libraries and the vocabulary"
    if not vocabulary_bytes:
        because = "for Python and its libraries (plus the vocabulary)"
    return (_ram(machine.host, (), reserve, because),)


def vllm_budgets(
    devices: tuple[Device, ...], utilization: float, *, eager: bool = False
) -> tuple[Budget, ...]:
    """The tightest of the cards that share the model: vLLM asks the same share of each."""
    before = _before_vllm(devices, eager=eager)
    return (min((_share(one, utilization, before) for one in devices), key=_tightness),)


def vllm_share(devices: tuple[Device, ...], wanted: float, *, eager: bool = False) -> float:
    """`wanted`, or the largest --gpu-memory-utilization in hundredths with which vLLM starts on all of them.

    Where that is too little to be worth it, `wanted` again: its budget then says why it does not start.
    """
    share = min(_startable(one, _before_vllm(devices, eager=eager)) for one in devices)
    return share if LEAST_SHARE <= share < wanted else wanted


def _before_vllm(devices: tuple[Device, ...], *, eager: bool) -> int:
    """What has to be free in addition to its share."""
    several = NCCL_BYTES if len(devices) > 1 else 0
    return VLLM_CONTEXT_BYTES + several + (VLLM_BEYOND_SHARE_BYTES if eager else 0)


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


def _llamacpp_reserve(machine: Machine) -> tuple[int, str]:
    if machine.is_phone and machine.host is not None and machine.host.tightest is not None:
        return 0, machine.host.tightest.name  # the limit already excludes the system's share
    if machine.system is System.WINDOWS:
        return LLAMACPP_WINDOWS_RESERVE_BYTES, "2 GiB for Windows"
    return LLAMACPP_RESERVE_BYTES, "1 GiB reserve"


def _card(pool: Pool, device: Device, reserve: int, because: str) -> Budget:
    return Budget(
        name=device.name,
        pools=frozenset({pool}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=reserve,
        because=because,
    )


def _ram(host: HostMemory, devices: tuple[Device, ...], reserve: int, because: str) -> Budget:
    """The RAM, with the pools of the GPUs that share it."""
    shared = {pool_of(place): one for place, one in enumerate(devices) if one.unified}
    limits = [one.limit_bytes for one in shared.values() if one.limit_bytes is not None]
    own_bytes = sum(one.own_bytes for one in shared.values())
    return Budget(
        name="unified memory" if shared else "RAM",
        pools=frozenset({*shared, HOST}),
        total_bytes=host.whole_bytes + own_bytes,
        free_bytes=host.usable_bytes + own_bytes,
        reserve_bytes=reserve,
        because=because,
        limit_bytes=sum(limits) if limits and len(limits) == len(shared) else None,
        limit_because=next((one.limit_because for one in shared.values()), ""),
        gpu_only_bytes=own_bytes,
    )
