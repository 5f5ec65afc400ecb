"""What MLX's rules work out once for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.model.types import Cached, CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import MemoryLine
    from edgekit.engines.mlx.caches import Holding
    from edgekit.engines.mlx.compute import ChunkWork
    from edgekit.engines.mlx.models import MlxModel
    from edgekit.engines.mlx.types import AsStored, Quantize
    from edgekit.formats.types import Quantization
    from edgekit.model.tensor_recipes import ExpectedTensor
    from edgekit.model.types import Model

    Wanted = Quantize | AsStored | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """What the model is to mlx-lm, for every load."""

    file: MlxModel
    item_bytes: int
    listed: bool  # config.json lists the types of its layers
    work: ChunkWork


class MlxPrepared:
    def __init__(self) -> None:
        self.as_built: Cached[Model | None] = Cached()  # None: as the header says
        self.known: CachedBy[Wanted, KnownModel] = CachedBy()
        self.holdings: CachedBy[int | None, tuple[tuple[int, Holding], ...]] = CachedBy()
        self.weights: CachedBy[Wanted, tuple[MemoryLine, ...]] = CachedBy()
        self.quantization: Cached[Quantization | None] = Cached()
        self.tensors: Cached[tuple[ExpectedTensor, ...]] = Cached()


def prepare(model: Model) -> MlxPrepared:
    return model.prepared(MlxPrepared)
