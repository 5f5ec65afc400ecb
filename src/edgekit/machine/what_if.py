"""What a person would like to have -> a machine: --device "2x RTX 3090" --ram 64G, or --ram 32G --vram 24G,24G.

Nothing else runs on a machine that is only wished for: all of its memory is free.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edgekit.basis import Basis
from edgekit.errors import UsageError
from edgekit.machine.devices import AppLimit, DeviceKind, KnownDevice, find_device
from edgekit.machine.types import (
    Device,
    HostMemory,
    Machine,
    MemoryLimit,
    System,
    Vendor,
)
from edgekit.units import GIB, MIB, format_bytes, parse_size

MAX_CARDS = 64  # the largest machines have 16; 72 GB200 in a rack are 18 machines
MAX_TEXT_CHARS = 2000
SMALLEST_BYTES = 256 * MIB  # less is a number without its unit, or no machine for a model
LARGEST_BYTES = 2**50

_BETWEEN = re.compile(r",|(?<!max)\+", re.IGNORECASE)  # the Ryzen is called AI Max+ 395
_COUNT = re.compile(r"\s*(-?[0-9]+)\s*[x×*]\s*(?=\S)(.*)", re.IGNORECASE | re.DOTALL)  # noqa: RUF001 - people type it
_SYSTEMS = {"linux": System.LINUX, "darwin": System.MACOS, "win32": System.WINDOWS}
_FIRST_MACOS, _FIRST_MACOS_SINCE = 26, "2025-10"  # Macs from the M5 on run no older one
IDLE = "assumes the machine is otherwise idle"
_NO_RAM = "system RAM unknown, so no offloading was considered (add --ram 32G)"
_NO_GPU = "runs on the CPU: EdgeKit does not model this GPU"


def what_if_machine(
    *, devices: Sequence[str] = (), ram: str | None = None, vram: str | None = None
) -> Machine:
    """The machine that is described. Raises UsageError for what makes no sense, with the names that are near."""
    found = [device for wish in devices for device in _devices(wish)]
    if found and vram is not None:
        raise UsageError("--device and --vram both describe the GPUs: give one of them")
    ram_bytes = None if ram is None else _size("--ram", ram)
    if any(device.unified for device in found):
        return _whole(found, ram_bytes)
    cards = [_card(device) for device in found] or list(_unnamed(vram))
    if not cards and ram_bytes is None:
        raise UsageError("describe a machine with --device, --ram or --vram")
    return _assembled(cards, ram_bytes, arm=_arm(found))


def machine_of(device: KnownDevice) -> Machine:
    """The machine that has this device: it alone, the memory of the processor beside a card unknown."""
    return (
        _whole([device], None)
        if device.unified
        else _assembled([_card(device)], None, arm=device.arm)
    )


def _devices(wish: str) -> Iterator[KnownDevice]:
    for part in _parts("--device", wish):
        count, name = _counted("--device", part)
        device = find_device(name)
        yield from [device] * count


def _parts(flag: str, wish: str) -> list[str]:
    if len(wish) > MAX_TEXT_CHARS:
        raise UsageError(f"{flag}: {wish[:40]!r}... is too long")
    return _BETWEEN.split(wish)


_COUNT_AFTER = re.compile(r"(.*\S)\s+[xX](\d{1,3})")  # 'RTX 3090 x2'


def _counted(flag: str, text: str) -> tuple[int, str]:
    """'2x RTX 3090' -> 2 of them."""
    after = _COUNT_AFTER.fullmatch(text)
    if after is not None:
        text = f"{after[2]}x {after[1]}"
    found = _COUNT.fullmatch(text)
    count, name = (1, text) if found is None else (int(found[1]), found[2])
    if not name.strip():
        raise UsageError(f"{flag} is empty, or ends with a comma")
    if not 1 <= count <= MAX_CARDS:
        raise UsageError(f"{flag}: {text[:40]!r}: the number of GPUs must be 1 to {MAX_CARDS}")
    return count, name.strip()


def _size(flag: str, text: str) -> int:
    try:
        size_bytes = parse_size(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    if size_bytes < SMALLEST_BYTES:
        hint = (
            f": needs a unit, such as {text.strip()}G"
            if text.strip().isdecimal() and size_bytes
            else ""
        )
        raise UsageError(f"{flag}: {text[:40]!r} is too small{hint}")
    if size_bytes > LARGEST_BYTES:
        raise UsageError(f"{flag}: {text[:40]!r} is too large")
    return size_bytes


_BEFORE_VOLTA = (6, 0)  # or less: the table has capabilities from Volta on


def _card(device: KnownDevice) -> Device:
    reported = f"{device.name}: the driver reports {device.memory_bytes // MIB:,} MiB"
    kept = device.memory_bytes - device.usable_bytes
    return Device(
        name=device.name,
        vendor=device.vendor,
        total_bytes=device.usable_bytes,
        free_bytes=device.usable_bytes,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        capability=device.capability or (_BEFORE_VOLTA if device.vendor is Vendor.NVIDIA else None),
        basis=device.basis,
        because=f"{reported} and keeps {kept // MIB:,} MiB for itself" if kept else reported,
    )


def _unnamed(vram: str | None) -> Iterator[Device]:
    for part in () if vram is None else _parts("--vram", vram):
        count, text = _counted("--vram", part)
        size_bytes = _size("--vram", text)
        for _ in range(count):
            yield Device(
                name=f"{_short(size_bytes)} GPU",
                vendor=Vendor.NVIDIA,
                total_bytes=size_bytes,
                free_bytes=size_bytes,
                basis=Basis.ASSUMED,
                because="--vram",
            )


def _arm(devices: Sequence[KnownDevice]) -> bool:
    """Cards go into machines of the usual kind, but for those that are sold with an ARM processor."""
    return any(device.arm for device in devices)


def _assembled(cards: Sequence[Device], ram_bytes: int | None, *, arm: bool) -> Machine:
    """Cards, and a processor with memory of its own."""
    if len(cards) > MAX_CARDS:
        raise UsageError(f"{len(cards)} GPUs; the limit is {MAX_CARDS}")
    host = None if ram_bytes is None else HostMemory(total_bytes=ram_bytes, free_bytes=ram_bytes)
    parts = _tally(card.name for card in cards)
    if ram_bytes is not None:
        parts.append(f"{_short(ram_bytes)} RAM")
    notes = (IDLE,) if host else (IDLE, _NO_RAM)
    return Machine(
        name=" + ".join(parts),
        system=_system(has_cards=bool(cards)),
        arm=arm,
        host=host,
        devices=tuple(replace(card, index=place) for place, card in enumerate(cards)),
        notes=notes,
        what_if=True,
    )


def _whole(devices: Sequence[KnownDevice], ram_bytes: int | None) -> Machine:
    """A device that is a machine: one memory for its GPU and its processor."""
    device = devices[0]
    if len(devices) > 1:
        shared = next(one.name for one in devices if one.unified)
        raise UsageError(
            f"{shared} is a complete machine: it cannot be combined with other devices"
        )
    if ram_bytes not in {None, device.memory_bytes, _sold_bytes(device)}:
        raise UsageError(
            f"--ram: {device.name} has {_short(_sold_bytes(device))} of unified memory: "
            "name the device with another size, or give --ram alone"
        )
    return Machine(
        name=device.name,
        system=_system_of(device),
        processor=device.model,
        arm=device.arm,
        host=HostMemory(
            total_bytes=device.memory_bytes,
            free_bytes=device.memory_bytes if device.app_limit else device.usable_bytes,
            limits=_app_limits(device),
            bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        ),
        devices=(_shared_gpu(device),) if device.has_gpu else (),
        notes=(IDLE, *_caveat(device)),
        what_if=True,
    )


def _app_limits(device: KnownDevice) -> tuple[MemoryLimit, ...]:
    """What the system of a phone lets one app hold."""
    found = device.app_limit
    if found is None:
        return ()
    system = "iOS" if device.vendor is Vendor.APPLE else "Android"
    name = f"the memory limit of {system} for one app"
    return (MemoryLimit(name=name, limit_bytes=found.app_bytes, used_bytes=0),)


def _caveat(device: KnownDevice) -> tuple[str, ...]:
    if device.app_limit is not None:
        return (_app_words(device.app_limit, apple=device.vendor is Vendor.APPLE),)
    return () if device.has_gpu else (_NO_GPU,)


def _app_words(limit: AppLimit, *, apple: bool) -> str:
    size = format_bytes(limit.app_bytes)
    known = " (assumed)" if limit.assumed else ""
    if not apple:
        return f"Android allows one app {size}{known}, minus what other apps use"
    found = f"iOS kills an app that uses more than {size}{known} (with the increased-memory-limit entitlement)"
    return (
        found
        if limit.plain_bytes is None
        else f"{found}; {format_bytes(limit.plain_bytes)} without it"
    )


def _shared_gpu(device: KnownDevice) -> Device:
    limit_bytes, because = _gpu_limit(device)
    return replace(
        _card(device),
        unified=True,
        limit_bytes=limit_bytes,
        limit_because=because,
        because=f"{device.name}: {device.memory_bytes // MIB:,} MiB, shared with its CPU",
    )


def _gpu_limit(device: KnownDevice) -> tuple[int | None, str]:
    """The most that the GPU may use of the one memory, by default."""
    half, linux = device.memory_bytes // 2, _system_of(device) is System.LINUX
    if device.kind is DeviceKind.MAC:
        from edgekit.machine.gpu_limit import default_working_set_bytes, working_set_because

        macos = _FIRST_MACOS if device.released >= _FIRST_MACOS_SINCE else 0
        limit_bytes = default_working_set_bytes(device.memory_bytes, macos=macos)
        return limit_bytes, working_set_because(limit_bytes, device.memory_bytes)
    if device.kind is not DeviceKind.APU:
        return None, ""
    if linux and device.vendor is Vendor.INTEL:
        from edgekit.machine.gpus import mesa_heap_bytes

        return mesa_heap_bytes(device.memory_bytes)
    if linux:  # ttm_tt.c: half of the RAM; a Strix Halo of 128 GB logs 63,968 MiB
        return half, "amdgpu lets the GPU use half of the RAM by default (ttm.pages_limit)"
    return half, "Windows lets the GPU use half of the RAM by default"


def _sold_bytes(device: KnownDevice) -> int:
    return device.size_gb * GIB


def _system_of(device: KnownDevice) -> System:
    if device.kind is DeviceKind.MAC:
        return System.MACOS
    if device.kind is DeviceKind.PHONE:
        return System.OTHER
    return System.LINUX if device.kind is DeviceKind.BOARD else _system(has_cards=True)


def _system(*, has_cards: bool) -> System:
    """Ours; but no Mac takes such cards."""
    here = _SYSTEMS.get(sys.platform, System.OTHER)
    return System.LINUX if has_cards and here is System.MACOS else here


def _tally(names: Iterable[str]) -> list[str]:
    counted = Counter(names).items()
    return [name if count == 1 else f"{count}x {name}" for name, count in counted]


def _short(size_bytes: int) -> str:
    return format_bytes(size_bytes).replace(".00 ", " ")
