"""Caches -> the lines of the bill: one for every cache of every layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgekit.basis import Basis
from edgekit.bill.types import Component, MemoryLine
from edgekit.engines.mlx.caches import Fixed, Growth, Holding, Slot
from edgekit.engines.mlx.growth import MlxSession
from edgekit.engines.mlx.kv_bits import is_quantized
from edgekit.engines.mlx.types import MlxSetup
from edgekit.machine.types import DEVICE
from edgekit.model.types import ModelGeometry

_COMPONENTS = {
    Growth.FULL: Component.KV_CACHE,
    Growth.ROTATING: Component.SLIDING_KV_CACHE,
    Growth.CHUNKED: Component.SLIDING_KV_CACHE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """All that the size of a cache depends on beside the cache itself."""

    session: MlxSession
    setup: MlxSetup
    item_bytes: int
    sequences: int


def cache_lines(
    holdings: Iterable[tuple[int, Holding]], prices: Prices, geometry: ModelGeometry
) -> tuple[MemoryLine, ...]:
    """As well known as the geometry is."""
    priced: dict[int, tuple[Component, int, str]] = {}  # layers share a few holdings
    unsure = "" if geometry.basis is Basis.EXACT else f"; {geometry.because}"
    lines = []
    for layer, one in holdings:
        price = priced.get(id(one))
        if price is None:
            price = priced[id(one)] = _price(one, prices, unsure)
        lines.append(
            MemoryLine(
                component=price[0],
                size_bytes=price[1],
                pool=DEVICE,
                layer=layer,
                basis=geometry.basis,
                because=price[2],
            )
        )
    return tuple(lines)


def _price(one: Holding, prices: Prices, unsure: str) -> tuple[Component, int, str]:
    times = f" x {prices.sequences} sequences" if prices.sequences > 1 else ""
    component, size, because = _fixed(one) if isinstance(one, Fixed) else _slot(one, prices)
    return component, size * prices.sequences, because + times + unsure


def _fixed(one: Fixed) -> tuple[Component, int, str]:
    size = one.elements * one.item_bytes
    return Component.STATE, size, f"{one.name}: {one.elements} x {one.item_bytes} bytes"


def _slot(one: Slot, prices: Prices) -> tuple[Component, int, str]:
    rows = one.rows(prices.session)
    row, packed = _row(one, prices)
    because = f"{one.growth.value}{_span(one)}: {rows} rows x {row} bytes ({packed})"
    return _COMPONENTS[one.growth], rows * row, because


def _span(one: Slot) -> str:
    return f" of {one.tokens}" if one.tokens else ""


def _row(one: Slot, prices: Prices) -> tuple[int, str]:
    """Bytes of one token's keys and values, and how they come about."""
    setup, item_bytes = prices.setup, prices.item_bytes
    widths = one.key_dim + one.value_dim
    heads = f"{one.heads} heads x ({one.key_dim} + {one.value_dim})"
    if not is_quantized(one, prices.session, setup):
        return one.heads * widths * item_bytes, f"{heads} x {item_bytes}"
    bits, group = setup.kv_bits or 0, setup.kv_group_size
    packed = widths * bits // 8 + widths // group * 2 * item_bytes  # a scale and a bias per group
    return one.heads * packed, f"{heads} at {bits} bits, one scale and bias per {group}"
