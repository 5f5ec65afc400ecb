"""A tier as a model: what the document states of it. There is no file, and no header."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.bill.types import Load, Start, Task
from edgekit.catalog.tiers import BASIS, Tier
from edgekit.engines.memo.types import MemoSetup
from edgekit.errors import RefusedError
from edgekit.formats.types import ModelHeader
from edgekit.machine.types import Machine
from edgekit.model.types import Attention, Layer, Model, ModelGeometry
from edgekit.sources.types import Container

NAME = "memo"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TierModel(Model):
    tier: Tier


def tier_model(tier: Tier) -> TierModel:
    attention = Attention(
        heads=0,  # not stated
        kv_heads=tier.kv_heads,
        key_dim=tier.head_dim,
        value_dim=tier.head_dim,
    )
    return TierModel(
        tier=tier,
        header=ModelHeader(
            name=f"tier:{tier.name}", container=Container.CONFIG, file_bytes=tier.weights_bytes
        ),
        geometry=ModelGeometry(
            architecture=tier.base_model,
            layers=tuple(Layer(index=place, mixer=attention) for place in range(tier.cache_layers)),
            hidden=0,  # not stated
            vocabulary=None,
            trained_context=tier.native_window,
            native_context=tier.window,
            basis=BASIS,
            because="the context-scaling document states it",
        ),
    )


def tier_of(model: Model) -> Tier:
    """Raises RefusedError for a model that is not a tier."""
    if not isinstance(model, TierModel):
        raise RefusedError(f"{model.header.name} is not a tier: write for example tier:27b")
    return model.tier


def tier_task(
    tier: Tier,
    machine: Machine,
    load: Load | None = None,
    setup: MemoSetup | None = None,
    min_context: int | None = None,
) -> Task:
    return Task(
        model=tier_model(tier),
        engine=NAME,
        machine=machine,
        load=load or Load(),
        start=Start(setup=setup),
        min_context=min_context,
    )
