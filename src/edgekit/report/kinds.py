"""Layers -> how many there are of each kind, windows named."""

from __future__ import annotations

from edgekit.geometry.types import Attention, LayerKind, ModelGeometry, SharedCache


def count_kinds(geometry: ModelGeometry) -> dict[str, int]:
    """In the order in which the kinds first appear."""
    counts: dict[str, int] = {}
    for layer in geometry.layers:
        name = kind_name(layer.mixer)
        counts[name] = counts.get(name, 0) + 1
    return counts


def kind_name(kind: LayerKind) -> str:
    attention = kind.attention if isinstance(kind, SharedCache) else kind
    if isinstance(attention, Attention) and attention.span_tokens:
        return f"{kind.label} {attention.span_tokens:,}"
    return kind.label
