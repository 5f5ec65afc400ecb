"""tier_data/tiers.json -> the five tiers of elizaOS' memo, their cache layouts, and which engine has which.

A what-if catalog: the tiers have no header, every figure is the memo's (ASSUMED), and the two compressed layouts
exist in no engine that is modelled here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.cache_types import CacheType, cache_type
from edgekit.errors import RefusedError, UsageError
from edgekit.units import GIB

WHAT_IF = "what-if"  # the engine of the memo: it has all of the layouts
BASIS = Basis.ASSUMED
SHORT_TOKENS = 8192  # up to here values may be of three bits, above it they are of four


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one token's keys and values are stored."""

    name: str
    keys: CacheType
    values: CacheType
    most_tokens: int | None  # None: any number of them

    @property
    def bits(self) -> float:
        """Of a key and a value together: the more, the nearer to what was computed."""
        return self.keys.bits + self.values.bits

    def holds(self, tokens: int) -> bool:
        return self.most_tokens is None or tokens <= self.most_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One size of the line, in one window."""

    name: str  # "27B"
    line: str  # "eliza-1-27b": variants with other windows bear the same
    base_model: str
    cache_layers: int  # those that hold a cache; the others of a hybrid hold a state
    kv_heads: int
    head_dim: int
    weights_bytes: int
    working_bytes: int  # compute, activations, scratch
    state_bytes: int  # of one sequence
    native_window: int  # what the header says: no window is longer
    catalog_window: int  # what is released
    min_ram_bytes: int | None  # of the whole machine; None: not said
    keeps_compressed: bool  # a more accurate cache only where it was wished for
    vocabulary: str
    drafter: str | None  # the tier that may stand in front of it
    sources: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # fact, where from

    @property
    def window(self) -> int:
        return min(self.catalog_window, self.native_window)

    @property
    def size(self) -> tuple[int, int]:
        """What tiers are sorted by: variants of one line differ in their window."""
        return self.weights_bytes, self.window

    def bytes_per_token(self, layout: Layout) -> int:
        """Of all layers: layers x heads x head_dim x (bits of a key + bits of a value) / 8."""
        width = self.kv_heads * self.head_dim
        row = layout.keys.row_bytes(width) + layout.values.row_bytes(width)
        return self.cache_layers * row


def tiers() -> tuple[Tier, ...]:
    """The smallest first."""
    return tuple(sorted(_table().tiers.values(), key=lambda tier: tier.weights_bytes))


def find_tier(text: str) -> Tier:
    """'27B', '27b', 'tier:27b', '0_8b', 'eliza-1-27b'. Raises UsageError with the names there are."""
    plain = re.sub(r"^(tier:)?(eliza-1-)?", "", text.strip().lower()).replace("_", ".")
    for name, tier in _table().tiers.items():
        if name.lower() == plain:
            return tier
    names = ", ".join(tier.name for tier in tiers())
    raise UsageError(f"unknown tier {text[:40]!r}; choose one of {names}")


def layouts() -> tuple[Layout, ...]:
    """The most accurate first."""
    return tuple(sorted(_table().layouts.values(), key=lambda one: one.bits, reverse=True))


_SHORT_NAMES = {
    "polar": "qjl1_256+q4_polar",
    "qjl+polarq4": "qjl1_256+q4_polar",
    "turbo3": "qjl1_256+turbo3_0",
    "qjl+turbo3": "qjl1_256+turbo3_0",
}


def find_layout(text: str) -> Layout:
    """By its name, or 'polar', 'turbo3'. Raises UsageError with the names there are."""
    plain = text.strip().lower()
    found = _table().layouts.get(_SHORT_NAMES.get(plain, plain))
    if found is None:
        names = ", ".join(one.name for one in layouts())
        raise UsageError(f"unknown cache layout {text[:40]!r}; choose one of {names}")
    return found


def layout_for(tokens: int) -> Layout:
    """The compressed layout of a context: three bits of a value up to 8,192 tokens, four above."""
    return find_layout("turbo3" if tokens <= SHORT_TOKENS else "polar")


def check_engine(engine: str, layout: Layout) -> None:
    """Raises RefusedError where the engine lacks the layout: another is never taken in its place."""
    held = _table().engines.get(engine)
    if held is None:
        raise UsageError(
            f"unknown engine {engine[:40]!r}; choose one of {', '.join(_table().engines)}"
        )
    if layout.name not in held:
        only = " (only the what-if engine for tiers has it)" if "qjl" in layout.name else ""
        raise RefusedError(
            f"{engine} does not have the cache layout {layout.name}{only}; choose one of "
            f"{', '.join(held)}"
        )


def first_run() -> Tier:
    return find_tier(_table().first_run)


def ladder(kind: str) -> tuple[Tier, ...]:
    """Of 'small' or 'large' texts, in the order in which they are tried."""
    found = _table().ladders.get(kind)
    if found is None:
        raise UsageError(
            f"unknown ladder {kind[:40]!r}; choose one of {', '.join(_table().ladders)}"
        )
    return tuple(find_tier(name) for name in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    tiers: dict[str, Tier]
    layouts: dict[str, Layout]
    engines: dict[str, tuple[str, ...]]
    first_run: str
    ladders: dict[str, tuple[str, ...]]


@cache
def _table() -> _Table:
    from pkgutil import get_data

    read = json.loads(get_data("edgekit.catalog", "tier_data/tiers.json") or b"")
    return _Table(
        tiers={row["name"]: _tier(row, read["sources"]) for row in read["tiers"]},
        layouts={row["name"]: _layout(row) for row in read["layouts"]},
        engines={name: tuple(held) for name, held in read["engines"].items()},
        first_run=read["first_run"],
        ladders={kind: tuple(names) for kind, names in read["ladders"].items()},
    )


def _layout(row: dict[str, Any]) -> Layout:
    return Layout(
        name=row["name"],
        keys=cache_type(row["keys"]),
        values=cache_type(row["values"]),
        most_tokens=row["most_tokens"],
    )


_AS_THEY_ARE = (
    "name", "line", "base_model", "cache_layers", "kv_heads", "head_dim", "state_bytes", "native_window",
    "catalog_window", "keeps_compressed", "vocabulary", "drafter",
)  # fmt: skip


def _tier(row: dict[str, Any], sources: dict[str, str]) -> Tier:
    min_ram = row["min_ram_gb"]
    return Tier(
        **{name: row[name] for name in _AS_THEY_ARE},
        weights_bytes=round(row["weights_gib"] * GIB),
        working_bytes=round(row["working_gib"] * GIB),
        min_ram_bytes=None if min_ram is None else min_ram * GIB,
        sources=(*sources.items(), ("min_ram_gb", row["min_ram_source"])),
    )
