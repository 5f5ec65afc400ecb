"""A name that states a size and a quantisation -> a model to judge by rules of thumb, where nothing else is known.

The cache is that of the known dense model of about that size that has the largest. Every line is ASSUMED.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.assumed import AssumedModel, assumed_estimate
from edgekit.bill.task import Price
from edgekit.bill.types import CACHES, Load, MemoryEstimate
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError, RefusedError
from edgekit.model.types import Attention, Model
from edgekit.units import format_count

ABOUT = 1.25  # sizes that differ by no more than this factor are about the same
COMPARED_TOKENS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedChoice:
    """A model that only a name describes, and the known one whose cache it is given."""

    assumed: AssumedModel
    stand_in: Model = field(repr=False)  # its layers, of an unknown native window
    stand_in_name: str

    @property
    def note(self) -> str:
        return (
            f"ASSUMED from the name alone: {format_count(self.assumed.parameters)} parameters at "
            f"{self.assumed.mix}, with the cache of {self.stand_in_name}{self._ungrouped}. "
            "Give a file or a repository for a better estimate"
        )

    @property
    def _ungrouped(self) -> str:
        """Older models, whose heads do not share keys and values, have a far larger cache."""
        mixers = (layer.mixer for layer in self.stand_in.geometry.layers)
        shared = max(
            (one.heads // one.kv_heads for one in mixers if isinstance(one, Attention)), default=1
        )
        if shared == 1:
            return ""
        return f" (an older model without grouped-query attention needs {shared} times as much)"

    def bill(self, engine: str) -> Price:
        """What any load costs. RefusedError for an engine without a rule of thumb."""
        rules = engine_named(engine)
        if not rules.has_rule_of_thumb:
            raise RefusedError(f"a name alone is not enough for {engine}: give a repository")

        def priced(load: Load, setup: Any) -> MemoryEstimate:
            backend = setup.backend.value if hasattr(setup, "backend") else ""
            whole = assumed_estimate(
                self.assumed, load, engine=engine, backend=backend, wired=rules.wires_memory
            )
            lines = tuple(
                part for line in whole.lines for part in rules.divided(line, self.stand_in, setup)
            )
            return replace(whole, lines=lines, notes=(*whole.notes, self.note))

        return priced


def assumed_choice(assumed: AssumedModel, entries: Iterable[Entry]) -> AssumedChoice | None:
    """None where the catalog has no dense model to compare with."""
    dense = [
        entry
        for entry in entries
        if entry.parameters
        and entry.parameters == entry.active_parameters
        and ModelPurpose.EMBEDDING not in entry.kinds
    ]
    size = assumed.parameters
    about = [one for one in dense if size / ABOUT <= (one.parameters or 0) <= size * ABOUT]
    larger = sorted((one for one in dense if (one.parameters or 0) > size), key=_size)
    largest = sorted(dense, key=_size)[-1:]
    for group in (about, larger[:1], largest):
        found = [(entry.id, model) for entry in group if (model := _opened(entry)) is not None]
        if found:
            name, model = max(found, key=lambda one: _cache_bytes(one[1], assumed))
            geometry = replace(
                model.geometry,
                native_context=None,
                trained_context=None,
                basis=Basis.ASSUMED,
                because=f"only the name is known: assumes the layers of {name}",
            )
            stand_in = Model(header=model.header, geometry=geometry)
            return AssumedChoice(
                assumed=replace(assumed, geometry=geometry), stand_in=stand_in, stand_in_name=name
            )
    return None


def _size(entry: Entry) -> int:
    return entry.parameters or 0


def _opened(entry: Entry) -> Model | None:
    try:
        return open_entry(entry, default_engine().name).model
    except EdgekitError:
        return None


def _cache_bytes(model: Model, assumed: AssumedModel) -> int:
    load = Load(context_tokens=COMPARED_TOKENS)
    whole = replace(assumed, geometry=model.geometry)
    return assumed_estimate(whole, load, engine=default_engine().name).of(*CACHES)
