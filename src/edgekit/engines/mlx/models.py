"""TABLE of the models mlx-lm has, and of what each does with its caches.

To add one: its file name under mlx_lm/models in the row that behaves like it. Names, `make_cache` and attention code
are those of mlx-lm 0.32.2; a config.json's model_type is the file name, unless REMAPPED says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgekit.errors import RefusedError
from edgekit.terminal import unquoted


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxModel:
    name: str = ""
    own_cache: bool = False  # has make_cache: --max-kv-size is ignored
    rotates: bool = True  # sliding layers keep their window only; False: all tokens
    rotates_as_listed: bool = (
        False  # only where layer_types says so, a bare sliding_window is ignored
    )
    full_heads: bool = False  # MLA: every head's key and value are held, not the latent
    listed_caches: bool = False  # layers hold a CacheList: --kv-bits is ignored
    fails_quantized: str = ""  # what happens at the first step after --kv-bits took hold
    shares: bool = (
        True  # layers that read another's cache own none; False: they fill one nonetheless
    )
    indexes_all: bool = False  # every layer has an indexer, though config.json lets some share one
    index_values: bool = False  # the indexer's cache holds its key a second time, as values
    f32_lightning: bool = False  # the state of its linear attention is f32
    needs_row: bool = False  # its standard keys tell too little of what its layers hold


_LATENT = "AttributeError: 'list' object has no attribute 'swapaxes'"  # *.py: kv_latent.swapaxes

_Row = tuple[str, Mapping[str, Any]]


def _row(names: str, **facts: Any) -> _Row:
    return names, facts


# fmt: off
_ROWS: tuple[_Row, ...] = (
    # No make_cache: a KVCache for every layer, or a rotating one with --max-kv-size.
    _row("Klear apertus bailing_moe bitnet cohere dbrx deepseek dots1 ernie4_5 ernie4_5_moe exaone gemma glm glm4 "
         "glm4_moe gpt2 gpt_bigcode gpt_neox gptj granite granitemoe helium hunyuan_v1_dense internlm2 internlm3 "
         "lille-130m llama4_text mimo minicpm minimax mistral3 mixtral nanochat nemotron olmo olmo2 olmoe openelm "
         "phi3 phimoe pixtral qwen qwen2 qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_vl qwen3_vl_moe "
         "seed_oss smollm3 solar_open starcoder2 talkie telechat3",
         rotates=False),
    _row("hunyuan", rotates=False, shares=False),
    _row("gemma2 phi3small",
         rotates=False, fails_quantized="TypeError: expand_dims(): incompatible function arguments"),
    _row("phi phixtral", rotates=False, fails_quantized="AttributeError: 'list' object has no attribute 'dtype'"),
    _row("stablelm", rotates=False, fails_quantized="AttributeError: 'list' object has no attribute 'astype'"),
    _row("plamo", rotates=False, fails_quantized="TypeError: tile(): incompatible function arguments"),
    _row("deepseek_v2 minicpm3 youtu_llm", rotates=False, full_heads=True),
    _row("deepseek_v3 kimi_vl kimi_k25 glm4_moe_lite mistral4", rotates=False, fails_quantized=_LATENT),
    # Their own make_cache.
    _row("llama ministral3", own_cache=True, rotates_as_listed=True),
    _row("afmoe cohere2 exaone4 exaone_moe gemma3 gemma3_text gemma3n gemma4 gemma4_text gpt_oss laguna llama4 "
         "mellum mimo_v2_flash muse_glimmer muse_spark nanbeige nemotron-nas olmo3 plamo3 recurrent_gemma spark2_5 "
         "step3p5",
         own_cache=True),
    _row("granitemoehybrid jamba lfm2 lfm2-vl lfm2_moe mamba mamba2 nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe "
         "qwen3_next rwkv7 prism_hadamard_qwen35",
         own_cache=True),
    _row("bailing_moe_linear gear iquestloopcoder", own_cache=True, needs_row=True),
    _row("afm7",
         own_cache=True, needs_row=True, fails_quantized="AttributeError: 'list' object has no attribute 'shape'"),
    _row("plamo2",
         own_cache=True,
         rotates=False,
         fails_quantized="TypeError: scaled_dot_product_attention(): incompatible function arguments"),
    _row("kimi_linear kimi_k3", own_cache=True, fails_quantized=_LATENT),
    _row("bailing_moe_v3", own_cache=True, fails_quantized=_LATENT, needs_row=True),
    _row("bailing_hybrid", own_cache=True, fails_quantized=_LATENT, f32_lightning=True, needs_row=True),
    _row("falcon_h1 longcat_flash minimax_m3_vl", own_cache=True, listed_caches=True),
    _row("baichuan_m1 longcat_flash_ngram deepseek_v41", own_cache=True, listed_caches=True, needs_row=True),
    _row("deepseek_v32 glm_moe_dsa", own_cache=True, listed_caches=True, index_values=True, indexes_all=True),
)
# fmt: on

TABLE: Mapping[str, MlxModel] = MappingProxyType(
    {
        name: replace(MlxModel(**facts), name=name)
        for names, facts in _ROWS
        for name in names.split()
    }
)

# utils.py:47: model_type -> file.
REMAPPED: Mapping[str, str] = MappingProxyType(
    {
        "mistral": "llama",
        "llava": "mistral3",
        "phi-msft": "phixtral",
        "falcon_mamba": "mamba",
        "joyai_llm_flash": "deepseek_v3",
        "kimi_k2": "deepseek_v3",
        "qwen2_5_vl": "qwen2_vl",
        "minimax_m2": "minimax",
        "iquestcoder": "llama",
        "xverse": "llama",
        "gemma4_unified": "gemma4",
        "deepseek_v41_text": "deepseek_v41",
    }
)
_BY_ARCHITECTURE = {("bailing_hybrid", "BailingMoeV3ForCausalLM"): "bailing_moe_v3"}  # utils.py:62


def mlx_model(config: Mapping[str, Any]) -> MlxModel:
    """The model file mlx-lm would load. Raises RefusedError where it has none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise RefusedError("mlx-lm: config.json has no model_type")
    if (file := config.get("model_file")) is not None:
        raise RefusedError(
            f"mlx-lm: this model needs custom code ({str(file)[:60]!r}), which is "
            "disabled by default"
        )
    name = _remapped(model_type, config.get("architectures"))
    model = TABLE.get(name)
    if model is None:
        raise RefusedError(f"mlx-lm: Model type {unquoted(name)} not supported.")
    return model


def _remapped(model_type: str, architectures: object) -> str:
    listed = architectures if isinstance(architectures, (list, tuple)) else (architectures,)
    for architecture in listed:
        if isinstance(architecture, str) and (model_type, architecture) in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[model_type, architecture]
    return REMAPPED.get(model_type, model_type)
