"""The engines and modes of the embedder, and its plan."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.engines import default_engine

if TYPE_CHECKING:
    from edgekit.engines.native.encoder_plan import PlanLine
    from edgekit.engines.native.types import Pooling

BUILT_IN = "edgekit"
ENGINES = (BUILT_IN, default_engine().name)


class Mode(enum.Enum):
    """How the tokens of a text become a vector."""

    TOKENS = "tokens"  # the mean of their rows in the embedding table: no layer is run
    ENCODER = "encoder"  # the model's own forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedPlan:
    """What an embedder holds, settled before the first weight is read."""

    label: str
    mode: Mode
    engine: str
    kernels: str  # "native" or "numpy", which compute
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
