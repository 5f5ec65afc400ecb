"""The machine that a request names: this one, or one described with --device "2x RTX 3090" --ram 64G --vram 24G,24G.

--cpu "Ryzen 7 7700" --ram "32G DDR5-6000" adds the processor and the speed of the RAM.

A described machine is assumed to be otherwise idle, with all of its memory free.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from edgekit.errors import UsageError
from edgekit.machine.devices import (
    DeviceKind,
    KnownDevice,
    default_working_set_bytes,
    device_like,
    find_device,
    mesa_heap_bytes,
    working_set_because,
)
from edgekit.machine.processors import (
    KnownProcessor,
    MemoryText,
    described_bandwidth,
    find_processor,
    memory_of,
    processor_like,
    with_bandwidth,
)
from edgekit.machine.types import (
    Device,
    HostMemory,
    Machine,
    MemoryLimit,
    System,
    Vendor,
    this_system,
)
from edgekit.units import GIB, MIB, Basis, format_bytes, parse_size

MAX_CARDS = 64  # the largest machines have 16; a rack of 72 GB200 is 18 machines
MAX_TEXT_CHARS = 2000
SMALLEST_BYTES = 256 * MIB  # less is probably a number without its unit
LARGEST_BYTES = 2**50
IDLE = "assumes the machine is otherwise idle"

_SEPARATOR = re.compile(r",|(?<!max)\+", re.IGNORECASE)  # not the + of "Ryzen AI Max+ 395"
_COUNT_BEFORE = re.compile(r"\s*(-?[0-9]+)\s*[x×*]\s*(?=\S)(.*)", re.IGNORECASE | re.DOTALL)  # noqa: RUF001 - people type it
_COUNT_AFTER = re.compile(r"(.*\S)\s+[xX]\s*(\d{1,3})")  # "RTX 3090 x2"
_SYSTEMS = {
    DeviceKind.MAC: System.MACOS,
    DeviceKind.PHONE: System.OTHER,
    DeviceKind.BOARD: System.LINUX,
}
_MACOS_26_SINCE = "2025-10"  # Macs from the M5 on run macOS 26 or later
_BEFORE_VOLTA = (6, 0)  # for every card before Volta, whose capabilities the table does not have


def requested_machine(
    *,
    devices: Sequence[str] = (),
    ram: str | None = None,
    vram: str | None = None,
    cpu: str | None = None,
) -> Machine:
    """The described machine, or this one if none is described. Raises UsageError."""
    if devices or ram is not None or vram is not None or cpu is not None:
        return what_if_machine(devices=devices, ram=ram, vram=vram, cpu=cpu)
    from edgekit.machine.probes import detect  # a described machine needs no probes

    return detect()


def what_if_machine(
    *,
    devices: Sequence[str] = (),
    ram: str | None = None,
    vram: str | None = None,
    cpu: str | None = None,
) -> Machine:
    """The described machine. Raises UsageError, with similar names for an unknown device or processor."""
    known: list[KnownDevice] = []
    for text in devices:
        for count, name in _counted_parts("--device", text):
            known += [find_device(name)] * count
    if known and vram is not None:
        raise UsageError("--device and --vram both describe the GPUs: give one of them")
    memory = None if ram is None else _parse_ram(ram)
    unified = next((device for device in known if device.unified), None)
    if unified is not None:
        if cpu is not None:
            raise UsageError(
                f"{unified.name} is a complete machine: leave out --cpu, or give --cpu and --ram without it"
            )
        return _unified_machine(known, memory)
    processor = None if cpu is None else find_processor(cpu)
    if vram is None:
        cards = [_card(device) for device in known]
    else:
        cards = []
        for count, text in _counted_parts("--vram", vram):
            size_bytes = _parse_memory("--vram", text)
            card = Device(
                name=f"{_short_size(size_bytes)} GPU",
                vendor=Vendor.NVIDIA,
                total_bytes=size_bytes,
                free_bytes=size_bytes,
                basis=Basis.ASSUMED,
                because="--vram",
            )
            cards += [card] * count
    if not cards and memory is None:
        if processor is not None:
            raise UsageError(
                f'--cpu: the RAM is unknown: add --ram, such as --ram "32G {processor.fastest.text}"'
            )
        raise UsageError("describe a machine with --device, --ram, --vram or --cpu")
    is_arm = any(device.arm for device in known)
    return _machine_with_cards(cards, memory, processor, arm=is_arm)


def machine_of(device: KnownDevice) -> Machine:
    """The machine with only this device; for a card, the RAM is unknown."""
    if device.unified:
        return _unified_machine([device], None)
    return _machine_with_cards([_card(device)], None, None, arm=device.arm)


def _counted_parts(flag: str, text: str) -> list[tuple[int, str]]:
    """'2x RTX 3090, RTX 4090' -> [(2, 'RTX 3090'), (1, 'RTX 4090')]."""
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(f"{flag}: {text[:40]!r}... is too long")
    parts = []
    for part in _SEPARATOR.split(text):
        after = _COUNT_AFTER.fullmatch(part)
        count_first = f"{after[2]}x {after[1]}" if after else part
        before = _COUNT_BEFORE.fullmatch(count_first)
        count, name = (1, part) if before is None else (int(before[1]), before[2])
        if count > MAX_CARDS and device_like(part) is not None:  # 7900 XTX
            count, name = 1, part
        if not name.strip():
            raise UsageError(f"{flag} is empty, or ends with a comma")
        if not 1 <= count <= MAX_CARDS:
            raise UsageError(f"{flag}: {part[:40]!r}: the number of GPUs must be 1 to {MAX_CARDS}")
        parts.append((count, name.strip()))
    return parts


def _parse_memory(flag: str, text: str) -> int:
    """Bytes of a memory such as '24G'. UsageError if it is implausible, with a hint if its unit is missing."""
    try:
        size_bytes = parse_size(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    _check_size(flag, text, size_bytes)
    return size_bytes


def _check_size(flag: str, text: str, size_bytes: int) -> None:
    if size_bytes < SMALLEST_BYTES:
        is_number = text.strip().isdecimal() and size_bytes
        hint = f": needs a unit, such as {text.strip()}G" if is_number else ""
        raise UsageError(f"{flag}: {text[:40]!r} is too small{hint}")
    if size_bytes > LARGEST_BYTES:
        raise UsageError(f"{flag}: {text[:40]!r} is too large")


def _parse_ram(text: str) -> MemoryText:
    """The RAM as described. UsageError if its size is implausible."""
    try:
        memory = memory_of(text)
    except UsageError as error:
        raise UsageError(f"--ram: {error}") from error
    _check_size("--ram", text, memory.size_bytes)
    return memory


def _card(device: KnownDevice) -> Device:
    """An idle card, with the memory that its driver leaves to programs."""
    because = f"{device.name}: the driver reports {device.memory_bytes // MIB:,} MiB"
    reserved_bytes = device.memory_bytes - device.usable_bytes
    if reserved_bytes:
        because += f" and keeps {reserved_bytes // MIB:,} MiB for itself"
    capability = device.capability
    if capability is None and device.vendor is Vendor.NVIDIA:
        capability = _BEFORE_VOLTA
    return Device(
        name=device.name,
        vendor=device.vendor,
        total_bytes=device.usable_bytes,
        free_bytes=device.usable_bytes,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        capability=capability,
        architecture=device.architecture,
        fp32_flops=device.fp32_flops,
        fp16_flops=device.fp16_flops,
        matrix_flops=device.matrix_flops,
        basis=device.basis,
        because=because,
    )


def _machine_with_cards(
    cards: Sequence[Device],
    memory: MemoryText | None,
    processor: KnownProcessor | None,
    *,
    arm: bool,
) -> Machine:
    """A machine of GPUs with their own memory and a CPU with RAM."""
    if len(cards) > MAX_CARDS:
        raise UsageError(f"{len(cards)} GPUs; the limit is {MAX_CARDS}")
    host = None
    if memory is not None:
        size_bytes = memory.size_bytes
        host = HostMemory(total_bytes=size_bytes, free_bytes=size_bytes)
        bandwidth = described_bandwidth(memory, processor)
        if bandwidth is not None:
            host = with_bandwidth(host, bandwidth)
    counts = Counter(card.name for card in cards)
    parts = [name if count == 1 else f"{count}x {name}" for name, count in counts.items()]
    if processor is not None:
        parts.append(processor.name)
    notes = [IDLE]
    if host is None:
        notes.append("system RAM unknown, so no offloading was considered (add --ram 32G)")
    else:
        parts.append(f"{_short_size(host.total_bytes)} RAM")
    return Machine(
        name=" + ".join(parts),
        system=_this_system(has_cards=bool(cards)),
        processor="" if processor is None else processor.name,
        arm=arm if processor is None else processor.arm,
        cores=None if processor is None else processor.cores,
        instructions=frozenset() if processor is None else processor.instructions,
        host=host,
        devices=tuple(replace(card, index=index) for index, card in enumerate(cards)),
        notes=tuple(notes),
        what_if=True,
    )


def _unified_machine(devices: Sequence[KnownDevice], memory: MemoryText | None) -> Machine:
    """A machine with one memory for its GPU and CPU."""
    device = devices[0]
    if len(devices) > 1:
        name = next(known.name for known in devices if known.unified)
        raise UsageError(f"{name} is a complete machine: it cannot be combined with other devices")
    sold_bytes = device.size_gb * GIB
    if memory is not None and memory.size_bytes not in {device.memory_bytes, sold_bytes}:
        raise UsageError(
            f"--ram: {device.name} has {_short_size(sold_bytes)} of unified memory: "
            "name the device with another size, or give --ram alone"
        )
    bandwidth = None
    if memory is not None and not memory.only_size:
        if device.kind is not DeviceKind.APU:
            raise UsageError(f"--ram: the memory of {device.name} is soldered: give only its size")
        bandwidth = described_bandwidth(memory, None)
    if bandwidth is not None:  # its GPU reads what the RAM gives
        device = replace(device, bandwidth_bytes_per_s=None)
    system = _SYSTEMS.get(device.kind) or _this_system(has_cards=True)
    limits, notes = _app_limits(device)
    if not limits and not device.has_gpu:
        notes = ("runs on the CPU: EdgeKit does not model this GPU",)
    gpus: tuple[Device, ...] = ()
    if device.has_gpu:
        limit_bytes, limit_because = _gpu_limit(device, system)
        gpu = replace(
            _card(device),
            unified=True,
            limit_bytes=limit_bytes,
            limit_because=limit_because,
            because=f"{device.name}: {device.memory_bytes // MIB:,} MiB, shared with its CPU",
        )
        gpus = (gpu,)
    processor = processor_like(device.model)
    host = HostMemory(
        total_bytes=device.memory_bytes,
        free_bytes=device.memory_bytes if limits else device.usable_bytes,
        limits=limits,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
    )
    return Machine(
        name=device.name,
        system=system,
        processor=device.model,
        arm=device.arm,
        cores=None if processor is None else processor.cores,
        instructions=frozenset() if processor is None else processor.instructions,
        host=host if bandwidth is None else with_bandwidth(host, bandwidth),
        devices=gpus,
        notes=(IDLE, *notes),
        what_if=True,
    )


def _app_limits(device: KnownDevice) -> tuple[tuple[MemoryLimit, ...], tuple[str, ...]]:
    """The limit on one app's memory on a phone, and a note about it."""
    limit = device.app_limit
    if limit is None:
        return (), ()
    size = format_bytes(limit.app_bytes)
    assumed = " (assumed)" if limit.assumed else ""
    if device.vendor is Vendor.APPLE:
        system = "iOS"
        note = f"iOS kills an app that uses more than {size}{assumed} (with the increased-memory-limit entitlement)"
        if limit.plain_bytes is not None:
            note += f"; {format_bytes(limit.plain_bytes)} without it"
    else:
        system = "Android"
        note = f"Android allows one app {size}{assumed}, minus what other apps use"
    name = f"the memory limit of {system} for one app"
    return (MemoryLimit(name=name, limit_bytes=limit.app_bytes, used_bytes=0),), (note,)


def _gpu_limit(device: KnownDevice, system: System) -> tuple[int | None, str]:
    """The GPU's default limit on unified memory, and its source."""
    if device.kind is DeviceKind.MAC:
        macos = 26 if device.released >= _MACOS_26_SINCE else 0
        limit_bytes = default_working_set_bytes(device.memory_bytes, macos=macos)
        return limit_bytes, working_set_because(limit_bytes, device.memory_bytes)
    if device.kind is not DeviceKind.APU:
        return None, ""
    if system is System.LINUX and device.vendor is Vendor.INTEL:
        return mesa_heap_bytes(device.memory_bytes)
    half_bytes = device.memory_bytes // 2
    if system is System.LINUX:  # ttm_tt.c: half of the RAM; a Strix Halo of 128 GB logs 63,968 MiB
        return half_bytes, "amdgpu lets the GPU use half of the RAM by default (ttm.pages_limit)"
    return half_bytes, "Windows lets the GPU use half of the RAM by default"


def _this_system(*, has_cards: bool) -> System:
    """The system we run on, but Linux instead of macOS for cards, which no Mac has."""
    system = this_system()
    return System.LINUX if has_cards and system is System.MACOS else system


def _short_size(size_bytes: int) -> str:
    return format_bytes(size_bytes).replace(".00 ", " ")
