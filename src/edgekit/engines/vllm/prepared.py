"""What vLLM's rules compute once per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.model.types import CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.vllm.expected import VllmWeights
    from edgekit.engines.vllm.types import ResolvedVllm, VllmSetup
    from edgekit.model.types import Model

    # Tensor parallel size, quantization, compute capability and dtype.
    RankWeightsKey = tuple[int, str | None, tuple[int, int], str]
    # The setup, and the maximum numbers of tokens and of sequences in one step.
    FixedLinesKey = tuple[VllmSetup, int, int]


class VllmPrepared:
    """Results of vLLM's rules that are computed at first use and kept as long as the model."""

    def __init__(self) -> None:
        self.resolved: CachedBy[VllmSetup, ResolvedVllm] = CachedBy()
        self.fixed_lines: CachedBy[FixedLinesKey, tuple[MemoryLine, ...]] = CachedBy()
        self.weights: CachedBy[RankWeightsKey, VllmWeights] = CachedBy()


def prepare(model: Model) -> VllmPrepared:
    return model.prepared(VllmPrepared)
