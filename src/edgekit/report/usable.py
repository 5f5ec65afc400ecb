"""A machine -> what each engine may use of it."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines import every_engine
from edgekit.engines.protocol import Engine
from edgekit.errors import HardwareError
from edgekit.machine.types import Budget, Device, Machine


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
