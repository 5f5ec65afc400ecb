"""A machine as one screen of text and as JSON (docs/json.md): memory, what each engine may use, and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from edgekit.engines import default_engine, every_engine
from edgekit.engines.protocol import Engine
from edgekit.engines.speed_formula import constants_digest
from edgekit.errors import HardwareError
from edgekit.machine.devices import RaisedLimit, listed_devices, raised_limit
from edgekit.machine.types import (
    Budget,
    Device,
    Difference,
    Disk,
    EngineMeasured,
    HostMemory,
    Machine,
    Measured,
    PoolKind,
    System,
)
from edgekit.report.bill import ranges
from edgekit.report.json import SCHEMA, Json, error_json, fields
from edgekit.report.machine_label import machine_label
from edgekit.report.text import (
    PLAIN,
    Screen,
    Section,
    fitted_table,
    fold_rows,
    limit_on,
    render,
    reserve_words,
    with_count,
)
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.app.programs import InstalledProgram

# The programs on the machine; None for a described one.
Programs = Sequence["InstalledProgram"] | None

MAX_PROCESSES = 5
MAX_DIFFERENCES = 3
_ENGINE_WIDTH = 11
_ENGINE_COLUMN_FROM = 45  # columns; on a narrower screen the name of an engine is above its rows
_SYSTEMS = {
    System.LINUX: "Linux",
    System.MACOS: "macOS",
    System.WINDOWS: "Windows",
    System.OTHER: "",
}
_HOST_FIELDS = (
    "total_bytes free_bytes usable_bytes swap_total_bytes swap_free_bytes bandwidth_bytes_per_s "
    "bandwidth_because? bandwidth_basis"
)
_DEVICE_FIELDS = (
    "name vendor index total_bytes free_bytes unified limit_bytes limit_because? "
    "bandwidth_bytes_per_s capability architecture? fp32_flops fp16_flops matrix_flops partition?"
)
_DEVICE_COLUMNS = (
    "device", "free when idle", "bandwidth", "memory", "kind", "vendor", "CUDA", "released",
)  # fmt: skip


def hardware_text(machine: Machine, screen: Screen = PLAIN, programs: Programs = None) -> str:
    """The screen of `hardware`: memory, GPUs, measurements, the memory that each engine may use, and programs."""
    host, raised = machine.host, raised_limit(machine)
    parts = [
        "RAM unknown"
        if host is None
        else f"{_of(host.usable_bytes, host.limited_total_bytes)} of RAM free"
    ]
    sections: list[Section] = [("Memory", _host_rows(host))]
    groups: dict[Device, list[int]] = {}  # devices that differ only in their index
    for device in machine.devices:
        groups.setdefault(replace(device, index=0), []).append(device.index)
    for device, indices in groups.items():
        times = f"{len(indices)}x " if len(indices) > 1 else ""
        free = f"with {_of(device.free_bytes, device.total_bytes)} free"
        parts.append(f"{times}{device.name} {'GPU shares it' if device.unified else free}")
        numbers = "" if len(machine.devices) == 1 else f" {ranges(indices)}"
        sections.append((f"GPU{numbers}", _device_rows(device, raised)))
    measured = () if machine.measured is None else measured_rows(machine.measured)
    sections += [
        ("Measured", measured),
        ("Usable", lambda screen: _usable_lines(machine, screen.width)),
        ("Programs", () if programs is None else program_rows(programs)),
        ("Note", machine.notes),
    ]
    cores = f"{machine.cores} cores" if machine.cores else ""
    title = (_SYSTEMS[machine.system], ", ".join(filter(None, (machine.processor, cores))))
    return render(f"{machine.name}: {', '.join(parts)}", sections, screen, title=title)


def _of(part_bytes: int, total_bytes: int) -> str:
    """'11.20 of 23.99 GiB', or '512.00 MiB of 23.99 GiB' if the units differ."""
    part, total = format_bytes(part_bytes), format_bytes(total_bytes)
    number, _, unit = part.partition(" ")
    return f"{number if total.endswith(unit) else part} of {total}"


def _host_rows(host: HostMemory | None) -> Iterator[str]:
    """Total and free RAM, the limits on it, swap, and its bandwidth."""
    if host is None:
        yield "unknown (add --ram 32G)"
        return
    yield f"{format_bytes(host.total_bytes)}, {format_bytes(host.free_bytes)} free"
    for limit in host.limits:
        sizes = f"limit {format_bytes(limit.limit_bytes)}, {format_bytes(limit.left_bytes)} left"
        decides = " (this one applies)" if limit is host.tightest else ""
        yield f"{sizes}: {limit.name}{decides}"
    if host.swap_total_bytes:
        yield f"swap: {_of(host.swap_free_bytes, host.swap_total_bytes)} free, not counted"
    if host.bandwidth_bytes_per_s:
        yield ", ".join(
            filter(None, (_bandwidth(host.bandwidth_bytes_per_s), host.bandwidth_because))
        )


def _device_rows(device: Device, raised: RaisedLimit | None) -> Iterator[str]:
    """Memory, limit, speed and processes of a GPU. `raised`: a higher limit that the user could set."""
    memory = f"{format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"
    memory = "shares the RAM" if device.unified else memory
    yield ", ".join(filter(None, (device.name, device.partition, memory)))
    if device.limit_bytes is not None:
        because = f": {device.limit_because}" if device.limit_because else ""
        yield f"may use {format_bytes(device.limit_bytes)} of it{because}"
        if raised is not None:
            yield f"{raised.sentence()}; {raised.note}"
    speed = _bandwidth(device.bandwidth_bytes_per_s) if device.bandwidth_bytes_per_s else ""
    capability = "compute capability {}.{}".format(*device.capability) if device.capability else ""
    if speed or capability:
        yield ", ".join(filter(None, (speed, capability)))
    if device.users:
        largest = sorted(device.users, key=lambda user: -(user.used_bytes or 0))
        names = [
            f"{user.name or 'a process'} ({user.pid})"
            + (f" {format_bytes(user.used_bytes)}" if user.used_bytes is not None else "")
            for user in largest[:MAX_PROCESSES]
        ]
        hidden_count = len(largest) - MAX_PROCESSES
        others = f" and {hidden_count} more" if hidden_count > 0 else ""
        yield f"used by {', '.join(names)}{others}"
    if device.because:
        yield f"{device.basis.value}: {device.because}"


def _bandwidth(bytes_per_s: int) -> str:
    """'936 GB/s', in units of 10**9 as vendors state it."""
    return f"{bytes_per_s / 10**9:,.0f} GB/s"


Usable = tuple[Budget, ...] | HardwareError


def usable_by_engines(machine: Machine) -> Iterator[tuple[Engine, Usable]]:
    """Engines with their budgets on the machine, or the reason why they do not run on it."""
    for engine in every_engine():
        try:
            engine.check_runs(machine)
            yield engine, engine.budgets(machine)
        except HardwareError as error:
            yield engine, error


def _usable_lines(machine: Machine, width: int) -> Iterator[str]:
    """The usable memory for each engine and what limits it, or why the engine does not run."""
    column = _ENGINE_WIDTH if width >= _ENGINE_COLUMN_FROM else 0
    for engine, budgets in usable_by_engines(machine):
        if isinstance(budgets, HardwareError):
            rows = [str(budgets)]
        else:
            counts = Counter(_budget_row(budget, machine) for budget in budgets)
            rows = [
                f"{row}, on each of {count} GPUs" if count > 1 else row
                for row, count in counts.items()
            ]
        lines = fold_rows(rows, width - (column or 2))
        if column:
            heads = (engine.name, *[""] * (len(lines) - 1))
            yield from (f"{head:<{column}}{line}" for head, line in zip(heads, lines, strict=True))
        else:
            yield from (engine.name, *(f"  {line}" for line in lines))


def _budget_row(budget: Budget, machine: Machine) -> str:
    """'23.0 GiB of RTX 4090: 24.0 GiB free minus 1 GiB reserve', or why nothing of it may be used."""
    if budget.blocked:
        return budget.blocked
    limit = "its limit" if limit_on(budget, machine) else ""
    return (
        f"{format_bytes(budget.available_bytes)} of {budget.name}: {reserve_words(budget, limit)}"
    )


def program_rows(programs: Sequence[InstalledProgram]) -> Iterator[str]:
    """Each program in a row; what to install if there is none."""
    yield from map(_program_row, programs)
    if not programs:
        engine = default_engine()
        install = engine.program(engine.starts_for[0]).install
        yield f"no program that runs models was found; install one, for example: {install}"


def _program_row(item: InstalledProgram) -> str:
    """'llama-server b9294, CUDA and CPU, finds CUDA0: RTX 4090, billed as b9294; PATH: /usr/bin/llama-server'."""
    found = item.installation
    version = f"{found.version} ({found.build})" if found.build else found.version
    facts = [
        f"{found.program} {version}".strip(),
        " and ".join(filter(None, (", ".join(found.backends[:-1]), *found.backends[-1:]))),
        f"finds {', '.join(found.devices)}" if found.devices else "",
        f"billed as {found.rules_version}" if found.rules_version else "",
    ]
    where = f"{found.origin}: {found.path}" if found.path else found.origin
    use = "" if item.verbs else "used by `verify` and --ask-engine"
    if found.problem:
        use = f"not used: {found.problem}"
    return "; ".join(filter(None, (", ".join(filter(None, facts)), where, use)))


def measured_rows(measured: Measured) -> Iterator[str]:
    """What `calibrate` and `verify --load` measured on this machine."""
    for engine in measured.engines:
        first, *rest = engine_rows(engine)
        yield f"{first}: {'; '.join(rest)}"
    if measured.host is not None:
        yield from disk_rows(measured.host.disk)
    latest = measured.differences[-MAX_DIFFERENCES:]
    yield from (
        f"outside its bounds: {difference_row(difference)}" for difference in reversed(latest)
    )
    hidden_count = len(measured.differences) - len(latest)
    if hidden_count > 0:
        yield f"and {hidden_count} more predictions outside their bounds: `edgekit calibrate --list`"


def engine_rows(engine: EngineMeasured) -> Iterator[str]:
    """The engine and its device, then the measured memory overhead and the measured speed."""
    yield f"{engine.engine} ({engine.through} {engine.version}) on {engine.device}"
    if engine.overhead_bytes is not None:
        highest = f", highest with {engine.overhead_label}" if engine.overhead_label else ""
        runs = f"{with_count(engine.samples, 'run')}, {engine.date}{highest}"
        yield f"{format_bytes(engine.overhead_bytes)} of RAM in addition to the estimate ({runs})"
    if engine.pace is not None:
        speed, expected = engine.pace, ""
        if speed.expected_decode is not None:
            expected = f"; expected about {measured_rate(speed.expected_decode)}"
        yield (
            f"{measured_rate(speed.decode_tokens_per_s)} tokens/s, "
            f"{measured_rate(speed.prefill_tokens_per_s)} tokens/s for a prompt of "
            f"{with_count(speed.prompt_tokens, 'token')}: {speed.label}, "
            f"{format_bytes(speed.bytes_per_token)} per token, {speed.date}{expected}"
        )
        if speed.constants != constants_digest():
            yield "this speed is not used: the speed model has changed since; run `edgekit calibrate` again"


def measured_rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.1f}" if tokens_per_s < 100 else f"{tokens_per_s:,.0f}"


def gigabytes(bytes_per_s: float) -> str:
    """'9.4 GB/s', in units of 10**9, with two significant digits below ten."""
    figure = bytes_per_s / 10**9
    return f"{figure:,.0f} GB/s" if figure >= 10 else f"{figure:.2g} GB/s"


def difference_row(difference: Difference) -> str:
    """A prediction that was outside its bounds, next to the measured size."""
    return (
        f"{difference.label}: {difference.part} {format_bytes(difference.predicted_bytes)} predicted, "
        f"{format_bytes(difference.measured_bytes)} in {difference.engine} {difference.version}, {difference.date}"
    )


def disk_rows(disk: Disk | None) -> Iterator[str]:
    if disk is not None:
        read, written = gigabytes(disk.read_bytes_per_s), gigabytes(disk.write_bytes_per_s)
        yield f"{disk.folder}: read {read}, write {written}, {disk.date}"


def hardware_json(machine: Machine, programs: Programs = None) -> Json:
    """`programs` is left out for a described machine."""
    engines: Json = {}
    for engine, budgets in usable_by_engines(machine):
        if isinstance(budgets, HardwareError):
            engines[engine.name] = {"error": error_json(budgets)}
            continue
        rows = []
        for budget in budgets:
            words = reserve_words(budget, limit_on(budget, machine))
            words += f": {budget.blocked}" if budget.blocked else ""
            rows.append({**budget_json(budget), "told": words})
        devices = [device.name for device in engine.devices(machine)]
        engines[engine.name] = {"devices": devices, "budgets": rows}
    described = {**machine_json(machine), "label": machine_label(machine)}
    answer = {"schema": SCHEMA, "machine": described, "engines": engines}
    if programs is not None:
        answer["programs"] = [_program_json(item) for item in programs]
    return answer


def _program_json(item: InstalledProgram) -> Json:
    names = "program origin path? version? build? backends devices rules_version? problem?"
    return {
        "engine": item.engine.name,
        **fields(item.installation, names),
        "commands": list(item.verbs),
        "told": _program_row(item),
    }


def machine_json(machine: Machine) -> Json:
    host, measured = machine.host, machine.measured
    host_json = None
    if host is not None:
        limits = [fields(limit, "name limit_bytes used_bytes left_bytes") for limit in host.limits]
        host_json = {**fields(host, _HOST_FIELDS), "limits": limits}
    return {
        **fields(machine, "name system processor? cores what_if"),
        "label": machine_label(machine),
        "instructions": sorted(machine.instructions),
        "host": host_json,
        "devices": [
            {
                **fields(device, _DEVICE_FIELDS),
                "users": [fields(user, "pid name? used_bytes") for user in device.users],
                **fields(device, "basis because?"),
            }
            for device in machine.devices
        ],
        "calibration": None if measured is None else asdict(measured),
        "notes": list(machine.notes),
    }


def budget_json(budget: Budget) -> Json:
    devices_first = sorted(budget.pools, key=lambda pool: (pool.kind is PoolKind.HOST, pool.index))
    return {
        "name": budget.name,
        "pools": [pool.label for pool in devices_first],
        **fields(budget, "total_bytes free_bytes reserve_bytes because limit_bytes limit_because?"),
        **fields(budget, "blocked? available_bytes"),
    }


def devices_text(screen: Screen = PLAIN) -> str:
    """The table that --device chooses from: the most common devices first, then all others."""
    devices = listed_devices()
    usual = sum(device.usual for device in devices)
    rows = [
        (
            device.name,
            format_bytes(device.usable_bytes),
            "-"
            if device.bandwidth_bytes_per_s is None
            else _bandwidth(device.bandwidth_bytes_per_s),
            format_bytes(device.memory_bytes),
            device.kind.value,
            device.vendor.value,
            "" if device.capability is None else "{}.{}".format(*device.capability),
            device.released or "-",
        )
        for device in devices
    ]

    def lines(screen: Screen) -> list[str]:
        table_lines = fitted_table(_DEVICE_COLUMNS, rows, screen.width)
        return [*table_lines[: usual + 1], "", *table_lines[usual + 1 :]]

    headline = f"{len(devices)} devices; the first {usual} are the most common today"
    return render(headline, [("", lines)], screen)


def devices_json() -> Json:
    names = (
        "name kind vendor memory_bytes usable_bytes bandwidth_bytes_per_s capability architecture? "
        "fp32_flops fp16_flops matrix_flops released? usual basis source"
    )
    return {"schema": SCHEMA, "devices": [fields(device, names) for device in listed_devices()]}
