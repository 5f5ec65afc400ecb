"""A machine -> what each engine may use of it, and why no more."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines import every_engine
from edgekit.engines.protocol import Engine
from edgekit.errors import HardwareError
from edgekit.machine.types import HOST, Budget, Device, Machine
from edgekit.units import format_bytes


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


def reserve_words(budget: Budget, limit: str = "") -> str:
    """'23.50 GiB free minus 1 GiB reserve'. `limit` names what leaves so little."""
    free, because = format_bytes(budget.free_bytes), budget.because
    if budget.blocked:
        return f"{free} of {format_bytes(budget.total_bytes)} free"
    if budget.is_limited:
        on_cpu = f", plus {format_bytes(budget.cpu_bytes)} on the CPU" if budget.cpu_bytes else ""
        return f"{free} free; {budget.limit_because or 'the system limits the GPU'}{on_cpu}"
    if not budget.reserve_bytes:
        return because or f"{free} free"
    # some reasons open with the amount themselves: '20 % of 36.00 GiB for macOS'
    amount = "" if because[:1].isdigit() else f"{format_bytes(budget.reserve_bytes)} "
    return f"{free} free{f' within {limit},' if limit else ''} minus {amount}{because}"


def limit_on(budget: Budget, machine: Machine) -> str:
    """The name of what holds a process below the machine's own memory; '' where nothing does."""
    limit = machine.host.tightest if machine.host is not None and HOST in budget.pools else None
    return "" if limit is None else limit.name
