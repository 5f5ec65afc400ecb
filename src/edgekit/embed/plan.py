"""What an embedder holds in all, as a person and a program read it."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.embed.types import Mode
from edgekit.engines.native.encoder_plan import PlanLine
from edgekit.engines.native.types import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPlan:
    """Settled before the first weight is read, and kept."""

    label: str
    mode: Mode
    engine: str
    kernels: str  # "native" or "numpy": who does the arithmetic
    threads: int
    dimensions: int
    pooling: Pooling | None  # None: the mean of token rows
    budget_bytes: int
    budget_because: str
    lines: tuple[PlanLine, ...]
    pass_tokens: int  # tokens of all texts that share a reading of the weights
    text_tokens: int  # of the longest text
    text_tokens_because: str
    read_bytes: int  # of weights, from the file, in every pass
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(line.size_bytes for line in self.lines)
