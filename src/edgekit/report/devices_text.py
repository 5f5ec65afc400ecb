"""The devices that are known -> a table: what to call them, how much memory, how fast it is read."""

from __future__ import annotations

from collections.abc import Callable

from edgekit.machine.devices import KnownDevice, listed_devices
from edgekit.report.lines import figures
from edgekit.report.screen import folded, within
from edgekit.units import format_bytes

_UNKNOWN = "-"


def _bandwidth(device: KnownDevice) -> str:
    speed = device.bandwidth_bytes_per_s
    return _UNKNOWN if speed is None else f"{speed / 10**9:,.0f} GB/s"


def _capability(device: KnownDevice) -> str:
    return "" if device.capability is None else "{}.{}".format(*device.capability)


# The last go first where the screen is narrow.
_COLUMNS: dict[str, Callable[[KnownDevice], str]] = {
    "device": lambda one: one.name,
    "free when idle": lambda one: format_bytes(one.usable_bytes),
    "bandwidth": _bandwidth,
    "memory": lambda one: format_bytes(one.memory_bytes),
    "kind": lambda one: one.kind.value,
    "vendor": lambda one: one.vendor.value,
    "CUDA": _capability,
    "released": lambda one: one.released or _UNKNOWN,
}


def devices_text(*, width: int = 100, bold: bool = False) -> str:
    """Those that people buy or rent today above, all others below."""
    devices = listed_devices()
    usual = sum(device.usual for device in devices)
    first = f"{len(devices)} devices; the first {usual} are the most common today"
    lines = [f"\x1b[1m{line}\x1b[0m" if bold else line for line in folded(first, within(width))]
    table = _table(devices, within(width))
    return "\n".join([*lines, "", *table[: usual + 1], "", *table[usual + 1 :]]) + "\n"


def _table(devices: tuple[KnownDevice, ...], width: int) -> list[str]:
    for count in range(len(_COLUMNS), 0, -1):
        head = tuple(_COLUMNS)[:count]
        table = figures(head, ([_COLUMNS[name](one) for name in head] for one in devices))
        if max(map(len, table)) <= width:
            break
    return table
