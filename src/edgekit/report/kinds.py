"""Layers -> how many there are of each kind, windows named."""

from __future__ import annotations

from edgekit.model.types import (
    Attention,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    LayerKind,
    ModelGeometry,
    NoCache,
    SharedCache,
)


def count_kinds(geometry: ModelGeometry) -> dict[tuple[str, int], int]:
    """(kind, its window) -> how many layers, in the order in which they first appear."""
    counts: dict[tuple[str, int], int] = {}
    for layer in geometry.layers:
        kind = (layer.mixer.label, window_of(layer.mixer))
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def kind_name(label: str, window: int) -> str:
    return f"{label} {window:,}" if window else label


def window_of(kind: LayerKind) -> int:
    """How many tokens back a layer sees, 0 where that has no end."""
    match kind:
        case SharedCache() | HybridLayer() | NoCache():
            return kind.attention.span_tokens if kind.attention is not None else 0
        case Attention() | LatentAttention():
            return kind.span_tokens
        case CompressedAttention():
            return 0 if kind.ratio else kind.window_tokens
        case _:
            return 0
