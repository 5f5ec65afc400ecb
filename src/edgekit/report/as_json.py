"""Inspection -> the documented JSON (docs/json.md): whole numbers, stable names, null for unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from edgekit.basis import Basis
from edgekit.formats.types import ModelHeader, Tensor
from edgekit.model.inspect import CachePart, Inspection, WeightsCount, WeightsShare
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    HybridLayer,
    LatentAttention,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
)
from edgekit.report.kinds import count_kinds

SCHEMA = 1
GEOMETRY_KEYS = (
    "architecture", "geometry_basis", "geometry_because", "layers", "mtp_layers", "layer_kinds", "hidden",
    "vocabulary", "experts", "trained_context", "native_context", "rope_scaling", "tied_embeddings", "causal",
    "pooling",
)  # fmt: skip


def inspection_json(
    found: Inspection, *, tensors: bool = False, layers: bool = False, keys: bool = False
) -> dict[str, Any]:
    """The whole answer; the long lists only when they are asked for."""
    header, geometry = found.header, found.geometry
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "model": found.files.label,
        "reference": found.files.reference,
        "origin": found.files.origin.value,
        "format": _format(header),
        "gguf_version": header.version,
        "complete": header.complete,
        "file_bytes": header.file_bytes,
        "header_bytes": header.header_bytes,
        "tensor_bytes": header.tensor_bytes,
        "tensors": header.tensor_count,
        **_weights(found.weights, header),
        "mix": found.mix,
        "quantization": _quantization(header),
        **_geometry(geometry),
        "towers": [
            {"kind": tower.kind, "layers": tower.layers, "hidden": tower.hidden}
            for tower in found.towers
        ],
        "not_a_language_model": found.not_a_model,
        "cache": _cache(found),
        "bytes_by_role": _shares(found.by_role),
        "bytes_by_type": _shares(found.by_type),
        "projectors": [file.name for file in found.files.projectors],
        "alternatives": list(found.files.alternatives),
        "notes": list(found.files.notes),
        "network": {
            "requests": found.traffic.requests,
            "ranges": found.traffic.ranges,
            "received_bytes": found.traffic.received_bytes,
            "cached_bytes": found.traffic.cached_bytes,
        },
    }
    if layers:
        answer["layer_list"] = [_layer(layer) for layer in geometry.layers] if geometry else []
    if tensors:
        answer["tensor_list"] = [_tensor(tensor) for tensor in header.tensors or ()]
    if keys:
        answer["keys"] = _keys(header)
    return answer


def json_text(value: Any) -> str:
    """One valid document for any reader: ASCII only, and what JSON has no number for as a word."""
    return json.dumps(_sayable(value), indent=2, allow_nan=False) + "\n"


def json_line(value: Any) -> str:
    """The same document in one line: what has only plain numbers is written as it is."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError):  # no number, or a mapping of another kind
        return json.dumps(_sayable(value), allow_nan=False, separators=(",", ":"))


def _sayable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # "inf", "nan": real configs hold them
    if isinstance(value, Mapping):
        return {key: _sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in value]
    return value


def _format(header: ModelHeader) -> str:
    return "mlx" if header.mlx else header.container.value


def _weights(weights: WeightsCount | None, header: ModelHeader) -> dict[str, Any]:
    if weights is None:
        return {
            "parameters": None,
            "active_parameters": None,
            "parameters_basis": None,
            "active_parameters_basis": None,
            "bits_per_weight": None,
        }
    bits = None
    if header.tensor_bytes is not None and weights.total and weights.basis is Basis.EXACT:
        bits = round(header.tensor_bytes * 8 / weights.total, 4)
    return {
        "parameters": weights.total,
        "active_parameters": weights.active,
        "parameters_basis": weights.basis.value,
        "active_parameters_basis": weights.active_basis.value
        if weights.active is not None
        else None,
        "bits_per_weight": bits,
    }


def _quantization(header: ModelHeader) -> dict[str, Any] | None:
    found = header.quantization
    if found is None:
        return None
    return {
        "method": found.method,
        "format": found.format,
        "bits": found.bits,
        "group_size": found.group_size,
        "overrides": len(found.overrides),
    }


def _geometry(geometry: ModelGeometry | None) -> dict[str, Any]:
    if geometry is None:
        return dict.fromkeys(GEOMETRY_KEYS)
    experts = next((x.experts for x in geometry.layers if x.experts is not None), None)
    rope = geometry.rope
    return {
        "architecture": geometry.architecture,
        "geometry_basis": geometry.basis.value,
        "geometry_because": geometry.because or None,
        "layers": len(geometry.layers),
        "mtp_layers": geometry.mtp_layers,
        "layer_kinds": [
            {"kind": label, "window": window or None, "layers": count}
            for (label, window), count in count_kinds(geometry).items()
        ],
        "hidden": geometry.hidden,
        "vocabulary": geometry.vocabulary,
        "experts": None
        if experts is None
        else {
            "count": experts.count,
            "used": experts.used,
            "width": experts.width,
            "shared_width": experts.shared_width,
            "layers": sum(layer.experts is not None for layer in geometry.layers),
        },
        "trained_context": geometry.trained_context,
        "native_context": geometry.native_context,
        "rope_scaling": None
        if rope is None
        else {
            "type": rope.type,
            "factor": rope.factor,
            "original_context": rope.original_context,
        },
        "tied_embeddings": geometry.tied_embeddings,
        "causal": geometry.causal,
        "pooling": geometry.pooling,
    }


def _cache(found: Inspection) -> dict[str, Any] | None:
    if found.geometry is None:
        return None
    return {
        "parts": [_part(part) for part in found.cache],
        "state_elements_per_sequence": found.state_elements,
        "state_bytes_per_sequence": found.state_bytes,
        "full_context_bytes": found.full_context_bytes,
    }


def _part(part: CachePart) -> dict[str, Any]:
    return {
        "span": part.span.value,
        "span_tokens": part.span_tokens or None,
        "elements_per_row": part.elements_per_row,
        "tokens_per_row": part.tokens_per_row,
        "layers": part.layers,
    }


def _shares(shares: tuple[WeightsShare, ...]) -> dict[str, int]:
    return {share.name: share.size_bytes for share in shares}


def _layer(layer: Layer) -> dict[str, Any]:
    experts, dense = layer.experts, layer.dense
    return {
        "index": layer.index,
        "kind": layer.mixer.label,
        **_mixer(layer.mixer),
        "feed_forward": dense.width if dense is not None else None,
        "experts": experts.count if experts is not None else None,
        "experts_used": experts.used if experts is not None else None,
        "expert_width": experts.width if experts is not None else None,
        "streams": {s.name: s.elements for s in layer.mixer.streams},
        "states": {s.name: s.elements for s in layer.mixer.states},
    }


def _mixer(kind: LayerKind) -> dict[str, Any]:
    """The numbers that make a kind what it is; null where a kind has no such number."""
    blank: dict[str, Any] = dict.fromkeys(("heads", "kv_heads", "key_dim", "value_dim", "window"))
    match kind:
        case Attention():
            return blank | _heads(kind)
        case SharedCache():
            return blank | _heads(kind.attention) | {"reads_layer": kind.source_layer}
        case HybridLayer():
            return blank | _heads(kind.attention)
        case NoCache() if kind.attention is not None:
            return blank | _heads(kind.attention)
        case LatentAttention():
            return blank | {
                "heads": kind.heads,
                "key_dim": kind.key_dim,
                "value_dim": kind.value_dim,
                "latent_dim": kind.latent_dim,
                "rope_dim": kind.rope_dim,
                "absorbed": kind.absorbed,
            }
        case CompressedAttention():
            return blank | {
                "heads": kind.heads,
                "kv_heads": 1,
                "key_dim": kind.key_dim,
                "window": kind.window_tokens,
                "ratio": kind.ratio,
            }
        case Recurrent():
            return blank | {"inner": kind.inner, "state_size": kind.state_size}
        case _:
            return blank


def _heads(kind: Attention) -> dict[str, Any]:
    return {
        "heads": kind.heads,
        "kv_heads": kind.kv_heads,
        "key_dim": kind.key_dim,
        "value_dim": kind.value_dim,
        "window": kind.span_tokens or None,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.type.name,
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
        "offset": tensor.offset,
        "shard": tensor.shard,
    }


def _keys(header: ModelHeader) -> dict[str, Any]:
    kept: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in header.keys.items()
    }
    walked = {
        key: {"array_of": fact.element, "count": fact.count} for key, fact in header.arrays.items()
    }
    skipped = {key: {"string_bytes": size} for key, size in header.long_strings.items()}
    return kept | walked | skipped | dict(header.config)
