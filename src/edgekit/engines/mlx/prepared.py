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
    from edgekit.formats.types import Quantization
    from edgekit.model.tensor_recipes import ExpectedTensor
    from edgekit.model.types import Model

    RequestedQuantize = Quantize | AsStored | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """Facts about the model as mlx-lm builds it, which do not depend on the load."""

    file: MlxModel
    item_bytes: int
    listed: bool  # config.json lists the types of its layers
    work: ChunkWork


class MlxPrepared:
    """Results that are computed at first use and kept with the model."""

    def __init__(self) -> None:
        self.as_built: Cached[Model | None] = Cached()  # None: as config.json describes it
        self.known: CachedBy[RequestedQuantize, KnownModel] = CachedBy()
        self.caches: CachedBy[int | None, tuple[tuple[int, LayerCache], ...]] = CachedBy()
        self.weights: CachedBy[RequestedQuantize, tuple[MemoryLine, ...]] = CachedBy()
        self.quantization: Cached[Quantization | None] = Cached()
        self.tensors: Cached[tuple[ExpectedTensor, ...]] = Cached()


def prepare(model: Model) -> MlxPrepared:
    return model.prepared(MlxPrepared)
