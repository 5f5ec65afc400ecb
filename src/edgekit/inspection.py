"""A reference -> everything its header tells: source, header and geometry in one screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgekit.basis import Basis
from edgekit.geometry import not_a_language_model, read_geometry
from edgekit.geometry.parameters import count_parameters
from edgekit.geometry.roles import Role, role_of
from edgekit.geometry.types import ModelGeometry, Span
from edgekit.header import count_parameters as count_stored
from edgekit.header import read_header
from edgekit.header.mixes import mix_by_file_type
from edgekit.header.types import Depth, ModelHeader, Tensor
from edgekit.source import locate
from edgekit.source.types import ModelFiles, Reach, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How many weights there are, and how that is known."""

    total: int
    active: int  # those that work on one token
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """Elements remembered for each token by all layers whose memory reaches equally far."""

    span: Span
    span_tokens: int
    elements_per_row: int
    tokens_per_row: int
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A slice of the weights."""

    name: str
    size_bytes: int
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    files: ModelFiles
    header: ModelHeader
    geometry: ModelGeometry | None  # None when the file is not a language model
    not_a_model: str | None  # and then this says what it is
    weights: Weights | None
    cache: tuple[CachePart, ...]
    state_elements: int  # per sequence
    by_role: tuple[Share, ...]  # empty when the tensor directory was not read
    by_type: tuple[Share, ...]
    traffic: Traffic

    @property
    def mix(self) -> str | None:
        """The name of the file's mix of types, where it states one."""
        number = self.header.keys.get("general.file_type")
        mix = mix_by_file_type(number) if isinstance(number, int) else None
        return mix.name if mix is not None else None


def inspect_model(
    reference: str, *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> Inspection:
    """Look at a path, hub id, URL or name. Raises EdgekitError; never reads weights."""
    reach = reach or Reach()
    files = locate(reference, reach=reach)
    header = read_header(files, depth=depth)
    other = not_a_language_model(header)
    geometry = read_geometry(header) if other is None else None
    layers = len(geometry.layers) if geometry is not None else None
    return Inspection(
        files=files,
        header=header,
        geometry=geometry,
        not_a_model=other,
        weights=_weights(header, geometry),
        cache=_cache(geometry) if geometry is not None else (),
        state_elements=_state_elements(geometry) if geometry is not None else 0,
        by_role=_shares((role_of(t, layers=layers).value, t) for t in header.tensors or ()),
        by_type=_shares((t.type.name, t) for t in header.tensors or ()),
        traffic=reach.traffic,
    )


def _weights(header: ModelHeader, geometry: ModelGeometry | None) -> Weights | None:
    if header.tensors is not None:
        total = count_stored(header.tensors, header.quantization)
        idle = _idle_experts(header, geometry) if geometry is not None else 0
        return Weights(total=total, active=total - idle, basis=Basis.EXACT)
    modelled = count_parameters(geometry) if geometry is not None else None
    if modelled is None:
        return None
    total, active = modelled
    if header.parameters is not None:
        return Weights(total=header.parameters, active=active, basis=Basis.MODELLED)
    return Weights(total=total, active=active, basis=Basis.MODELLED)


def _idle_experts(header: ModelHeader, geometry: ModelGeometry) -> int:
    """Weights of the experts that a token does not visit."""
    routed = next((layer.experts for layer in geometry.layers if layer.experts is not None), None)
    if routed is None:
        return 0
    layers = len(geometry.layers)
    tensors = [t for t in header.tensors or () if role_of(t, layers=layers) is Role.EXPERTS]
    stored = count_stored(tensors, header.quantization)
    return stored * (routed.count - routed.used) // routed.count


def _cache(geometry: ModelGeometry) -> tuple[CachePart, ...]:
    """The streams of all layers, those of equal reach added up; unbounded ones first."""
    parts: dict[tuple[Span, int, int], tuple[int, int]] = {}
    for layer in geometry.layers:
        reaches = {(s.span, s.span_tokens, s.tokens_per_row) for s in layer.mixer.streams}
        for reach in reaches:
            elements, layers = parts.get(reach, (0, 0))
            own = sum(
                s.elements
                for s in layer.mixer.streams
                if (s.span, s.span_tokens, s.tokens_per_row) == reach
            )
            parts[reach] = (elements + own, layers + 1)
    return tuple(
        CachePart(
            span=span,
            span_tokens=tokens,
            tokens_per_row=per_row,
            elements_per_row=elements,
            layers=layers,
        )
        for (span, tokens, per_row), (elements, layers) in sorted(
            parts.items(), key=lambda item: (item[0][0] is not Span.ALL, item[0][1], item[0][2])
        )
    )


def _state_elements(geometry: ModelGeometry) -> int:
    return sum(state.elements for layer in geometry.layers for state in layer.mixer.states)


def _shares(named: Iterable[tuple[str, Tensor]]) -> tuple[Share, ...]:
    sums: dict[str, tuple[int, int]] = {}
    for name, tensor in named:
        size, count = sums.get(name, (0, 0))
        sums[name] = (size + tensor.size_bytes, count + 1)
    return tuple(
        Share(name=name, size_bytes=size, tensors=count)
        for name, (size, count) in sorted(sums.items(), key=lambda item: -item[1][0])
    )
