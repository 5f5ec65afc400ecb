"""The memory modules that the firmware lists, and the bandwidth of RAM that they make together.

The firmware's tables (SMBIOS) are read directly: on Linux from /sys as root, or from what udev stored for everyone; on
Windows by GetSystemFirmwareTable. Virtual machines list invented modules, so their tables are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from edgekit.machine.processors import (
    DESKTOP_CHANNELS,
    DESKTOP_MODULES,
    SPEEDS,
    HostBandwidth,
    KnownProcessor,
    channels_bandwidth,
    described_bandwidth,
    processor_like,
)
from edgekit.machine.surroundings import Surroundings, bytes_of, number_in, pairs_of, text_of
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import Basis

TABLE_BYTES = 1024**2  # the largest real tables have about 64 KiB
MAX_STRUCTURES = 4096  # in one table; a large server has about 700
MAX_MODULES = 256  # 8 sockets with 32 slots

# DMTF DSP0134, 7.18 Memory Device (Type 17).
_MEMORY_DEVICE, _END_OF_TABLE = 17, 127
_KINDS = {
    0x18: "DDR3", 0x1A: "DDR4", 0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x22: "DDR5", 0x23: "LPDDR5",
}  # fmt: skip
_DATA_WIDTH, _SIZE, _KIND, _SPEED, _CONFIGURED = 0x0A, 0x0C, 0x12, 0x15, 0x20
_EXTENDED_SPEED, _EXTENDED_CONFIGURED = 0x54, 0x58
_SEE_EXTENDED, _UNKNOWN = 0xFFFF, 0xFFFF
_SIZE_UNKNOWN = 0xFFFF
_CHANNEL_BITS = 64


class MemoryModule(NamedTuple):
    """A module, or a chip on the board."""

    kind: str  # "DDR5"; empty: unknown
    mt_per_s: int  # as configured
    data_bits: int  # 0: unknown


def installed_bandwidth(
    surroundings: Surroundings, processor_name: str, devices: tuple[Device, ...] = ()
) -> HostBandwidth | None:
    """The theoretical bandwidth of this machine's RAM; None if neither its modules nor the processor are known."""
    for device in devices:  # a chip with its memory, such as an Apple M3 or a DGX Spark
        if device.unified and device.bandwidth_bytes_per_s and device.vendor is not Vendor.AMD:
            return HostBandwidth(
                device.bandwidth_bytes_per_s, f"official figure for {device.name}", Basis.MODELLED
            )
    processor = processor_like(processor_name)
    # A virtual machine's sockets and modules are invented.
    virtual = is_virtual(surroundings)
    sockets = 1 if virtual else socket_count(surroundings)
    modules = () if virtual else memory_modules(surroundings)
    found = modules_bandwidth(modules, processor, sockets)
    if found is not None:
        return found
    official = None if processor is None else described_bandwidth(None, processor)
    if official is None or sockets == 1:
        return official
    because = f"{sockets} sockets, each with {official.because}"
    return official._replace(bytes_per_s=official.bytes_per_s * sockets, because=because)


def modules_bandwidth(
    modules: tuple[MemoryModule, ...], processor: KnownProcessor | None, sockets: int = 1
) -> HostBandwidth | None:
    """The bandwidth of these modules, on as many channels as the processor has; None without modules.

    If the processor is unknown, two channels are assumed for up to four modules, and one for each module beyond.
    """
    if not modules:
        return None
    speed = min(module.mt_per_s for module in modules)
    kind = next((module.kind for module in modules if module.kind), "")
    bits = sum(_bits(module) for module in modules)
    is_known = bits > 0
    channels = bits / _CHANNEL_BITS if bits else float(len(modules))
    if processor is not None:
        most = processor.channels * sockets
        channels = most if kind.startswith("LP") and not bits else min(channels, most)
    elif not kind.startswith("LP") and DESKTOP_CHANNELS < channels <= DESKTOP_MODULES:
        channels, is_known = DESKTOP_CHANNELS, False
    text = f"{kind}-{speed}" if kind else f"RAM at {speed} MT/s"
    return channels_bandwidth(
        channels, speed, f"{text}, as the firmware reports", is_known=is_known
    )


def _bits(module: MemoryModule) -> int:
    """The width of its data bus: of a DIMM always 64, though some firmware reports its two halves of 32."""
    if module.kind and not module.kind.startswith("LP"):
        return _CHANNEL_BITS
    return module.data_bits


# -- sources -------------------------------------------------------------------------------------

_UDEV = "run/udev/data/+dmi:id"
_UDEV_LINE = re.compile(r"^E:MEMORY_DEVICE_([0-9]{1,3})_([A-Z_]{1,40})=(.{0,60})$", re.MULTILINE)
_RAW_SMBIOS_HEADER_BYTES = 8  # of Windows' RawSMBIOSData


def memory_modules(surroundings: Surroundings) -> tuple[MemoryModule, ...]:
    """The modules of this machine; empty if the system does not tell."""
    if surroundings.system is System.WINDOWS:
        table = surroundings.firmware_table() or b""
        return modules_of(table[_RAW_SMBIOS_HEADER_BYTES:TABLE_BYTES])
    if surroundings.system is not System.LINUX:
        return ()
    table = bytes_of(surroundings.root / "sys/firmware/dmi/tables/DMI", TABLE_BYTES) or b""
    return modules_of(table) or _udev_modules(text_of(surroundings.root / _UDEV) or "")


def modules_of(table: bytes) -> tuple[MemoryModule, ...]:
    """The modules in an SMBIOS table. Stops where the table is damaged."""
    modules: list[MemoryModule] = []
    for kind, structure in _structures(table):
        if kind != _MEMORY_DEVICE or len(structure) < _SPEED + 2:
            continue
        size = _number(structure, _SIZE, 2)
        if size in {0, None, _SIZE_UNKNOWN}:
            continue
        speed = _speed(structure, _SPEED, _EXTENDED_SPEED)
        width = _number(structure, _DATA_WIDTH, 2) or 0
        module = _module(
            _KINDS.get(structure[_KIND], ""),
            speed,
            _speed(structure, _CONFIGURED, _EXTENDED_CONFIGURED),
            0 if width == _UNKNOWN else width,
        )
        if module is not None:
            modules.append(module)
        if len(modules) >= MAX_MODULES:
            break
    return tuple(modules)


def _structures(table: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and formatted part of each structure. Its strings follow, and two zero bytes end it."""
    position = 0
    for _ in range(MAX_STRUCTURES):
        if position + 4 > len(table):
            return
        kind, length = table[position], table[position + 1]
        if length < 4 or kind == _END_OF_TABLE or position + length > len(table):
            return
        yield kind, table[position : position + length]
        end = table.find(b"\0\0", position + length)
        if end < 0:
            return
        position = end + 2


def _number(structure: bytes, offset: int, length: int) -> int | None:
    """A field; None if the structure is too short, as in older versions."""
    field = structure[offset : offset + length]
    return int.from_bytes(field, "little") if len(field) == length else None


def _speed(structure: bytes, offset: int, extended: int) -> int | None:
    speed = _number(structure, offset, 2)
    return _number(structure, extended, 4) if speed == _SEE_EXTENDED else speed


def _module(
    kind: str, speed: int | None, configured: int | None, data_bits: int
) -> MemoryModule | None:
    """A module; None if its speed is unknown or implausible. Some firmware reports the clock, half of the transfers."""
    mt_per_s = configured or speed or 0
    if configured and speed and abs(configured * 2 - speed) <= 2:
        mt_per_s = speed
    if mt_per_s not in SPEEDS:
        return None
    return MemoryModule(kind, mt_per_s, data_bits if data_bits <= 4 * _CHANNEL_BITS else 0)


def _udev_modules(text: str) -> tuple[MemoryModule, ...]:
    """The modules that udev (systemd 248 or later) has stored, for programs without root's rights."""
    values: dict[str, dict[str, str]] = {}
    for index, key, value in _UDEV_LINE.findall(text):
        values.setdefault(index, {})[key] = value.strip()
    modules = []
    for fields in list(values.values())[:MAX_MODULES]:
        if fields.get("PRESENT") == "0" or fields.get("SIZE") == "0":
            continue
        kind = fields.get("TYPE", "")
        module = _module(
            kind if kind in _KINDS.values() else "",
            number_in(fields.get("SPEED_MTS", "")),
            number_in(fields.get("CONFIGURED_SPEED_MTS", "")),
            number_in(fields.get("DATA_WIDTH", "")) or 0,
        )
        if module is not None:
            modules.append(module)
    return tuple(modules)


def socket_count(surroundings: Surroundings) -> int:
    """The number of processors, from /proc/cpuinfo; 1 where that does not tell."""
    if surroundings.system is not System.LINUX:
        return 1
    cpuinfo = text_of(surroundings.root / "proc/cpuinfo") or ""
    sockets = set(re.findall(r"^physical id\s*:\s*(\d{1,4})$", cpuinfo, re.MULTILINE))
    return min(max(1, len(sockets)), 16)


def is_virtual(surroundings: Surroundings) -> bool:
    """Whether this is a virtual machine, as its processor reports."""
    if surroundings.system is not System.LINUX:
        return False
    flags = pairs_of(surroundings.root / "proc/cpuinfo", ":").get("flags", "")
    return "hypervisor" in flags.split()
