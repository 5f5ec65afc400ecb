"""A machine as one screen of text and as JSON (docs/json.md): its memory, and what each engine may use of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgekit.engines import every_engine
from edgekit.engines.protocol import Engine
from edgekit.errors import HardwareError
from edgekit.machine.devices import KnownDevice, listed_devices
from edgekit.machine.gpu_limit import RaisedLimit, raised_limit
from edgekit.machine.types import (
    Budget,
    Device,
    Difference,
    Disk,
    EngineMeasured,
    HostMemory,
    Machine,
    Measured,
    Pace,
    Pool,
    PoolKind,
    Process,
    System,
)
from edgekit.report.bars import BLOCKS, Glyphs, limit_on, reserve_words
from edgekit.report.bill import ranges
from edgekit.report.json import SCHEMA
from edgekit.report.text import counted, figures, folded, joined, placed, row_width, section, within
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


SHOWN_DIFFERENCES = 3


def measured_rows(measured: Measured) -> Iterator[str]:
    """For `edgekit hardware`: what is known of this machine beside its memory."""
    for engine in measured.engines:
        yield ": ".join((next(engine_rows(engine)), "; ".join([*engine_rows(engine)][1:])))
    if measured.host is not None:
        yield from disk_rows(measured.host.disk)
    shown = measured.differences[-SHOWN_DIFFERENCES:]
    yield from (f"outside its bounds: {difference_row(one)}" for one in reversed(shown))
    more = len(measured.differences) - len(shown)
    if more > 0:
        yield f"and {more} more predictions outside their bounds: `edgekit calibrate --list`"


def engine_rows(engine: EngineMeasured) -> Iterator[str]:
    yield f"{engine.engine} ({engine.through} {engine.version}) on {engine.device}"
    if engine.overhead_bytes is not None:
        most = f", highest with {engine.overhead_label}" if engine.overhead_label else ""
        runs = f"{counted(engine.samples, 'run')}, {engine.date}{most}"
        yield f"{format_bytes(engine.overhead_bytes)} of RAM in addition to the estimate ({runs})"
    if engine.pace is not None:
        yield _pace_row(engine.pace)


def _pace_row(pace: Pace) -> str:
    prompt = (
        f"{measured_rate(pace.prefill_tokens_per_s)} tokens/s for a prompt of "
        f"{counted(pace.prompt_tokens, 'token')}"
    )
    expected = ""
    if pace.expected_decode is not None:
        expected = f"; expected about {measured_rate(pace.expected_decode)}"
    return (
        f"{measured_rate(pace.decode_tokens_per_s)} tokens/s, {prompt}: {pace.label}, "
        f"{format_bytes(pace.bytes_per_token)} per token, {pace.date}{expected}"
    )


def measured_rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.1f}" if tokens_per_s < 100 else f"{tokens_per_s:,.0f}"


def gigabytes(bytes_per_s: float) -> str:
    """As it is sold: thousands of millions of bytes."""
    figure = bytes_per_s / 10**9
    return f"{figure:,.0f} GB/s" if figure >= 10 else f"{figure:.2g} GB/s"


def difference_row(one: Difference) -> str:
    return (
        f"{one.label}: {one.part} {format_bytes(one.predicted_bytes)} predicted, "
        f"{format_bytes(one.measured_bytes)} in {one.engine} {one.version}, {one.date}"
    )


def disk_rows(disk: Disk | None) -> Iterator[str]:
    if disk is not None:
        read, written = gigabytes(disk.read_bytes_per_s), gigabytes(disk.write_bytes_per_s)
        yield f"{disk.folder}: read {read}, write {written}, {disk.date}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """The budgets of an engine on a machine, or why it does not run there."""

    engine: str
    devices: tuple[Device, ...] = ()
    budgets: tuple[Budget, ...] = ()
    error: HardwareError | None = None


def usable_by_engines(machine: Machine) -> tuple[Usable, ...]:
    return tuple(_usable(engine, machine) for engine in every_engine())


def _usable(engine: Engine, machine: Machine) -> Usable:
    try:
        engine.check_runs(machine)
        return Usable(
            engine=engine.name, devices=engine.devices(machine), budgets=engine.budgets(machine)
        )
    except HardwareError as error:
        return Usable(engine=engine.name, error=error)


def hardware_json(machine: Machine) -> dict[str, Any]:
    """The whole answer: what there is, and what each engine may use of it."""
    engines = {
        usable.engine: _usable_json(usable, machine) for usable in usable_by_engines(machine)
    }
    return {"schema": SCHEMA, "machine": machine_json(machine), "engines": engines}


def machine_json(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "system": machine.system.value,
        "processor": machine.processor or None,
        "cores": machine.cores,
        "what_if": machine.what_if,
        "host": None if machine.host is None else _host(machine.host),
        "devices": [_device(device) for device in machine.devices],
        "calibration": None if machine.measured is None else asdict(machine.measured),
        "notes": list(machine.notes),
    }


def _host(host: HostMemory) -> dict[str, Any]:
    return {
        "total_bytes": host.total_bytes,
        "free_bytes": host.free_bytes,
        "usable_bytes": host.usable_bytes,
        "swap_total_bytes": host.swap_total_bytes,
        "swap_free_bytes": host.swap_free_bytes,
        "bandwidth_bytes_per_s": host.bandwidth_bytes_per_s,
        "bandwidth_because": host.bandwidth_because or None,
        "limits": [
            {
                "name": limit.name,
                "limit_bytes": limit.limit_bytes,
                "used_bytes": limit.used_bytes,
                "left_bytes": limit.left_bytes,
            }
            for limit in host.limits
        ],
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "vendor": device.vendor.value,
        "index": device.index,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "unified": device.unified,
        "limit_bytes": device.limit_bytes,
        "limit_because": device.limit_because or None,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "capability": _capability_json(device),
        "partition": device.partition or None,
        "users": [
            {"pid": user.pid, "name": user.name or None, "used_bytes": user.used_bytes}
            for user in device.users
        ],
        "basis": device.basis.value,
        "because": device.because or None,
    }


def _capability_json(device: Device | KnownDevice) -> list[int] | None:
    return None if device.capability is None else list(device.capability)


def devices_json() -> dict[str, Any]:
    """The table that --device chooses from."""
    return {"schema": SCHEMA, "devices": [_known(device) for device in listed_devices()]}


def _known(device: KnownDevice) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind.value,
        "vendor": device.vendor.value,
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "capability": _capability_json(device),
        "released": device.released or None,
        "usual": device.usual,
        "basis": device.basis.value,
        "source": device.source,
    }


def _usable_json(usable: Usable, machine: Machine) -> dict[str, Any]:
    if usable.error is not None:
        return {"error": {"type": type(usable.error).__name__, "message": str(usable.error)}}
    return {
        "devices": [device.name for device in usable.devices],
        "budgets": [
            {
                **budget_json(budget),
                "told": reserve_words(budget, limit_on(budget, machine))
                + (f": {budget.blocked}" if budget.blocked else ""),
            }
            for budget in usable.budgets
        ],
    }


def budget_json(budget: Budget) -> dict[str, Any]:
    return {
        "name": budget.name,
        "pools": [pool.label for pool in sorted(budget.pools, key=_devices_first)],
        "total_bytes": budget.total_bytes,
        "free_bytes": budget.free_bytes,
        "reserve_bytes": budget.reserve_bytes,
        "because": budget.because,
        "limit_bytes": budget.limit_bytes,
        "limit_because": budget.limit_because or None,
        "blocked": budget.blocked or None,
        "available_bytes": budget.available_bytes,
    }


def _devices_first(pool: Pool) -> tuple[bool, int]:
    return pool.kind is PoolKind.HOST, pool.index
