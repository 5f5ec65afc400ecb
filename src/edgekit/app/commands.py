"""The commands that start what was answered. Only this file of the application imports them."""

from __future__ import annotations

from edgekit.app.open import STREAM
from edgekit.bill.types import MemoryEstimate
from edgekit.bill.verdict import Verdict
from edgekit.engines import engine_named
from edgekit.engines.flags import flag_words
from edgekit.engines.llamacpp.flags import BESIDE_THE_SETUP
from edgekit.engines.model_words import draft_words
from edgekit.model.open import Opened
from edgekit.model.types import Model
from edgekit.report.commands import Command, commands_of, ready_commands
from edgekit.report.plan_run import main_command, main_notes
from edgekit.request import Values

__all__ = [
    "Command",
    "main_command",
    "main_notes",
    "most_sequences",
    "ready_commands",
    "said_words",
    "start_commands",
]


def start_commands(
    opened: Opened,
    result: Verdict,
    values: Values,
    *,
    users: int | None = None,
) -> tuple[Command, ...]:
    """As `plan` prints them; none for the built-in engine and llama.cpp as a library, whose bill has the command."""
    if result.engine == STREAM or values.get("mode") == "library":
        return ()
    return commands_of(
        result,
        label=opened.label,
        repository=opened.repository,
        files=opened.files,
        users=users,
        more=said_words(result.engine, values),
    )


def said_words(engine: str, values: Values) -> tuple[str, ...]:
    """Flags that the command of an answer repeats as they were typed, with the repository of a draft model."""
    said = {key: value for key, value in values.items() if key in BESIDE_THE_SETUP}
    draft = said.pop("draft_model", None)
    words = draft_words(draft) if draft is not None else ()
    return (*words, *flag_words(engine_named(engine).flags, said))


def most_sequences(model: Model, pool: MemoryEstimate) -> int | None:
    """The limit on requests that vLLM needs for its pool; None where its own default holds."""
    from edgekit.report.commands import vllm  # the whole engine comes with it

    return vllm.most_sequences(model, pool)
