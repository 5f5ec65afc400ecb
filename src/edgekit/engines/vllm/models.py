"""TABLES of where vLLM's model code departs from the geometry, by architecture (files of model_executor @ 0.32.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.engines.vllm.registry import DROPPED, HAS
from edgekit.errors import RefusedError
from edgekit.model.hyperparameters import text_section
from edgekit.model.types import Model, ModelGeometry
from edgekit.sources.types import Container
from edgekit.terminal import unquoted


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# model_types whose compressed attention vLLM really keeps compressed (model_arch_config_convertor.py
# is_deepseek_mla); MiniCPM3 and the like hold every head, values stretched to the width of keys.
LATENT = _names(
    "axk1 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots3_note glm5_next glm5_next_text glm_moe_dsa "
    "glm4_moe_lite kimi_k2 kimi_linear longcat_flash pangu_ultra_moe bailing_hybrid hy_v4"
)

# A token that cohere sees is one further back than its window says (commandr.py, cohere2_moe.py).
WINDOW_OFFSET: Mapping[str, int] = {"cohere2": 1, "cohere2_moe": 1}

# Where config.json names the dtype of a recurrence, and what holds without (models/config.py).
STATE_DTYPE: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), ("mamba_ssm_dtype", "auto")
    ),
    "nemotron_h": ("mamba_ssm_cache_dtype", "float32"),
}

# config/model.py: float16 is numerically unstable for them.
NOT_IN_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})

# Their attention is made without the cache's settings, so it stays in the model's dtype (falcon.py).
IGNORES_CACHE_DTYPE = frozenset({"falcon", "RefinedWebModel", "RefinedWeb"})

# All layers slide or none: qwen2.py, which qwen3.py builds on.
ALL_WINDOWS_OR_NONE = frozenset({"qwen2", "qwen3"})

# Attention with sinks: fewer backends have it.
SINKS = frozenset({"gpt_oss"})

# Weights. Routers kept in f32 (params_dtype in the model files), or only where no kernel multiplies bf16 into f32.
ROUTER_IN_F32 = _names(
    "afmoe bailing_moe_v3 ernie4_5_moe ernie4_5_vl_moe glm4_moe glm4v_moe glm4v_moe_text hy_v3 minimax_m2 minimax_m3 "
    "mimo_v2_flash step3p5"
)
ROUTER_IN_F32_WITHOUT_KERNEL = frozenset({"nemotron_h"})
ROUTER_BIAS_AS_MODEL = frozenset({"gpt_oss"})  # a true bias; elsewhere it only chooses, and is f32
QUANTIZED_ROUTER = frozenset({"qwen2_moe", "qwen3_moe"})  # a linear layer like others
HEAD_WITHOUT_BIAS = frozenset({"phi"})  # transformers' backend has none

# Tokens of one picture attend to each other (model_arch_config_convertor.py is_mm_prefix_lm), while they are served.
PICTURES_SEE_EACH_OTHER = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})

# Caches that vLLM keeps in fp8 on SM100 when "auto" is asked for (models/config.py GlmMoeDsaForCausalLM).
FP8_ON_BLACKWELL = frozenset({"glm_moe_dsa"})


def check_has(model: Model) -> tuple[str, ...]:
    """Notes. Raises RefusedError for what vLLM 0.32 does not run at all."""
    header = model.header
    if header.container is Container.GGUF:
        raise RefusedError(
            "vLLM 0.32 does not load GGUF files: it dropped that quantisation method"
        )
    if header.mlx:
        raise RefusedError("vLLM does not load weights quantised by MLX")
    name = class_name(header.config)
    if name is not None and name in DROPPED:
        raise RefusedError(f"vLLM supported {name} until {DROPPED[name]}; 0.32 does not run it")
    if name is None or name in HAS:
        return ()
    if any(layer.mixer.states for layer in model.geometry.layers) and not model.geometry.towers:
        raise RefusedError(f"vLLM 0.32 does not support {unquoted(name)}")
    if model.geometry.towers:
        return ()
    return (
        (
            f"vLLM 0.32 has no implementation of {unquoted(name)}: it only runs if the "
            "transformers fallback supports it"
        ),
    )


def class_name(config: Mapping[str, Any]) -> str | None:
    """What vLLM looks a model up by."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    return first if isinstance(first, str) else None


def section_of(model: Model) -> Mapping[str, Any]:
    """The part of config.json that describes the language model."""
    return text_section(model.header.config)


def keeps_latent(geometry: ModelGeometry) -> bool:
    return geometry.architecture in LATENT
