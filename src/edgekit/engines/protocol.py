"""What every engine has. Its folder owns all of it: no other file compares with an engine's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from edgekit.bill.task import Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Speed
    from edgekit.engines.flags import Flag
    from edgekit.engines.program import Program
    from edgekit.machine.types import Machine
    from edgekit.model.types import Model


class Engine(Protocol):
    """`ENGINE` of the package of an engine."""

    name: str  # as users type it, and as JSON has it
    title: str  # as a heading has it
    aliases: tuple[str, ...]  # other spellings, in lower case
    loads_gguf: bool

    # --- flags

    @property
    def flags(self) -> tuple[Flag, ...]: ...

    # --- the bill

    def is_made_for(self, model: Model, /) -> bool:
        """Whether the model's files are in the format that people make for this engine."""

    def version(self, setup: Any, /) -> str:
        """Of the engine whose rules a bill for this setup follows."""

    def estimate(self, model: Model, load: Load, setup: Any, /) -> MemoryEstimate:
        """The bill. Raises RefusedError where the engine would not start."""

    # --- programs

    starts_for: tuple[
        str, ...
    ]  # the verbs that EdgeKit can start it for: run, serve, verify, calibrate

    @property
    def verified_flags(self) -> tuple[Flag, ...]:
        """The flags that `verify` takes."""

    def program(self) -> Program | None:
        """How it is started on this machine; None where EdgeKit only prints the command."""

    # --- speed

    def speed(
        self,
        task: Task,
        placement: Placement,
        bill: MemoryEstimate,
        filled: tuple[int, int] | None = None,
        /,
    ) -> Speed | None:
        """For one sequence, from the fewest to the most tokens in the context (None: from an empty to a full one).

        None if unknown.
        """

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine, /
    ) -> float | None:
        """A bound for models of `held_bytes` that read `read_bytes` per token. None if unknown."""
