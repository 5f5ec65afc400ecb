"""What vLLM's rules compute once per model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from edgekit.model.types import Cached, CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.vllm.expected import VllmWeights
    from edgekit.engines.vllm.types import ResolvedVllm, VllmSetup
    from edgekit.model.types import Model


class RankWeightsKey(NamedTuple):
    """What the weights of one rank depend on."""

    tensor_parallel_size: int
    quantization: str | None
    capability: tuple[int, int]
    dtype: str


class FixedLinesKey(NamedTuple):
    """What everything but the cache depends on."""

    setup: VllmSetup
    max_num_batched_tokens: int
    max_num_seqs: int


class VllmPrepared:
    def __init__(self) -> None:
        self.notes: Cached[tuple[str, ...]] = Cached()
        self.resolved: CachedBy[VllmSetup, ResolvedVllm] = CachedBy()
        self.fullest_stage: CachedBy[VllmSetup, range] = CachedBy()
        self.fixed_lines: CachedBy[FixedLinesKey, tuple[MemoryLine, ...]] = CachedBy()
        self.weights: CachedBy[RankWeightsKey, VllmWeights] = CachedBy()
        self.weight_lines: CachedBy[tuple[RankWeightsKey, range], tuple[MemoryLine, ...]] = (
            CachedBy()
        )


def prepare(model: Model) -> VllmPrepared:
    return model.prepared(VllmPrepared)
