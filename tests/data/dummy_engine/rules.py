"""The rules of the dummy engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.data.dummy_engine import FLAGS

from edgekit.bill.task import Placement, Task
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.engines.budgets import known_ram, ram_budget
from edgekit.engines.flags import flag_words
from edgekit.machine.types import HOST, Budget, Machine
from edgekit.model.types import Model
from edgekit.units import GIB

CACHE_BYTES = 2  # of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class DummySetup:
    spare_bytes: int = 0


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


def budgets(machine: Machine) -> tuple[Budget, ...]:
    return (ram_budget(known_ram(machine), (), 2 * GIB, "2 GiB for everything else"),)


def placements(task: Task) -> Iterator[Placement]:
    yield Placement(
        setup=task.start.setup or DummySetup(),
        budgets=budgets(task.machine),
        because="in dummy memory",
        whole=True,
    )


def command_words(model: str, values: Mapping[str, Any]) -> list[str]:
    tokens = values.get("context")
    length = [] if tokens is None else ["--tokens", str(tokens)]
    return ["dummy-server", model, *length, *flag_words(FLAGS, values)]
