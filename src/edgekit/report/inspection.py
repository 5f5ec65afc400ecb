"""What was read of a model as one screen of text and as JSON (docs/json.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from edgekit.basis import Basis
from edgekit.formats.types import ModelHeader, Tensor
from edgekit.model.inspect import (
    CACHE_ELEMENT_BYTES,
    CachePart,
    Inspection,
    WeightsCount,
    WeightsShare,
)
from edgekit.model.types import (
    Attention,
    CompressedAttention,
    Experts,
    HybridLayer,
    LatentAttention,
    Layer,
    LayerKind,
    ModelGeometry,
    NoCache,
    Recurrent,
    SharedCache,
    Span,
)
from edgekit.report.bill import count_kinds, kind_name, window_of
from edgekit.report.json import SCHEMA
from edgekit.report.text import table
from edgekit.sources.types import Container
from edgekit.terminal import printable
from edgekit.units import format_bytes, format_count

_LABEL = 9
_MOST_SHARES = 6


def inspection_text(found: Inspection, *, bold: bool = False) -> str:
    """The screen. `bold` marks the first line for terminals."""
    lines = [_strong(printable(_title(found)), bold), printable(_headline(found))]
    for label, body in _sections(found):
        rows = [row for row in body if row]
        lines += [""] if rows else []
        lines += [
            f"{label if i == 0 else '':<{_LABEL}}{printable(row)}".rstrip()
            for i, row in enumerate(rows)
        ]
    return "\n".join(lines) + "\n"


def _sections(found: Inspection) -> Iterator[tuple[str, Iterable[str]]]:
    if found.geometry is not None:
        yield "Layers", _layer_rows(found.geometry)
        yield "Cache", _cache_rows(found)
    yield "Weights", _share_rows(found)
    yield "Beside" if found.geometry is not None else "Holds", _beside_rows(found)
    yield "Read", _read_rows(found)
    yield "Note", _notes(found)


def _strong(text: str, bold: bool) -> str:  # noqa: FBT001 - two words, read where it is called
    return f"\x1b[1m{text}\x1b[0m" if bold else text


def _title(found: Inspection) -> str:
    header = found.header
    kind = "MLX" if header.mlx else header.container.name
    version = f" v{header.version}" if header.version is not None else ""
    mix = found.mix or _method(found)
    words = re.split(r"[^a-z0-9_]+", found.files.label.lower())
    told = mix.lower() in words  # most names end with it
    parts = [found.files.label, "" if told else mix, f"{kind}{version}"]
    if found.geometry is not None:
        parts.append(found.geometry.architecture)
    return "  ·  ".join(part for part in parts if part)


def _method(found: Inspection) -> str:
    quantization = found.header.quantization
    if quantization is None:
        return ""
    bits = f"{quantization.bits:g} bit" if quantization.bits else ""
    return " ".join(part for part in (quantization.method, quantization.format, bits) if part)


def _headline(found: Inspection) -> str:
    if found.not_a_model is not None:
        return f"This is {found.not_a_model}."
    parts = [_parameters(found), _size(found), _context(found.geometry)]
    return "  ·  ".join(part for part in parts if part)


def _parameters(found: Inspection) -> str:
    weights = found.weights
    if weights is None:
        return "parameters unknown"
    about = "" if weights.basis is Basis.EXACT else "about "
    text = f"{about}{format_count(weights.total)} parameters"
    if weights.active is not None and weights.active < weights.total:
        text += f" ({format_count(weights.active)} active)"
    return text


def _size(found: Inspection) -> str:
    header, weights = found.header, found.weights
    if header.tensor_bytes is None:
        return f"{format_bytes(header.file_bytes)} file" if header.file_bytes else ""
    text = f"{format_bytes(header.tensor_bytes)} of weights"
    if weights is not None and weights.total and weights.basis is Basis.EXACT:
        text += f", {header.tensor_bytes * 8 / weights.total:.2f} bits each"
    return text


def _context(geometry: ModelGeometry | None) -> str:
    if geometry is None or geometry.native_context is None:
        return "context unknown"
    return f"{geometry.native_context:,} tokens of context"


def _layer_rows(geometry: ModelGeometry) -> Iterator[str]:
    kinds = [f"{count} {kind_name(*kind)}" for kind, count in count_kinds(geometry).items()]
    yield f"{len(geometry.layers)}: " + ", ".join(kinds)
    yield _widths(geometry)
    yield _experts(geometry)
    yield _rope(geometry)
    if geometry.mtp_layers:
        yield f"{geometry.mtp_layers} more for multi-token prediction (not loaded by default)"


def _widths(geometry: ModelGeometry) -> str:
    vocabulary = "unknown" if geometry.vocabulary is None else f"{geometry.vocabulary:,}"
    tied = {True: ", tied embeddings", False: ", separate output head", None: ""}
    parts = [
        f"hidden {geometry.hidden:,}",
        *dict.fromkeys(text for layer in geometry.layers if (text := _heads(layer.mixer))),
    ]
    dense = sorted({layer.dense.width for layer in geometry.layers if layer.dense is not None})
    if dense:
        parts.append(
            "feed-forward " + " to ".join(f"{w:,}" for w in dict.fromkeys((dense[0], dense[-1])))
        )
    parts.append(f"vocabulary {vocabulary}")
    if geometry.causal:
        return ", ".join(parts) + tied[geometry.tied_embeddings]
    pooled = f", an encoder, pooling {geometry.pooling}" if geometry.pooling else ", an encoder"
    return ", ".join(parts) + pooled


def _heads(kind: LayerKind) -> str:
    match kind:
        case Attention():
            widths = dict.fromkeys((kind.key_dim, kind.value_dim))
            return f"{kind.heads}/{kind.kv_heads} heads of {'+'.join(map(str, widths))}"
        case SharedCache() | HybridLayer():
            return _heads(kind.attention)
        case NoCache():
            return "" if kind.attention is None else _heads(kind.attention)
        case LatentAttention():
            return f"{kind.heads} heads on a latent of {kind.latent_dim}+{kind.rope_dim}"
        case CompressedAttention():
            return f"{kind.heads}/1 heads of {kind.key_dim}"
        case Recurrent():
            return f"{kind.label} {kind.inner:,} x {kind.state_size}" if kind.state_size else ""
        case _:
            return ""


def _experts(geometry: ModelGeometry) -> str:
    routed = [layer.experts for layer in geometry.layers if layer.experts is not None]
    if not routed:
        return ""
    one: Experts = routed[0]
    shared = f" and a shared one of {one.shared_width:,}" if one.shared_width else ""
    where = "" if len(routed) == len(geometry.layers) else f"in {len(routed)} layers "
    return f"{where}{one.used} of {one.count} experts of {one.width:,}{shared}"


def _rope(geometry: ModelGeometry) -> str:
    rope = geometry.rope
    if rope is None or (rope.factor is None and rope.original_context is None):
        return ""  # a kind of rotation that stretches nothing
    factor = f" x{rope.factor:g}" if rope.factor else ""
    start = f" from {rope.original_context:,}" if rope.original_context else ""
    return f"rope scaling {rope.type}{factor}{start}"


def _cache_rows(found: Inspection) -> Iterator[str]:
    if not found.cache and not found.state_elements:
        yield "none: the model processes the whole input at once"
    for part in found.cache:
        yield _cache_row(part, found.geometry.native_context if found.geometry else None)
    if found.state_elements:
        yield (
            f"{format_bytes(found.state_bytes)} of recurrent state per sequence (32 bit), at "
            "any length"
        )
    if found.full_context_bytes:
        size = format_bytes(found.full_context_bytes)
        yield f"{size} for one sequence that fills the context, before the engine's padding"


def _cache_row(part: CachePart, context: int | None) -> str:
    each = format_bytes(part.elements_per_row * CACHE_ELEMENT_BYTES)
    per = "token" if part.tokens_per_row == 1 else f"{part.tokens_per_row} tokens"
    text = f"{each} per {per} (16 bit), {part.layers} layers"
    if part.span is Span.ALL:
        return text
    most = format_bytes(part.held_bytes(min(part.span_tokens, context or part.span_tokens)))
    which = "the last" if part.span is Span.WINDOW else "a chunk of"
    return f"{text}, only {which} {part.span_tokens:,} tokens: at most {most}"


def _share_rows(found: Inspection) -> Iterator[str]:
    if found.header.tensors is None:
        size = found.header.tensor_bytes or found.header.file_bytes
        if size is not None:
            yield f"{format_bytes(size)}; the list of tensors was not read"
        return
    left = _column(found.by_role, found.header.tensor_bytes or 0)
    right = _column(found.by_type, found.header.tensor_bytes or 0)
    width = max((len(row) for row in left), default=0)
    for i in range(max(len(left), len(right))):
        first = left[i] if i < len(left) else ""
        yield f"{first:<{width}}   {right[i] if i < len(right) else ''}".rstrip()


def _column(shares: tuple[WeightsShare, ...], total: int) -> list[str]:
    shown = [(share.name, share.size_bytes) for share in shares[:_MOST_SHARES]]
    rest = sum(share.size_bytes for share in shares[_MOST_SHARES:])
    if rest:
        shown.append((f"{len(shares) - _MOST_SHARES} more", rest))
    width = max((len(name) for name, _ in shown), default=0)
    return [
        f"{name:<{width}} {format_bytes(size):>11} {size / total if total else 0:>6.1%}"
        for name, size in shown
    ]


def _beside_rows(found: Inspection) -> Iterator[str]:
    for tower in found.towers:
        size = f", {tower.layers} layers" if tower.layers else ""
        width = f" of {tower.hidden:,}" if tower.hidden else ""
        yield f"{tower.kind} tower{size}{width}"
    if found.files.projectors:
        yield "projector: " + ", ".join(file.name for file in found.files.projectors)
    if found.files.alternatives:
        yield "other files: " + ", ".join(found.files.alternatives)


def _read_rows(found: Inspection) -> Iterator[str]:
    traffic, header = found.traffic, found.header
    size = format_bytes(header.header_bytes) if header.header_bytes is not None else None
    what = f"{size} of header" if size else "the header"
    if not traffic.requests:
        yield f"{what}, no network used"
        return
    count = f"{traffic.requests} request{'s' if traffic.requests != 1 else ''}"
    saved = f", {format_bytes(traffic.cached_bytes)} from the cache" if traffic.cached_bytes else ""
    yield f"{what}, {format_bytes(traffic.received_bytes)} over the network in {count}{saved}"


def _notes(found: Inspection) -> Iterator[str]:
    geometry, weights = found.geometry, found.weights
    yield from found.files.notes
    if geometry is not None and geometry.because:
        yield f"{geometry.basis.name}: {geometry.because}"
    if found.header.container is Container.CONFIG:
        yield "no weights found: everything here comes from config.json"
    if weights is not None and weights.basis is not Basis.EXACT:
        yield (
            f"{weights.basis.name}: parameter count computed from the layer sizes, not from "
            "the tensors"
        )
    if not found.header.complete:
        yield "only the architecture was read; leave out --light to list the tensors too"


def layers_text(geometry: ModelGeometry) -> str:
    """One row a layer."""
    rows = []
    for layer in geometry.layers:
        experts = layer.experts
        halves = [f"{layer.dense.width:,}"] if layer.dense is not None else []
        halves += [f"{experts.used}/{experts.count} x {experts.width:,}"] if experts else []
        remembered = [f"{s.name} {s.elements:,}" for s in layer.mixer.streams]
        remembered += [f"{s.name} {s.elements:,}" for s in layer.mixer.states]
        rows.append(
            (
                str(layer.index),
                kind_name(layer.mixer.label, window_of(layer.mixer)),
                _heads(layer.mixer),
                " + ".join(halves),
                ", ".join(remembered),
            )
        )
    return table(("layer", "kind", "heads", "feed-forward", "cache"), rows)


def tensors_text(found: Inspection) -> str:
    """One row a tensor."""
    rows = [
        (t.name, t.type.name, " x ".join(map(str, t.shape)), f"{t.size_bytes:,}")
        for t in found.header.tensors or ()
    ]
    return table(("tensor", "type", "shape", "bytes"), rows)


def keys_text(found: Inspection) -> str:
    """One row a key of the header, or of config.json."""
    header = found.header
    rows = [(key, _short(value)) for key, value in (*header.keys.items(), *header.config.items())]
    rows += [(key, f"{fact.count:,} x {fact.element}") for key, fact in header.arrays.items()]
    rows += [(key, f"a string of {size:,} bytes") for key, size in header.long_strings.items()]
    return table(("key", "value"), rows)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 100 else text[:97] + "..."


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
            return blank | _attention_json(kind)
        case SharedCache():
            return blank | _attention_json(kind.attention) | {"reads_layer": kind.source_layer}
        case HybridLayer():
            return blank | _attention_json(kind.attention)
        case NoCache() if kind.attention is not None:
            return blank | _attention_json(kind.attention)
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


def _attention_json(kind: Attention) -> dict[str, Any]:
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
