"""All facts about a model in its header: `inspect_model`, and `read_metadata` for the public API."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field

from edgekit.errors import UnknownArchitectureError
from edgekit.formats import open_header
from edgekit.formats.mixes import stated_mix
from edgekit.formats.quantization import count_weights
from edgekit.formats.types import Depth, ModelHeader, Tensor
from edgekit.model import Role, block_of, not_a_language_model, read_geometry, roles_of, towers_of
from edgekit.model.tensor_recipes import ExpectedTensor, TensorKind
from edgekit.model.tensors import expected_tensors
from edgekit.model.types import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    ModelGeometry,
    Recurrent,
    Span,
    Tower,
    attention_of,
)
from edgekit.sources.types import ModelFiles, Reach, Traffic
from edgekit.units import GIB, Basis

_IDLE = frozenset({Role.MTP, Role.TOWER})  # not used for a token of text

CACHE_ELEMENT_BYTES = 2  # 16 bit, the default of engines
STATE_ELEMENT_BYTES = 4  # recurrent states are 32 bit


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsCount:
    """The number of weights, with its basis."""

    total: int
    basis: Basis
    active: int | None  # used for one token of text: without idle experts, towers, MTP blocks
    active_basis: Basis  # depends on how experts were recognised: by tensors or by the geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """Elements cached for each token by all layers with the same span."""

    span: Span
    span_tokens: int
    elements_per_row: int
    tokens_per_row: int
    layers: int

    def held_bytes(self, tokens: int) -> int:
        """The cache of a sequence of this length at 16 bit."""
        held_tokens = tokens if self.span is Span.ALL else min(tokens, self.span_tokens)
        rows = -(-held_tokens // self.tokens_per_row)
        return rows * self.elements_per_row * CACHE_ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsShare:
    """A part of the weights."""

    name: str
    size_bytes: int
    tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    files: ModelFiles = field(repr=False)
    header: ModelHeader = field(repr=False)
    geometry: ModelGeometry | None = field(repr=False)  # None if the file is not a language model
    not_a_model: str | None  # what it is instead
    towers: tuple[Tower, ...]  # of a language model, or of a projector's file
    weights: WeightsCount | None
    cache: tuple[CachePart, ...]
    state_elements: int  # per sequence
    by_role: tuple[WeightsShare, ...]  # empty if the tensor directory was not read
    by_type: tuple[WeightsShare, ...]
    traffic: Traffic

    @property
    def state_bytes(self) -> int:
        """Recurrent state of a sequence, independent of its length."""
        return self.state_elements * STATE_ELEMENT_BYTES

    @property
    def full_context_bytes(self) -> int | None:
        """Cache and state of one sequence that fills the native context, before an engine's padding."""
        context = self.geometry.native_context if self.geometry is not None else None
        if context is None:
            return None
        return self.state_bytes + sum(part.held_bytes(context) for part in self.cache)

    @property
    def mix(self) -> str | None:
        """The name of the file's mix of types, if it states one."""
        return stated_mix(self.header.keys)


def inspect_model(
    reference: str | os.PathLike[str], *, depth: Depth = Depth.TENSORS, reach: Reach | None = None
) -> Inspection:
    """Inspect a path, hub id, URL or name. Raises EdgekitError; never reads weights."""
    reach = reach or Reach()
    files, header = open_header(reference, depth=depth, reach=reach)
    return inspect_header(files, header, reach.traffic)


def inspect_header(files: ModelFiles, header: ModelHeader, traffic: Traffic) -> Inspection:
    """Like `inspect_model`, from a header that was already read."""
    not_a_model = not_a_language_model(header)
    geometry = read_geometry(header) if not_a_model is None else None
    layers = geometry.layers if geometry is not None else ()
    count = len(layers) if geometry is not None else None
    roles = _with_recurrence(header, layers, roles_of(header.tensors or (), layers=count))
    return Inspection(
        files=files,
        header=header,
        geometry=geometry,
        not_a_model=not_a_model,
        towers=towers_of(header),
        weights=_weights(header, geometry, roles),
        cache=_cache(geometry) if geometry is not None else (),
        state_elements=sum(state.elements for layer in layers for state in layer.mixer.states),
        by_role=_shares([role.value for role in roles], header),
        by_type=_shares([tensor.type.name for tensor in header.tensors or ()], header),
        traffic=traffic,
    )


def _with_recurrence(
    header: ModelHeader, layers: tuple[Layer, ...], roles: tuple[Role, ...]
) -> tuple[Role, ...]:
    """The roles, corrected for recurrent projections that a GGUF names attention (attn_qkv of a delta net)."""
    recurrent = {layer.index for layer in layers if isinstance(layer.mixer, Recurrent)}
    if not recurrent:
        return roles
    return tuple(
        Role.RECURRENT if role is Role.ATTENTION and block_of(tensor.name) in recurrent else role
        for tensor, role in zip(header.tensors or (), roles, strict=True)
    )


def _weights(
    header: ModelHeader, geometry: ModelGeometry | None, roles: tuple[Role, ...]
) -> WeightsCount | None:
    """Counts the weights from the tensors; without them, from the stated number or the geometry."""
    stored = _stored_weights(header)
    if stored is not None:
        active = _active(header, geometry, roles, stored)
        basis = geometry.basis if geometry is not None else Basis.EXACT
        return WeightsCount(total=stored, basis=Basis.EXACT, active=active, active_basis=basis)
    counted = count_parameters(geometry) if geometry is not None else None
    total, active = counted or (None, None)
    stated = header.parameters  # the index of an MLX model has it
    if stated is None and total is None:
        return None
    return WeightsCount(
        total=stated or total or 0,
        basis=Basis.MODELLED if stated is None else Basis.EXACT,
        active=active,
        active_basis=Basis.MODELLED,
    )


def _stored_weights(header: ModelHeader) -> int | None:
    """The number of weights; None if the tensor directory was not read or the packing is unknown."""
    return None if header.tensors is None else count_weights(header.tensors, header.quantization)


def _active(
    header: ModelHeader, geometry: ModelGeometry | None, roles: tuple[Role, ...], stored: int
) -> int | None:
    """Weights used for one token of text; None if the experts cannot be identified."""
    layers = geometry.layers if geometry is not None else ()
    has_experts = any(layer.experts for layer in layers)
    if not has_experts and _IDLE.isdisjoint(roles):
        return stored
    tensors_of: dict[Experts | None, list[Tensor]] = defaultdict(list)
    for tensor, role in zip(header.tensors or (), roles, strict=True):
        if role in _IDLE:
            continue
        block = block_of(tensor.name) if role is Role.EXPERTS else None
        experts = None
        if block is not None and block < len(layers):
            experts = layers[block].experts
        tensors_of[experts].append(tensor)
    if has_experts and tensors_of.keys() <= {None}:
        return None
    active = 0
    for experts, tensors in tensors_of.items():
        count = count_weights(tensors, header.quantization) or 0  # known, because `stored` is
        active += count if experts is None else count * experts.used // experts.count
    return active


def _cache(geometry: ModelGeometry) -> tuple[CachePart, ...]:
    """The streams of all layers, added up by span; unlimited spans first."""
    parts: dict[tuple[Span, int, int], tuple[int, int]] = {}
    for layer in geometry.layers:
        layer_elements: dict[tuple[Span, int, int], int] = {}
        for stream in layer.mixer.streams:
            key = (stream.span, stream.span_tokens, stream.tokens_per_row)
            layer_elements[key] = layer_elements.get(key, 0) + stream.elements
        for key, added in layer_elements.items():
            elements, layers = parts.get(key, (0, 0))
            parts[key] = (elements + added, layers + 1)
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


def _shares(names: list[str], header: ModelHeader) -> tuple[WeightsShare, ...]:
    """Bytes and number of the tensors of each name, the largest first. `names` has one for each tensor."""
    totals: dict[str, tuple[int, int]] = {}
    for name, tensor in zip(names, header.tensors or (), strict=True):
        size, count = totals.get(name, (0, 0))
        totals[name] = (size + tensor.size_bytes, count + 1)
    return tuple(
        WeightsShare(name=name, size_bytes=size, tensors=count)
        for name, (size, count) in sorted(totals.items(), key=lambda item: -item[1][0])
    )


_VECTORS = frozenset({TensorKind.NORM, TensorKind.BIAS})


def count_parameters(geometry: ModelGeometry) -> tuple[int, int] | None:
    """(total, active for one token), without towers and MTP blocks; None if the tensors are not known."""
    try:
        tensors = expected_tensors(geometry)
    except UnknownArchitectureError:
        return None
    matrices = [tensor for tensor in tensors if tensor.kind not in _VECTORS]
    total = sum(tensor.elements for tensor in matrices)
    return total, sum(active_elements(geometry, tensor) for tensor in matrices)


def active_elements(geometry: ModelGeometry, tensor: ExpectedTensor) -> int:
    """The elements used for one token: all, or the share of the chosen experts."""
    experts = None if tensor.layer is None else geometry.layers[tensor.layer].experts
    if tensor.kind is not TensorKind.EXPERT or experts is None:
        return tensor.elements
    return tensor.elements // experts.count * experts.used


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """The public description of a model. None: the files do not state it, or the model does not have it.

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
    exact_model_size_bytes: int | None  # of all tensors; None if only a config was read
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
    """The public description of a model from its header and geometry."""
    by_layer = (attention_of(layer.mixer) for layer in geometry.layers)
    attentions = [attention for attention in by_layer if attention is not None]
    first = attentions[0] if attentions else None
    match first:
        case Attention():
            kv_heads: int | None = first.kv_heads
        case LatentAttention():  # a latent cache counts as one head
            kv_heads = 1 if first.absorbed else first.heads
        case _:
            kv_heads = None
    experts = next((layer.experts for layer in geometry.layers if layer.experts), None)
    parameters = _stored_weights(header)
    if parameters is None:
        parameters = header.parameters or None
    if parameters is None:
        counted = count_parameters(geometry)
        parameters = None if counted is None else counted[0]
    size_bytes = header.tensor_bytes
    bits_per_weight = size_bytes * 8 / parameters if size_bytes is not None and parameters else None
    windows = (each.span_tokens for each in attentions if each.span is not Span.ALL)
    quantization = stated_mix(header.keys)
    if quantization is None and header.quantization is not None:
        quantization = header.quantization.method
    return ModelMetadata(
        name=header.name,
        architecture=geometry.architecture,
        format=header.container.value,
        num_layers=len(geometry.layers),
        hidden_size=geometry.hidden,
        num_attention_heads=first.heads if first is not None else None,
        num_kv_heads=kv_heads,
        head_dim=first.key_dim if first is not None else None,
        model_max_context=geometry.native_context or geometry.trained_context,
        vocab_size=geometry.vocabulary,
        bits_per_weight=bits_per_weight,
        kv_lora_rank=first.latent_dim if isinstance(first, LatentAttention) else None,
        sliding_window=next(windows, None),
        num_experts=experts.count if experts is not None else None,
        num_experts_used=experts.used if experts is not None else None,
        num_parameters=parameters,
        exact_model_size_bytes=size_bytes,
        quantization=quantization,
        basis=geometry.basis,
        geometry=geometry,
    )
