"""The built-in engine, which reads weights from the file as it needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.native import flags
from edgekit.engines.protocol import Engine, Offload
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Iterator, Mapping
    from typing import Any

    from edgekit.bill.task import CacheChoice, Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Verdict
    from edgekit.engines.native.prepared import NativePrepared
    from edgekit.engines.native.setup import StreamSetup
    from edgekit.engines.program import EngineProgram
    from edgekit.machine.types import Budget, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model


class Native(Engine):
    """The engine. Its rules are imported when they are first needed."""

    name = "stream"
    title = flags.TITLE
    aliases = ("edgekit", "built-in", "builtin", "streaming")
    loads_gguf = True

    # --- flags

    page = flags.PAGE
    quant_key = flags.QUANT_KEY
    unused_options = flags.UNUSED_OPTIONS
    table = flags.TABLE
    flags = flags.FLAGS

    def read_quant(self, name: str) -> str | None:
        return flags.read_quant(name)

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: StreamSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def placement(self, setup: StreamSetup) -> dict[str, Any]:
        return flags.placement(setup)

    def read_row(
        self, options: Mapping[str, Any], _backend: str | None
    ) -> tuple[Load, StreamSetup]:
        return flags.read_row(options)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, StreamSetup]:
        return flags.read_row(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    # --- the bill

    def prepare(self, model: Model) -> NativePrepared:
        from edgekit.engines.native.prepared import prepare

        return prepare(model)

    def is_made_for(self, _model: Model) -> bool:
        return False  # never chosen unless it is asked for

    def version(self, _setup: StreamSetup | None) -> str:
        from edgekit.engines.native.estimate import VERSION

        return VERSION

    def estimate(self, model: Model, load: Load, setup: StreamSetup) -> MemoryEstimate:
        from edgekit.engines.native.estimate import estimate

        return estimate(model, load, setup)

    # --- programs

    starts_for = ("run",)

    def program(self) -> EngineProgram:
        from importlib import import_module

        # By name: the engine's code is still above the engines (runtime/stream needs embed's kernels).
        found: EngineProgram = import_module("edgekit.runtime.stream.program").PROGRAM
        return found

    # --- speed: unknown, it may have to read from a disk

    def fastest_tokens_per_s(
        self, read_bytes: float, held_bytes: int, machine: Machine
    ) -> float | None:
        from edgekit.engines.speed import fastest_tokens_per_s

        return fastest_tokens_per_s(read_bytes, held_bytes, machine, self.name)

    # --- the machine

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from edgekit.engines.native.budget import budgets

        return budgets(machine)

    def check_limits(self, reserve_bytes: int | None, _max_use: float | None) -> None:
        if reserve_bytes is not None:
            raise UsageError(
                "--reserve does not apply to the built-in engine, whose estimate covers the whole process"
            )

    # --- placements

    streams_weights = True

    def default_setup(self) -> StreamSetup:
        from edgekit.engines.native.setup import StreamSetup

        return StreamSetup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from edgekit.engines.native.placements import placements

        return placements(task)

    # --- the cache

    cache_flags = "-ctk and -ctv"

    def cache_choices(
        self, task: Task, _placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.engines.cache_pairs import F16_PAIR, Q8_PAIR, pair_choices

        return tuple(pair_choices(task.load, (F16_PAIR, Q8_PAIR)))

    def cache_name(self, load: Load, _setup: StreamSetup) -> str:
        from edgekit.engines.cache_pairs import cache_name

        return cache_name(load)

    # --- users and uses

    can_plan = False
    most_users = 1

    # --- commands

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        from edgekit.engines.native.commands import settle

        return settle(verdict, values)

    def estimate_words(
        self, values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from edgekit.engines.native.commands import estimate_words

        return estimate_words(values, estimate, opened)

    # --- reports

    def offload(self, verdict: Verdict) -> Offload:
        way = verdict.way
        place = "on the built-in engine"
        return Offload(place=place if way.whole else f"{place} ({way.because})")


ENGINE = Native()
