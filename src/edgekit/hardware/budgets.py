"""A machine and an engine -> what the engine may use, and why: free memory less a reserve."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgekit.errors import HardwareError
from edgekit.hardware.types import Accelerator, HostMemory, Machine, System, Vendor
from edgekit.memory.types import DEVICE, HOST, MemoryEstimate, Pool, PoolKind
from edgekit.units import GIB, format_bytes

LLAMACPP_RESERVE_BYTES = GIB
LLAMACPP_WINDOWS_RESERVE_BYTES = 2 * GIB  # the desktop's compositor takes its share
MLX_SMALL_BYTES = 16 * GIB  # up to here a fixed reserve, beyond it a share
MLX_SMALL_RESERVE_BYTES = 3 * GIB
MLX_RESERVE_PERCENT = 20
VLLM_CONTEXT_BYTES = GIB // 2

# Whose devices an engine computes on, the most trusted way first: llama.cpp through CUDA, Metal, then Vulkan.
VENDORS = {
    "llama.cpp": (Vendor.NVIDIA, Vendor.APPLE, Vendor.AMD, Vendor.INTEL),
    "vllm": (Vendor.NVIDIA,),
    "mlx": (Vendor.APPLE,),
}
_NEEDS = {
    "vllm": "vLLM as modelled here runs on NVIDIA GPUs",
    "mlx": "MLX runs on Apple silicon",
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

    @property
    def available_bytes(self) -> int:
        return max(0, self.free_bytes - self.reserve_bytes)

    def required_bytes(self, estimate: MemoryEstimate) -> int:
        return estimate.total(lambda line: line.pool in self.pools)


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
    reserve, told = _llamacpp_reserve(machine.system)
    found = [
        _card(pool_of(place), device, reserve, told)
        for place, device in enumerate(devices)
        if not device.unified
    ]
    shared = [pool_of(place) for place, device in enumerate(devices) if device.unified]
    if machine.host is not None:
        found.append(_host(machine.host, (*shared, HOST), reserve, told))
    return (*found, *_limits(devices))


def mlx_budgets(machine: Machine, devices: tuple[Accelerator, ...]) -> tuple[Budget, ...]:
    """One unified memory, and what the system lets the GPU wire of it."""
    if machine.host is None:
        raise HardwareError(f"the memory of {machine.name} is not known: give --ram")
    total = machine.host.total_bytes
    if total <= MLX_SMALL_BYTES:
        reserve, told = MLX_SMALL_RESERVE_BYTES, "3 GiB for macOS, in up to 16 GiB"
    else:
        reserve = total * MLX_RESERVE_PERCENT // 100
        told = f"{MLX_RESERVE_PERCENT} % of {format_bytes(total)} for macOS"
    return (_host(machine.host, (DEVICE, HOST), reserve, told), *_limits(devices[:1]))


def vllm_budgets(devices: tuple[Accelerator, ...], utilization: float) -> tuple[Budget, ...]:
    """The tightest of the cards that share the model: vLLM asks the same share of each."""
    return (min((_share(one, utilization) for one in devices), key=_tightness),)


def _tightness(budget: Budget) -> tuple[bool, int]:
    return not budget.blocked, budget.available_bytes


def _share(device: Accelerator, utilization: float) -> Budget:
    # v1/worker/utils.py request_memory @ 0.32.0: so much must be free once its own CUDA context is made
    asked = math.ceil(device.total_bytes * utilization)
    started = max(0, device.free_bytes - VLLM_CONTEXT_BYTES)
    blocked = ""
    if started < asked:
        share = math.floor(100 * started / max(device.total_bytes, 1)) / 100
        blocked = (
            f"vLLM does not start: it asks for {format_bytes(asked)} of {device.name} "
            f"(--gpu-memory-utilization {utilization:g}), where {format_bytes(started)} are free once it runs; "
            f"free the card, or ask for {share:g}"
        )
    return Budget(
        name=device.name,
        pools=frozenset({DEVICE}),
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        reserve_bytes=max(0, device.free_bytes - asked),
        because=f"beyond --gpu-memory-utilization {utilization:g} of {format_bytes(device.total_bytes)}",
        blocked=blocked,
    )


def pool_of(place: int) -> Pool:
    return Pool(PoolKind.DEVICE, place)


def _llamacpp_reserve(system: System) -> tuple[int, str]:
    if system is System.WINDOWS:
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
