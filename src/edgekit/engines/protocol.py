"""What every engine has. Its folder owns all of it: no other file compares with an engine's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    @property
    def table(self) -> tuple[Flag, ...]:
        """The flags, the context first, and what only rows of a batch can say."""

    @property
    def unused_options(self) -> frozenset[str]:
        """Options of a row that the engine has and that no bill depends on."""

    pins_placement: bool  # a check may place the model elsewhere than a plan did: links say where
    quant_key: str  # of the flag that says how weights are quantised; "" where there is none

    def read_quant(self, name: str, /) -> str | None:
        """The quantisation of `--quant NAME` in the engine's own words; None where it has no such."""

    def quant_names(self) -> tuple[str, ...]:
        """To show to somebody who typed another."""

    def setup(self, values: Mapping[str, Any], /) -> tuple[Load, Any]:
        """What values of its flags ask for. Raises UsageError."""

    def values(self, load: Load, setup: Any, /) -> dict[str, Any]:
        """And back: read again, they give the same bill. Files loaded with the model are not among them."""

    def placement(self, setup: Any, /) -> dict[str, Any]:
        """Where a plan has put the model, as values of flags."""

    def read_row(self, options: Mapping[str, Any], backend: str | None, /) -> tuple[Load, Any]:
        """A row of a batch, in the engine's own parameters. Raises UsageError."""

    def read_keywords(self, options: Mapping[str, Any], /) -> tuple[Load, Any]:
        """Keywords of the Python API, named as in a row, for the engine as people start it. Raises UsageError."""

    def describe(self, load: Load, estimate: MemoryEstimate, /) -> str:
        """What was asked for, in words, as the engine resolved it."""

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
