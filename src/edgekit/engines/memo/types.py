"""Nouns of a plan for a tier: the memory it is held against, what is wished for, what was chosen and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from edgekit.basis import Basis
from edgekit.bill.decisions import Decision, Lever
from edgekit.bill.types import MemoryEstimate
from edgekit.catalog.tiers import BASIS, WHAT_IF, Layout, Tier
from edgekit.engines.spill import Purpose, Spill, Store
from edgekit.errors import UsageError
from edgekit.units import GIB, LARGEST

OS_RESERVE_BYTES = 3 * GIB // 2  # of RAM; a card of its own has no such reserve
MIN_CONTEXT = 16_384  # the fewest tokens a tier is chosen for, as everywhere in EdgeKit
DRAFT_MAX = 6  # tokens a drafter runs ahead
MOST_USERS = 1024


class MemoryKind(enum.Enum):
    CARD = "card"  # memory of its own
    RAM = "ram"  # phones, Macs, processors: shared with the system


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMemory:
    """The one memory that a tier lies in."""

    name: str
    kind: MemoryKind
    total_bytes: int
    free_bytes: int
    limit_bytes: int | None = None  # the most of it that a GPU may wire, or an app hold
    store: Store = Store.NVME  # where cold pages of a cache would go
    store_room_bytes: int | None = None  # None: not known
    notes: tuple[str, ...] = ()

    @property
    def reserve_bytes(self) -> int:
        return OS_RESERVE_BYTES if self.kind is MemoryKind.RAM else 0

    @property
    def whole_bytes(self) -> int:
        """What there would be with nothing else running."""
        return max(0, self.total_bytes - self.reserve_bytes)

    @property
    def usable_bytes(self) -> int:
        """What a plan may take."""
        left = max(0, self.free_bytes - self.reserve_bytes)
        return left if self.limit_bytes is None else min(left, self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RamBudget:
    """What a machine needs to start a tier, and to run a long session of it."""

    min_bytes: int
    recommended_bytes: int
    source: str  # "manifest", or how it was made up


class RamLevel(enum.Enum):
    FITS = "fits"
    TIGHT = "tight"
    WONT_FIT = "won't fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class RamFit:
    """The guard's answer: whether a tier belongs on a machine of this size at all."""

    level: RamLevel
    budget: RamBudget
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierWish:
    """What somebody wants. What is None is chosen."""

    memory: TierMemory
    context_tokens: int | None = None  # of one user
    users: int | None = None  # so many, each with a window of their own; None: all share one
    layout: Layout | None = None
    engine: str = WHAT_IF
    prefer_accurate_kv: bool = False  # accuracy first, then the window
    with_drafter: bool = True
    purpose: Purpose = Purpose.TEXT
    min_context: int = MIN_CONTEXT
    manifest: RamBudget | None = None

    def __post_init__(self) -> None:
        for what, number in (
            ("the context", self.context_tokens),
            ("--min-context", self.min_context),
        ):
            if number is not None and not 1 <= number <= LARGEST:
                raise UsageError(f"{what} must be at least 1 (got {number:,})")
        if self.users is not None and not 1 <= self.users <= MOST_USERS:
            raise UsageError(
                f"the number of users must be 1 to {MOST_USERS:,} (got {self.users:,})"
            )

    @property
    def windows(self) -> int:
        """How many of the length that is told are held."""
        return self.users or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """What to run of the tiers. Where nothing holds: the least that would, and what is missing."""

    wish: TierWish = field(repr=False)
    tier: Tier
    layout: Layout
    context_tokens: int  # of one window
    parallel: int  # sequences at a time; they share the window, or each has one (users)
    ram: RamFit
    estimate: MemoryEstimate = field(repr=False)
    steps: tuple[Decision, ...] = field(repr=False)
    drafter: Tier | None = None
    draft_max: int = 0  # DRAFT_MAX with a drafter
    spill: Spill | None = None  # None: all of the cache stays
    reasons: tuple[str, ...] = ()  # why it does not hold
    to_add_bytes: int = 0  # memory that is missing for it
    basis: Basis = BASIS

    @property
    def holds(self) -> bool:
        return not self.reasons

    @property
    def asked(self) -> bool:
        return self.wish.context_tokens is not None

    @property
    def required_bytes(self) -> int:
        """In the memory that the tier lies in: not what was spilled."""
        return self.estimate.total(lambda line: line.part != SPILLED)

    @property
    def left_bytes(self) -> int:
        return self.wish.memory.usable_bytes - self.required_bytes

    @property
    def rank(self) -> tuple[float, ...]:
        """The larger, the better: holds, whole in memory, bigger model, longer, more accurate, drafter, sequences."""
        length, accuracy = self.context_tokens, self.layout.bits
        middle = (accuracy, length) if self.wish.prefer_accurate_kv else (length, accuracy)
        whole, drafted = self.spill is None, self.drafter is not None
        return (self.holds, whole, self.tier.weights_bytes, *middle, drafted, self.parallel)

    def step(self, lever: Lever) -> Decision | None:
        return next((one for one in self.steps if one.lever is lever), None)


SPILLED = "spilled"  # the part of a bill that lies in the memory of the host beside a card
