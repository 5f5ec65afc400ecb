"""What MLX's rules compute once per model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.model.types import Cached, CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.mlx.caches import LayerCache
    from edgekit.engines.mlx.compute import ChunkWork
    from edgekit.engines.mlx.models import MlxModel
    from edgekit.engines.mlx.quantization import AsStored, Quantize
    from edgekit.model.tensor_recipes import ExpectedTensor
    from edgekit.model.types import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """The model as mlx-lm builds it, and facts about it that do not depend on the load."""

    model: Model
    file: MlxModel
    item_bytes: int
    lists_layers: bool  # config.json lists the types of its layers
    work: ChunkWork


class MlxPrepared:
    """Results that are computed at first use and cached with the model."""

    def __init__(self) -> None:
        self.built: Cached[BuiltModel] = Cached()
        self.caches: CachedBy[int | None, tuple[tuple[int, LayerCache], ...]] = CachedBy()
        self.weights: CachedBy[Quantize | AsStored | None, tuple[MemoryLine, ...]] = CachedBy()
        self.tensors: Cached[tuple[ExpectedTensor, ...]] = Cached()


def prepare(model: Model) -> MlxPrepared:
    return model.prepared(MlxPrepared)
