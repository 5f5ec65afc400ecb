"""A bill compared with a machine's memory: usage, verdict, decisions and the changes that would help."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from edgekit.basis import Basis
from edgekit.bill.types import CACHES, Component, Load, MemoryEstimate, Placement, Variant
from edgekit.machine.types import HOST, Budget, Machine
from edgekit.units import GIB

# SPEC A1: a known bill may use all of the usable memory; above 85 % it is tight.
COMFORTABLE_PERCENT = 85
# SPEC P11: the thresholds for an estimate that is based on an assumption (a bare name, an unknown architecture).
ASSUMED_SAFE_PERCENT, ASSUMED_FULL_PERCENT = 70, 85


class Status(enum.Enum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of one memory a bill uses, and the verdict on it (SPEC A1)."""

    budget: Budget
    required_bytes: int
    bound_bytes: int = 0  # the error bounds of its modelled lines, plus `covered_bytes`
    covered_bytes: int = 0  # the first request takes these from the reserve; not in required_bytes
    assumed: bool = False  # at least one line is ASSUMED
    max_use: float | None = None  # the user's own limit, as a share of the usable memory

    @property
    def utilization(self) -> float:
        """Required / available; infinite if something is required and nothing is available."""
        if not self.required_bytes:
            return 0.0
        available = self.budget.available_bytes
        return self.required_bytes / available if available else math.inf

    @property
    def status(self) -> Status:
        """The verdict on this memory. Compared in integers, so that exactly 85 % is not above 85 %."""
        required, usable = self.required_bytes, self.budget.available_bytes
        most = ASSUMED_FULL_PERCENT if self.assumed else 100
        if self.budget.blocked:
            return Status.FAILED
        if not required:
            return Status.PASSED
        if required * 100 > usable * most or required > usable * (self.max_use or 1.0):
            return Status.FAILED
        if self.budget.has_default_reserve and required + self.bound_bytes > self.budget.free_bytes:
            return Status.FAILED
        if self.assumed:
            is_safe = required * 100 < usable * ASSUMED_SAFE_PERCENT
        else:
            is_safe = self.budget.is_share or required * 100 <= usable * COMFORTABLE_PERCENT
        return Status.PASSED if is_safe else Status.WARNING

    @property
    def fullness(self) -> float:
        """Usage relative to the limit: above 1 it does not fit."""
        return fullness((self,))


def fullness(uses: Iterable[Usage]) -> float:
    """Usage of several memories together relative to their limit; above 1 it does not fit."""
    every = tuple(uses)
    required = sum(use.required_bytes for use in every)
    if not required:
        return 0.0
    usable = sum(use.budget.available_bytes for use in every)
    if not usable:
        return math.inf
    most = ASSUMED_FULL_PERCENT / 100 if any(use.assumed for use in every) else 1.0
    most = min(most, *(use.max_use or 1.0 for use in every))
    found = required / (usable * most)
    if all(use.budget.has_default_reserve for use in every):
        bounds = sum(use.bound_bytes for use in every)
        found = max(found, (required + bounds) / sum(use.budget.free_bytes for use in every))
    return found


_WORST = (Status.PASSED, Status.WARNING, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLoad:
    """A bill and its usage of every budget."""

    context_tokens: int
    estimate: MemoryEstimate = field(repr=False)
    uses: tuple[Usage, ...]
    placement: Placement = field(repr=False)
    refused: str = ""  # why the engine would not start, regardless of memory

    @property
    def tightest(self) -> Usage:
        return max(self.uses, key=lambda use: (use.utilization, use.required_bytes))

    @property
    def fullness(self) -> float:
        return max(use.fullness for use in self.uses)

    @property
    def status(self) -> Status:
        if self.refused:
            return Status.FAILED
        return max((use.status for use in self.uses), key=_WORST.index)

    @property
    def fits(self) -> bool:
        return self.status is not Status.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second, each as a range from slow to fast. MODELLED at best, never EXACT."""

    decode: tuple[float, float]
    prefill: tuple[float, float] | None  # None: the device's compute rate is unknown
    because: str
    basis: Basis = Basis.MODELLED

    @property
    def typical(self) -> float:
        """The geometric mean of the decode range."""
        return math.sqrt(math.prod(self.decode))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a model fits. `required_bytes` and `available_bytes` refer to the tightest memory.

    >>> from edgekit.models import model_preflight
    >>> result = model_preflight("sample:gemma-3-27b", "llama.cpp", ram="64G")
    >>> result.passed, result.can_load, f"{result.required_gb / result.available_gb:.2f}" == f"{result.utilization:.2f}"
    (True, True, True)
    """

    engine: str
    status: Status
    context_tokens: int  # what the verdict is for
    asked: bool  # the caller requested this context
    max_context: int  # the longest that fits with these weights, this cache and placement
    quantization: str = ""  # of the weights: "Q4_K_M", "4 bit", "as stored"
    cache: str = ""  # cache type: "f16", "q8_0", "fp8", "8 bit"
    cache_asked: bool = False  # the caller requested this cache
    step: int = 0  # the step of SPEC A4's list that was taken; 0: nothing fits
    variant: Variant | None = field(default=None, repr=False)
    load: Load = field(default_factory=Load, repr=False)  # what the engine has to hold
    streams: int = 1  # sequences that the context is divided among, if they do not share a cache
    recommended_context: int
    native_context: int | None
    uses: tuple[Usage, ...]
    speed: Speed | None = None  # None: unknown
    estimate: MemoryEstimate = field(repr=False)
    reasons: tuple[str, ...]  # why it failed; empty if it did not
    window: str  # the reason for the context
    way: Placement
    machine: Machine = field(repr=False)

    @property
    def tightest(self) -> Usage:
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


class ChangeKind(enum.Enum):
    CONTEXT = "context"
    CACHE = "cache"
    WEIGHTS = "weights"
    PLACEMENT = "placement"
    ENGINE = "engine"
    MEMORY = "memory"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One suggestion to the user, and what it achieves."""

    kind: ChangeKind
    value: str  # "q8_0", "Q3_K_M", "RTX 4090", "16384"
    told: str  # the suggestion as a sentence
    flags: Mapping[str, str] = field(
        default_factory=dict
    )  # by their REST names; empty: no flag does it
    max_context: int | None = None  # after the change
    result: Verdict | None = field(default=None, repr=False)


PreflightResult = Verdict  # its public name


def for_bill(budget: Budget, estimate: MemoryEstimate, *, mapped_weights: bool = True) -> Budget:
    """The budget for a bill that leaves layers, experts or the token embeddings on the CPU.

    Vulkan and ROCm pin some host memory, which counts against the GPU's limit: graph buffers, and weights that are not
    mapped from the file. Metal pins none.
    """
    if budget.limit_bytes is None:
        return budget
    unpinned = CACHES | {Component.WEIGHTS} if mapped_weights else CACHES
    if estimate.backend == "metal":
        unpinned = frozenset(Component)
    unused = max(0, budget.gpu_only_bytes - estimate.in_pools(budget.pools - {HOST}))
    return replace(
        budget,
        free_bytes=budget.free_bytes - unused,
        gpu_only_bytes=budget.gpu_only_bytes - unused,
        cpu_bytes=estimate.total(lambda line: line.pool == HOST and line.component in unpinned),
    )


def covered_bytes(budget: Budget, estimate: MemoryEstimate) -> int:
    """Bytes that may come out of the default reserve, as in llama.cpp's --fit: the shortfall, if it is at most what the
    first request allocates. A reserve that the user set is never touched.
    """
    missing = max(0, estimate.in_pools(budget.pools) - budget.unreserved_bytes)
    if not missing or not budget.has_default_reserve or budget.limit_bytes is not None:
        return 0
    taken = estimate.total(lambda line: line.first_request and line.pool in budget.pools)
    return missing if missing <= taken else 0


class Lever(enum.Enum):
    """A setting that a plan chooses, in the order in which memory is spent on it."""

    WEIGHTS = "weights"  # a bigger model, or a more accurate file of one model
    PLACEMENT = "placement"
    CONTEXT = "context"
    CACHE = "cache"
    DRAFTER = "drafter"
    SEQUENCES = "sequences"
    LIMIT = "limit"  # the system's limit on GPU memory, such as macOS's wired limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting of a lever that was tried."""

    value: str
    outcome: str | Callable[[], str] = field(compare=False)  # a function if it needs another bill
    taken: bool = False

    @property
    def told(self) -> str:
        return self.outcome if isinstance(self.outcome, str) else self.outcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The setting of one lever, and why."""

    lever: Lever
    value: str  # "Q5_K_M", "32,768 tokens", "q8_0"
    because: str
    tried: tuple[Tried, ...] = ()
