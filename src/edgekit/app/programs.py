"""The programs on this machine that run models, and which one runs a model: the requested one, or the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.app.open import open_named
from edgekit.engines import (
    default_engine,
    engine_named,
    engine_of_program,
    engine_on,
    every_engine,
    startable,
)
from edgekit.engines.discovery import in_parallel
from edgekit.engines.protocol import ANSWER_S
from edgekit.errors import EdgekitError, EngineError, MissingExtraError, UsageError
from edgekit.index.references import is_path
from edgekit.machine.probes import detect
from edgekit.sources.types import Container

if TYPE_CHECKING:
    from edgekit.engines.program import EngineProgram, Installation
    from edgekit.engines.protocol import Engine
    from edgekit.machine.types import Machine
    from edgekit.request import Session


LIST_S = 2.0  # a list is not worth a longer wait for a program that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledProgram:
    """A program on this machine, and the engine that it runs."""

    engine: Engine
    installation: Installation

    @property
    def verbs(self) -> tuple[str, ...]:
        """The commands of EdgeKit that start it; none if it is for other uses only, or has a problem."""
        name = self.installation.program
        entries = () if self.installation.problem else self.engine.programs
        return next((entry.verbs for entry in entries if entry.name == name), ())


def installed_programs() -> tuple[InstalledProgram, ...]:
    """Every program on this machine that runs an engine, all asked at once. One that hangs has a problem."""
    engines = every_engine()
    found = in_parallel(lambda engine: engine.installations(LIST_S), engines)
    return tuple(
        InstalledProgram(engine=engine, installation=installation)
        for engine, installations in zip(engines, found, strict=True)
        for installation in installations
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProgram:
    """A program that is installed, and the engine that it runs."""

    engine: Engine
    program: EngineProgram
    installation: Installation
    serves: bool = False  # for `serve`, not for `run`
    note: str = ""  # what the choice costs: "this llama.cpp has no GPU support"

    @property
    def shares_memory(self) -> bool:
        """Whether other models can be loaded next to this one: the program takes no more than the model needs."""
        return self.engine.shares_memory

    def on_machine(self, machine: Machine) -> Machine:
        """The machine, with only what the program can use of it."""
        return self.program.on_machine(machine, self.installation)


def choose_program(
    verb: str, reference: str, session: Session, *, engine: str | None, wanted: str | None
) -> ChosenProgram:
    """The program for `run` or `serve`.

    `engine` and `wanted` are what --engine and --with name. Raises UsageError if the two do not belong together,
    EngineError with the problems of the programs that were found, and MissingExtraError if none was.
    """
    if wanted is not None:
        target = engine_of_program(wanted, verb)
        if engine is not None and engine_named(engine) is not target:
            raise UsageError(
                f"--with {wanted} runs {target.name}, not --engine {engine_named(engine).name}: give one of the two"
            )
        programs = {wanted: target.program(verb, wanted)}
        found, broken = _best_of(target, programs)
        if found is None:
            raise _not_usable(wanted, programs, broken)
        return _chosen(verb, target, *found, broken=broken)
    targets = _engines_for(reference, verb, session) if engine is None else (engine_named(engine),)
    targets[0].program(verb)  # raises UsageError if EdgeKit does not start it
    all_broken: list[Installation] = []
    for target in targets:
        programs = _programs(target, verb)
        if not detect().devices:  # no build is better than another: no search
            for program in programs.values():
                if (installation := program.find()) is not None:
                    return _chosen(verb, target, program, installation)
        found, broken = _best_of(target, programs)
        all_broken += broken
        if found is not None:
            return _chosen(verb, target, *found, broken=all_broken)
    raise _not_usable(targets[0].name, _programs(targets[0], verb), all_broken)


def _programs(engine: Engine, verb: str) -> dict[str, EngineProgram]:
    """The programs that are started for the command without being asked for, by name."""
    return {
        entry.name: engine.program(verb, entry.name)
        for entry in engine.programs
        if verb in entry.verbs and not entry.on_request
    }


def _best_of(
    engine: Engine, programs: Mapping[str, EngineProgram]
) -> tuple[tuple[EngineProgram, Installation] | None, list[Installation]]:
    """The best installation of these programs, None if there is none; and those with problems.

    A program that only does not answer in time is used if it can be found without being asked.
    """
    listed = [item for item in engine.installations(ANSWER_S) if item.program in programs]
    broken = [item for item in listed if item.problem]
    for item in listed:
        if not item.problem:
            return (programs[item.program], item), broken
    names = {item.program for item in broken if not item.timed_out}
    for program in programs.values():
        if program.name not in names and (found := program.find()) is not None:
            return (program, found), broken
    return None, broken


def _title(item: Installation) -> str:
    return f"{item.program} ({item.path})" if item.path else item.program


def _not_usable(
    name: str, programs: Mapping[str, EngineProgram], broken: Sequence[Installation]
) -> EngineError | MissingExtraError:
    """The error if none of these programs can be used: they have problems, or none is installed.

    `broken` may have programs of other engines too.
    """
    own = [item for item in broken if item.program in programs]
    names = {item.program for item in own}
    ways = "; or ".join(way.install for way in programs.values() if way.name not in names)
    if own:
        problems = "; ".join(f"{_title(item)}: {item.problem}" for item in own)
        advice = f". To install it: {ways}" if ways else ""
        return EngineError(f"{name} cannot be started: {problems}{advice}")
    others = "".join(f". {_title(item)} was found, but {item.problem}" for item in broken)
    return MissingExtraError(f"{name} is not installed: {ways}{others}")


def _chosen(
    verb: str,
    engine: Engine,
    program: EngineProgram,
    installation: Installation,
    *,
    broken: Sequence[Installation] = (),
) -> ChosenProgram:
    machine, note = detect(), ""
    if machine.devices and not program.on_machine(machine, installation).devices:
        slow = [item for item in broken if item.timed_out and item.program == program.name]
        problems = [f"{_title(item)}: {item.problem}" for item in broken if item not in slow]
        others = f"; not usable: {'; '.join(problems)}" if problems else ""
        why = "did not answer in time" if slow else "has no support for this machine's GPU"
        advice = "try again, or " if slow else ""
        note = (
            f"{installation.program} {why}, so the model runs on the CPU: "
            f"{advice}`edgekit hardware` lists the programs found{others}"
        )
    return ChosenProgram(
        engine=engine,
        program=program,
        installation=installation,
        serves=verb == "serve",
        note=note,
    )


def _engines_for(reference: str, verb: str, session: Session) -> tuple[Engine, ...]:
    """The engines for the files of a reference, the best first. A name of the index may have files for several."""
    whole = [engine for engine in startable(verb) if not engine.streams_weights]
    if reference.lower().endswith(".gguf"):
        return (default_engine(),)
    if not ("/" in reference or is_path(reference)):
        return tuple(dict.fromkeys((default_engine(), *whole)))
    with suppress(EdgekitError):
        opened = open_named(reference, session).found
        if opened is not None and opened.files is not None:
            best = engine_named(engine_on(opened.model, detect()))
            is_gguf = opened.files.container is Container.GGUF
            able = [engine for engine in whole if engine.loads_gguf is is_gguf]
            return tuple(dict.fromkeys(engine for engine in (best, *able) if engine in able))
    return (default_engine(),)
