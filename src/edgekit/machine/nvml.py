"""One card as the NVIDIA driver tells it -> a device, its MIG slices, or a note.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import Any, TypeVar

from edgekit.basis import Basis
from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.nvml_errors import NOT_SUPPORTED, told
from edgekit.machine.surroundings import Nvml, NvmlError
from edgekit.machine.tree import printable
from edgekit.machine.types import Device, HostMemory, Process, Vendor
from edgekit.machine.visible import DeviceCount, Seen
from edgekit.units import GIB, LARGEST

T = TypeVar("T")

_NAME_LENGTH = 96
_MOST_USERS = 64  # that are listed; a card with more is shared by a service
_MOST_SLICES = 16  # MIG has 7 on every card so far
_CLOCK_MEM = 2  # nvml.h, NVML_CLOCK_MEM
# Where Windows manages the memory (WDDM, and WSL2 inside of it) NVML's free is not CUDA's: of an RTX 3080 of 12 GB it
# told 12,091 MiB and CUDA 11,100; of an RTX 5090 CUDA had 30.12 of 31.84 GiB.
_WINDOWS_KEEPS_BYTES = GIB
_WINDOWS_KEEPS_OF_LARGE_BYTES = 13 * GIB // 10
_LARGE_BYTES = 23 * GIB  # cards of 24 GB report a little less
# Integrated with the processor, by the names their drivers give. A card that refuses to tell its
# memory and is none of these is not counted: to take the host's for its own would be a guess.
_INTEGRATED = ("(nvgpu)", "GB10", "Thor", "Orin", "Xavier", "Tegra")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """What a card and its slices have in common."""

    nvml: Nvml
    handle: Any
    index: int
    name: str
    known_unified: bool  # to the device table
    host: HostMemory | None
    by_windows: bool  # its memory is managed by Windows

    def ask(self, function: str, *arguments: Any, otherwise: Any = None) -> Any:
        """Its answer; `otherwise` where the driver refuses this one question."""
        try:
            return self.nvml(function, *arguments)
        except NvmlError:
            return otherwise

    def uuid(self, handle: Any) -> str:
        return _text(self.ask("nvmlDeviceGetUUID", handle, otherwise=""))

    @property
    def title(self) -> str:
        return f"NVIDIA GPU {self.index} ({self.name})"

    @property
    def integrated(self) -> bool:
        return self.known_unified or any(name in self.name for name in _INTEGRATED)


def read_card(
    nvml: Nvml, index: int, host: HostMemory | None, *, by_windows: bool = False
) -> DeviceCount:
    """A card that does not answer is a note, never an exception."""
    from edgekit.machine.devices import device_like

    try:
        handle = nvml("nvmlDeviceGetHandleByIndex", index)
        name = printable(_text(nvml("nvmlDeviceGetName", handle)), _NAME_LENGTH)
        row = device_like(name)
        card = _Card(
            nvml=nvml,
            handle=handle,
            index=index,
            name=name,
            known_unified=row is not None and row.unified,
            host=host,
            by_windows=by_windows,
        )
        mig, _ = card.ask("nvmlDeviceGetMigMode", handle, otherwise=(0, 0))
        return _slices(card) if mig else _whole(card)
    except NvmlError as error:
        why = f"NVIDIA GPU {index} does not answer and is not counted: {told(error.code)}"
        return DeviceCount(notes=(why,))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _whole(card: _Card) -> DeviceCount:
    device = _shared(card) if card.integrated else _device(card, card.handle)
    if device is None:
        why = f"{card.title} shares the RAM, whose size could not be read: not counted."
        return DeviceCount(notes=(why,))
    return DeviceCount(seen=(Seen(device=device, uuids=(card.uuid(card.handle),)),))


def _slices(card: _Card) -> DeviceCount:
    """With MIG on, the card itself cannot be used: only its slices."""
    seen = tuple(
        Seen(device=device, uuids=(card.uuid(handle), card.uuid(card.handle)))
        for handle in _slice_handles(card)
        for device in (_device(card, handle, partition=_partition(card, handle)),)
    )
    why = (
        f"{card.title} is split into {len(seen)} MIG slices: a program gets one of them, the first "
        f"unless CUDA_VISIBLE_DEVICES names another ({seen[0].uuids[0][:48] or 'MIG-...'} is the first)."
        if seen
        else f"{card.title} is in MIG mode but has no slice: create one (nvidia-smi mig -cgi) or "
        "switch the mode off (nvidia-smi -mig 0)."
    )
    return DeviceCount(seen=seen, notes=(why,))


def _slice_handles(card: _Card) -> Iterator[Any]:
    count = card.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle, otherwise=0)
    for number in range(min(int(count), _MOST_SLICES)):
        handle = card.ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
        if handle is not None:  # numbers of slices that are not cut are refused
            yield handle


def _partition(card: _Card, handle: Any) -> str:
    """'NVIDIA H100 80GB HBM3 MIG 1g.10gb' -> 'MIG 1g.10gb'."""
    name = printable(_text(card.ask("nvmlDeviceGetName", handle, otherwise="")), _NAME_LENGTH)
    _, found, kind = name.rpartition("MIG ")
    return f"MIG {kind}" if found else "MIG slice"


def _shared(card: _Card) -> Device | None:
    """GB10, Jetson: one memory, two devices. NVML has no answer for it, or the machine's own."""
    if card.host is None:
        return None
    return Device(
        name=card.name,
        vendor=Vendor.NVIDIA,
        index=card.index,
        total_bytes=card.host.total_bytes,
        free_bytes=card.host.usable_bytes,
        unified=True,
        bandwidth_bytes_per_s=known_bandwidth(card.name, card.host.total_bytes),
        capability=_aside(lambda: _capability(card), None),
        users=_aside(lambda: _users(card, card.handle), ()),
        because="shares the RAM",
    )


def _device(card: _Card, handle: Any, *, partition: str = "") -> Device:
    total_bytes, free_bytes = _memory(card, handle)
    return Device(
        name=card.name,
        vendor=Vendor.NVIDIA,
        index=card.index,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        bandwidth_bytes_per_s=_aside(
            lambda: _bandwidth(card, total_bytes if partition else None), None
        ),
        capability=_aside(lambda: _capability(card), None),
        partition=partition,
        users=_aside(lambda: _users(card, handle), ()),
        basis=Basis.ASSUMED if card.by_windows else Basis.EXACT,
        because="NVML, minus what Windows is assumed to use" if card.by_windows else "NVML",
    )


def _aside(ask: Callable[[], T], otherwise: T) -> T:
    """What is nice to know does not decide whether a card counts: an odd answer is none."""
    try:
        return ask()
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
        return otherwise


def _memory(card: _Card, handle: Any) -> tuple[int, int]:
    """Total and free as CUDA has them. What the driver keeps for itself is in NVML's total and not
    in CUDA's: an H200 has 150,754,820,096 - 644,939,776 (`reserved`, of the second form) = 150,109,880,320 bytes.
    Free is the same in all three. Under Windows NVML's total is CUDA's too, and free is less.
    """
    memory = card.nvml("nvmlDeviceGetMemoryInfo", handle)
    more = card.ask("nvmlDeviceGetMemoryInfo_v2", handle)
    kept = 0 if more is None or card.by_windows else int(more.reserved)
    total_bytes = int(memory.total) - kept
    if not 0 < total_bytes < LARGEST:
        raise NvmlError(NOT_SUPPORTED)
    free_bytes = min(int(memory.free), total_bytes)
    if card.by_windows:
        large = total_bytes >= _LARGE_BYTES
        free_bytes -= _WINDOWS_KEEPS_OF_LARGE_BYTES if large else _WINDOWS_KEEPS_BYTES
    return total_bytes, max(0, free_bytes)


def _capability(card: _Card) -> tuple[int, int] | None:
    found = card.ask("nvmlDeviceGetCudaComputeCapability", card.handle)
    return None if found is None else (int(found[0]), int(found[1]))


def _bandwidth(card: _Card, slice_bytes: int | None) -> int | None:
    """Of the table; else worked out. A slice has its share: memory is cut with its channels."""
    memory = card.ask("nvmlDeviceGetMemoryInfo", card.handle)
    if memory is None:
        return None
    whole = known_bandwidth(card.name, int(memory.total)) or _clocked(card)
    if slice_bytes is None or whole is None:
        return whole
    return whole * slice_bytes // max(int(memory.total), slice_bytes)


def _clocked(card: _Card) -> int | None:
    """Bus width x clock x 2: 384 bit at 9,751 MHz is an RTX 3090's 936 GB/s. NVML's clock is half
    the rate of every memory, GDDR6X and HBM alike.
    """
    width_bits = card.ask("nvmlDeviceGetMemoryBusWidth", card.handle)
    clock_mhz = card.ask("nvmlDeviceGetMaxClockInfo", card.handle, _CLOCK_MEM)
    if not width_bits or not clock_mhz:
        return None
    return int(width_bits) // 8 * int(clock_mhz) * 10**6 * 2


def _users(card: _Card, handle: Any) -> tuple[Process, ...]:
    """Who computes and who draws; one who does both is told once."""
    users: dict[int, Process] = {}
    for kind in ("Compute", "Graphics"):
        for found in card.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle, otherwise=()):
            if len(users) < _MOST_USERS:
                used = found.usedGpuMemory
                users[int(found.pid)] = Process(
                    pid=int(found.pid),
                    name=_process_name(card, int(found.pid)),
                    used_bytes=None if used is None else int(used),
                )
    return tuple(users.values())


def _process_name(card: _Card, pid: int) -> str:
    """Empty for another user's, or one outside of this container."""
    path = _text(card.ask("nvmlSystemGetProcessName", pid, otherwise=""))
    return printable(PureWindowsPath(path).name)  # reads both kinds of slash
