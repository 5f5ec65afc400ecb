"""The NVIDIA driver, asked within a deadline -> the cards a program gets to see, and what could not be asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PureWindowsPath
from typing import Any, NamedTuple, TypeVar

from edgekit.basis import Basis
from edgekit.machine.devices import known_bandwidth
from edgekit.machine.host import ADDRESS_SPACE
from edgekit.machine.surroundings import (
    Findings,
    Nvml,
    NvmlError,
    Surroundings,
    in_wsl,
    number_of,
    text_of,
)
from edgekit.machine.types import Device, HostMemory, Process, System, Vendor
from edgekit.terminal import one_line
from edgekit.units import GIB, LARGEST, format_bytes

_VENDOR = 0x10DE
_DISPLAYS = (0x0300, 0x0302)  # PCI classes: with an outlet for a screen, and without
_MOST_CARDS = 64  # 16 is the largest machine sold
_SIGNS = ("proc/driver/nvidia/version", "dev/nvidiactl")  # of a driver that is loaded
_VARIABLE = "CUDA_VISIBLE_DEVICES"


def find_nvidia(here: Surroundings) -> Findings:
    """Cards in the order a program sees them; nothing where there is neither card nor driver."""
    answer = _answer(here)
    if not answer.seen:
        board = find_jetson(here)
        answer = board if board.seen or board.notes else answer
    wish = here.environment.get(_VARIABLE)
    shown = visible(wish, answer.seen)
    hidden = hidden_note(_VARIABLE, wish, answer.seen, shown)
    reached = within_address_space(_together(shown), here.host)
    notes = (*answer.notes, *hidden, *_order_note(here, answer.seen), *reached.notes)
    return Findings(devices=reached.devices, notes=(*notes, *_spill_note(here, reached.devices)))


def _together(shown: tuple[Device, ...]) -> tuple[Device, ...]:
    """What one program can use at once: whole cards, or else a single slice.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: a process enumerates one MIG device.
    """
    whole = tuple(device for device in shown if not device.partition)
    return whole or shown[:1]


def _answer(here: Surroundings) -> DeviceCount:
    loaded = any((here.root / sign).exists() for sign in _SIGNS)
    if not loaded and here.system is System.LINUX and not in_wsl(here):
        return DeviceCount(notes=_cards_without_driver(here))
    if here.system not in {System.LINUX, System.WINDOWS}:
        return DeviceCount()
    try:
        answer = _within_deadline(here)
    except NvmlError as error:
        absent = error.code in {DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND} and not loaded
        why = f"The NVIDIA driver does not answer, so no NVIDIA GPU is counted: {nvml_message(error.code)}"
        return DeviceCount(notes=() if absent else (why,))
    if answer is None:
        why = (
            f"The NVIDIA driver did not answer within {here.deadline_s:g} s, so no NVIDIA GPU is "
            "counted. Fix: try nvidia-smi; if that hangs too, reboot."
        )
        return DeviceCount(notes=(why,))
    return answer


def _within_deadline(here: Surroundings) -> DeviceCount | None:
    """None: a driver that hangs is left to hang, in a thread that does not keep the program."""
    from queue import Empty, SimpleQueue
    from threading import Thread

    answers: SimpleQueue[DeviceCount | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_read_cards(here))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            answers.put(error)

    Thread(target=ask, name="edgekit-nvml", daemon=True).start()
    try:
        answer = answers.get(timeout=here.deadline_s)
    except Empty:
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read_cards(here: Surroundings) -> DeviceCount:

    nvml = here.nvml()
    nvml("nvmlInit")
    count = min(int(nvml("nvmlDeviceGetCount")), _MOST_CARDS)
    cards = []
    for index in range(count):
        try:
            cards.append(read_card(nvml, index, here.host, by_windows=_by_windows(here)))
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            why = f"GPU {index} gives an unreadable answer ({type(error).__name__}): not counted."
            cards.append(DeviceCount(notes=(why,)))
    with suppress(NvmlError):
        nvml("nvmlShutdown")
    return DeviceCount(
        seen=tuple(seen for card in cards for seen in card.seen),
        notes=(*(note for card in cards for note in card.notes), *_closed_note(here, count)),
    )


def _by_windows(here: Surroundings) -> bool:
    return here.system is System.WINDOWS or in_wsl(here)


def _spill_note(here: Surroundings, devices: tuple[Device, ...]) -> tuple[str, ...]:
    if not _by_windows(here) or not any(not device.unified for device in devices):
        return ()
    why = (
        "Windows manages the memory of NVIDIA GPUs and keeps about 1 GiB of each. A model that needs "
        "more still loads, but silently spills into RAM and runs 2 to 6 times slower."
    )
    return (why,)


def _closed_note(here: Surroundings, count: int) -> tuple[str, ...]:
    """A card whose file may not be opened is not refused by NVML, only not counted."""
    cards = sum(1 for _ in (here.root / "proc/driver/nvidia/gpus").glob("*"))
    if cards <= count:
        return ()
    why = (
        f"The NVIDIA driver has {cards} GPUs but shows {count}: the others were not passed to this "
        "container, or you may not open them. Check ls -l /dev/nvidia*."
    )
    return (why,)


def _cards_without_driver(here: Surroundings) -> tuple[str, ...]:
    for device in sorted((here.root / "sys/bus/pci/devices").glob("*")):
        kind = (number_of(device / "class") or 0) >> 8
        if kind in _DISPLAYS and number_of(device / "vendor") == _VENDOR:
            why = nvml_message(DRIVER_NOT_LOADED)
            return (f"An NVIDIA GPU ({device.name}) is in this machine, but not counted: {why}",)
    return ()


def _order_note(here: Surroundings, seen: tuple[Seen, ...]) -> tuple[str, ...]:
    if len({each.device.name for each in seen}) < 2:
        return ()
    if here.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ()
    why = (
        "The NVIDIA GPUs differ: EdgeKit numbers them by PCI slot, CUDA by speed. Set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree."
    )
    return (why,)


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
        name = one_line(_text(nvml("nvmlDeviceGetName", handle)), _NAME_LENGTH)
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
        why = f"NVIDIA GPU {index} does not answer and is not counted: {nvml_message(error.code)}"
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
    name = one_line(_text(card.ask("nvmlDeviceGetName", handle, otherwise="")), _NAME_LENGTH)
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
    return one_line(PureWindowsPath(path).name)  # reads both kinds of slash


NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13

_WORDS = {
    NOT_SUPPORTED: ("not supported", "try a newer driver"),
    4: (
        "no permission",
        "run as a user who may open /dev/nvidia*, or pass the device to the container",
    ),
    8: ("too little power", "check the card's power cables"),
    DRIVER_NOT_LOADED: ("the driver is not loaded", "load it (modprobe nvidia) or install it"),
    10: ("timeout", "try nvidia-smi; if that hangs too, reboot"),
    11: ("its interrupts do not arrive", "reboot, then check the kernel log"),
    LIBRARY_NOT_FOUND: (
        "its library libnvidia-ml is missing",
        "start the container with the GPU (docker run --gpus all), or install the library",
    ),
    FUNCTION_NOT_FOUND: ("the driver does not support this query", "update the driver"),
    15: ("the GPU has fallen off the bus", "reboot, then check its seat, riser and power"),
    16: ("the GPU needs a reset", "nvidia-smi --gpu-reset, or reboot"),
    18: (
        "driver and library have different versions",
        "the driver was updated while running: reboot, or reload its kernel modules",
    ),
    20: ("out of memory", "free some RAM and try again"),
    28: ("no such GPU", "nvidia-smi -L lists the GPUs"),
    999: ("unknown error", "try nvidia-smi; if that fails too, reboot"),
}


def nvml_message(code: int) -> str:
    """'it wants a reset. What to do: nvidia-smi --gpu-reset, or reboot.'"""
    words, advice = _WORDS.get(code, (f"NVML error {code}", "see what nvidia-smi says"))
    return f"{words}. Fix: {advice}."


# https://developer.nvidia.com/cuda-gpus: Nano and TX1, TX2, Xavier, Orin, Thor.
_CAPABILITIES = {
    "tegra210": (5, 3),
    "tegra186": (6, 2),
    "tegra194": (7, 2),
    "tegra234": (8, 7),
    "tegra264": (11, 0),
}


def find_jetson(here: Surroundings) -> DeviceCount:
    chip = _chip(here)
    if here.system is not System.LINUX or chip is None:
        return DeviceCount()
    if here.host is None:
        why = "The GPU of this board shares the RAM, whose size could not be read."
        return DeviceCount(notes=(why,))
    name = _board(here) or f"NVIDIA {chip}"
    device = Device(
        name=name,
        vendor=Vendor.NVIDIA,
        total_bytes=here.host.total_bytes,
        free_bytes=here.host.usable_bytes,
        unified=True,
        bandwidth_bytes_per_s=known_bandwidth(_sold_as(name), here.host.total_bytes),
        capability=_CAPABILITIES.get(chip),
        because="shares the RAM (device tree)",
    )
    return DeviceCount(seen=(Seen(device=device),))


def _chip(here: Surroundings) -> str | None:
    """'tegra234' out of names that end with a NUL; a container hides the tree and shows the chip's family."""
    names = text_of(here.root / "proc/device-tree/compatible") or ""
    found = re.search(r"nvidia,(tegra\d{3})\b", names)
    if found:
        return found[1]
    family = text_of(here.root / "sys/devices/soc0/family") or ""
    return "tegra" if family.strip().lower() == "tegra" else None


def _sold_as(board: str) -> str:
    """'NVIDIA Jetson AGX Orin Developer Kit' -> 'NVIDIA Jetson AGX Orin'."""
    return re.sub(r"( Engineering Reference)? Developer Kit", "", board)


def _board(here: Surroundings) -> str:
    places = ("proc/device-tree/model", "sys/devices/soc0/machine")
    names = (one_line(text_of(here.root / place) or "", 96) for place in places)
    return next((name for name in names if name), "")


class Seen(NamedTuple):
    """A device with the names it may be asked for by: its own, and of a slice its card's too."""

    device: Device
    uuids: tuple[str, ...] = ()


class DeviceCount(NamedTuple):
    """What a driver counts, before anything of it is hidden."""

    seen: tuple[Seen, ...] = ()
    notes: tuple[str, ...] = ()


def visible(wish: str | None, seen: tuple[Seen, ...]) -> tuple[Device, ...]:
    """In the order asked for. Not set: all. The first entry that names no device ends the list, so
    '', '-1' and 'NoDevFiles' show none: CUDA's own reading.
    """
    if wish is None:
        return tuple(each.device for each in seen)
    chosen: list[Device] = []
    for entry in wish.split(","):
        meant = _meant(entry.strip(), seen)
        if not meant or any(device is other for device in meant for other in chosen):
            break
        chosen.extend(meant)
    return tuple(chosen)


def _meant(entry: str, seen: tuple[Seen, ...]) -> tuple[Device, ...]:
    """One device, or all slices of one card; none where the name fits none or several."""
    if entry.isascii() and entry.isdecimal():
        return tuple(each.device for each in seen if str(each.device.index) == entry)
    if not entry.startswith(("GPU-", "MIG-")):
        return ()
    fits = tuple(each.device for each in seen if _is_named(entry, each.uuids))
    return fits if len({device.index for device in fits}) == 1 else ()


def _is_named(entry: str, uuids: Iterable[str]) -> bool:
    return any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def hidden_note(
    variable: str, wish: str | None, seen: tuple[Seen, ...], shown: tuple[Device, ...]
) -> tuple[str, ...]:
    """Told wherever something that is there does not count."""
    if wish is None or len(shown) == len(seen):
        return ()
    said = f"{variable}={one_line(wish, 80)}" if wish else f"{variable} is set but empty"
    return (f"{said}: only {len(shown)} of {len(seen)} GPUs are counted. Unset it to use all.",)


CONTEXT_BYTES = 13 * GIB


def within_address_space(devices: tuple[Device, ...], host: HostMemory | None) -> Findings:
    """The same devices where nothing is limited; none where CUDA could not start."""
    limits = () if host is None else host.limits
    left = min((one.left_bytes for one in limits if one.name == ADDRESS_SPACE), default=None)
    if left is None or not devices:
        return Findings(devices=devices)
    found = f"{ADDRESS_SPACE} leaves {format_bytes(left)} of address space, and CUDA needs 13 GiB to start"
    if left <= CONTEXT_BYTES:
        why = f"{found}: NVIDIA GPUs are not counted. Fix: ulimit -v unlimited."
        return Findings(notes=(why,))
    each = (left - CONTEXT_BYTES) // len(devices)
    held = tuple(_held(device, each) for device in devices)
    if held == devices:
        return Findings(devices=devices)
    why = (
        f"{found}: {format_bytes(each)} is left for each NVIDIA GPU, minus what the process maps in RAM. "
        "Fix: ulimit -v unlimited."
    )
    return Findings(devices=held, notes=(why,))


def _held(device: Device, most_bytes: int) -> Device:
    if device.free_bytes <= most_bytes:
        return device
    if device.unified:  # its budget is the RAM, up to this limit
        device = replace(device, limit_bytes=most_bytes, limit_because=ADDRESS_SPACE)
    because = f"{device.because}, within {ADDRESS_SPACE}"
    return replace(device, free_bytes=most_bytes, basis=Basis.MODELLED, because=because)
