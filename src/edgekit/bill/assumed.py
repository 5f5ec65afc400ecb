"""A name, or a config without weights -> an estimate by rules of thumb. Every line is ASSUMED and says why.

Parameters x bits of the mix; 5 % more for experts, whose routers and attention have more bits; a fixed overhead by
size; 15 % more of it for MLX, which wires its graph. The numbers are a policy, not measurements: with a header, ask
an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from edgekit.basis import Basis
from edgekit.bill.cache_types import F16, CacheType
from edgekit.bill.names import MAX_PARAMETERS, bits_of, read_name
from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine
from edgekit.errors import UsageError
from edgekit.machine.types import DEVICE
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import ModelGeometry, Span, Stream
from edgekit.units import GIB, format_bytes, format_count

# (parameters below, overhead in GiB); what experts need does not follow their size.
_TIERS = ((10 * 10**9, Fraction(12, 10)), (30 * 10**9, Fraction(25, 10)))
_LARGEST_TIER = Fraction(4)
_EXPERTS_TIER = Fraction(3)
_EXPERTS_FACTOR = Fraction(105, 100)
_WIRING_FACTOR = Fraction(115, 100)
_UNKNOWN_CONTEXT = 32_768
_STATE_BYTES = 4  # f32
_WIDTHS = {"float32": 32.0, "float16": 16.0, "bfloat16": 16.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedModel:
    """What the rules of thumb need to know."""

    name: str
    parameters: int
    has_experts: bool
    bits_per_weight: float
    mix: str  # what the bits are called
    geometry: ModelGeometry | None = field(default=None, repr=False)


def from_name(reference: str, *, mix: str | None = None) -> AssumedModel:
    """`mix` goes before the one in the name; with neither, 16 bits. UsageError for a name without a size."""
    named = read_name(reference)
    bits = named.bits_per_weight if mix is None else bits_of(mix)
    return AssumedModel(
        name=named.name,
        parameters=named.parameters,
        has_experts=named.has_experts,
        bits_per_weight=16.0 if bits is None else bits,
        mix=mix or named.mix or "16 bits, the default",
    )


def from_config(
    geometry: ModelGeometry, config: Mapping[str, Any], *, name: str = "", mix: str | None = None
) -> AssumedModel:
    """Parameters from the tensors it implies. UnknownArchitectureError where they are not described."""
    width = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    if mix is None and (config.get("quantization_config") or config.get("quantization")):
        raise UsageError(
            f"{name or 'this config'} describes quantised weights: choose a quantisation, "
            "or an engine"
        )
    return AssumedModel(
        name=name or geometry.architecture,
        parameters=sum(tensor.elements for tensor in expected_tensors(geometry, config)),
        has_experts=any(layer.experts is not None for layer in geometry.layers),
        bits_per_weight=_WIDTHS.get(width, 16.0) if mix is None else bits_of(mix),
        mix=mix or width,
        geometry=geometry,
    )


def assumed_estimate(
    model: AssumedModel,
    load: Load,
    *,
    engine: str,
    backend: str = "",
    wired: bool = False,
) -> MemoryEstimate:
    """Weights, cache where the geometry is known, overhead. Its basis is ASSUMED throughout.

    `wired`: the engine wires its graph in memory, as MLX does.
    """
    if not 0 < model.parameters <= MAX_PARAMETERS:
        raise UsageError(f"invalid parameter count: {model.parameters:,}")
    cache = _cache_lines(model.geometry, load) if model.geometry is not None else ()
    notes = () if model.geometry is not None else (_NO_CACHE,)
    return MemoryEstimate(
        engine=engine,
        backend=backend,
        lines=(_weights(model), *cache, _overhead(model, wired=wired)),
        facts=(("parameters", model.parameters), ("bits_per_weight", model.bits_per_weight)),
        notes=notes,
    )


_NO_CACHE = (
    "the KV cache is not included: a name alone does not give the number of layers and "
    "heads. Give the model's files or its config.json"
)


def _weights(model: AssumedModel) -> MemoryLine:
    factor = _EXPERTS_FACTOR if model.has_experts else Fraction(1)
    size = model.parameters * Fraction(model.bits_per_weight) / 8 * factor
    more = " x 1.05 for experts" if model.has_experts else ""
    told = f"{format_count(model.parameters)} parameters x {model.bits_per_weight:g} bits / 8{more} ({model.mix})"
    return _line(Component.WEIGHTS, -(-size.numerator // size.denominator), told)


def _overhead(model: AssumedModel, *, wired: bool) -> MemoryLine:
    """Scratch buffers, runtime, driver: a tier by size."""
    tier = next((gib for below, gib in _TIERS if model.parameters < below), _LARGEST_TIER)
    told = f"{format_count(model.parameters)} parameters: {float(tier):g} GiB"
    if model.has_experts:
        tier, told = _EXPERTS_TIER, "MoE models of any size: 3 GiB"
    if wired:
        tier, told = tier * _WIRING_FACTOR, told + " x 1.15 for wiring"
    size = tier * GIB
    return _line(Component.RUNTIME, -(-size.numerator // size.denominator), told)


def _cache_lines(geometry: ModelGeometry, load: Load) -> tuple[MemoryLine, ...]:
    tokens = load.context_tokens or geometry.native_context or _UNKNOWN_CONTEXT
    k, v = load.cache_k or F16, load.cache_v or F16
    streams = [stream for layer in geometry.layers for stream in layer.mixer.streams]
    kept = sum(_stream_bytes(s, tokens, v if s.name == "v" else k) for s in streams)
    states = sum(state.elements for layer in geometry.layers for state in layer.mixer.states)
    held = states * _STATE_BYTES * (load.sequences or 1)
    lines = (
        (
            Component.KV_CACHE,
            kept,
            f"{tokens:,} tokens in {len(geometry.layers)} layers, {k.name}/{v.name}",
        ),
        (Component.STATE, held, f"{states:,} state values per sequence x {_STATE_BYTES} bytes"),
    )
    return tuple(
        _line(component, size, f"{told}: {format_bytes(size)}")
        for component, size, told in lines
        if size
    )


def _stream_bytes(stream: Stream, tokens: int, type_: CacheType) -> int:
    """Rows of what the stream keeps; blocks are rounded up."""
    held = tokens if stream.span is Span.ALL else min(tokens, stream.span_tokens)
    rows = -(-held // stream.tokens_per_row)
    return rows * -(-stream.elements // type_.block_elements) * type_.block_bytes


def _line(component: Component, size_bytes: int, because: str) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=size_bytes,
        pool=DEVICE,
        basis=Basis.ASSUMED,
        because=because,
    )
