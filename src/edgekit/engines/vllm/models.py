"""Which model classes vLLM has, and where its model code differs from the geometry.

Facts are the "vllm" sections of model/architectures.json: "classes" are those of vLLM 0.32.0, "dropped" those of older
releases, with the last of them; the rest are the fields of `VllmModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from edgekit.errors import RefusedError, unquoted
from edgekit.model.architectures import read_section, records, section_by_name
from edgekit.model.hyperparameters import text_section
from edgekit.model.types import (
    Attention,
    HybridLayer,
    LatentAttention,
    Layer,
    LayerKind,
    Model,
    Recurrent,
)
from edgekit.sources.types import Container


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModel:
    """How vLLM's code for a model differs from the plain rules for caches and weights."""

    # caches
    unknown_caches: bool = False  # caches of its own that are not worked out yet
    keeps_latent: bool = False  # caches MLA's latent (is_deepseek_mla), not every head
    window_offset: int = 0  # tokens that a sliding layer sees beyond its window (commandr.py)
    state_dtype_key: str = ""  # the key of config.json that names the dtype of a recurrence's state
    state_dtype: str = "auto"  # without that key (models/config.py)
    ignores_cache_dtype: bool = False  # caches in the model's dtype (falcon.py)
    fp8_cache_on_blackwell: bool = False  # "auto" is fp8 on SM100 (models/config.py)
    all_windows_or_none: bool = False  # one window for all layers (qwen2.py)
    sinks: bool = False  # attention with sinks, which fewer backends support
    pictures_see_each_other: bool = False  # tokens of one image attend both ways (is_mm_prefix_lm)
    # weights
    unstable_in_float16: bool = False  # config/model.py
    router_f32: bool = False  # params_dtype in the model file
    router_f32_without_kernel: bool = False  # only on GPUs where no kernel multiplies bf16 into f32
    router_bias_as_model: bool = False  # a real bias; in others an f32 correction for the selection
    quantized_router: bool = False  # an ordinary linear layer
    head_without_bias: bool = False  # transformers' backend has none
    experts_outside_mlp: bool = False  # modules are layers.N.experts, not in .mlp


@lru_cache(maxsize=256)
def vllm_model(architecture: str) -> VllmModel:
    """The facts about a model by its model_type; the defaults if nothing is recorded for it."""
    section = section_by_name("vllm", ("config",)).get(architecture, {})
    facts = {key: value for key, value in section.items() if key not in {"classes", "dropped"}}
    return read_section(VllmModel, facts, {}, where=architecture)


@cache
def _classes() -> tuple[frozenset[str], Mapping[str, str]]:
    """Classes that vLLM has, and the last release of those that it dropped."""
    sections = [record["vllm"] for record in records() if "vllm" in record]
    classes = frozenset(name for section in sections for name in section.get("classes", ()))
    dropped: dict[str, str] = {}
    for section in sections:
        dropped.update(section.get("dropped", {}))
    return classes, dropped


def check_support(model: Model) -> tuple[str, ...]:
    """Notes on how vLLM 0.32 supports the model. Raises RefusedError if it does not run it."""
    header = model.header
    if header.container is Container.GGUF:
        raise RefusedError(
            "vLLM 0.32 does not load GGUF files: it dropped that quantisation method"
        )
    if header.mlx:
        raise RefusedError("vLLM does not load weights quantised by MLX")
    names = header.config.get("architectures")
    name = names[0] if isinstance(names, (list, tuple)) and names else None
    if not isinstance(name, str):
        return ()
    classes, dropped = _classes()
    if name in dropped:
        raise RefusedError(f"vLLM supported {name} until {dropped[name]}; 0.32 does not run it")
    if name in classes or model.geometry.towers:
        return ()
    if any(layer.mixer.states for layer in model.geometry.layers):
        raise RefusedError(f"vLLM 0.32 does not support {unquoted(name)}")
    note = "it only runs if the transformers fallback supports it"
    return (f"vLLM 0.32 has no implementation of {unquoted(name)}: {note}",)


def section_of(model: Model) -> Mapping[str, Any]:
    """The part of config.json that describes the language model."""
    return text_section(model.header.config)


def cached_attention_of(kind: LayerKind) -> Attention | LatentAttention | None:
    """The attention of a layer that has a cache of its own; None for a layer that shares another one's, or has none."""
    if isinstance(kind, HybridLayer):
        return kind.attention
    return kind if isinstance(kind, Attention | LatentAttention) else None


def recurrent_of(layer: Layer | None) -> Recurrent | None:
    """The recurrence of a layer; None if it has none."""
    mixer = None if layer is None else layer.mixer
    if isinstance(mixer, HybridLayer):
        return mixer.recurrent
    return mixer if isinstance(mixer, Recurrent) else None
