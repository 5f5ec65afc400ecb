"""Nouns of this room: what the engine told, and how far the prediction is from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines.comparison import ComparedRow, MeasuredBytes, Resident
from edgekit.engines.llamacpp.types import LlamaCppSetup

# What both sides name. The engine keeps prompt caches and its driver's context to itself.
COMPARED = (
    Component.WEIGHTS,
    Component.KV_CACHE,
    Component.SLIDING_KV_CACHE,
    Component.STATE,
    Component.OUTPUT,
    Component.COMPUTE,
)

# An adapter that is not there. After its dry run a server would go on to load what has no memory, and die of
# it before its log is written; so it gives up instead.
STOP = "no-adapter.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuestion:
    """What the engine is asked: to make room for this file, started so."""

    path: Path
    load: Load
    setup: LlamaCppSetup
    really: bool = False  # load the weights and decode a few tokens
    pacing: Pacing | None = None  # then read and write more of them, to see how fast it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How the speed of a loaded model is measured: several times the same, the best counts."""

    vocabulary: int  # token ids below it exist
    prompt_tokens: int = 512  # at most: fewer where so many would take too long
    new_tokens: int = 32
    times: int = 5
    seconds: float = 20.0  # for all of them; one is always done


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """What the engine itself says of its speed."""

    prompt_tokens: int
    new_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """What a child process may take before it is ended."""

    timeout_s: float
    memory_bytes: int | None = None  # address space; None where a GPU driver reserves what it likes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What the real engine told."""

    through: str  # "xllamacpp", "llama-fit-params"
    version: str
    parts: Mapping[Component, MeasuredBytes] = field(repr=False)
    resolved: Mapping[str, str] = field(default_factory=dict)  # n_ctx, n_seq_max ... as it has them
    devices: tuple[str, ...] = ()  # GPUs it would use
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The whole answer: every part, the total, the verdict."""

    label: str
    estimate: MemoryEstimate = field(repr=False)
    rules_version: str  # of the engine that the prediction's rules were checked against
    setup: LlamaCppSetup
    answer: EngineAnswer
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    vocabulary: int = 0  # tokens that the file names: the engine keeps tables of them
    resident: tuple[Resident, ...] = ()
    beside_bytes: int | None = (
        None  # what the process held on the host beside its bill, if that is known
    )
    paced: Paced | None = None
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return all(row.within for row in self.rows)
