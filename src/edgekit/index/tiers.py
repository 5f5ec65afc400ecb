"""The five tiers of elizaOS's memo, their cache layouts and the engines that support them (tier_data/tiers.json).

A what-if catalog: there are no model files, every figure comes from the memo (ASSUMED), and no engine that EdgeKit
models has the two compressed layouts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pkgutil import get_data
from typing import Any

from edgekit.bill.types import CacheType, cache_type
from edgekit.errors import RefusedError, UsageError
from edgekit.units import GIB, Basis

WHAT_IF = "what-if"  # the memo's engine, which has all layouts
BASIS = Basis.ASSUMED
SHORT_TOKENS = 8192  # values have three bits up to this context, four above


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one token's keys and values are stored."""

    name: str
    keys: CacheType
    values: CacheType
    most_tokens: int | None  # None: no limit

    @property
    def bits(self) -> float:
        """Bits of a key plus a value: more bits are more accurate."""
        return self.keys.bits + self.values.bits

    def holds(self, tokens: int) -> bool:
        """Whether this layout may be used for a context of this length."""
        return self.most_tokens is None or tokens <= self.most_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One size of the model series, with one context."""

    name: str  # "27B"
    line: str  # "eliza-1-27b": shared by variants with other contexts
    base_model: str
    cache_layers: int  # layers with a cache; the other layers of a hybrid have a state
    kv_heads: int
    head_dim: int
    weights_bytes: int
    working_bytes: int  # compute, activations, scratch
    state_bytes: int  # of one sequence
    native_window: int  # from the header: the maximum context
    catalog_window: int  # context as released
    min_ram_bytes: int | None  # of the whole machine; None: not stated
    keeps_compressed: bool  # use a more accurate cache only on request
    vocabulary: str
    drafter: str | None  # the tier that can draft for it
    sources: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # (fact, source)

    @property
    def window(self) -> int:
        return min(self.catalog_window, self.native_window)

    @property
    def size(self) -> tuple[int, int]:
        """Sort key: variants of one series differ in their context."""
        return self.weights_bytes, self.window

    def bytes_per_token(self, layout: Layout) -> int:
        """Layers x heads x head_dim x (bits of a key + bits of a value) / 8."""
        width = self.kv_heads * self.head_dim
        row = layout.keys.row_bytes(width) + layout.values.row_bytes(width)
        return self.cache_layers * row


@cache
def tiers() -> tuple[Tier, ...]:
    """All tiers, the smallest first."""
    data = _data()
    rows = [
        Tier(
            **{name: row[name] for name in _COPIED_FIELDS},
            weights_bytes=round(row["weights_gib"] * GIB),
            working_bytes=round(row["working_gib"] * GIB),
            min_ram_bytes=None if row["min_ram_gb"] is None else row["min_ram_gb"] * GIB,
            sources=(*data["sources"].items(), ("min_ram_gb", row["min_ram_source"])),
        )
        for row in data["tiers"]
    ]
    return tuple(sorted(rows, key=lambda tier: tier.weights_bytes))


_COPIED_FIELDS = (
    "name", "line", "base_model", "cache_layers", "kv_heads", "head_dim", "state_bytes", "native_window",
    "catalog_window", "keeps_compressed", "vocabulary", "drafter",
)  # fmt: skip


@cache
def _data() -> dict[str, Any]:
    """The content of tiers.json."""
    data: dict[str, Any] = json.loads(get_data("edgekit.index", "tier_data/tiers.json") or b"")
    return data


def _unknown(what: str, text: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"unknown {what} {text[:40]!r}; choose one of {', '.join(names)}")


def find_tier(text: str) -> Tier:
    """'27B', '27b', 'tier:27b', '0_8b', 'eliza-1-27b'. Raises UsageError that lists the names."""
    plain = re.sub(r"^(tier:)?(eliza-1-)?", "", text.strip().lower()).replace("_", ".")
    for tier in tiers():
        if tier.name.lower() == plain:
            return tier
    raise _unknown("tier", text, (tier.name for tier in tiers()))


@cache
def layouts() -> tuple[Layout, ...]:
    """All layouts, the most accurate first."""
    rows = [
        Layout(
            name=row["name"],
            keys=cache_type(row["keys"]),
            values=cache_type(row["values"]),
            most_tokens=row["most_tokens"],
        )
        for row in _data()["layouts"]
    ]
    return tuple(sorted(rows, key=lambda layout: layout.bits, reverse=True))


_SHORT_NAMES = {
    "polar": "qjl1_256+q4_polar",
    "qjl+polarq4": "qjl1_256+q4_polar",
    "turbo3": "qjl1_256+turbo3_0",
    "qjl+turbo3": "qjl1_256+turbo3_0",
}


def find_layout(text: str) -> Layout:
    """The layout with this name, or 'polar', 'turbo3'. Raises UsageError that lists the names."""
    plain = text.strip().lower()
    for layout in layouts():
        if layout.name == _SHORT_NAMES.get(plain, plain):
            return layout
    raise _unknown("cache layout", text, (layout.name for layout in layouts()))


def layout_for(tokens: int) -> Layout:
    """The compressed layout for a context: values have three bits up to 8,192 tokens, four above."""
    return find_layout("turbo3" if tokens <= SHORT_TOKENS else "polar")


def check_engine(engine: str, layout: Layout) -> None:
    """Raises RefusedError if the engine lacks the layout: a layout is never silently replaced."""
    supported = _data()["engines"].get(engine)
    if supported is None:
        raise _unknown("engine", engine, _data()["engines"])
    if layout.name not in supported:
        only = " (only the what-if engine for tiers has it)" if "qjl" in layout.name else ""
        raise RefusedError(
            f"{engine} does not have the cache layout {layout.name}{only}; choose one of "
            f"{', '.join(supported)}"
        )


def first_run() -> Tier:
    """The tier for the first start on a new machine."""
    return find_tier(_data()["first_run"])


def ladder(kind: str) -> tuple[Tier, ...]:
    """The tiers for 'small' or 'large' texts, in the order to try them."""
    names = _data()["ladders"].get(kind)
    if names is None:
        raise _unknown("ladder", kind, _data()["ladders"])
    return tuple(find_tier(name) for name in names)
