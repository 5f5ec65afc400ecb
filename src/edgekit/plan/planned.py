"""Nouns of a plan: what is wished for, what can be chosen, what was decided and why."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from edgekit.bill.decisions import Decision, Lever
from edgekit.bill.task import CacheChoice, Drafter, Job, Start, Variant
from edgekit.bill.types import Load
from edgekit.bill.verdict import Change, Speed, Verdict
from edgekit.machine.types import Machine
from edgekit.plan.choice import READING_TOKENS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants of one model on one machine. What is None is chosen."""

    label: str
    variants: tuple[Variant, ...]  # the most accurate first
    engine: str
    machine: Machine
    load: Load = field(default_factory=Load)  # its context is that of one user
    start: Start = field(default_factory=Start)
    users: int | None = None  # sequences of that length at the same time
    job: Job | None = None  # instead of a context
    min_context: int | None = None
    prefer_accurate_cache: bool = False  # never a smaller cache than the engine's own
    max_use: float | None = None
    reserve_bytes: int | None = None
    drafters: tuple[Drafter, ...] = ()  # in the order in which they are tried
    nodes: int = 1  # machines like this one (vLLM on Ray)
    repository: str = ""  # on the hub: what the weights are, or are made from; "": not known
    is_remote: bool = False  # the weights are not on this machine
    cancelled: threading.Event | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `result` is its bill against the memory."""

    wish: Wish = field(repr=False)
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
