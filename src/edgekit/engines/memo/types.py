"""Nouns of the context-scaling document's engine: how a tier is set up, what it needs, and what was chosen for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from edgekit.bill.spill import Purpose, Spill
from edgekit.bill.types import Load
from edgekit.bill.verdict import Decision, Lever, Verdict
from edgekit.catalog.tiers import WHAT_IF, Layout, Tier
from edgekit.machine.types import HOST, Budget, Pool
from edgekit.units import MIB

OS_RESERVE_BYTES = 1536 * MIB  # of RAM; none of a card
MIN_CONTEXT = 16_384  # tokens, if no minimum is given
DRAFT_MAX = 6  # tokens that a draft model predicts ahead
MOST_USERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RamNeed:
    """What a machine needs to start a tier, and to run a long session of it."""

    min_bytes: int
    recommended_bytes: int
    source: str  # "manifest", or what it was computed from


class RamLevel(enum.Enum):
    FITS = "fits"
    TIGHT = "tight"
    WONT_FIT = "won't fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RamFit:
    """The guard's answer: whether a machine of this size should run a tier at all."""

    level: RamLevel
    need: RamNeed
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoSetup:
    """How a tier is run. The drafter and the spill are chosen."""

    engine: str = WHAT_IF  # only its cache layouts are used
    pool: Pool = HOST  # the memory that the tier is in
    prefer_accurate_kv: bool = False  # accuracy of the cache before length of the context
    may_draft: bool = True
    purpose: Purpose = Purpose.TEXT
    manifest: RamNeed | None = None  # of an installed bundle
    drafter: Tier | None = None
    spill: Spill | None = None  # None: the whole cache stays in memory


def windows_of(load: Load) -> int:
    """How many contexts are held: sequences share one unless each is given its own."""
    return (load.sequences or 1) if load.unified is False else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """The verdict on a tier as it is best run, and why. If it does not fit: the minimum, and what is missing."""

    tier: Tier
    layout: Layout
    verdict: Verdict
    ram: RamFit
    steps: tuple[Decision, ...] = field(repr=False)
    to_add_bytes: int = 0  # missing memory

    @property
    def setup(self) -> MemoSetup:
        found: MemoSetup = self.verdict.way.setup
        return found

    @property
    def budget(self) -> Budget:
        """Of the memory that the tier is in."""
        return self.verdict.way.budgets[0]

    @property
    def required_bytes(self) -> int:
        """In that memory: without spilled pages."""
        return self.verdict.uses[0].required_bytes

    @property
    def parallel(self) -> int:
        return self.verdict.load.sequences or 1

    @property
    def rank(self) -> tuple[float, ...]:
        """The larger, the better: fits, not spilled, bigger model, longer, more accurate, drafter, sequences."""
        length, accuracy = self.verdict.context_tokens, self.layout.bits
        setup = self.setup
        middle = (accuracy, length) if setup.prefer_accurate_kv else (length, accuracy)
        whole, drafted = setup.spill is None, setup.drafter is not None
        fits = self.verdict.can_load
        return (fits, whole, self.tier.weights_bytes, *middle, drafted, self.parallel)

    def step(self, lever: Lever) -> Decision | None:
        return next((one for one in self.steps if one.lever is lever), None)
