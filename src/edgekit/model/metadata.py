"""A header and its geometry -> the few numbers that people ask a model for."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekit.basis import Basis
from edgekit.formats.mixes import mix_by_file_type
from edgekit.formats.packing import count_weights
from edgekit.formats.types import ModelHeader
from edgekit.model.parameters import count_parameters
from edgekit.model.types import (
    Attention,
    Experts,
    LatentAttention,
    ModelGeometry,
    Span,
    attention_of,
)
from edgekit.units import GIB


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
