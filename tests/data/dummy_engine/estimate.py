"""What the dummy engine allocates."""

from __future__ import annotations

from tests.data.dummy_engine.setups import DummySetup

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.machine.types import HOST
from edgekit.model.types import Model

VERSION = "dummy 1.0"
CACHE_BYTES = 2  # of a value


def estimate(model: Model, load: Load, setup: DummySetup) -> MemoryEstimate:
    tokens = load.context_tokens or model.geometry.native_context or 4096
    streams = [stream for layer in model.geometry.layers for stream in layer.mixer.streams]
    values = sum(stream.elements for stream in streams)
    lines = (
        (Component.WEIGHTS, model.header.tensor_bytes or 0, "as stored"),
        (Component.KV_CACHE, tokens * values * CACHE_BYTES, f"{tokens:,} x {values:,} values"),
        (Component.RUNTIME, setup.spare_bytes, "--dummy-spare"),
    )
    return MemoryEstimate(
        engine="dummy",
        backend="cpu",
        lines=tuple(
            MemoryLine(component=component, size_bytes=size, pool=HOST, because=because)
            for component, size, because in lines
        ),
        facts=(("tokens", tokens),),
    )
