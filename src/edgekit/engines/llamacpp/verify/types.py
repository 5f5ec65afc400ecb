"""What the engine is asked, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekit.bill.types import Component, Load
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
class ChildLimits:
    """What a child process may take before it is ended."""

    timeout_s: float
    memory_bytes: int | None = None  # address space; None where a GPU driver reserves what it likes
