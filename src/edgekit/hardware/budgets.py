"""A machine and an engine -> what the engine may use, and why: free memory less a reserve."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgekit.errors import HardwareError
from edgekit.hardware.types import Accelerator, HostMemory, Machine, System, Vendor
from edgekit.memory.types import DEVICE, HOST, MemoryEstimate, Pool, PoolKind
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
    "vllm": "vLLM as modelled here runs on NVIDIA GPUs",
    "mlx": "MLX as modelled here runs on Apple silicon",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One memory that a bill is held against. Unified memory is one budget for two pools."""

    name: str
    pools: frozenset[Pool]
    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    because: str  # of the reserve
    blocked: str = ""  # why the engine would not start, however small the model
    has_default_reserve: bool = True  # False: the user set it, or the engine takes a fixed share
    is_share: bool = False  # the engine takes all of it when it starts (vLLM): nothing is tight

    @property
    def available_bytes(self) -> int:
        return max(0, self.free_bytes - self.reserve_bytes)

    def required_bytes(self, estimate: MemoryEstimate) -> int:
        return estimate.in_pools(self.pools)


def together_bytes(budgets: Iterable[Budget]) -> int:
    """What they make available in all; a share of a unified memory is in that already."""
    every = tuple(budgets)
    apart = (one for one in every if not any(one.pools < other.pools for other in every))
    return sum(one.available_bytes for one in apart)


def devices_for(machine: Machine, engine: str) -> tuple[Accelerator, ...]:
    """The devices that the engine would use together: those of one vendor. None for a machine without any."""
    for vendor in VENDORS[engine]:
        found = tuple(one for one in machine.devices if one.vendor is vendor)
        if found:
            return found
    return ()


def check_runs(machine: Machine, engine: str) -> None:
    """Raises HardwareError where the machine has nothing that the engine runs on."""
    if engine in _NEEDS and not devices_for(machine, engine):
        raise HardwareError(
            f"{_NEEDS[engine]}, and {machine.name} has none (--device asks about another machine)"
        )


def llamacpp_budgets(machine: Machine, devices: tuple[Accelerator, ...]) -> tuple[Budget, ...]:
    """Every device and the host, each with the reserve; a host that is not known is not judged."""
    reserve, told = _llamacpp_reserve(machine)
    found = [
        _card(pool_of(place), device, reserve, told)
        for place, device in enumerate(devices)
        if not device.unified
    ]
    shared = [pool_of(place) for place, device in enumerate(devices) if device.unified]
    if machine.host is not None:
        found.append(_host(machine.host, (*shared, HOST), reserve, told))
    return (*found, *_limits(devices))


def mlx_reserve_bytes(total_bytes: int) -> int:
    """What macOS keeps of a unified memory of that size."""
    if total_bytes <= MLX_SMALL_BYTES:
        return MLX_SMALL_RESERVE_BYTES
    return total_bytes * MLX_RESERVE_PERCENT // 100


def mlx_budgets(machine: Machine, devices: tuple[Accelerator, ...]) -> tuple[Budget, ...]:
    """One unified memory, and what the system lets the GPU wire of it."""
    if machine.host is None:
        raise HardwareError(f"the memory of {machine.name} is not known: give --ram")
    total = machine.host.total_bytes
    reserve = mlx_reserve_bytes(total)
    told = f"{MLX_RESERVE_PERCENT} % of {format_bytes(total)} for macOS"
    if total <= MLX_SMALL_BYTES:
        told = "3 GiB for macOS, in up to 16 GiB"
    return (_host(machine.host, (DEVICE, HOST), reserve, told), *_limits(devices[:1]))


def stream_budgets(
    machine: Machine, *, vocabulary_bytes: int = 0, threads: int = 1
) -> tuple[Budget, ...]:
    """The host alone. Its bill is exact, so nothing is set aside but what the process is without it."""
    if machine.host is None:
        raise HardwareError(f"the memory of {machine.name} is not known: give --ram")
    reserve = STREAM_PROCESS_BYTES + threads * STREAM_THREAD_BYTES + vocabulary_bytes
    told = "for Python, its libraries and the vocabulary"
    if not vocabulary_bytes:
        told = "for Python and its libraries, before a vocabulary"
    return (_host(machine.host, (HOST,), reserve, told),)


def vllm_budgets(devices: tuple[Accelerator, ...], utilization: float) -> tuple[Budget, ...]:
    """The tightest of the cards that share the model: vLLM asks the same share of each."""
    before = _before_vllm(devices)
    return (min((_share(one, utilization, before) for one in devices), key=_tightness),)


def vllm_share(devices: tuple[Accelerator, ...], wanted: float) -> float:
    """`wanted`, or the largest --gpu-memory-utilization in hundredths with which vLLM starts on all of them.

    Where that is too little to be worth it, `wanted` again: its budget then says why it does not start.
    """
    share = min(_startable(one, _before_vllm(devices)) for one in devices)
    return share if LEAST_SHARE <= share < wanted else wanted


def _before_vllm(devices: tuple[Accelerator, ...]) -> int:
    return VLLM_CONTEXT_BYTES + (NCCL_BYTES if len(devices) > 1 else 0)


def _startable(device: Accelerator, before_bytes: int) -> float:
    started = max(0, device.free_bytes - before_bytes)
    return math.floor(100 * started / max(device.total_bytes, 1)) / 100


def _tightness(budget: Budget) -> tuple[bool, int]:
    return not budget.blocked, budget.available_bytes


def _share(device: Accelerator, utilization: float, before_bytes: int) -> Budget:
    # v1/worker/utils.py request_memory @ 0.32.0
    asked = math.ceil(device.total_bytes * utilization)
    started = max(0, device.free_bytes - before_bytes)
    blocked = ""
    if started < asked:
        share = _startable(device, before_bytes)
        blocked = (
            f"vLLM does not start: it asks for {format_bytes(asked)} of {device.name} "
            f"(--gpu-memory-utilization {utilization:g}), where {format_bytes(started)} are free once it runs; "
            f"free the card{f', or ask for {share:g}' if share else ''}"
        )
    return Budget(
        name=device.name,
        pools=frozenset({DEVICE}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=max(0, device.free_bytes - asked),
        has_default_reserve=False,
        is_share=True,
        because=f"beyond --gpu-memory-utilization {utilization:g} of {format_bytes(device.total_bytes)}",
        blocked=blocked,
    )


def pool_of(place: int) -> Pool:
    return Pool(PoolKind.DEVICE, place)


def _llamacpp_reserve(machine: Machine) -> tuple[int, str]:
    if machine.is_phone and machine.host is not None and machine.host.tightest is not None:
        return 0, machine.host.tightest.name  # its system's share is not in it
    if machine.system is System.WINDOWS:
        return LLAMACPP_WINDOWS_RESERVE_BYTES, "2 GiB for Windows"
    return LLAMACPP_RESERVE_BYTES, "1 GiB for everything else"


def _card(pool: Pool, device: Accelerator, reserve: int, told: str) -> Budget:
    return Budget(
        name=device.name,
        pools=frozenset({pool}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=reserve,
        because=told,
    )


def _host(host: HostMemory, pools: tuple[Pool, ...], reserve: int, told: str) -> Budget:
    return Budget(
        name="host memory" if len(pools) == 1 else "unified memory",
        pools=frozenset(pools),
        total_bytes=host.whole_bytes,
        free_bytes=host.usable_bytes,
        reserve_bytes=reserve,
        because=told,
    )


def _limits(devices: tuple[Accelerator, ...]) -> tuple[Budget, ...]:
    return tuple(
        Budget(
            name=f"GPU share of {device.name}",
            pools=frozenset({pool_of(place)}),
            total_bytes=device.limit_bytes,
            free_bytes=device.limit_bytes,
            reserve_bytes=0,
            because=device.limit_because,
        )
        for place, device in enumerate(devices)
        if device.limit_bytes is not None
    )
