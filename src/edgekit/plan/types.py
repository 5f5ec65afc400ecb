"""Nouns of the seventh room: a bill held against what a machine has, and the choices that follow."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.engine.types import Model
from edgekit.hardware.budgets import Budget
from edgekit.hardware.types import Accelerator, Machine
from edgekit.memory.types import Load, MemoryEstimate
from edgekit.units import GIB

SAFE_PERCENT = 70  # below it a load is comfortable
FULL_PERCENT = 85  # above it a load is not tried
WINDOW_BUDGET_BYTES = 4 * GIB  # of cache, for a run that named no context

Bill = Callable[[Load, Any], MemoryEstimate]


class Status(enum.Enum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a bill takes of one budget."""

    budget: Budget
    required_bytes: int

    @property
    def utilization(self) -> float:
        """A share; infinite where nothing may be used and something is needed."""
        if not self.required_bytes:
            return 0.0
        available = self.budget.available_bytes
        return self.required_bytes / available if available else float("inf")

    @property
    def status(self) -> Status:
        """In whole numbers: 85 % of the memory is not above 85 %."""
        required, available = self.required_bytes * 100, self.budget.available_bytes
        if not required or required < available * SAFE_PERCENT:
            return Status.PASSED
        return Status.WARNING if required <= available * FULL_PERCENT else Status.FAILED


_WORST = (Status.PASSED, Status.WARNING, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A bill and what it takes of every budget."""

    context_tokens: int
    estimate: MemoryEstimate = field(repr=False)
    uses: tuple[Use, ...]
    way: Way = field(repr=False)
    refused: str = ""  # why the engine would not start with this, however much is free

    @property
    def tightest(self) -> Use:
        return max(self.uses, key=lambda use: (use.utilization, use.required_bytes))

    @property
    def status(self) -> Status:
        if self.refused:
            return Status.FAILED
        return max((use.status for use in self.uses), key=_WORST.index)

    @property
    def fits(self) -> bool:
        return self.status is not Status.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A known piece of work."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How many tokens to hold, and why so many."""

    context_tokens: int
    cache_bytes: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an engine would be started, and the budgets it is then held against."""

    setup: Any = field(repr=False)
    budgets: tuple[Budget, ...]
    because: str  # where the model lies, in words
    cards: tuple[Accelerator, ...] = ()  # the devices it computes on, in the engine's order
    may_resplit: bool = False  # layers may be divided otherwise among several cards
    whole: bool = False  # nothing of it that could lie on a device lies elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The setup that was asked for, and which of its fields the caller has settled."""

    setup: Any = None
    settled: frozenset[str] = frozenset()


Ways = tuple[Way, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: which model, on which engine and machine, for which load."""

    model: Model = field(repr=False)
    engine: str
    machine: Machine
    load: Load = field(default_factory=Load)
    start: Start = field(default_factory=Start)
    bill: Bill | None = field(
        default=None, repr=False
    )  # None: the engine's own, of the model alone
    job: Job | None = None
    min_context: int | None = None
    window_budget_bytes: int = WINDOW_BUDGET_BYTES
    most_cards: int | None = None  # use the largest so many; None: all that are worth it
    nodes: int = 1  # machines like this one, joined by Ray (vLLM)
    in_one_batch: bool = False  # an input is computed at once, up to the whole context
    alternatives: tuple[str, ...] = ()  # other quantisations that the repository has
    cancelled: threading.Event | None = field(
        default=None, repr=False, compare=False
    )  # set: nobody waits any more

    def load_of(self, tokens: int) -> Load:
        """What is asked of the engine for a context of that length."""
        load = replace(self.load, context_tokens=tokens)
        if not self.in_one_batch:
            return load
        each = load.sequences or 1  # a mean over each needs whole ones
        whole = -(-tokens // each) * each
        batch, microbatch = load.batch_tokens, load.microbatch_tokens  # what was said is kept
        return replace(
            load,
            batch_tokens=batch or microbatch or whole,
            microbatch_tokens=microbatch or batch or whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """Whether a model fits. Required and available are those of the memory that is tightest.

    >>> from edgekit.models import model_preflight
    >>> result = model_preflight("sample:gemma-3-27b", "llama.cpp", ram="64G")
    >>> result.passed, result.can_load, f"{result.required_gb / result.available_gb:.2f}" == f"{result.utilization:.2f}"
    (True, True, True)
    """

    engine: str
    status: Status
    context_tokens: int  # what the verdict is for
    asked: bool  # whether the caller named it
    max_context: int  # the longest that fits there, with however many layers on the devices
    way_context: int  # the longest that fits with this way
    streams: int = 1  # sequences that a context is divided among, where they share no cache
    recommended_context: int
    native_context: int | None
    uses: tuple[Use, ...]
    estimate: MemoryEstimate = field(repr=False)
    reasons: tuple[str, ...]  # why it failed; empty where it did not
    window: str  # why so many tokens, where none were asked for
    way: Way
    machine: Machine = field(repr=False)

    @property
    def tightest(self) -> Use:
        return max(self.uses, key=lambda use: (use.utilization, use.required_bytes))

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def warning(self) -> bool:
        return self.status is Status.WARNING

    @property
    def failed(self) -> bool:
        return self.status is Status.FAILED

    @property
    def can_load(self) -> bool:
        return not self.failed

    @property
    def required_bytes(self) -> int:
        return self.tightest.required_bytes

    @property
    def available_bytes(self) -> int:
        return self.tightest.budget.available_bytes

    @property
    def required_gb(self) -> float:
        return self.required_bytes / GIB

    @property
    def available_gb(self) -> float:
        return self.available_bytes / GIB

    @property
    def utilization(self) -> float:
        return self.tightest.utilization

    def raise_if_failed(self) -> None:
        """Raises MemoryError with the reasons and the numbers."""
        if self.failed:
            raise MemoryError("; ".join(self.reasons))
