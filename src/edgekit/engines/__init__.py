"""The engines. `LIST` is the only place that names them all: to add one, add its folder and a line here.

Importing this module and the folder of an engine is cheap; an engine imports its rules at first use.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from edgekit.errors import HardwareError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.engines.flags import Flag
    from edgekit.engines.protocol import Engine
    from edgekit.machine.types import Machine
    from edgekit.model.types import Model

# In order of preference.
LIST = (
    "edgekit.engines.llamacpp",
    "edgekit.engines.vllm",
    "edgekit.engines.mlx",
    "edgekit.engines.native",
)


@cache
def _by_name() -> dict[str, Engine]:
    found: list[Engine] = [import_module(package).ENGINE for package in LIST]
    return {engine.name: engine for engine in found}


def every_engine() -> tuple[Engine, ...]:
    return tuple(_by_name().values())


def engine_names() -> tuple[str, ...]:
    return tuple(_by_name())


def startable(verb: str) -> tuple[Engine, ...]:
    """The engines that EdgeKit can start for `run`, `serve`, `verify` or `calibrate`, preferred first."""
    return tuple(engine for engine in every_engine() if verb in engine.starts_for)


def planned_engines() -> tuple[str, ...]:
    """The engines that can be planned for."""
    return tuple(one.name for one in every_engine() if one.can_plan)


def either(names: tuple[str, ...]) -> str:
    """'llama.cpp, vllm or mlx'."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def engine_name(name: str) -> str:
    """The engine's own name for any spelling of it. Raises UsageError."""
    return engine_named(name).name


def engine_named(name: str) -> Engine:
    """The engine of this name, in any spelling. Raises UsageError."""
    engines = _by_name()
    spelling = name.lower()
    found = engines.get(spelling)
    if found is None:
        found = next((one for one in engines.values() if spelling in one.aliases), None)
    if found is None:
        raise UsageError(
            f"unknown engine {name[:40]!r}; choose one of {', '.join(engines)}", about="engine"
        )
    return found


def default_engine() -> Engine:
    """The default: runs on every machine, quantises, and splits a model between GPU and RAM."""
    return every_engine()[0]


def engine_for(model: Model) -> str:
    """The engine for the format of a model's files."""
    return next(one.name for one in every_engine() if one.is_made_for(model))


def engine_on(model: Model, machine: Machine) -> str:
    """The engine for a model's files on this machine; if none of them runs there, the default, after conversion."""
    for one in every_engine():
        if one.is_made_for(model):
            try:
                one.check_runs(machine)
            except HardwareError:
                continue
            return one.name
    return default_engine().name


def lender_of(flag: Flag) -> str:
    """The other engine of a shared flag, under whose name it is given; "" for a flag that is not shared."""
    if not flag.shared:
        return ""
    owners = (
        one.name
        for one in every_engine()
        if any(own.key == flag.key and not own.shared for own in one.flags)
    )
    return next(owners, "")


def machine_keys() -> frozenset[str]:
    """Flags of all engines that a check takes from the machine, not from the caller."""
    return frozenset(
        flag.key for engine in every_engine() for flag in engine.flags if flag.of_machine
    )
