"""The context-scaling document's engine: five tiers of one line of models, and their compressed cache layouts.

It is a what-if: every figure is ASSUMED. It is not in the list of the engines, because it only answers for its tiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.memo import flags
from edgekit.engines.protocol import Engine

if TYPE_CHECKING:  # only to name types: --help must be instant
    from collections.abc import Iterator, Mapping
    from typing import Any

    from edgekit.bill.task import CacheChoice, Placement, Task
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.bill.verdict import Verdict
    from edgekit.engines.memo.types import MemoSetup
    from edgekit.machine.types import Budget, Device, Machine
    from edgekit.model.open import Opened
    from edgekit.model.types import Model


class Memo(Engine):
    """The engine. Its rules are imported when they are first needed."""

    name = "memo"
    title = "what-if engine for tiers"
    aliases = ("what-if",)
    loads_gguf = False
    page = flags.PAGE
    table = flags.TABLE
    cache_flags = ""
    can_plan = False
    most_users = 1024
    flags = flags.FLAGS

    def setup(self, values: Mapping[str, Any]) -> tuple[Load, MemoSetup]:
        return flags.setup(values)

    def values(self, load: Load, setup: MemoSetup) -> dict[str, Any]:
        return flags.values(load, setup)

    def read_row(self, options: Mapping[str, Any], backend: str | None) -> tuple[Load, MemoSetup]:
        return flags.read_row(options, backend)

    def read_keywords(self, options: Mapping[str, Any]) -> tuple[Load, MemoSetup]:
        return flags.read_keywords(options)

    def describe(self, load: Load, estimate: MemoryEstimate) -> str:
        return flags.describe(load, estimate)

    def prepare(self, _model: Model) -> None:
        """There is nothing to keep."""

    def is_made_for(self, _model: Model) -> bool:
        return False

    def version(self, setup: MemoSetup | None) -> str:
        from edgekit.engines.memo.estimate import version

        return version(setup)

    def estimate(self, model: Model, load: Load, setup: MemoSetup) -> MemoryEstimate:
        from edgekit.engines.memo.estimate import estimate

        return estimate(model, load, setup)

    def devices(self, machine: Machine) -> tuple[Device, ...]:
        from edgekit.engines.memo.budget import devices

        return devices(machine)

    def budgets(self, machine: Machine) -> tuple[Budget, ...]:
        from edgekit.engines.memo.budget import budgets

        return budgets(machine)

    def capacity_bytes(self, machine: Machine) -> int:
        from edgekit.engines.memo.budget import capacity_bytes

        return capacity_bytes(machine)

    def default_setup(self) -> MemoSetup:
        return flags.default_setup()

    def placements(self, task: Task) -> Iterator[Placement]:
        from edgekit.engines.memo.placements import placements

        return placements(task)

    def cache_choices(
        self, task: Task, placement: Placement | None = None
    ) -> tuple[CacheChoice, ...]:
        from edgekit.engines.memo.cache_choices import cache_choices

        return cache_choices(task, placement)

    def cache_name(self, load: Load, setup: MemoSetup) -> str:
        from edgekit.engines.memo.cache_choices import cache_name

        return cache_name(load, setup)

    def load_for_users(self, load: Load, users: int, native_tokens: int) -> Load:
        from edgekit.engines.memo.users import load_for_users

        return load_for_users(load, users, native_tokens)

    def settle(self, verdict: Verdict, values: Mapping[str, Any]) -> dict[str, Any]:
        from edgekit.engines.memo.commands import settle

        return settle(verdict, values)

    def estimate_words(
        self, values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened
    ) -> list[str]:
        from edgekit.engines.memo.commands import estimate_words

        return estimate_words(values, estimate, opened)


ENGINE = Memo()
