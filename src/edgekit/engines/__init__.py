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
    engines: list[Engine] = [import_module(package).ENGINE for package in LIST]
    return {engine.name: engine for engine in engines}


def every_engine() -> tuple[Engine, ...]:
    return tuple(_by_name().values())


def engine_names() -> tuple[str, ...]:
    return tuple(_by_name())


def startable(verb: str) -> tuple[Engine, ...]:
    """The engines that EdgeKit can start for `run`, `serve`, `verify` or `calibrate`, preferred first."""
    return tuple(engine for engine in every_engine() if verb in engine.starts_for)


def program_names(verb: str) -> tuple[str, ...]:
    """The programs that EdgeKit can start for `run` or `serve`, as --with names them."""
    return tuple(
        entry.name for engine in startable(verb) for entry in engine.programs if verb in entry.verbs
    )


def engine_of_program(name: str, verb: str) -> Engine:
    """The engine that a program runs. Raises UsageError for an unknown program."""
    for engine in startable(verb):
        if any(entry.name == name and verb in entry.verbs for entry in engine.programs):
            return engine
    raise UsageError(
        f"unknown program {name[:40]!r} for --with; choose one of {', '.join(program_names(verb))}"
    )


def planned_engines() -> tuple[str, ...]:
    """The engines that can be planned for."""
    return tuple(engine.name for engine in every_engine() if engine.can_plan)


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
    engine = engines.get(spelling)
    if engine is None:
        engine = next((other for other in engines.values() if spelling in other.aliases), None)
    if engine is None:
        raise UsageError(
            f"unknown engine {name[:40]!r}; choose one of {', '.join(engines)}", about="engine"
        )
    return engine


def default_engine() -> Engine:
    """The default: runs on every machine, quantises, and splits a model between GPU and RAM."""
    return every_engine()[0]


def engine_for(model: Model) -> str:
    """The engine for the format of a model's files."""
    return next(engine.name for engine in every_engine() if engine.is_made_for(model))


def engine_on(model: Model, machine: Machine) -> str:
    """The first engine that loads a model's files and runs on this machine; else the default, after conversion."""
    for engine in every_engine():
        if engine.is_made_for(model):
            try:
                engine.check_runs(machine)
            except HardwareError:
                continue
            return engine.name
    return default_engine().name


def lender_of(flag: Flag) -> str:
    """The engine that owns a shared flag and whose name it is stored under; "" for a flag that is not shared."""
    if not flag.shared:
        return ""
    for engine in every_engine():
        if any(other.key == flag.key and not other.shared for other in engine.flags):
            return engine.name
    return ""


def machine_keys() -> frozenset[str]:
    """Flags of all engines that a check takes from the machine, not from the caller."""
    return frozenset(
        flag.key for engine in every_engine() for flag in engine.flags if flag.of_machine
    )
