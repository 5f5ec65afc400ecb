"""A small engine in one folder: the tests add it to the list with one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.engines import flags as common
from edgekit.engines.flags import CacheFlags, Control, Flag, Page, number
from edgekit.engines.protocol import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.data.dummy_engine.rules import DummySetup

    from edgekit.bill.task import CacheChoice, Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Verdict
    from edgekit.engines.commands import Command, Startup
    from edgekit.machine.types import Budget, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model

FLAGS = (
    Flag(
        ("--dummy-spare",),
        "dummy_spare",
        "memory to allocate for nothing: 512M",
        "SIZE",
        common.size,
        field="spare_bytes",
        row=number,
        control=Control("Spare memory"),
    ),
)


class Dummy(Engine):
    """Weights as they are stored and a cache of 16 bits, all in RAM."""

    name = "dummy"
    title = "Dummy"
    aliases = ("dumdum",)
    loads_gguf = True
    flags = FLAGS
    table = (common.CONTEXT, *FLAGS)
    page = Page("Dummy", "dummy-server", CacheFlags((), "f16"))
    cache_flags = ""
    for_programs = ("dummy-server",)

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, DummySetup]:
        from tests.data.dummy_engine.rules import DummySetup

        from edgekit.bill.types import Load

        load = common.field_values(self.table, values, Load)
        return Load(**load), DummySetup(**common.field_values(self.table, values, DummySetup))

    def values(self, load: Load, setup: DummySetup) -> dict[str, Any]:
        return common.given_values(self.table, load, setup)

    def read_row(self, options: Mapping[str, Any], _backend: str | None) -> tuple[Load, DummySetup]:
        return self.setup(common.read_options(self.table, options))

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, DummySetup]:
        return self.setup(common.read_options(self.table, options))

    def describe(self, _load: Load, estimate: MemoryEstimate) -> str:
        return f"{dict(estimate.facts)['tokens']:,} dummy tokens"

    def prepare(self, _model: Model) -> None:
        """There is nothing to keep."""

    def is_made_for(self, _model: Model) -> bool:
        return False

    def version(self, _setup: DummySetup | None) -> str:
        return "dummy 1.0"

    def estimate(self, model: Model, load: Load, setup: DummySetup) -> MemoryEstimate:
        from tests.data.dummy_engine.rules import estimate

        return estimate(model, load, setup)

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from tests.data.dummy_engine.rules import budgets

        return budgets(machine)

    def default_setup(self) -> DummySetup:
        from tests.data.dummy_engine.rules import DummySetup

        return DummySetup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from tests.data.dummy_engine.rules import placements

        return placements(task)

    def cache_choices(
        self, _task: Task, _placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.bill.task import CacheChoice

        return (CacheChoice(name="f16", place=0, flags=""),)

    def cache_name(self, _load: Load, _setup: DummySetup) -> str:
        return "f16"

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "context": verdict.context_tokens}

    def commands(self, startup: Startup) -> tuple[Command, ...]:
        from tests.data.dummy_engine.rules import command_words

        values = self.values(startup.load, startup.setup)
        words = command_words(startup.label, values)
        return (startup.command("dummy-server", "dummy-server", words),)

    def estimate_words(
        self, values: Mapping[str, Any], _estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from tests.data.dummy_engine.rules import command_words

        return command_words(opened.label, values)


ENGINE = Dummy()
