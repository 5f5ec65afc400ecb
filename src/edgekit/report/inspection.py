"""The facts read from a model's files as one screen of text and as JSON (docs/json.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from edgekit.errors import printable
from edgekit.model.inspect import CACHE_ELEMENT_BYTES, Inspection, WeightsShare
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
    Span,
)
from edgekit.report.bill import count_kinds, kind_name, window_of
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import LABEL_WIDTH, paint, table, with_count
from edgekit.sources.types import Container, Origin
from edgekit.units import Basis, format_bytes, format_count

_MAX_SHARES = 6
_CACHE_FIELDS = "span span_tokens? elements_per_row tokens_per_row layers"
_STATE_FIELDS = "state_elements_per_sequence=state_elements state_bytes_per_sequence=state_bytes full_context_bytes"
_TIED = {True: ", tied embeddings", False: ", separate output head", None: ""}
_WEIGHTS_FIELDS = (
    "parameters=weights.total active_parameters=weights.active parameters_basis=weights.basis "
    "active_parameters_basis=weights.active_basis"
)
GEOMETRY_KEYS = (
    "architecture", "geometry_basis", "geometry_because", "layers", "mtp_layers", "layer_kinds", "hidden",
    "vocabulary", "experts", "trained_context", "native_context", "rope_scaling", "tied_embeddings", "causal",
    "pooling",
)  # fmt: skip


def inspection_text(
    inspection: Inspection,
    *,
    tensors: bool = False,
    layers: bool = False,
    keys: bool = False,
    bold: bool = False,
) -> str:
    """One screen of text, rows not folded; long lists only on request. `bold` highlights the first line."""
    header, quantization = inspection.header, inspection.header.quantization
    mix = inspection.mix or ""
    if not mix and quantization is not None:
        bits = f"{quantization.bits:g} bit" if quantization.bits else ""
        mix = " ".join(filter(None, (quantization.method, quantization.format, bits)))
    in_name = mix.lower() in re.split(r"[^a-z0-9_]+", inspection.files.label.lower())
    version = f" v{header.version}" if header.version is not None else ""
    parts = [
        inspection.files.label,
        "" if in_name else mix,
        f"{'MLX' if header.mlx else header.container.name}{version}",
        "" if inspection.geometry is None else inspection.geometry.architecture,
        "from EdgeKit's index" if inspection.files.origin is Origin.CATALOG else "",
    ]
    title = printable("  ·  ".join(filter(None, parts)))
    lines = [paint(title, bold=True) if bold else title, printable(_headline(inspection))]
    for label, body in _sections(inspection):
        rows = [row for row in body if row]
        lines += [""] if rows else []
        lines += [
            f"{label if i == 0 else '':<{LABEL_WIDTH}}{printable(row)}".rstrip()
            for i, row in enumerate(rows)
        ]
    if layers and inspection.geometry is not None:
        head = ("layer", "kind", "heads", "feed-forward", "cache")
        lines += ["", *table(head, map(_layer_cells, inspection.geometry.layers), left=range(5))]
    if tensors:
        cells = (
            (
                tensor.name,
                tensor.type.name,
                " x ".join(map(str, tensor.shape)),
                f"{tensor.size_bytes:,}",
            )
            for tensor in header.tensors or ()
        )
        lines += ["", *table(("tensor", "type", "shape", "bytes"), cells, left=range(4))]
    if keys:
        values = []
        for key, value in (*header.keys.items(), *header.config.items()):
            text = " ".join(str(value).split())
            values.append((key, text if len(text) <= 100 else text[:97] + "..."))
        values += [(key, f"{fact.count:,} x {fact.element}") for key, fact in header.arrays.items()]
        strings = header.long_strings.items()
        values += [(key, f"a string of {size:,} bytes") for key, size in strings]
        lines += ["", *table(("key", "value"), values, left=range(2))]
    return "\n".join(lines) + "\n"


def _headline(inspection: Inspection) -> str:
    """Parameters, size and context."""
    if inspection.not_a_model is not None:
        return f"This is {inspection.not_a_model}."
    header, weights, geometry = inspection.header, inspection.weights, inspection.geometry
    is_exact = weights is not None and weights.basis is Basis.EXACT
    parts = ["parameters unknown", "", "context unknown"]
    if weights is not None:
        parts[0] = f"{'' if is_exact else 'about '}{format_count(weights.total)} parameters"
        if weights.active is not None and weights.active < weights.total:
            parts[0] += f" ({format_count(weights.active)} active)"
    if header.tensor_bytes is not None:
        parts[1] = f"{format_bytes(header.tensor_bytes)} of weights"
        if weights is not None and weights.total and is_exact:
            parts[1] += f", {header.tensor_bytes * 8 / weights.total:.2f} bits each"
    elif header.file_bytes:
        parts[1] = f"{format_bytes(header.file_bytes)} file"
    if geometry is not None and geometry.native_context is not None:
        parts[2] = f"{geometry.native_context:,} tokens of context"
    if geometry is not None and geometry.doubt:
        parts.append(f"{geometry.doubt}: a rough estimate")
    return "  ·  ".join(filter(None, parts))


def _sections(inspection: Inspection) -> Iterator[tuple[str, Iterable[str]]]:
    """The label and the rows of each section; the caller leaves out sections without rows."""
    geometry, weights = inspection.geometry, inspection.weights
    header, files = inspection.header, inspection.files
    if geometry is not None:
        yield "Layers", _layer_rows(geometry)
        yield "Cache", _cache_rows(inspection, geometry)
    yield "Weights", _share_rows(inspection)
    companions = []
    for tower in inspection.towers:
        size = f", {tower.layers} layers" if tower.layers else ""
        width = f" of {tower.hidden:,}" if tower.hidden else ""
        companions.append(f"{tower.kind} tower{size}{width}")
    if files.projectors:
        companions.append("projector: " + ", ".join(file.name for file in files.projectors))
    if files.alternatives:
        companions.append("other files: " + ", ".join(files.alternatives))
    yield "Also" if geometry is not None else "Holds", companions
    traffic, read = inspection.traffic, "the header"
    if header.header_bytes is not None:
        read = f"{format_bytes(header.header_bytes)} of header"
    network = "no network used"
    if traffic.requests:
        requests = with_count(traffic.requests, "request")
        network = f"{format_bytes(traffic.received_bytes)} over the network in {requests}"
        if traffic.cached_bytes:
            network += f", {format_bytes(traffic.cached_bytes)} from the cache"
    yield "Read", [f"{read}, {network}"]
    notes = list(files.notes)
    if geometry is not None and geometry.because:
        notes.append(f"{geometry.basis.name}: {geometry.because}")
    if header.container is Container.CONFIG:
        notes.append("no weights found: everything here comes from config.json")
    if weights is not None and weights.basis is not Basis.EXACT:
        computed = "parameter count computed from the layer sizes, not from the tensors"
        notes.append(f"{weights.basis.name}: {computed}")
    if not header.complete:
        notes.append("only the architecture was read; leave out --light to list the tensors too")
    yield "Note", notes


def _layer_rows(geometry: ModelGeometry) -> Iterator[str]:
    """The kinds of layers, their sizes, experts, rope scaling, and layers for multi-token prediction."""
    kinds = [f"{count} {kind_name(*kind)}" for kind, count in count_kinds(geometry).items()]
    yield f"{len(geometry.layers)}: " + ", ".join(kinds)
    heads = [text for layer in geometry.layers if (text := _heads(layer.mixer))]
    widths = [f"hidden {geometry.hidden:,}", *dict.fromkeys(heads)]
    dense = sorted({layer.dense.width for layer in geometry.layers if layer.dense is not None})
    if dense:
        ends = dict.fromkeys((dense[0], dense[-1]))
        widths.append("feed-forward " + " to ".join(f"{width:,}" for width in ends))
    vocabulary = "unknown" if geometry.vocabulary is None else f"{geometry.vocabulary:,}"
    widths.append(f"vocabulary {vocabulary}")
    if not geometry.causal:
        widths.append("an encoder")
        widths += [f"pooling {geometry.pooling}"] if geometry.pooling else []
    yield ", ".join(widths) + (_TIED[geometry.tied_embeddings] if geometry.causal else "")
    routed = [layer.experts for layer in geometry.layers if layer.experts is not None]
    if routed:
        first = routed[0]
        shared = f" and a shared one of {first.shared_width:,}" if first.shared_width else ""
        where = "" if len(routed) == len(geometry.layers) else f"in {len(routed)} layers "
        yield f"{where}{first.used} of {first.count} experts of {first.width:,}{shared}"
    rope = geometry.rope
    if rope is not None and (rope.factor is not None or rope.original_context is not None):
        factor = f" x{rope.factor:g}" if rope.factor else ""
        start = f" from {rope.original_context:,}" if rope.original_context else ""
        yield f"rope scaling {rope.type}{factor}{start}"
    if geometry.mtp_layers:
        yield f"{geometry.mtp_layers} more for multi-token prediction (not loaded by default)"


def _heads(kind: LayerKind) -> str:
    """'32/8 heads of 128': query heads, KV heads and their width; '' for a kind without heads."""
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


def _cache_rows(inspection: Inspection, geometry: ModelGeometry) -> Iterator[str]:
    """Bytes of cache per token, of recurrent state per sequence, and for one full context."""
    if not inspection.cache and not inspection.state_elements:
        yield "none: the model processes the whole input at once"
    for part in inspection.cache:
        row_size = format_bytes(part.elements_per_row * CACHE_ELEMENT_BYTES)
        per = "token" if part.tokens_per_row == 1 else f"{part.tokens_per_row} tokens"
        span, limit = part.span_tokens, ""
        if part.span is not Span.ALL:
            max_size = format_bytes(part.held_bytes(min(span, geometry.native_context or span)))
            which = "the last" if part.span is Span.WINDOW else "a chunk of"
            limit = f", only {which} {span:,} tokens: at most {max_size}"
        yield f"{row_size} per {per} (16 bit), {part.layers} layers{limit}"
    if inspection.state_elements:
        state = format_bytes(inspection.state_bytes)
        yield f"{state} of recurrent state per sequence (32 bit), at any length"
    if inspection.full_context_bytes:
        size = format_bytes(inspection.full_context_bytes)
        yield f"{size} for one sequence that fills the context, before the engine's padding"


def _share_rows(inspection: Inspection) -> Iterator[str]:
    """The bytes of the weights by role on the left, and by tensor type on the right."""
    if inspection.header.tensors is None:
        size = inspection.header.tensor_bytes or inspection.header.file_bytes
        if size is not None:
            yield f"{format_bytes(size)}; the list of tensors was not read"
        return
    left = _column(inspection.by_role, inspection.header.tensor_bytes or 0)
    right = _column(inspection.by_type, inspection.header.tensor_bytes or 0)
    width = max(map(len, left), default=0)
    for first, second in zip_longest(left, right, fillvalue=""):
        yield f"{first:<{width}}   {second}".rstrip()


def _column(shares: tuple[WeightsShare, ...], total: int) -> list[str]:
    """Name, size and percentage of the largest shares, and one row for the sum of the others."""
    rows = [(share.name, share.size_bytes) for share in shares[:_MAX_SHARES]]
    rest = sum(share.size_bytes for share in shares[_MAX_SHARES:])
    if rest:
        rows.append((f"{len(shares) - _MAX_SHARES} more", rest))
    width = max((len(name) for name, _ in rows), default=0)
    return [
        f"{name:<{width}} {format_bytes(size):>11} {size / total if total else 0:>6.1%}"
        for name, size in rows
    ]


def _layer_cells(layer: Layer) -> tuple[str, ...]:
    """A row of --layers: index, kind, heads, feed-forward, cache."""
    experts, mixer = layer.experts, layer.mixer
    widths = [f"{layer.dense.width:,}"] if layer.dense is not None else []
    widths += [f"{experts.used}/{experts.count} x {experts.width:,}"] if experts else []
    cached = [f"{part.name} {part.elements:,}" for part in mixer.streams]
    cached += [f"{part.name} {part.elements:,}" for part in mixer.states]
    kind = kind_name(mixer.label, window_of(mixer))
    return str(layer.index), kind, _heads(mixer), " + ".join(widths), ", ".join(cached)


def inspection_json(
    inspection: Inspection, *, tensors: bool = False, layers: bool = False, keys: bool = False
) -> Json:
    """The whole answer; long lists only on request."""
    header, geometry, files = inspection.header, inspection.geometry, inspection.files
    quantization = header.quantization
    answer: Json = {
        "schema": SCHEMA,
        **fields(files, "model=label reference origin"),
        "format": "mlx" if header.mlx else header.container.value,
        "gguf_version": header.version,
        **fields(header, "complete file_bytes header_bytes tensor_bytes"),
        "tensors": header.tensor_count,
        **_weights_json(inspection),
        "mix": inspection.mix,
        "quantization": None
        if quantization is None
        else {
            **fields(quantization, "method format bits group_size"),
            "overrides": len(quantization.overrides),
        },
        **(dict.fromkeys(GEOMETRY_KEYS) if geometry is None else _geometry_json(geometry)),
        "towers": [fields(tower, "kind layers hidden") for tower in inspection.towers],
        "not_a_language_model": inspection.not_a_model,
        "cache": None
        if geometry is None
        else {
            "parts": [fields(part, _CACHE_FIELDS) for part in inspection.cache],
            **fields(inspection, _STATE_FIELDS),
        },
        "bytes_by_role": {share.name: share.size_bytes for share in inspection.by_role},
        "bytes_by_type": {share.name: share.size_bytes for share in inspection.by_type},
        "projectors": [file.name for file in files.projectors],
        **fields(files, "alternatives notes"),
        "network": fields(inspection.traffic, "requests ranges received_bytes cached_bytes"),
    }
    if layers:
        answer["layer_list"] = [_layer_json(layer) for layer in geometry.layers] if geometry else []
    if tensors:
        answer["tensor_list"] = [
            fields(tensor, "name type=type.name shape bytes=size_bytes offset shard")
            for tensor in header.tensors or ()
        ]
    if keys:
        stored = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in header.keys.items()
        }
        arrays = {
            key: {"array_of": value.element, "count": value.count}
            for key, value in header.arrays.items()
        }
        long_strings = {key: {"string_bytes": size} for key, size in header.long_strings.items()}
        answer["keys"] = stored | arrays | long_strings | dict(header.config)
    return answer


def _weights_json(inspection: Inspection) -> Json:
    """The numbers of parameters, how they are known, and the average number of bits of a weight."""
    weights, size = inspection.weights, inspection.header.tensor_bytes
    answer = fields(inspection, _WEIGHTS_FIELDS)
    if weights is not None and weights.active is None:
        answer["active_parameters_basis"] = None
    answer["bits_per_weight"] = None
    if weights is not None and weights.total and weights.basis is Basis.EXACT and size is not None:
        answer["bits_per_weight"] = round(size * 8 / weights.total, 4)
    return answer


def _geometry_json(geometry: ModelGeometry) -> Json:
    routed = [layer.experts for layer in geometry.layers if layer.experts is not None]
    experts = (
        {**fields(routed[0], "count used width shared_width"), "layers": len(routed)}
        if routed
        else None
    )
    rope = geometry.rope
    return {
        **fields(geometry, "architecture geometry_basis=basis geometry_because=because?"),
        "layers": len(geometry.layers),
        "mtp_layers": geometry.mtp_layers,
        "layer_kinds": [
            {"kind": label, "window": window or None, "layers": count}
            for (label, window), count in count_kinds(geometry).items()
        ],
        **fields(geometry, "hidden vocabulary"),
        "experts": experts,
        **fields(geometry, "trained_context native_context"),
        "rope_scaling": None if rope is None else fields(rope, "type factor original_context"),
        **fields(geometry, "tied_embeddings causal pooling"),
    }


def _layer_json(layer: Layer) -> Json:
    """A layer, with null for the dimensions that its kind does not have."""
    kind = layer.mixer
    sizes: Json = dict.fromkeys(("heads", "kv_heads", "key_dim", "value_dim", "window"))
    match kind:
        case Attention() | SharedCache() | HybridLayer() | NoCache():
            attention = kind if isinstance(kind, Attention) else kind.attention
            if attention is not None:
                sizes |= fields(attention, "heads kv_heads key_dim value_dim")
                sizes["window"] = attention.span_tokens or None
            if isinstance(kind, SharedCache):
                sizes["reads_layer"] = kind.source_layer
        case LatentAttention():
            sizes |= fields(kind, "heads key_dim value_dim latent_dim rope_dim absorbed")
        case CompressedAttention():
            sizes |= {"kv_heads": 1, "window": kind.window_tokens}
            sizes |= fields(kind, "heads key_dim ratio")
        case Recurrent():
            sizes |= fields(kind, "inner state_size")
    return {
        "index": layer.index,
        "kind": kind.label,
        **sizes,
        **fields(layer, "feed_forward=dense.width experts=experts.count"),
        **fields(layer, "experts_used=experts.used expert_width=experts.width"),
        "streams": {stream.name: stream.elements for stream in kind.streams},
        "states": {stream.name: stream.elements for stream in kind.states},
    }
