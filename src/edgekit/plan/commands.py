"""A verdict or a plan -> the commands, files and settings that run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.bill.types import Lever, Verdict
from edgekit.engines import engine_named
from edgekit.engines.commands import COMMAND, Command, Startup, shell_text
from edgekit.machine.devices import raised_limit

if TYPE_CHECKING:
    from edgekit.model import OpenModel
    from edgekit.plan.plan import Plan
    from edgekit.sources.types import ModelFiles

LIMIT = "limit"  # program name of the command that raises the GPU's limit on unified memory


def commands_of(
    verdict: Verdict,
    *,
    label: str,
    repository: str = "",
    files: ModelFiles | None = None,
    given: Mapping[str, Any] | None = None,
    users: int | None = None,
    nodes: int = 1,
) -> tuple[Command, ...]:
    """Commands that start the engine as judged, in order. None for a model known only by name."""
    if verdict.variant is None:
        return ()
    startup = Startup(
        verdict=verdict,
        variant=verdict.variant,
        label=label,
        devices=engine_named(verdict.engine).devices(verdict.machine),
        repository=repository,
        files=files,
        given=given or {},
        users=users,
        nodes=nodes,
    )
    return tuple(engine_named(verdict.engine).commands(startup))


def ready_commands(
    plan: Plan, *, files: ModelFiles | None = None, given: Mapping[str, Any] | None = None
) -> tuple[Command, ...]:
    """Commands of a plan in the order to run them. `files`: where the model was found; `given`: the engine's flags."""
    task = plan.task
    commands = commands_of(
        plan.result,
        label=task.label,
        repository=task.repository,
        files=files,
        given=given,
        users=task.users,
        nodes=task.nodes,
    )
    # the system's limit on GPU memory, if the plan says that raising it helps
    decision, machine = plan.decision(Lever.LIMIT), plan.result.machine
    raised = None if decision is None else raised_limit(machine)
    if decision is None or raised is None or not raised.setting:
        return commands
    text = shell_text(shlex.split(raised.how), {}, machine.system)
    notes = (decision.because, raised.note)
    limit = Command(program=LIMIT, name="GPU memory limit", kind=COMMAND, text=text, notes=notes)
    return (limit, *commands)


def by_program(ready: Sequence[Command]) -> dict[str, list[Command]]:
    """Program -> its commands, in order; the program that runs the model comes first."""
    commands: dict[str, list[Command]] = {}
    for command in sorted(ready, key=lambda command: command.program == LIMIT):
        commands.setdefault(command.program, []).append(command)
    return commands


def main_command(ready: Sequence[Command]) -> Command | None:
    """The command that starts the model, after those of its program that have to be run first."""
    shown = next(iter(by_program(ready).values()), [])
    return shown[-1] if shown else None


def start_commands(
    opened: OpenModel, result: Verdict, values: Mapping[str, Any], *, users: int | None = None
) -> tuple[Command, ...]:
    """Commands as `plan` prints them. Empty in library mode: the estimate already has the command."""
    if values.get("mode") == "library":
        return ()
    return commands_of(
        result,
        label=opened.label,
        repository=opened.repository,
        files=opened.files,
        users=users,
        given=values,
    )
