"""The values that engines, plans and reports share.

A bill is a list of memory lines for a load and a setup. A task states the model, the engine and the machine; a verdict
compares its bill with the budgets of a placement; changes and decisions say what would help and what was chosen.
"""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from edgekit.bill.waits import FirstToken, LoadTime
from edgekit.errors import HeaderError, UsageError
from edgekit.machine.types import DEVICE, HOST, Budget, Device, Machine, Pool, PoolKind
from edgekit.model.types import Model, embeds_in_one_batch
from edgekit.units import GIB, Basis


class Component(enum.Enum):
    """The kind of memory that a line of the bill counts."""

    WEIGHTS = "weights"
    KV_CACHE = "kv cache"
    SLIDING_KV_CACHE = "sliding kv cache"
    STATE = "recurrent state"
    OUTPUT = "output"  # logits and embeddings handed to the caller
    COMPUTE = "compute"  # intermediate results
    RUNTIME = "runtime"  # the engine and its driver: contexts, libraries, graphs
    PROMPT_CACHE = "prompt cache"  # cached prompts, outside the engine's buffers
    CHECKPOINTS = "checkpoints"  # saved states of sliding and recurrent caches


LARGEST_BYTES = 2**63 - 1
CACHES = frozenset({Component.KV_CACHE, Component.SLIDING_KV_CACHE, Component.STATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """One line of the bill."""

    component: Component
    size_bytes: int
    pool: Pool
    layer: int | None = None  # None: not of a single layer
    basis: Basis = Basis.EXACT
    because: str = ""  # the arithmetic with this model's numbers
    within: float | None = None  # ASKED, MODELLED: the error bound, as a share of the line
    reserved: bool = True  # False: not allocated at start, may grow to this size (a prompt cache)
    part: str = ""  # the companion it belongs to: "drafter", "projector", "adapter"; "": the model
    first_request: bool = False  # allocated by the first request, not at start


def modelled_line(component: Component, size_bytes: int, within: float, because: str) -> MemoryLine:
    """A line in the device's memory that is right up to the share `within`."""
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=DEVICE,
        basis=Basis.MODELLED,
        because=because,
        within=within,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """An element type of a cache: a block of numbers and its size."""

    name: str
    block_elements: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block_elements > 1

    @property
    def bits(self) -> float:
        return self.block_bytes * 8 / self.block_elements

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row, which must be a multiple of the block."""
        return elements // self.block_elements * self.block_bytes

    def divides(self, elements: int) -> bool:
        return elements % self.block_elements == 0


def _row(name: str, elements: int, size_bytes: int) -> CacheType:
    return CacheType(name=name, block_elements=elements, block_bytes=size_bytes)


TABLE: tuple[CacheType, ...] = (
    _row("f32", 1, 4),
    _row("f16", 1, 2),
    _row("bf16", 1, 2),
    _row("fp8", 1, 1),
    _row("q8_0", 32, 34),
    _row("q5_1", 32, 24),
    _row("q5_0", 32, 22),
    _row("q4_1", 32, 20),
    _row("q4_0", 32, 18),
    _row("iq4_nl", 32, 18),
    # The compressed layouts of the what-if engine: keys 2.125 bits, values 3.5 or 4.5.
    _row("qjl1_256", 256, 68),
    _row("turbo3_0", 256, 112),
    _row("q4_polar", 256, 144),
)

F32, F16, BF16 = TABLE[0], TABLE[1], TABLE[2]
_BY_NAME = {row.name: row for row in TABLE}


def cache_type(name: str) -> CacheType:
    """The type of this name. Raises UsageError that lists the names."""
    row = _BY_NAME.get(name.lower())
    if row is None:
        raise UsageError(f"unknown cache type {name[:40]!r}; choose one of {', '.join(_BY_NAME)}")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The context, batches and sequences that an engine has to hold at once. None: the engine's default."""

    context_tokens: int | None = None  # None: the native window
    sequences: int | None = None
    batch_tokens: int | None = None
    microbatch_tokens: int | None = None
    output_rows: int | None = None  # rows of logits of one micro-batch
    cache_k: CacheType | None = None
    cache_v: CacheType | None = None
    flash_attention: bool | None = None
    unified: bool | None = None  # all sequences share one cache
    full_window: bool = False  # sliding-window layers cache the whole context


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The bill: every total, table and decision is a sum or a filter over its lines.

    >>> from edgekit.models import model_preflight
    >>> bill = model_preflight("sample:gemma-3-27b", "llama.cpp", ram="64G", context=8192).estimate
    >>> bill.total_bytes == bill.weights_bytes + bill.kv_cache_bytes + bill.overhead_bytes, bill.basis.name
    (True, 'EXACT')
    """

    engine: str
    backend: str
    lines: tuple[MemoryLine, ...] = field(repr=False)
    facts: tuple[tuple[str, object], ...] = ()  # what the engine resolved: cells, blocks, groups
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.total_bytes > LARGEST_BYTES:
            raise HeaderError(
                "the sizes in the header add up to more than 64-bit arithmetic can hold"
            )

    def total(self, keep: Callable[[MemoryLine], bool] | None = None) -> int:
        """Bytes of the reserved lines for which `keep` is true."""
        return sum(
            line.size_bytes for line in self.lines if line.reserved and (keep is None or keep(line))
        )

    def in_pools(self, pools: Collection[Pool]) -> int:
        """Bytes of the reserved lines in these pools."""
        return self.total(lambda line: line.pool in pools)

    def bounds_in(self, pools: Collection[Pool]) -> tuple[int, bool]:
        """Bytes that the error bounds of these pools' reserved lines could add, and whether a line has no bound.

        Runtime lines without a bound do not count as unbounded.
        """
        added_bytes, has_unbounded = 0.0, False
        for line in self.lines:
            if line.basis is Basis.EXACT or not line.reserved or line.pool not in pools:
                continue
            if line.within is not None:
                added_bytes += line.size_bytes * line.within
            elif line.size_bytes and line.component is not Component.RUNTIME:
                has_unbounded = True
        return math.ceil(added_bytes), has_unbounded

    def of(self, *components: Component) -> int:
        """Bytes of the reserved lines of these components."""
        return self.total(lambda line: line.component in components)

    def in_pool(self, kind: PoolKind) -> int:
        """Bytes of the reserved lines in pools of this kind."""
        return self.total(lambda line: line.pool.kind is kind)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools that the bill uses: devices first, in order."""
        pools = {line.pool for line in self.lines if line.size_bytes}
        return tuple(sorted(pools, key=lambda pool: (pool.kind is PoolKind.HOST, pool.index)))

    @property
    def total_bytes(self) -> int:
        return self.total()

    @property
    def weights_bytes(self) -> int:
        return self.of(Component.WEIGHTS)

    @property
    def kv_cache_bytes(self) -> int:
        """Caches and recurrent states."""
        return self.of(*CACHES)

    @property
    def overhead_bytes(self) -> int:
        """Everything except weights and caches."""
        return self.total_bytes - self.weights_bytes - self.kv_cache_bytes

    @property
    def basis(self) -> Basis:
        """The weakest basis of any reserved line."""
        return weakest(line.basis for line in self.lines if line.size_bytes and line.reserved)

    @property
    def weights_gb(self) -> float:
        return self.weights_bytes / GIB

    @property
    def kv_cache_gb(self) -> float:
        return self.kv_cache_bytes / GIB

    @property
    def overhead_gb(self) -> float:
        return self.overhead_bytes / GIB

    @property
    def total_gb(self) -> float:
        return self.total_bytes / GIB


_STRENGTH = (Basis.EXACT, Basis.ASKED, Basis.MODELLED, Basis.ASSUMED)


def weakest(bases: Iterable[Basis]) -> Basis:
    """The basis of a sum of numbers with these bases."""
    return max(bases, key=_STRENGTH.index, default=Basis.EXACT)


def is_asked(estimate: MemoryEstimate) -> bool:
    """Whether it is the bill of the engine itself."""
    return any(line.basis is Basis.ASKED for line in estimate.lines)


def no_better_than(line: MemoryLine, basis: Basis, within: float | None = None) -> MemoryLine:
    """The line with its basis weakened to this one, if it is stronger. `within`: its error bound if MODELLED."""
    if weakest((basis, line.basis)) is line.basis:
        return line
    return replace(line, basis=basis, within=within if basis is Basis.MODELLED else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How an engine is started, in its own options. The setup of each engine derives from this class."""

    embeddings: bool = False  # returns embeddings instead of text
    use_mmap: bool = True  # maps the weights from the file, so that they are not copied

    @classmethod
    def of(cls, setup: Setup | None) -> Self:
        """The setup as the type of one engine. Raises TypeError if it belongs to another engine."""
        if not isinstance(setup, cls):
            raise TypeError(f"{type(setup).__name__} is not a {cls.__name__}")
        return setup

    def changed(self, **changes: Any) -> Self:
        """A copy with these fields changed."""
        return replace(self, **changes)


GOOD_ACCURACY = 400  # in hundredths of a bit per weight
Price = Callable[[Load, Setup], MemoryEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prompt and an answer of known length."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How an engine would be started, and the budgets for its bill."""

    setup: Setup = field(repr=False)
    budgets: tuple[Budget, ...]
    because: str  # where the model is placed, for reports
    cards: tuple[Device, ...] = ()  # the devices it computes on, in the engine's order
    may_resplit: bool = False  # layers may be split differently among several cards
    may_fill: bool = False  # memory that the load leaves free may hold more weights
    whole: bool = False  # everything that a device can hold is on a device
    all_layers: bool = False  # every layer is on a device, except perhaps experts
    by_number: bool = False  # the card is selected by its index among all cards of the machine
    by_tensor: bool = False  # experts are placed by tensor (-ot), more finely than -ncmoe can
    is_short_command: bool = False  # with `by_tensor`: a single pattern instead of one per layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One quantisation of a model: a file that exists, or one that could be made."""

    name: str  # "Q4_K_M", "4 bit", "as stored"
    model: Model = field(repr=False)
    accuracy: int  # in hundredths of a bit per weight
    changes: Mapping[str, object] = field(default_factory=dict)  # to the engine's setup
    flags: Mapping[str, str] = field(default_factory=dict)  # the changes as flags of a request
    reference: str = ""  # what to open; "": has to be made or found first

    @property
    def is_good(self) -> bool:
        """Whether it has about four bits or more; below that, answers get clearly worse."""
        return self.accuracy >= GOOD_ACCURACY


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """One cache type. `place` 0 is the engine's default, 1 the next smaller type."""

    name: str  # "f16", "q8_0", "q8_0 + q4_0", "fp8", "8 bit"
    place: int
    flags: str  # the flags that select it
    is_given: bool = False  # requested by the caller
    is_eight_bit: bool = False
    load: Mapping[str, CacheType] = field(default_factory=dict)  # cache_k and cache_v
    setup: Mapping[str, object] = field(default_factory=dict)  # changed fields of the setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The requested setup, and which of its fields the caller set."""

    setup: Setup | None = None  # None: the engine's defaults
    fixed_flags: frozenset[str] = frozenset()  # keys of the flags that were given


OWN_LAYERS = "its own prediction layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A smaller model with the same vocabulary, or the model's own prediction layers."""

    name: str
    model: Model | None = field(default=None, repr=False)  # None: the model's own prediction layers
    mix: str | None = None  # the quantisation to make of it; None: as stored
    because: str = ""  # why its vocabulary is considered the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One model on one engine and one machine, with a load."""

    model: Model = field(repr=False)
    # Weights to choose from, the most accurate first; empty: the model as it is.
    variants: tuple[Variant, ...] = field(default=(), repr=False)
    engine: str
    machine: Machine
    load: Load = field(default_factory=Load)
    start: Start = field(default_factory=Start)
    bill: Price | None = field(default=None, repr=False)  # None: the engine's bill of the model
    # Lines of a file that the engine loads with any of the variants: the projector of a repository.
    companion_lines: Callable[[Load, Setup], tuple[MemoryLine, ...]] | None = field(
        default=None, repr=False
    )
    job: Job | None = None
    prompt_tokens: int | None = None  # of the prompt for which the time to the first token is given
    min_speed: float | None = None  # tokens per second; slower settings are not chosen
    min_context: int | None = None
    window_budget_bytes: int | None = None  # SPEC W2: size of the cache if no context is given
    max_use: float | None = None  # SPEC A1: reject above this share of the usable memory
    reserve_bytes: int | None = None  # overrides the engine's reserve
    keep_spare: bool = False  # leave spare memory to other models
    own_cache_only: bool = False  # never choose a smaller cache than the engine's default
    nodes: int = 1  # machines like this one, joined by Ray (vLLM)
    alternatives: tuple[str, ...] = ()  # other quantisations that the repository has
    label: str = ""  # the model's name in reports
    repository: str = ""  # on the hub, of the weights or of their source; "": unknown
    is_remote: bool = False  # the weights are not on this machine
    from_index: bool = False  # the index answers for a repository that could not be read
    users: int | None = None  # as requested; `load` is for all of them
    drafters: tuple[Drafter, ...] = ()  # candidates, in the order in which they are tried
    drafter: Drafter | None = None  # loaded with the model
    acceptance: float | None = None  # share of the drafted tokens that are accepted, as stated
    # Set when the caller has disconnected.
    cancelled: threading.Event | None = field(default=None, repr=False, compare=False)

    @property
    def embeds(self) -> bool:
        """Whether the engine is to return embeddings."""
        return self._starts_to_embed or self.model.geometry.embeds

    @property
    def in_one_batch(self) -> bool:
        """Whether an input must fit in one batch: for embeddings, unless only the last token is pooled.

        server-context.cpp @ b21e4de: can_split.
        """
        return self._starts_to_embed and embeds_in_one_batch(self.model.geometry)

    @property
    def _starts_to_embed(self) -> bool:
        return self.start.setup is not None and self.start.setup.embeddings

    def load_of(self, tokens: int) -> Load:
        """The load with a context of this length."""
        load = replace(self.load, context_tokens=tokens)
        if not self.in_one_batch:
            return load
        # An embedding pools a whole sequence, so one batch must hold the whole context; rounded up to whole sequences.
        sequences = load.sequences or 1
        needed = -(-tokens // sequences) * sequences
        batch, microbatch = load.batch_tokens, load.microbatch_tokens  # values from the caller win
        return replace(
            load,
            batch_tokens=batch or microbatch or needed,
            microbatch_tokens=microbatch or batch or needed,
        )


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
        max_percent = ASSUMED_FULL_PERCENT if self.assumed else 100
        if self.budget.blocked:
            return Status.FAILED
        if not required:
            return Status.PASSED
        if required * 100 > usable * max_percent or required > usable * (self.max_use or 1.0):
            return Status.FAILED
        if self.budget.has_default_reserve and required + self.bound_bytes > self.budget.free_bytes:
            return Status.FAILED
        if self.assumed:
            is_safe = required * 100 < usable * ASSUMED_SAFE_PERCENT
        else:
            is_safe = self.budget.is_share or required * 100 <= usable * COMFORTABLE_PERCENT
        return Status.PASSED if is_safe else Status.WARNING

    @property
    def comfortable_bytes(self) -> int:
        """The largest bill of EXACT lines that has memory to spare."""
        usable = self.budget.available_bytes
        return min(usable * COMFORTABLE_PERCENT // 100, int(usable * (self.max_use or 1.0)))

    @property
    def fullness(self) -> float:
        """Usage relative to the limit: above 1 it does not fit."""
        return fullness((self,))


def fullness(uses: Iterable[Usage]) -> float:
    """Usage of several memories together relative to their limit; above 1 it does not fit."""
    uses = tuple(uses)
    required = sum(use.required_bytes for use in uses)
    if not required:
        return 0.0
    usable = sum(use.budget.available_bytes for use in uses)
    if not usable:
        return math.inf
    max_share = ASSUMED_FULL_PERCENT / 100 if any(use.assumed for use in uses) else 1.0
    max_share = min(max_share, *(use.max_use or 1.0 for use in uses))
    share = required / (usable * max_share)
    if all(use.budget.has_default_reserve for use in uses):
        bounds = sum(use.bound_bytes for use in uses)
        share = max(share, (required + bounds) / sum(use.budget.free_bytes for use in uses))
    return share


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


SPEED_INTERVAL = 0.8  # the probability that a speed is within its interval


USUAL_PROMPT_TOKENS = 1000


class Moment(NamedTuple):
    """What the engine does when its speed is measured."""

    filled_tokens: int = 0  # already in the context
    prompt_tokens: int = USUAL_PROMPT_TOKENS
    users: int = 1  # who get answers at the same time
    drafted_tokens: int = 0  # of each user, checked together with the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second, each as an 80 % interval. MODELLED at best, never EXACT.

    The typical value of an interval is its geometric mean.
    """

    decode: tuple[float, float]
    prefill: tuple[float, float] | None  # None: the device's compute rate is unknown
    because: str
    basis: Basis = Basis.MODELLED

    @property
    def typical(self) -> float:
        """The typical decode speed."""
        return math.sqrt(math.prod(self.decode))

    @property
    def typical_prefill(self) -> float | None:
        """The typical speed of a prompt; None if it is unknown."""
        return None if self.prefill is None else math.sqrt(math.prod(self.prefill))

    def typical_for(self, *, embeds: bool) -> float | None:
        """The typical speed that matters: of decoding, or of reading for an embedding model."""
        return self.typical_prefill if embeds else self.typical


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The speed with a drafter, if this share of its tokens is accepted."""

    drafter: Drafter
    acceptance: float
    draft_tokens: int  # at a time
    speed: Speed


# A doubt of a verdict: the bill follows from the number of parameters, the layers are those of another model.
LAYERS_UNKNOWN = "its layers are not known"


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
    # The speed at another moment, computed when it is shown; None: unknown.
    speed_at: Callable[[Moment], Speed | None] | None = field(
        default=None, repr=False, compare=False
    )
    speculation: Speculation | None = None  # None: unknown, or no acceptance was stated
    first_token: FirstToken | None = None  # None: unknown
    load_time: LoadTime | None = None
    min_speed: float | None = None  # tokens per second, as requested
    fastest: str = ""  # what is fastest, if nothing is as fast as requested
    estimate: MemoryEstimate = field(repr=False)
    reasons: tuple[str, ...]  # why it failed; empty if it did not
    window: str  # the reason for the context
    doubt: str = ""  # why the bill is only a rough estimate: "unknown architecture 'x'"
    from_index: bool = False  # the index answers for a repository that could not be read
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
    def typical_speed(self) -> float | None:
        """Typical tokens per second, of reading for an embedding model; None if unknown."""
        if self.speed is None:
            return None
        return self.speed.typical_for(embeds=self.way.setup.embeddings)

    @property
    def is_fast_enough(self) -> bool | None:
        """Whether it has the requested speed; None if none was requested or its own is unknown."""
        if self.min_speed is None or self.typical_speed is None:
            return None
        return self.typical_speed >= self.min_speed

    @property
    def is_too_slow(self) -> bool:
        """Whether it is slower than requested. An unknown speed does not count as slow. Says nothing about memory."""
        return self.is_fast_enough is False

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
    # The flags that make the change, by their REST names; empty if no flag does.
    flags: Mapping[str, str] = field(default_factory=dict)
    max_context: int | None = None  # after the change
    result: Verdict | None = field(default=None, repr=False)


PreflightResult = Verdict  # its public name


def for_bill(budget: Budget, estimate: MemoryEstimate, *, mapped_weights: bool = True) -> Budget:
    """The budget of a GPU that shares RAM, for a bill that leaves layers, experts or token embeddings on the CPU.

    Memory that only the GPU can use is not free for the rest of the bill. RAM that the driver pins counts against the
    GPU's limit: with Vulkan and ROCm graph buffers, and weights that are not mapped from the file. Metal pins none.
    """
    if budget.limit_bytes is None:
        return budget
    unpinned = CACHES | {Component.WEIGHTS} if mapped_weights else CACHES
    if estimate.backend == "metal":
        unpinned = frozenset(Component)
    unused_bytes = max(0, budget.gpu_only_bytes - estimate.in_pools(budget.pools - {HOST}))
    return replace(
        budget,
        free_bytes=budget.free_bytes - unused_bytes,
        gpu_only_bytes=budget.gpu_only_bytes - unused_bytes,
        cpu_bytes=estimate.total(lambda line: line.pool == HOST and line.component in unpinned),
    )


def covered_bytes(budget: Budget, estimate: MemoryEstimate) -> int:
    """Bytes that the bill may take from the default reserve, as llama.cpp's --fit allows.

    This is the shortfall, if the first request allocates at least that much. A reserve set by the user is never used.
    """
    missing_bytes = max(0, estimate.in_pools(budget.pools) - budget.unreserved_bytes)
    if not missing_bytes or not budget.has_default_reserve or budget.limit_bytes is not None:
        return 0
    first_request_bytes = estimate.total(
        lambda line: line.first_request and line.pool in budget.pools
    )
    return missing_bytes if missing_bytes <= first_request_bytes else 0


class Lever(enum.Enum):
    """A setting that a plan chooses; memory is spent on the settings in this order."""

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
