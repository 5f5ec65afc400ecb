"""Nouns of a plan: what is wished for, what can be chosen, what was decided and why."""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekit.basis import Basis
from edgekit.engine.types import Model
from edgekit.hardware.types import Machine
from edgekit.memory.types import Load
from edgekit.plan.caches import CacheChoice
from edgekit.plan.changes import Change
from edgekit.plan.types import PreflightResult, Start

GOOD_ACCURACY = 400  # in hundredths of a bit a weight


class Lever(enum.Enum):
    """What can be turned, in the order in which memory that is left is spent."""

    WEIGHTS = "weights"  # a bigger model: of one model, a more accurate file
    PLACEMENT = "placement"
    CONTEXT = "context"
    CACHE = "cache"
    DRAFTER = "drafter"
    SEQUENCES = "sequences"
    LIMIT = "limit"  # of the system: what macOS lets the GPU wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One setting of a lever that was looked at."""

    value: str
    told: str  # what came of it, with the numbers
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One lever: where it stands, and why there."""

    lever: Lever
    value: str  # "Q5_K_M", "32,768 tokens", "q8_0"
    because: str
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One quantisation of a model: a file that there is, or one that could be made."""

    name: str  # "Q4_K_M", "4 bit", "as stored"
    model: Model = field(repr=False)
    accuracy: int  # in hundredths of a bit a weight
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the engine's setup
    reference: str = ""  # what to ask for; "": it has to be made, or found

    @property
    def is_good(self) -> bool:
        """About four bits and more: below, answers get clearly worse."""
        return self.accuracy >= GOOD_ACCURACY


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A smaller model of the same vocabulary, or the model's own blocks for further tokens."""

    name: str
    model: Model | None = field(default=None, repr=False)  # None: the model's own blocks
    changes: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    because: str = ""  # why its vocabulary is taken to be the same


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
    min_context: int | None = None
    prefer_accurate_cache: bool = False  # accuracy first, then the window
    drafters: tuple[Drafter, ...] = ()  # in the order in which they are tried
    nodes: int = 1  # machines like this one (vLLM on Ray)
    repository: str = ""  # on the hub: what the weights are, or are made from; "": not known
    cancelled: threading.Event | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second, each as a range from slow to fast. Never better known than modelled."""

    decode: tuple[float, float]
    prefill: tuple[float, float] | None  # None: what the device computes is not known
    because: str
    basis: Basis = Basis.MODELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `result` is its bill against the memory: with a drafter, with that."""

    wish: Wish = field(repr=False)
    variant: Variant
    load: Load  # context of all users together, cache types, sequences
    choice: CacheChoice | None = None  # of the cache; None where nothing fits
    result: PreflightResult
    decisions: tuple[Decision, ...]  # in the order of the levers
    drafter: Drafter | None = None
    speed: Speed | None = None
    steady_tokens_per_s: float | None = (
        None  # the middle, with an empty cache: plans are compared by it
    )
    to_fit: tuple[Change, ...] = ()  # what would help where it does not fit

    @property
    def fits(self) -> bool:
        return self.result.can_load

    @property
    def context_tokens(self) -> int:
        """Of one user."""
        return self.result.context_tokens // self.result.streams

    def decision(self, lever: Lever) -> Decision | None:
        return next((one for one in self.decisions if one.lever is lever), None)
