"""A machine -> one screen of text: what there is, and what each engine may use of it and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgekit.machine.gpu_limit import RaisedLimit, raised_limit
from edgekit.machine.types import Device, HostMemory, Machine, Process, System
from edgekit.report.bars import BLOCKS, Glyphs
from edgekit.report.calibrate_text import measured_rows
from edgekit.report.check_words import limit_on, reserve_words
from edgekit.report.explain import ranges
from edgekit.report.screen import folded, joined, placed, row_width, section, within
from edgekit.report.usable import Usable, usable_by_engines
from edgekit.units import format_bytes

USERS_TOLD = 5
_ENGINE = 11  # columns
_BESIDE_FROM = 45
_SYSTEMS = {
    System.LINUX: "Linux",
    System.MACOS: "macOS",
    System.WINDOWS: "Windows",
    System.OTHER: "",
}


def hardware_text(
    machine: Machine, *, width: int = 100, bold: bool = False, glyphs: Glyphs = BLOCKS
) -> str:
    """The screen. `bold` marks the first line for terminals."""
    width = within(width)
    first = folded(_answer(machine), width)
    lines = [f"\x1b[1m{line}\x1b[0m" for line in first] if bold else first
    lines += joined(_title(machine), width, glyphs.between)
    lines += section("Memory", _host_rows(machine), width)
    raised = raised_limit(machine)
    for alike in _alike(machine.devices):
        lines += section(_label(alike, machine), _device_rows(alike[0], raised), width)
    if machine.measured is not None:
        lines += section("Measured", measured_rows(machine.measured), width)
    lines += placed("Usable", list(_usable_lines(machine, row_width(width))), width)
    lines += section("Note", machine.notes, width)
    return "\n".join(lines) + "\n"


def _answer(machine: Machine) -> str:
    """Memory and devices in one line, with what is free now."""
    host = machine.host
    parts = [
        "RAM unknown" if host is None else f"{_of(host.usable_bytes, host.whole_bytes)} of RAM free"
    ]
    parts += [f"{_times(alike)}{_device_answer(alike[0])}" for alike in _alike(machine.devices)]
    return f"{machine.name}: {', '.join(parts)}"


def _device_answer(device: Device) -> str:
    if device.unified:
        return f"{device.name} GPU shares it"
    return f"{device.name} with {_of(device.free_bytes, device.total_bytes)} free"


def _alike(devices: tuple[Device, ...]) -> list[list[Device]]:
    """Devices that differ in nothing but their number, together."""
    found: dict[Device, list[Device]] = {}
    for device in devices:
        found.setdefault(replace(device, index=0), []).append(device)
    return list(found.values())


def _times(alike: Sequence[object]) -> str:
    return f"{len(alike)}x " if len(alike) > 1 else ""


def _of(part_bytes: int, whole_bytes: int) -> str:
    part, whole = format_bytes(part_bytes), format_bytes(whole_bytes)
    number, _, unit = part.partition(" ")
    return f"{number if whole.endswith(unit) else part} of {whole}"


def _title(machine: Machine) -> Iterator[str]:
    yield _SYSTEMS[machine.system]
    cores = f"{machine.cores} cores" if machine.cores else ""
    yield ", ".join(filter(None, (machine.processor, cores)))


def _host_rows(machine: Machine) -> Iterator[str]:
    host = machine.host
    if host is None:
        yield "unknown (add --ram 32G)"
        return
    yield f"{format_bytes(host.total_bytes)}, {format_bytes(host.free_bytes)} free"
    yield from _limit_rows(host)
    if host.swap_total_bytes:
        swap = _of(host.swap_free_bytes, host.swap_total_bytes)
        yield f"swap: {swap} free, not counted"
    if host.bandwidth_bytes_per_s:
        yield ", ".join(filter(None, (_speed(host.bandwidth_bytes_per_s), host.bandwidth_because)))


def _limit_rows(host: HostMemory) -> Iterator[str]:
    """Every limit; the one that leaves least decides, where it leaves less than is free."""
    for limit in host.limits:
        told = f"limit {format_bytes(limit.limit_bytes)}, {format_bytes(limit.left_bytes)} left"
        decides = " (this one applies)" if limit is host.tightest else ""
        yield f"{told}: {limit.name}{decides}"


def _label(alike: list[Device], machine: Machine) -> str:
    """Numbered as the driver counts, where there are several."""
    if len(machine.devices) == 1:
        return "GPU"
    return f"GPU {ranges(device.index for device in alike)}"


def _device_rows(device: Device, raised: RaisedLimit | None) -> Iterator[str]:
    yield ", ".join(filter(None, (device.name, device.partition, _device_memory(device))))
    if device.limit_bytes is not None:
        because = f": {device.limit_because}" if device.limit_because else ""
        yield f"may use {format_bytes(device.limit_bytes)} of it{because}"
        if raised is not None:
            yield f"{raised.sentence()}; {raised.note}"
    speed = _speed(device.bandwidth_bytes_per_s) if device.bandwidth_bytes_per_s else ""
    capability = "compute capability {}.{}".format(*device.capability) if device.capability else ""
    if speed or capability:
        yield ", ".join(filter(None, (speed, capability)))
    if device.users:
        yield f"used by {_users(device.users)}"
    if device.because:
        yield f"{device.basis.value}: {device.because}"


def _device_memory(device: Device) -> str:
    if device.unified:
        return "shares the RAM"
    return f"{format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"


def _users(users: tuple[Process, ...]) -> str:
    """Those who hold most, and how many more there are."""
    held = sorted(users, key=lambda user: -(user.used_bytes or 0))
    told = [
        f"{user.name or 'a process'} ({user.pid})"
        + (f" {format_bytes(user.used_bytes)}" if user.used_bytes is not None else "")
        for user in held[:USERS_TOLD]
    ]
    more = len(held) - USERS_TOLD
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")


def _speed(bytes_per_s: int) -> str:
    """As it is sold: thousands of millions of bytes."""
    return f"{bytes_per_s / 10**9:,.0f} GB/s"


def _usable_lines(machine: Machine, width: int) -> Iterator[str]:
    """Engine by engine: what it may use of each memory, and why no more; or why it does not run."""
    beside = _ENGINE if width >= _BESIDE_FROM else 0
    for usable in usable_by_engines(machine):
        rows = _told(usable, machine)
        lines = [line for row in rows for line in folded(row, width - (beside or 2))]
        if not beside:
            yield from (usable.engine, *(f"  {line}" for line in lines))
            continue
        heads = (usable.engine, *[""] * (len(lines) - 1))
        yield from (f"{head:<{beside}}{line}" for head, line in zip(heads, lines, strict=True))


def _told(usable: Usable, machine: Machine) -> Iterator[str]:
    if usable.error is not None:
        yield str(usable.error)
    rows = [
        budget.blocked
        or f"{format_bytes(budget.available_bytes)} of {budget.name}: "
        + reserve_words(budget, "its limit" if limit_on(budget, machine) else "")
        for budget in usable.budgets
    ]
    yield from (
        f"{row}, on each of {count} GPUs" if count > 1 else row
        for row, count in Counter(rows).items()
    )
