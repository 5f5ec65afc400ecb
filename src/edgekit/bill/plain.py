"""A geometry -> its cache by the plain formula: every layer keeps every token, nothing is padded."""

from __future__ import annotations

from edgekit.bill.cache_types import CacheType
from edgekit.model.types import ModelGeometry


def plain_cache_bytes(geometry: ModelGeometry, tokens: int, kind: CacheType) -> int:
    """2 x layers x heads x width x tokens x bytes, for a transformer. Windows are ignored, states are not counted."""
    return sum(
        -(-tokens // stream.tokens_per_row) * kind.row_bytes(stream.elements)
        for layer in geometry.layers
        for stream in layer.mixer.streams
    )
