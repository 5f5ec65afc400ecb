"""A plan: what to run, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit.bill.decisions import Decision, Lever
from edgekit.bill.task import CacheChoice, Drafter, Task, Variant
from edgekit.bill.types import Load
from edgekit.bill.verdict import Change, Speed, Verdict
from edgekit.plan.choice import READING_TOKENS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `result` is its bill against the memory."""

    task: Task = field(repr=False)
    variant: Variant
    load: Load  # context of all users together, cache types, sequences
    choice: CacheChoice | None = None  # of the cache
    result: Verdict
    decisions: tuple[Decision, ...]  # in the order of the levers
    drafter: Drafter | None = None  # a draft model that would fit as well; not in the bill
    speed: Speed | None = None
    steady_tokens_per_s: float | None = (
        None  # the middle, with an empty cache: plans are compared by it
    )
    to_fit: tuple[Change, ...] = ()  # what would help where it does not fit
    changes: tuple[Change, ...] = ()  # what would change it where it does

    @property
    def fits(self) -> bool:
        return self.result.can_load

    @property
    def context_tokens(self) -> int:
        """Of one user."""
        return self.result.context_tokens // self.result.streams

    @property
    def is_slow(self) -> bool:
        """Whether the speed that is shown, rounded, is below reading speed. An unknown speed is not called slow."""
        return self.speed is not None and round(self.speed.typical, 1) < READING_TOKENS_PER_S

    def decision(self, lever: Lever) -> Decision | None:
        return next((one for one in self.decisions if one.lever is lever), None)
