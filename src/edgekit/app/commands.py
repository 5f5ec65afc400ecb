"""The commands that start what was answered."""

from __future__ import annotations

from edgekit.bill.verdict import Verdict
from edgekit.engines.commands import Command
from edgekit.model.open import Opened
from edgekit.plan.commands import commands_of
from edgekit.request import Values


def start_commands(
    opened: Opened,
    result: Verdict,
    values: Values,
    *,
    users: int | None = None,
) -> tuple[Command, ...]:
    """As `plan` prints them; none for llama.cpp as a library, whose bill has the command."""
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
