"""TABLE of architectures: a GGUF name or a config.json model_type -> how its layers are arranged.

To add one, add a row (or a name to a row). GGUF names are those of llama-arch.cpp, window periods those of src/models/*.cpp,
both @ b21e4de; model_types and defaults are those of transformers @ d56c55b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from edgekit.model import arrange, attention, recurrence
from edgekit.model.arrange import Arrangement, Word
from edgekit.model.attention import AttentionBuilder
from edgekit.model.feedforward import (
    PairRule,
    WidthRule,
    as_stated,
    eight_thirds,
    four_times_hidden,
    halved,
    residual_beside,
    scaled_hidden,
    shared_without_experts,
    stated_width,
    two_thirds,
)
from edgekit.model.recurrence import RecurrentBuilder


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    gguf: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    arrange: Arrangement = arrange.uniform
    attend: AttentionBuilder = attention.standard
    recur: RecurrentBuilder | None = None
    gated: bool = True  # three matrices in a feed-forward, not two
    beside: bool = False  # experts stand beside a dense feed-forward in one layer
    alternating: bool = False  # a layer is either a mixer or a feed-forward
    width: WidthRule = stated_width  # of a feed-forward that the file does not state
    adjust: PairRule = as_stated  # of a width that is not what the file states
    sublayers: int = 1  # attentions in what the file counts as one layer
    gguf_cache_owners: int = 0  # llama.cpp: only the first so many layers own a cache
    context_is_scaled: bool = False  # the stated window already counts rope scaling
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)  # llama.cpp's own constants
    config_defaults: Mapping[str, Any] = field(default_factory=dict)  # that a file never states


def _row(gguf: str = "", config: str = "", **more: Any) -> Architecture:
    return Architecture(gguf=tuple(gguf.split()), config=tuple(config.split()), **more)


# fmt: off
_IGNORED_BY_LLAMA_CPP = arrange.by_format(arrange.uniform, arrange.windows(0))

TABLE = (
    # Full attention in every layer.
    _row("llama llama-embed", "llama LLaMAForCausalLM"),
    _row(
        "deci bitnet internlm2 minicpm orion xverse baichuan refact stablelm "
        "chameleon cogvlm seed_oss smollm3 pangu-embedded mistral3 maincoder talkie "
        "hrm_text hunyuan-dense hunyuan_vl ernie4_5 paddleocr exaone nanbeige granite chatglm glm4",
        "bitnet internlm internlm2 internlm3 minicpm orion xverse baichuan "
        "aquila refact stablelm stablelm_epoch chameleon seed_oss smollm3 PanguEmbedded nemotron-nas deci "
        "exaone hunyuan_v1_dense ernie4_5 granite helium olmo yi decilm llava llava_llama "
        "multi_modality glm glm4 glm4v glm_ocr ministral3 hyperclovax nanbeige glm4v_text glm_ocr_text glm46v glmga hunyuan_vl "
        "paddleocr_vl paddleocr_vl_text ernie4_5_vl granite4_vision aria_text talkie telechat3 "
        "iquestcoder emu3_text_model",
    ),
    _row("plamo", "plamo", attend=attention.plamo, config_defaults={"heads_per_kv_head": 8}),
    _row("", "lille-130m", width=eight_thirds),
    _row("", "afm7", adjust=scaled_hidden),
    _row("", "iquestloopcoder", config_defaults={"loops": 2, "loop_window": 64}),
    _row("", "baichuan_m1", arrange=arrange.windows_at_indices, attend=attention.convolved),
    _row("apertus arcee jais2", "apertus arcee jais2 nanochat", gated=False),
    _row("jais", "jais"),
    _row("", "transformer", width=two_thirds),
    _row("", "chatglm", attend=attention.chatglm),
    _row("llama4", "llama4 llama4_text", arrange=arrange.chunks(4),
         gguf_defaults={"chunk": 8192, "shared_experts": 1},
         config_defaults={"chunk": 8192, "shared_experts": 1}),
    _row("", "mistral mixtral pixtral ministral MistralForCausalLM", arrange=arrange.windows(0)),
    _row("qwen", "qwen", adjust=halved),
    _row("qwen2 qwen2vl qwen3 qwen3vl qwen2moe qwen3moe qwen3vlmoe",
         "qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen3 qwen3_moe qwen3_vl qwen3_vl_text "
         "qwen3_vl_moe qwen3_vl_moe_text qwen2_5_omni_text qwen2_5_omni_thinker qwen3_omni_moe_text "
         "qwen3_omni_moe_thinker mimo youtu_dense",
         arrange=arrange.late_windows),
    _row("command-r", "cohere"),
    _row("olmo olmoe grok dbrx openelm granitemoe graniteswitch bailingmoe bailingmoe2 dots1 "
         "hunyuan-moe hy_v3 ernie4_5-moe glm4moe grovemoe minimax-m2 deepseek",
         "olmoe grok-1 grok dbrx openelm Klear granitemoe granitemoeshared bailing_moe bailing_moe_v2 dots1 "
         "ernie4_5_vl_moe ernie4_5_vl_moe_text hunyuan hunyuan_v1_moe hy_v3 ernie4_5_moe glm4_moe glm4v_moe glm4v_moe_text minimax_m2 deepseek flex_olmo "
         "solar_open grove_moe"),
    _row("arctic", "arctic", beside=True, adjust=residual_beside, config_defaults={"moe_step": 2}),
    # Two matrices in the feed-forward.
    _row("", "RefinedWeb", attend=attention.falcon, gated=False, width=four_times_hidden,
         config_defaults={"multi_query": True, "new_decoder": True}),
    _row("falcon", "falcon RefinedWebModel", attend=attention.falcon, gated=False,
         width=four_times_hidden, config_defaults={"multi_query": True}),
    _row("gpt2 mpt starcoder bloom", "gpt2 mpt gpt_bigcode bloom opt gpt_neo", gated=False, width=four_times_hidden),
    _row("gptj gptneox phi2 codeshell nemotron",
         "gptj gpt_neox gpt_neox_reward_model phi phi-msft mixformer-sequential codeshell nemotron codegen "
         "persimmon", gated=False, width=four_times_hidden),
    _row("starcoder2", "starcoder2", gated=False, arrange=_IGNORED_BY_LLAMA_CPP),
    # Sliding windows.
    _row("gemma", "gemma", config_defaults={"key_dim": 256}),
    _row("gemma2", "gemma2 vaultgemma", arrange=arrange.windows(2),
         gguf_defaults={"window": 4096}, config_defaults={"key_dim": 256}),
    _row("gemma3", "gemma3 gemma3_text", arrange=arrange.windows(6), context_is_scaled=True),
    _row("gemma3n", "gemma3n gemma3n_text", arrange=arrange.windows(5),
         gguf_cache_owners=20, config_defaults={"key_dim": 256}),
    _row("gemma4", "gemma4 gemma4_text gemma4_unified gemma4_unified_text diffusion_gemma",
         arrange=arrange.windows(6), beside=True, config_defaults={"global_key_dim": 512}),
    _row("gemma-embedding", "", arrange=arrange.windows(6), attend=attention.encoder),
    _row("phi3 phimoe", "phi3 phi4 phi3_v phimoe phi4mm phi4_multimodal", arrange=_IGNORED_BY_LLAMA_CPP),
    _row("", "phi3small"),
    _row("cohere2", "cohere2", arrange=arrange.windows(4)),
    _row("cohere2moe", "cohere2_moe",
         arrange=arrange.by_format(arrange.windows(4, full_first=True), arrange.full_while_dense(arrange.windows(4)))),
    _row("gpt-oss", "gpt_oss", arrange=arrange.windows(2)),
    _row("exaone4", "exaone4 exaone4_5", gguf_defaults={"window": 4096},
         arrange=arrange.by_format(arrange.only_with(64, arrange.windows(4)), arrange.windows(4))),
    _row("plamo3", "plamo3", arrange=arrange.windows(8)),
    _row("olmo2 exaone-moe afmoe muse-glimmer spark2_5 maple", "olmo2 olmo3 exaone_moe afmoe spark2_5",
         arrange=arrange.windows(4)),
    _row("", "muse_glimmer muse_glimmer_text muse_spark muse_spark_text",
         arrange=arrange.from_last(arrange.windows(4, full_first=True))),
    _row("mellum", "mellum", arrange=arrange.by_format(arrange.windows(4), arrange.uniform)),
    _row("granite_swa", "granite_swa granitemoe_swa",
         arrange=arrange.by_format(arrange.windows(4), arrange.windows(4, full_first=True))),
    _row("smallthinker", "smallthinker cwm", arrange=arrange.windows(4, full_first=True)),
    _row("laguna", "laguna", arrange=arrange.by_format(arrange.windows(4, full_first=True), arrange.uniform),
         gguf_defaults={"shared_experts": 1}),
    _row("mimo2", "mimo_v2_flash", attend=attention.twice_when_sliding,
         arrange=arrange.by_format(arrange.windows(0), arrange.also_first(arrange.windows(6)))),
    _row("step35", "step3p5 step3p7 step3_text step3", arrange=arrange.windows(0)),
    # Latent attention.
    _row("deepseek2 deepseek2-ocr deepseek32 glm-dsa mistral4 hy_v4",
         "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_vl_v2 deepseek_ocr2 DeepseekV2ForCausalLM kimi_k2 kimi_k25 "
         "glm_moe_dsa glm4_moe_lite mistral4 youtu youtu_llm joyai_llm_flash axk1 axk2",
         attend=attention.latent),
    _row("minicpm3", "minicpm3", attend=attention.latent),
    _row("plm", "plm", attend=attention.latent, gated=False),
    _row("", "longcat_flash longcat_flash_ngram", attend=attention.latent, sublayers=2, beside=True,
         config_defaults={"moe_step": 2, "moe_offset": 0}),
    _row("deepseek4", "deepseek_v4 deepseek_ref", attend=attention.compressed),
    _row("minimax-m3", "minimax_m3 minimax_m3_vl minimax_m3_vl_text", attend=attention.indexed_after_dense),
    # Recurrences, alone or between attention layers.
    _row("mamba", "mamba falcon_mamba", arrange=arrange.repeated(Word.RECURRENT), recur=recurrence.pure_mamba,
         alternating=True),
    _row("mamba2", "mamba2", arrange=arrange.repeated(Word.RECURRENT), recur=recurrence.mamba2,
         alternating=True),
    _row("jamba", "jamba", arrange=arrange.by_kv_heads(arrange.interval(8, offset=4)), recur=recurrence.mamba, gguf_defaults={"moe_step": 2, "moe_offset": 1},
         config_defaults={"moe_step": 2, "moe_offset": 1, "experts": 16, "experts_used": 2}),
    _row("", "bamba", arrange=arrange.full_at_indices(first=0, none_is_empty=True), recur=recurrence.mamba2),
    _row("granitehybrid", "granitemoehybrid",
         arrange=arrange.by_format(arrange.by_kv_heads(arrange.uniform), arrange.repeated(Word.RECURRENT)),
         recur=recurrence.mamba2, adjust=shared_without_experts),
    _row("falcon-h1", "falcon_h1", arrange=arrange.repeated(Word.BOTH), recur=recurrence.mamba2),
    _row("nemotron_h nemotron_h_moe", "nemotron_h V4X", arrange=arrange.letters, recur=recurrence.mamba2,
         gated=False, alternating=True),
    _row("plamo2", "plamo2", arrange=arrange.by_kv_heads(arrange.mid_interval(2)), recur=recurrence.mamba2,
         config_defaults={"state_groups": 0}),
    _row("lfm2 lfm2moe", "lfm2 lfm2_moe lfm2_vl", arrange=arrange.by_kv_heads(arrange.full_at_indices(first=0)),
         recur=recurrence.short_conv),
    _row("qwen3next qwen35 qwen35moe",
         "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text prism_hadamard_qwen35",
         arrange=arrange.interval(4), attend=attention.gated, recur=recurrence.gated_delta),
    _row("", "olmo_hybrid", arrange=arrange.interval(4), recur=recurrence.gated_delta),
    _row("", "bailing_hybrid", arrange=arrange.groups, attend=attention.latent, recur=recurrence.bailing),
    _row("", "bailing_moe_linear", arrange=arrange.groups, recur=recurrence.lightning),
    _row("", "gear", arrange=arrange.windows(0), recur=recurrence.gated_conv),
    _row("kimi-linear kimi-k3 bailingmoe3", "kimi_linear kimi_k3",
         arrange=arrange.by_kv_heads(arrange.full_at_indices(first=1)),
         attend=attention.latent, recur=recurrence.kimi_delta),
    _row("minimax-01", "minimax minimax_text_01 minimax_m1",
         arrange=arrange.by_format(arrange.interval(8), arrange.interval(2, offset=0)),
         recur=recurrence.lightning),
    _row("rwkv6 rwkv7", "rwkv5 rwkv6 rwkv7", arrange=arrange.repeated(Word.RECURRENT), recur=recurrence.rwkv,
         gated=False),
    _row("rwkv6qwen2 arwkv7", "rwkv6qwen2", arrange=arrange.repeated(Word.RECURRENT), recur=recurrence.rwkv),
    _row("", "gla", arrange=arrange.repeated(Word.RECURRENT), recur=recurrence.gated_linear, width=two_thirds),
    _row("", "recurrent_gemma", arrange=arrange.griffin, recur=recurrence.rg_lru, adjust=halved),
    # Encoders, and diffusion models that see the whole batch: no cache.
    _row("bert jina-bert-v3 nomic-bert-moe", "bert roberta xlm-roberta camembert electra distilbert mpnet deberta deberta-v2 ernie roberta-prelayernorm "
         "xlm-roberta-xl data2vec-text xmod roformer rembert megatron-bert",
         attend=attention.encoder, gated=False),
    _row("nomic-bert jina-bert-v2 neo-bert eurobert", "nomic_bert neobert eurobert new",
         attend=attention.encoder),
    _row("modern-bert", "modernbert", attend=attention.encoder,
         arrange=arrange.windows(3, full_first=True)),
    _row("dream llada llada-moe rnd1", "Dream dream llada llada_moe rnd1", attend=attention.encoder),
)
# fmt: on

# What people also point EdgeKit at, and why it has no language model's geometry.
NOT_LANGUAGE_MODELS = MappingProxyType(
    {
        "clip": (
            "a vision or audio projector (mmproj), which is loaded together with a language model"
        ),
        "wavtokenizer-dec": "an audio decoder, not a language model",
        "qwen3tts": "a speech synthesiser, not a language model",
        "pockettts": "a speech synthesiser, not a language model",
        "t5": "an encoder-decoder model: its cross-attention cache is not modelled",
        "t5encoder": "the encoder of an encoder-decoder model",
        "umt5": "an encoder-decoder model: its cross-attention cache is not modelled",
        "mt5": "an encoder-decoder model: its cross-attention cache is not modelled",
        "bart": "an encoder-decoder model: its cross-attention cache is not modelled",
        "albert": "an encoder that runs one layer's weights many times: not modelled",
        "vit": "a vision encoder, not a language model",
        "clip_text_model": "the text half of an image-text matching model, not a language model",
        "clip_vision_model": "a vision encoder, not a language model",
        "siglip": "an image-text matching model, not a language model",
        "siglip_text_model": "the text half of an image-text matching model, not a language model",
        "siglip_vision_model": "a vision encoder, not a language model",
        "whisper": "a speech recogniser (encoder-decoder), not a language model",
        "eagle3": "a speculative draft head, which only runs together with its target model",
        "dflash": "a speculative draft head, which only runs together with its target model",
        "gemma4-assistant": "a speculative draft head, which only runs together with its target model",
        "flux": "an image generator, not a language model",
        "sd3": "an image generator, not a language model",
        "sdxl": "an image generator, not a language model",
        "wan": "a video generator, not a language model",
    }
)

# model_types whose output head is the embedding when config.json does not say; the others' is not.
TIED_BY_DEFAULT = frozenset(
    [
        "bert",
        "bloom",
        "camembert",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "diffusion_gemma",
        "distilbert",
        "electra",
        "ernie",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe",
        "ernie4_5_vl_moe_text",
        "falcon",
        "falcon_mamba",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "gpt2",
        "gpt_bigcode",
        "gear",
        "gpt_neo",
        "granite_swa",
        "hunyuan_vl",
        "jais",
        "afm7",
        "lfm2",
        "lille-130m",
        "openelm",
        "lfm2_moe",
        "lfm2_vl",
        "mamba",
        "megatron-bert",
        "minicpm3",
        "modernbert",
        "mpnet",
        "mpt",
        "neobert",
        "new",
        "nomic_bert",
        "opt",
        "paddleocr_vl",
        "paddleocr_vl_text",
        "phi3small",
        "qwen2_5_omni_text",
        "recurrent_gemma",
        "RefinedWeb",
        "RefinedWebModel",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "smollm3",
        "spark2_5",
        "starcoder2",
        "vaultgemma",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
        "youtu",
        "youtu_llm",
    ]
)

BY_GGUF = {name: row for row in TABLE for name in row.gguf}
BY_CONFIG = {name: row for row in TABLE for name in row.config}

# An unknown name with standard keys: windows and latents as the file states them, no recurrence.
STANDARD = Architecture(arrange=arrange.stated_windows, attend=attention.latent)
