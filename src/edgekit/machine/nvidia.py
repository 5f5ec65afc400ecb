"""Probes for NVIDIA GPUs as a program sees them: cards and MIG slices from NVML, and Jetson boards.

https://docs.nvidia.com/deploy/nvml-api/. Queries that the driver refuses become notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PureWindowsPath
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from edgekit.errors import one_line
from edgekit.machine.devices import device_like, known_bandwidth, with_known_rates
from edgekit.machine.gpu_rates import nvidia_generation, speed_of
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
from edgekit.units import GIB, LARGEST, Basis, format_bytes

T = TypeVar("T")

_PCI_VENDOR = 0x10DE
_DISPLAYS = (0x0300, 0x0302)  # PCI classes: with and without a display output
_MAX_CARDS = 64  # 16 is the largest machine sold
_LOADED = ("proc/driver/nvidia/version", "dev/nvidiactl")  # files of a loaded driver
_VARIABLE = "CUDA_VISIBLE_DEVICES"


def find_nvidia(surroundings: Surroundings) -> Findings:
    """The GPUs in the order in which a program sees them; nothing if there is neither card nor driver."""
    findings = _query_driver(surroundings)
    if not findings.devices:
        board = find_jetson(surroundings)
        findings = board if board.devices or board.notes else findings
    devices, notes = findings.devices, list(findings.notes)
    shown, hidden_notes = visible_devices(
        _VARIABLE, surroundings.environment.get(_VARIABLE), devices
    )
    notes += hidden_notes
    is_mixed = len({device.name for device in devices}) > 1
    if is_mixed and surroundings.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "The NVIDIA GPUs differ: EdgeKit numbers them by PCI slot, CUDA by speed. Set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree."
        )
    # A process can use several whole cards, but only one MIG slice:
    # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    cards = tuple(device for device in shown if not device.partition)
    limited = within_address_space(cards or shown[:1], surroundings.host)
    notes += limited.notes
    if _is_under_windows(surroundings) and any(not device.unified for device in limited.devices):
        notes.append(
            "Windows manages the memory of NVIDIA GPUs and keeps about 1 GiB of each. A model that needs "
            "more still loads, but silently spills into RAM and runs 2 to 6 times slower."
        )
    return Findings(devices=limited.devices, notes=tuple(notes))


# -- the driver ----------------------------------------------------------------------------------


def _is_under_windows(surroundings: Surroundings) -> bool:
    return surroundings.system is System.WINDOWS or in_wsl(surroundings)


def _query_driver(surroundings: Surroundings) -> Findings:
    """The cards that the driver reports; a note if it is missing, hangs or refuses."""
    is_loaded = any((surroundings.root / path).exists() for path in _LOADED)
    if not is_loaded and surroundings.system is System.LINUX and not in_wsl(surroundings):
        return Findings(notes=_card_without_driver(surroundings))
    if surroundings.system not in {System.LINUX, System.WINDOWS}:
        return Findings()
    answers: SimpleQueue[Findings | Exception] = SimpleQueue()

    def query() -> None:
        try:
            answers.put(_read_cards(surroundings))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            answers.put(error)

    # A hung driver stays in a daemon thread, which does not keep the program from exiting.
    Thread(target=query, name="edgekit-nvml", daemon=True).start()
    try:
        answer = answers.get(timeout=surroundings.deadline_s)
    except Empty:
        note = (
            f"The NVIDIA driver did not answer within {surroundings.deadline_s:g} s, so no NVIDIA GPU is "
            "counted. Fix: try nvidia-smi; if that hangs too, reboot."
        )
        return Findings(notes=(note,))
    if isinstance(answer, NvmlError):
        if answer.code in {DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND} and not is_loaded:
            return Findings()
        reason = nvml_message(answer.code)
        note = f"The NVIDIA driver does not answer, so no NVIDIA GPU is counted: {reason}"
        return Findings(notes=(note,))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _card_without_driver(surroundings: Surroundings) -> tuple[str, ...]:
    """A note on the first NVIDIA card on the PCI bus, for when its driver is not loaded; nothing without a card."""
    for device in sorted((surroundings.root / "sys/bus/pci/devices").glob("*")):
        pci_class = (number_of(device / "class") or 0) >> 8
        if pci_class in _DISPLAYS and number_of(device / "vendor") == _PCI_VENDOR:
            reason = nvml_message(DRIVER_NOT_LOADED)
            return (f"An NVIDIA GPU ({device.name}) is in this machine, but not counted: {reason}",)
    return ()


def _read_cards(surroundings: Surroundings) -> Findings:
    """Every card that NVML lists; one that cannot be read becomes a note."""
    nvml = surroundings.nvml()
    nvml("nvmlInit")
    count = min(int(nvml("nvmlDeviceGetCount")), _MAX_CARDS)
    devices: list[Device] = []
    notes: list[str] = []
    for index in range(count):
        try:
            card = _read_card(nvml, index, surroundings)
        except NvmlError as error:
            reason = nvml_message(error.code)
            notes.append(f"NVIDIA GPU {index} does not answer and is not counted: {reason}")
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            notes.append(
                f"GPU {index} gives an unreadable answer ({type(error).__name__}): not counted."
            )
        else:
            devices += card.devices
            notes += card.notes
    with suppress(NvmlError):
        nvml("nvmlShutdown")
    # NVML reports no error for a card whose device file cannot be opened; it just does not count it.
    cards = sum(1 for _ in (surroundings.root / "proc/driver/nvidia/gpus").glob("*"))
    if cards > count:
        notes.append(
            f"The NVIDIA driver has {cards} GPUs but shows {count}: the others were not passed to this "
            "container, or you may not open them. Check ls -l /dev/nvidia*."
        )
    return Findings(devices=tuple(devices), notes=tuple(notes))


# -- one card ------------------------------------------------------------------------------------

_NAME_CHARS = 96
_MAX_USERS = 64  # processes to list
_MAX_SLICES = 16  # MIG has 7 on every card so far
_CLOCK_SM = 1  # nvml.h, NVML_CLOCK_SM
_CLOCK_MEM = 2  # NVML_CLOCK_MEM
# If Windows manages the memory (WDDM, also for WSL2), CUDA has less free memory than NVML reports: 11,100 instead of
# 12,091 MiB on an RTX 3080 12 GB, 30.12 of 31.84 GiB on an RTX 5090.
_WINDOWS_USES_BYTES = GIB
_WINDOWS_USES_OF_LARGE_BYTES = 13 * GIB // 10
_LARGE_BYTES = 23 * GIB  # cards of 24 GB report a little less
# Names of GPUs that are part of a processor. Other GPUs that do not report their memory are ignored: assuming that
# they share the RAM would be a guess.
_INTEGRATED = ("(nvgpu)", "GB10", "Thor", "Orin", "Xavier", "Tegra")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """The driver handle and facts that a card and its slices share."""

    nvml: Nvml
    handle: Any
    index: int
    name: str
    under_windows: bool  # Windows manages its memory

    def query(self, function: str, *arguments: Any, otherwise: Any = None) -> Any:
        """The driver's answer; `otherwise` if it refuses this query."""
        try:
            return self.nvml(function, *arguments)
        except NvmlError:
            return otherwise

    def uuid(self, handle: Any) -> str:
        return _text(self.query("nvmlDeviceGetUUID", handle, otherwise=""))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _read_card(nvml: Nvml, index: int, surroundings: Surroundings) -> Findings:
    """A card, or its slices in MIG mode, in which the card itself cannot be used."""
    handle = nvml("nvmlDeviceGetHandleByIndex", index)
    name = one_line(_text(nvml("nvmlDeviceGetName", handle)), _NAME_CHARS)
    card = _Card(
        nvml=nvml,
        handle=handle,
        index=index,
        name=name,
        under_windows=_is_under_windows(surroundings),
    )
    title = f"NVIDIA GPU {index} ({name})"
    mig, _ = card.query("nvmlDeviceGetMigMode", handle, otherwise=(0, 0))
    if mig:
        slices = tuple(_slices(card))
        if slices:
            first = slices[0].uuids[0][:48] or "MIG-..."
            note = (
                f"{title} is split into {len(slices)} MIG slices: a program gets one of them, the first "
                f"unless CUDA_VISIBLE_DEVICES names another ({first} is the first)."
            )
        else:
            note = (
                f"{title} is in MIG mode but has no slice: create one (nvidia-smi mig -cgi) or "
                "switch the mode off (nvidia-smi -mig 0)."
            )
        return Findings(devices=slices, notes=(note,))
    known, host = device_like(name), surroundings.host
    is_unified = known is not None and known.unified
    if not is_unified and not any(part in name for part in _INTEGRATED):
        return Findings(devices=(_device(card, handle),))
    if host is None:
        note = f"{title} shares the RAM, whose size could not be read: not counted."
        return Findings(notes=(note,))
    # A GB10 or Jetson: NVML does not report its memory, or reports that of the whole machine.
    shared = Device(
        name=name,
        vendor=Vendor.NVIDIA,
        index=index,
        uuids=(card.uuid(handle),),
        total_bytes=host.total_bytes,
        free_bytes=host.usable_bytes,
        unified=True,
        bandwidth_bytes_per_s=known_bandwidth(name, host.total_bytes),
        capability=_optional(lambda: _capability(card), None),
        users=_optional(lambda: _users(card, handle), ()),
        because="shares the RAM",
    )
    return Findings(devices=(with_known_rates(shared, host.total_bytes),))


def _slices(card: _Card) -> Iterator[Device]:
    """The MIG slices of a card."""
    count = card.query("nvmlDeviceGetMaxMigDeviceCount", card.handle, otherwise=0)
    for number in range(min(int(count), _MAX_SLICES)):
        handle = card.query("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
        if handle is not None:  # None: no slice has this index
            # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
            text = _text(card.query("nvmlDeviceGetName", handle, otherwise=""))
            _, mark, profile = one_line(text, _NAME_CHARS).rpartition("MIG ")
            yield _device(card, handle, partition=f"MIG {profile}" if mark else "MIG slice")


def _device(card: _Card, handle: Any, *, partition: str = "") -> Device:
    """A card or a slice with its memory as CUDA sees it.

    NVML's total includes the memory that the driver reserves, CUDA's does not. Only nvmlDeviceGetMemoryInfo_v2 reports
    it as `reserved`: an H200 has 150,754,820,096 - 644,939,776 = 150,109,880,320 bytes. Free memory is the same in
    both. Under Windows the totals are equal, and CUDA has less free memory.
    """
    memory = card.nvml("nvmlDeviceGetMemoryInfo", handle)
    memory_v2 = card.query("nvmlDeviceGetMemoryInfo_v2", handle)
    has_reserve = memory_v2 is not None and not card.under_windows
    total_bytes = int(memory.total) - (int(memory_v2.reserved) if has_reserve else 0)
    if not 0 < total_bytes < LARGEST:
        raise NvmlError(NOT_SUPPORTED)
    free_bytes = min(int(memory.free), total_bytes)
    if card.under_windows:
        is_large = total_bytes >= _LARGE_BYTES
        free_bytes -= _WINDOWS_USES_OF_LARGE_BYTES if is_large else _WINDOWS_USES_BYTES
    slice_bytes = total_bytes if partition else None
    uuids = [card.uuid(handle)]
    if partition:
        uuids.append(card.uuid(card.handle))
    device = Device(
        name=card.name,
        vendor=Vendor.NVIDIA,
        index=card.index,
        uuids=tuple(uuids),
        total_bytes=total_bytes,
        free_bytes=max(0, free_bytes),
        bandwidth_bytes_per_s=_optional(lambda: _bandwidth(card, slice_bytes), None),
        capability=_optional(lambda: _capability(card), None),
        partition=partition,
        users=_optional(lambda: _users(card, handle), ()),
        basis=Basis.ASSUMED if card.under_windows else Basis.EXACT,
        because="NVML, minus what Windows is assumed to use" if card.under_windows else "NVML",
    )
    return _optional(lambda: _with_rates(card, device, slice_bytes), device)


def _optional(query: Callable[[], T], otherwise: T) -> T:
    """The result of `query`, or `otherwise` if the driver's answer is invalid: for facts that do not affect memory."""
    try:
        return query()
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
        return otherwise


def _capability(card: _Card) -> tuple[int, int] | None:
    version = card.query("nvmlDeviceGetCudaComputeCapability", card.handle)
    return None if version is None else (int(version[0]), int(version[1]))


def _bandwidth(card: _Card, slice_bytes: int | None) -> int | None:
    """Bytes per second, from the table, else bus width x clock x 2: 384 bit at 9,751 MHz are an RTX 3090's 936 GB/s.

    NVML's clock is half the data rate of every memory, GDDR6X and HBM alike. A slice gets the bandwidth in proportion
    to its memory.
    """
    memory = card.query("nvmlDeviceGetMemoryInfo", card.handle)
    if memory is None:
        return None
    card_bytes_per_s = known_bandwidth(card.name, int(memory.total))
    if card_bytes_per_s is None:
        width_bits = card.query("nvmlDeviceGetMemoryBusWidth", card.handle)
        clock_mhz = card.query("nvmlDeviceGetMaxClockInfo", card.handle, _CLOCK_MEM)
        if not width_bits or not clock_mhz:
            return None
        card_bytes_per_s = int(width_bits) // 8 * int(clock_mhz) * 10**6 * 2
    if slice_bytes is None:
        return card_bytes_per_s
    return card_bytes_per_s * slice_bytes // max(int(memory.total), slice_bytes)


def _with_rates(card: _Card, device: Device, slice_bytes: int | None) -> Device:
    """The device with its arithmetic speed, from the table, else cores x maximum clock: 16,896 at 1,980 MHz are an
    H200's 66.9 TFLOPS. A GeForce's maximum clock is up to a quarter above its boost clock.

    A slice gets the speed in proportion to its memory.
    """
    memory = card.query("nvmlDeviceGetMemoryInfo", card.handle)
    if memory is None:
        return device
    card_bytes = int(memory.total)
    share = 1.0 if slice_bytes is None else slice_bytes / max(card_bytes, slice_bytes)
    device = with_known_rates(device, card_bytes, share=share)
    if device.fp32_flops is not None or device.capability is None:
        return device
    cores = card.query("nvmlDeviceGetNumGpuCores", card.handle)
    mhz = card.query("nvmlDeviceGetMaxClockInfo", card.handle, _CLOCK_SM)
    generation = nvidia_generation(device.capability, device.name)
    speed = speed_of(generation, int(cores or 0), int(mhz or 0))
    if speed is None:
        return device
    return replace(
        device,
        fp32_flops=int(speed.fp32_flops * share),
        fp16_flops=int(speed.fp16_flops * share),
        matrix_flops=None if speed.matrix_flops is None else int(speed.matrix_flops * share),
    )


def _users(card: _Card, handle: Any) -> tuple[Process, ...]:
    """Compute and graphics processes, each once. Those of other users and containers have no name."""
    users: dict[int, Process] = {}
    for kind in ("Compute", "Graphics"):
        for process in card.query(f"nvmlDeviceGet{kind}RunningProcesses", handle, otherwise=()):
            if len(users) < _MAX_USERS:
                pid, used = int(process.pid), process.usedGpuMemory
                path = _text(card.query("nvmlSystemGetProcessName", pid, otherwise=""))
                users[pid] = Process(
                    pid=pid,
                    name=one_line(PureWindowsPath(path).name),  # reads both kinds of slash
                    used_bytes=None if used is None else int(used),
                )
    return tuple(users.values())


# -- errors of NVML: nvml.h, nvmlReturn_t --------------------------------------------------------

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12

_NVML_ERRORS = {
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
    13: ("the driver does not support this query", "update the driver"),
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
    """'the GPU needs a reset. Fix: nvidia-smi --gpu-reset, or reboot.'"""
    problem, fix = _NVML_ERRORS.get(code, (f"NVML error {code}", "see what nvidia-smi says"))
    return f"{problem}. Fix: {fix}."


# -- Jetson boards -------------------------------------------------------------------------------

# https://developer.nvidia.com/cuda-gpus: Nano and TX1, TX2, Xavier, Orin, Thor.
_TEGRA_CAPABILITIES = {
    "tegra210": (5, 3),
    "tegra186": (6, 2),
    "tegra194": (7, 2),
    "tegra234": (8, 7),
    "tegra264": (11, 0),
}


def find_jetson(surroundings: Surroundings) -> Findings:
    """A board whose NVIDIA GPU shares the RAM. Older Jetsons have no NVML; the device tree names the board."""
    chip = _tegra_chip(surroundings)
    if surroundings.system is not System.LINUX or chip is None:
        return Findings()
    if surroundings.host is None:
        note = "The GPU of this board shares the RAM, whose size could not be read."
        return Findings(notes=(note,))
    name = f"NVIDIA {chip}"
    for path in ("sys/devices/soc0/machine", "proc/device-tree/model"):
        name = one_line(text_of(surroundings.root / path) or "", _NAME_CHARS) or name
    # "NVIDIA Jetson AGX Orin Developer Kit" is in the table as "NVIDIA Jetson AGX Orin".
    sold_as = re.sub(r"( Engineering Reference)? Developer Kit", "", name)
    device = Device(
        name=name,
        vendor=Vendor.NVIDIA,
        total_bytes=surroundings.host.total_bytes,
        free_bytes=surroundings.host.usable_bytes,
        unified=True,
        bandwidth_bytes_per_s=known_bandwidth(sold_as, surroundings.host.total_bytes),
        capability=_TEGRA_CAPABILITIES.get(chip),
        because="shares the RAM (device tree)",
    )
    device = with_known_rates(device, surroundings.host.total_bytes, name=sold_as)
    return Findings(devices=(device,))


def _tegra_chip(surroundings: Surroundings) -> str | None:
    """'tegra234'; just 'tegra' in a container, which hides the device tree and shows the chip's family."""
    compatible = text_of(surroundings.root / "proc/device-tree/compatible") or ""
    chip = re.search(r"nvidia,(tegra\d{3})\b", compatible)
    if chip:
        return chip[1]
    family = text_of(surroundings.root / "sys/devices/soc0/family") or ""
    return "tegra" if family.strip().lower() == "tegra" else None


# -- visibility and limits -----------------------------------------------------------------------


def visible_devices(variable: str, value: str | None, devices: tuple[Device, ...]) -> Findings:
    """The devices that a variable such as CUDA_VISIBLE_DEVICES shows, in its order, with a note if it hides one.

    As in CUDA, the first entry that does not match a device ends the list, so '', '-1' and 'NoDevFiles' show none.
    """
    if value is None:
        return Findings(devices=devices)
    shown: list[Device] = []
    for entry in value.split(","):
        matches = _devices_named(entry.strip(), devices)
        if not matches or any(device is earlier for device in matches for earlier in shown):
            break
        shown.extend(matches)
    if len(shown) == len(devices):
        return Findings(devices=tuple(shown))
    setting = f"{variable}={one_line(value, 80)}" if value else f"{variable} is set but empty"
    note = f"{setting}: only {len(shown)} of {len(devices)} GPUs are counted. Unset it to use all."
    return Findings(devices=tuple(shown), notes=(note,))


def _devices_named(entry: str, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The device, or all slices of the card, that an entry names; nothing if it matches none or several."""
    if entry.isascii() and entry.isdecimal():
        return tuple(device for device in devices if str(device.index) == entry)
    if not entry.startswith(("GPU-", "MIG-")):
        return ()
    matches = tuple(
        device
        for device in devices
        if any(uuid.lower().startswith(entry.lower()) for uuid in device.uuids)
    )
    return matches if len({device.index for device in matches}) == 1 else ()


# Measured on an H200: a CUDA context maps 13 GiB of addresses, and every allocation adds its size, 1:1. With less,
# cuInit fails. ulimit -d does not affect CUDA.
_CONTEXT_BYTES = 13 * GIB


def within_address_space(devices: tuple[Device, ...], host: HostMemory | None) -> Findings:
    """The devices with their memory limited by ulimit -v; none if CUDA could not start."""
    limits = () if host is None else host.limits
    left_bytes = min(
        (limit.left_bytes for limit in limits if limit.name == ADDRESS_SPACE), default=None
    )
    if left_bytes is None or not devices:
        return Findings(devices=devices)
    shortage = f"{ADDRESS_SPACE} leaves {format_bytes(left_bytes)} of address space, and CUDA needs 13 GiB to start"
    if left_bytes <= _CONTEXT_BYTES:
        note = f"{shortage}: NVIDIA GPUs are not counted. Fix: ulimit -v unlimited."
        return Findings(notes=(note,))
    each_bytes = (left_bytes - _CONTEXT_BYTES) // len(devices)
    limited = tuple(_limit_memory(device, each_bytes) for device in devices)
    if limited == devices:
        return Findings(devices=devices)
    note = (
        f"{shortage}: {format_bytes(each_bytes)} is left for each NVIDIA GPU, minus what the process maps in RAM. "
        "Fix: ulimit -v unlimited."
    )
    return Findings(devices=limited, notes=(note,))


def _limit_memory(device: Device, max_bytes: int) -> Device:
    """The device with at most `max_bytes` of free memory."""
    if device.free_bytes <= max_bytes:
        return device
    if device.unified:  # it shares the RAM's budget, which only limit_bytes restricts
        device = replace(device, limit_bytes=max_bytes, limit_because=ADDRESS_SPACE)
    because = f"{device.because}, within {ADDRESS_SPACE}"
    return replace(device, free_bytes=max_bytes, basis=Basis.MODELLED, because=because)
