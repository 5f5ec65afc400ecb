"""What is asked of an engine on a machine, and the choices that can be made for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.bill.types import Load, MemoryEstimate
from edgekit.machine.types import Budget, Device, Machine
from edgekit.model.types import Model, embeds_in_one_batch

GOOD_ACCURACY = 400  # in hundredths of a bit per weight
Price = Callable[[Load, Any], MemoryEstimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A known piece of work."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How an engine would be started, and the budgets it is then held against."""

    setup: Any = field(repr=False)
    budgets: tuple[Budget, ...]
    because: str  # where the model is, in words
    cards: tuple[Device, ...] = ()  # the devices it computes on, in the engine's order
    may_resplit: bool = False  # layers may be divided otherwise among several cards
    whole: bool = False  # everything that can be on a device is on one
    all_layers: bool = False  # every layer is on a device, though experts may not be
    by_number: bool = False  # the card is named by its number among all of the machine's
    by_tensor: bool = False  # -ot divides the experts more finely than -ncmoe can
    is_short_command: bool = (
        False  # among placements by tensor: takes one pattern, not one for each layer
    )


Placements = tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One quantisation of a model: a file that exists, or one that could be made."""

    name: str  # "Q4_K_M", "4 bit", "as stored"
    model: Model = field(repr=False)
    accuracy: int  # in hundredths of a bit per weight
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the engine's setup
    flags: Mapping[str, str] = field(default_factory=dict)  # the same, as a request has it
    reference: str = ""  # what to ask for; "": it has to be made, or found

    @property
    def is_good(self) -> bool:
        """About four bits and more: below, answers get clearly worse."""
        return self.accuracy >= GOOD_ACCURACY


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """One type of cache. `place` 0 is the engine's default, 1 the next smaller one."""

    name: str  # "f16", "q8_0", "q8_0 + q4_0", "fp8", "8 bit"
    place: int
    flags: str  # that ask the engine for it
    asked: bool = False  # the caller settled it
    is_eight_bit: bool = False
    load: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The setup that was asked for, and which of its fields the caller has settled."""

    setup: Any = None
    settled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A smaller model of the same vocabulary, or the model's own blocks for further tokens."""

    name: str
    model: Model | None = field(default=None, repr=False)  # None: the model's own blocks
    changes: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""  # why its vocabulary is taken to be the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked: which model, on which engine and machine, for which load."""

    model: Model = field(repr=False)
    variants: tuple[Variant, ...] = field(
        default=(), repr=False
    )  # weights to choose from, the most accurate first; empty: the model as it is
    engine: str
    machine: Machine
    load: Load = field(default_factory=Load)
    start: Start = field(default_factory=Start)
    bill: Price | None = field(
        default=None, repr=False
    )  # None: the engine's own, of the model alone
    job: Job | None = None
    min_context: int | None = None
    window_budget_bytes: int | None = (
        None  # SPEC W2: the size of the cache where no context is given
    )
    max_use: float | None = None  # SPEC A1: refuse above this share of the usable memory
    reserve_bytes: int | None = None  # instead of the engine's own reserve
    own_cache_only: bool = False  # never a smaller cache than the engine's own
    nodes: int = 1  # machines like this one, joined by Ray (vLLM)
    alternatives: tuple[str, ...] = ()  # other quantisations that the repository has
    label: str = ""  # the model's name in reports
    repository: str = ""  # on the hub: what the weights are, or are made from; "": not known
    is_remote: bool = False  # the weights are not on this machine
    users: int | None = None  # as given; `load` is for all of them
    drafters: tuple[Drafter, ...] = ()  # to propose, in the order in which they are tried
    cancelled: threading.Event | None = field(
        default=None, repr=False, compare=False
    )  # set: the caller has gone

    @property
    def embeds(self) -> bool:
        """Whether the engine is to return embeddings."""
        return getattr(self.start.setup, "embeddings", False) or self.model.geometry.embeds

    @property
    def in_one_batch(self) -> bool:
        """Whether an input is computed at once, up to the whole context: an embedding's, unless only its last token
        counts (server-context.cpp @ b21e4de: can_split).
        """
        embeds = bool(getattr(self.start.setup, "embeddings", False))
        return embeds and embeds_in_one_batch(self.model.geometry)

    def load_of(self, tokens: int) -> Load:
        """What is asked of the engine for a context of that length."""
        load = replace(self.load, context_tokens=tokens)
        if not self.in_one_batch:
            return load
        each = load.sequences or 1  # a mean over each needs whole ones
        whole = -(-tokens // each) * each
        batch, microbatch = load.batch_tokens, load.microbatch_tokens  # what was given stays
        return replace(
            load,
            batch_tokens=batch or microbatch or whole,
            microbatch_tokens=microbatch or batch or whole,
        )
