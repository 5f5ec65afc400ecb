"""What vLLM's rules compute once per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.model.types import Cached, CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.vllm.expected import VllmWeights
    from edgekit.engines.vllm.types import ResolvedVllm, VllmSetup
    from edgekit.model.types import Model

    # Tensor parallel size, quantization, compute capability, dtype.
    RankWeightsKey = tuple[int, str | None, tuple[int, int], str]
    # Setup, maximum tokens and sequences of a step.
    FixedLinesKey = tuple[VllmSetup, int, int]


class VllmPrepared:
    """Results that are computed at first use and kept with the model."""

    def __init__(self) -> None:
        self.notes: Cached[tuple[str, ...]] = Cached()
        self.resolved: CachedBy[VllmSetup, ResolvedVllm] = CachedBy()
        self.fullest_stage: CachedBy[VllmSetup, range] = CachedBy()
        self.fixed_lines: CachedBy[FixedLinesKey, tuple[MemoryLine, ...]] = CachedBy()
        self.weights: CachedBy[RankWeightsKey, VllmWeights] = CachedBy()


def prepare(model: Model) -> VllmPrepared:
    return model.prepared(VllmPrepared)
