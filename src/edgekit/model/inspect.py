"""A reference -> everything its header tells: source, header and geometry in one screen."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from edgekit.basis import Basis
from edgekit.errors import UnknownArchitectureError
from edgekit.formats import open_header
from edgekit.formats.mixes import mix_by_file_type
from edgekit.formats.quantization import count_weights
from edgekit.formats.types import Depth, ModelHeader, Tensor
from edgekit.model import not_a_language_model, read_geometry, towers_of
from edgekit.model.roles import Role, block_of, roles_of
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    Attention,
    Experts,
    LatentAttention,
    ModelGeometry,
    Recurrent,
    Span,
    Tower,
    attention_of,
)
from edgekit.sources.types import ModelFiles, Reach, Traffic
from edgekit.units import GIB

_IDLE = frozenset({Role.MTP, Role.TOWER})  # they do not work on a token of text

CACHE_ELEMENT_BYTES = 2  # 16 bit, what engines use unless told otherwise
STATE_ELEMENT_BYTES = 4  # recurrent states are 32 bit


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCount:
    """How many weights there are, and how that is known."""

    total: int
    basis: Basis
    active: int | None  # those that work on one token of text: no idle experts, towers, MTP blocks
    active_basis: Basis  # by which of them an expert is told: the tensors, or the geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """Elements remembered for each token by all layers whose memory reaches equally far."""

    span: Span
    span_tokens: int
    elements_per_row: int
    tokens_per_row: int
    layers: int

    def held_bytes(self, tokens: int) -> int:
        """What a sequence of so many tokens holds at 16 bit."""
        held = tokens if self.span is Span.ALL else min(tokens, self.span_tokens)
        return -(-held // self.tokens_per_row) * self.elements_per_row * CACHE_ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsShare:
    """A slice of the weights."""

    name: str
    size_bytes: int
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    files: ModelFiles = field(repr=False)
    header: ModelHeader = field(repr=False)
    geometry: ModelGeometry | None = field(repr=False)  # None when the file is not a language model
    not_a_model: str | None  # and then this says what it is
    towers: tuple[Tower, ...]  # beside a language model, or in a projector's file
    weights: WeightsCount | None
    cache: tuple[CachePart, ...]
    state_elements: int  # per sequence
    by_role: tuple[WeightsShare, ...]  # empty when the tensor directory was not read
    by_type: tuple[WeightsShare, ...]
    traffic: Traffic

    @property
    def state_bytes(self) -> int:
        """What every sequence holds, however long it is."""
        return self.state_elements * STATE_ELEMENT_BYTES

    @property
    def full_context_bytes(self) -> int | None:
        """What one sequence that fills the native context must hold, before an engine's padding."""
        context = self.geometry.native_context if self.geometry is not None else None
        if context is None:
            return None
        return self.state_bytes + sum(part.held_bytes(context) for part in self.cache)

    @property
    def mix(self) -> str | None:
        """The name of the file's mix of types, where it states one."""
        number = self.header.keys.get("general.file_type")
        mix = mix_by_file_type(number) if isinstance(number, int) else None
        return mix.name if mix is not None else None


def inspect_model(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> Inspection:
    """Look at a path, hub id, URL or name. Raises EdgekitError; never reads weights."""
    reach = reach or Reach()
    files, header = open_header(reference, depth=depth, reach=reach)
    return inspect_header(files, header, reach.traffic)


def inspect_header(files: ModelFiles, header: ModelHeader, traffic: Traffic) -> Inspection:
    """The same of a header that was read already."""
    other = not_a_language_model(header)
    geometry = read_geometry(header) if other is None else None
    layers = len(geometry.layers) if geometry is not None else None
    roles = _settled(header, geometry, roles_of(header.tensors or (), layers=layers))
    return Inspection(
        files=files,
        header=header,
        geometry=geometry,
        not_a_model=other,
        towers=towers_of(header),
        weights=_weights(header, geometry, roles),
        cache=_cache(geometry) if geometry is not None else (),
        state_elements=_state_elements(geometry) if geometry is not None else 0,
        by_role=_shares([role.value for role in roles], header),
        by_type=_shares([tensor.type.name for tensor in header.tensors or ()], header),
        traffic=traffic,
    )


def _settled(
    header: ModelHeader, geometry: ModelGeometry | None, roles: tuple[Role, ...]
) -> tuple[Role, ...]:
    """A recurrent layer's projections are called attention in a GGUF (attn_qkv of a delta net)."""
    recurrent = {
        layer.index
        for layer in (geometry.layers if geometry is not None else ())
        if isinstance(layer.mixer, Recurrent)
    }
    if not recurrent:
        return roles
    return tuple(
        Role.RECURRENT if role is Role.ATTENTION and block_of(tensor.name) in recurrent else role
        for tensor, role in zip(header.tensors or (), roles, strict=True)
    )


def _weights(
    header: ModelHeader, geometry: ModelGeometry | None, roles: tuple[Role, ...]
) -> WeightsCount | None:
    stored = (
        count_weights(header.tensors, header.quantization) if header.tensors is not None else None
    )
    if stored is not None:
        active = _active(header, geometry, roles, stored)
        basis = geometry.basis if geometry is not None else Basis.EXACT
        return WeightsCount(total=stored, basis=Basis.EXACT, active=active, active_basis=basis)
    total, active = (count_parameters(geometry) if geometry is not None else None) or (None, None)
    stated = header.parameters  # the index of an MLX model has it
    if stated is None and total is None:
        return None
    return WeightsCount(
        total=stated or total or 0,
        basis=Basis.MODELLED if stated is None else Basis.EXACT,
        active=active,
        active_basis=Basis.MODELLED,
    )


def _active(
    header: ModelHeader, geometry: ModelGeometry | None, roles: tuple[Role, ...], stored: int
) -> int | None:
    """Weights that work on one token of text; None when the experts cannot be told from the rest."""
    has_experts = geometry is not None and any(layer.experts for layer in geometry.layers)
    if not has_experts and _IDLE.isdisjoint(roles):
        return stored
    working: dict[Experts | None, list[Tensor]] = {}
    for tensor, role in zip(header.tensors or (), roles, strict=True):
        if role not in _IDLE:
            routed = _experts_of(tensor, geometry) if role is Role.EXPERTS else None
            working.setdefault(routed, []).append(tensor)
    if has_experts and working.keys() <= {None}:
        return None
    counts = {
        routed: count_weights(own, header.quantization) or 0 for routed, own in working.items()
    }  # all are known: the sum over everything was
    return sum(
        count if routed is None else count * routed.used // routed.count
        for routed, count in counts.items()
    )


def _experts_of(tensor: Tensor, geometry: ModelGeometry | None) -> Experts | None:
    block = block_of(tensor.name)
    if geometry is None or block is None or block >= len(geometry.layers):
        return None
    return geometry.layers[block].experts


def _cache(geometry: ModelGeometry) -> tuple[CachePart, ...]:
    """The streams of all layers, those of equal reach added up; unbounded ones first."""
    parts: dict[tuple[Span, int, int], tuple[int, int]] = {}
    for layer in geometry.layers:
        own: dict[tuple[Span, int, int], int] = {}
        for stream in layer.mixer.streams:
            reach = (stream.span, stream.span_tokens, stream.tokens_per_row)
            own[reach] = own.get(reach, 0) + stream.elements
        for reach, more in own.items():
            elements, layers = parts.get(reach, (0, 0))
            parts[reach] = (elements + more, layers + 1)
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


def _shares(names: list[str], header: ModelHeader) -> tuple[WeightsShare, ...]:
    sums: dict[str, tuple[int, int]] = {}
    for name, tensor in zip(names, header.tensors or (), strict=True):
        size, count = sums.get(name, (0, 0))
        sums[name] = (size + tensor.size_bytes, count + 1)
    return tuple(
        WeightsShare(name=name, size_bytes=size, tensors=count)
        for name, (size, count) in sorted(sums.items(), key=lambda item: -item[1][0])
    )


_VECTORS = frozenset({TensorKind.NORM, TensorKind.BIAS})


def count_parameters(geometry: ModelGeometry) -> tuple[int, int] | None:
    """(total, active for one token), without towers and MTP blocks; None where it cannot be told."""
    try:
        tensors = expected_tensors(geometry)
    except UnknownArchitectureError:
        return None
    counted = [tensor for tensor in tensors if tensor.kind not in _VECTORS]
    return sum(t.elements for t in counted), sum(active_elements(geometry, t) for t in counted)


def active_elements(geometry: ModelGeometry, tensor: ExpectedTensor) -> int:
    """Those that work on one token: all, but of the experts only the chosen ones."""
    experts = None if tensor.layer is None else geometry.layers[tensor.layer].experts
    if tensor.kind is not TensorKind.EXPERT or experts is None:
        return tensor.elements
    return tensor.elements // experts.count * experts.used


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """What a model is. None: the files do not say, or there is no such thing in it.

    Head counts and widths are those of the first layer with attention; `geometry` has every layer.

    >>> from edgekit.models import inspect_model_remote
    >>> model = inspect_model_remote("sample:qwen3-30b-a3b")
    >>> model.num_layers, model.num_kv_heads, model.num_experts, model.num_experts_used
    (48, 4, 128, 8)
    """

    name: str
    architecture: str
    format: str  # "gguf", "safetensors", "config"
    num_layers: int
    hidden_size: int
    num_attention_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    model_max_context: int | None
    vocab_size: int | None
    bits_per_weight: float | None
    kv_lora_rank: int | None  # of latent attention (MLA)
    sliding_window: int | None
    num_experts: int | None
    num_experts_used: int | None
    num_parameters: int | None
    exact_model_size_bytes: int | None  # of all tensors; None where only a config was read
    quantization: str | None  # "Q4_K_M", "affine", "gptq"
    basis: Basis  # of the layers
    geometry: ModelGeometry = field(repr=False)

    @property
    def exact_model_size_gb(self) -> float | None:
        size = self.exact_model_size_bytes
        return None if size is None else size / GIB

    @property
    def is_moe(self) -> bool:
        return self.num_experts is not None


def read_metadata(header: ModelHeader, geometry: ModelGeometry) -> ModelMetadata:
    found = [one for layer in geometry.layers if (one := attention_of(layer.mixer)) is not None]
    first = found[0] if found else None
    experts = next((layer.experts for layer in geometry.layers if layer.experts), None)
    parameters = _parameters(header, geometry)
    return ModelMetadata(
        name=header.name,
        architecture=geometry.architecture,
        format=header.container.value,
        num_layers=len(geometry.layers),
        hidden_size=geometry.hidden,
        num_attention_heads=first.heads if first is not None else None,
        num_kv_heads=_kv_heads(first),
        head_dim=first.key_dim if first is not None else None,
        model_max_context=geometry.native_context or geometry.trained_context,
        vocab_size=geometry.vocabulary,
        bits_per_weight=_bits(header, parameters),
        kv_lora_rank=first.latent_dim if isinstance(first, LatentAttention) else None,
        sliding_window=next((one.span_tokens for one in found if one.span is not Span.ALL), None),
        num_experts=_count(experts),
        num_experts_used=experts.used if experts is not None else None,
        num_parameters=parameters,
        exact_model_size_bytes=header.tensor_bytes,
        quantization=_quantization(header),
        basis=geometry.basis,
        geometry=geometry,
    )


def _kv_heads(first: Attention | LatentAttention | None) -> int | None:
    """A latent that is attended to as it is counts as one head; one that is unfolded has all of them."""
    match first:
        case Attention():
            return first.kv_heads
        case LatentAttention():
            return 1 if first.absorbed else first.heads
        case _:
            return None


def _count(experts: Experts | None) -> int | None:
    return experts.count if experts is not None else None


def _parameters(header: ModelHeader, geometry: ModelGeometry) -> int | None:
    if header.tensors is not None:
        stored = count_weights(header.tensors, header.quantization)
        if stored is not None:
            return stored
    counted = count_parameters(geometry)
    return header.parameters or (counted[0] if counted is not None else None)


def _bits(header: ModelHeader, parameters: int | None) -> float | None:
    size = header.tensor_bytes
    return None if size is None or not parameters else size * 8 / parameters


def _quantization(header: ModelHeader) -> str | None:
    number = header.keys.get("general.file_type")
    mix = mix_by_file_type(number) if isinstance(number, int) else None
    if mix is not None:
        return mix.name
    return header.quantization.method if header.quantization is not None else None
