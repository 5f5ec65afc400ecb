"""Results that llama.cpp's rules cache with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.model.types import Cached, CachedBy

if TYPE_CHECKING:
    from edgekit.bill.types import Load, MemoryLine
    from edgekit.engines.llamacpp.quantization import Converted, SourceModel
    from edgekit.engines.llamacpp.run.binding import VerifyMethod
    from edgekit.engines.llamacpp.types import (
        HeadSizes,
        LlamaCppSetup,
        Override,
        TensorGroup,
        TensorPlacement,
    )
    from edgekit.engines.program import EngineReport
    from edgekit.formats.types import ModelHeader, Tensor
    from edgekit.machine.types import Pool
    from edgekit.model.types import LayerKind, Model


class LlamaCppPrepared:
    def __init__(self) -> None:
        self.refusal: Cached[str] = Cached()
        self.heads: Cached[HeadSizes] = Cached()

        # the GGUF that a model would be converted to, by the name of its mix
        self.likely_mix: Cached[str] = Cached()
        self.conversions: CachedBy[str, Converted] = CachedBy()
        self.source_model: Cached[SourceModel] = Cached()
        self.apart_and_tied: Cached[tuple[Model, Model]] = Cached()
        self.likely_heads: CachedBy[str, Model] = CachedBy()
        self.projectors: CachedBy[str, ModelHeader | None] = CachedBy()  # by the label of the model

        # tensors and where they are
        self.tensors_by_name: Cached[dict[str, Tensor]] = Cached()
        self.tensor_blocks: Cached[tuple[tuple[Tensor, int | None], ...]] = Cached()
        self.tensor_groups: Cached[tuple[TensorGroup, ...]] = Cached()
        self.overrides: CachedBy[tuple[Override, ...], dict[str, str]] = CachedBy()
        self.placements: CachedBy[LlamaCppSetup, TensorPlacement] = CachedBy()

        # lines of the bill
        self.weight_sums: CachedBy[LlamaCppSetup, tuple[tuple[Pool, int], ...]] = CachedBy()
        self.weights_as_known: CachedBy[LlamaCppSetup, tuple[MemoryLine, ...]] = CachedBy()
        self.repacked_bytes: CachedBy[LlamaCppSetup, int] = CachedBy()
        self.cache_groups: CachedBy[
            tuple[TensorPlacement, int], dict[tuple[LayerKind, Pool], list[int]]
        ] = CachedBy()

        # what the llama.cpp on this machine reports, by everything that a question depends on
        self.reports: CachedBy[
            tuple[Load, LlamaCppSetup, bool, str], tuple[VerifyMethod, EngineReport]
        ] = CachedBy()


def prepare(model: Model) -> LlamaCppPrepared:
    """The results cached with this model."""
    return model.prepared(LlamaCppPrepared)
