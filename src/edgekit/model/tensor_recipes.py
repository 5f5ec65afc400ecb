"""Nouns of a model's tensors: what each is for, how quantisers see it, how large it is."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from edgekit.errors import HeaderError, UnknownArchitectureError
from edgekit.model.hyperparameters import MAX_NUMBER, dig


class TensorRole(enum.Enum):
    """What a tensor is for. A bias, or the norm of a matrix's output, bears the role of its matrix."""

    EMBEDDING = "token embedding"
    POSITION = "position embedding"
    SEGMENT = "token type embedding"
    LAYER_EMBEDDING = "embedding of every layer"
    LAYER_EMBEDDING_IN = "hidden into the embedding of every layer"
    EMBEDDING_IN = "embedding into hidden"
    EMBEDDING_OUT = "hidden into embedding"
    NGRAM = "embedding of the tokens before"
    HEAD = "output head"
    NORM = "norm"
    # attention
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    OUTPUT = "attention output"
    OUTPUT_DOWN = "attention output down"
    ATTENTION_GATE = "attention gate"
    SINKS = "attention sinks"
    QUERY_DOWN = "query down"
    QUERY_UP = "query up"
    LATENT_DOWN = "latent down"
    LATENT_UP = "latent up"
    INDEX_QUERY = "indexer query"
    INDEX_KEY = "indexer key"
    INDEX_WEIGHTS = "indexer weights"
    COMPRESSOR_KEY = "compressor key"
    COMPRESSOR_GATE = "compressor gate"
    # feed-forward
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    EXPERT_GATE = "expert gate"
    EXPERT_UP = "expert up"
    EXPERT_DOWN = "expert down"
    EXPERTS_IN = "into the experts' width"
    EXPERTS_OUT = "out of the experts' width"
    SHARED_GATE = "shared expert gate"
    SHARED_UP = "shared expert up"
    SHARED_DOWN = "shared expert down"
    SHARED_SWITCH = "shared expert switch"
    ROUTER = "router"
    # recurrences
    STATE_IN = "into the recurrence"
    STATE_GATE = "recurrence gate"
    STATE_BETA = "beta and alpha"
    STATE_LOW = "low-rank gate"
    STATE_LOW_OUT = "out of a low-rank mix"
    STATE_X = "time step, B and C"
    STATE_DT = "time step"
    STATE_A = "A"
    STATE_D = "D"
    STATE_NORM = "recurrence norm"
    STATE_OUT = "out of the recurrence"
    CONV = "short convolution"
    # what single families add
    RESIDUAL = "residual streams"  # alternating updates, LAuReL, hyper-connections
    LAYER_GATE = "gate of the layer's embedding"
    LAYER_OUT = "out of the layer's embedding"
    SCALE = "scale"
    PREDICTION = "joins token and hidden for prediction"


class TensorKind(enum.Enum):
    """How quantisers see it."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    EXPERT = "expert"
    NORM = "norm"
    BIAS = "bias"
    CONV = "convolution"
    RAW = "plain array"  # quantisers leave it alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensor:
    role: TensorRole
    kind: TensorKind
    shape: tuple[int, ...]  # outermost first: a matrix is (out, in)
    layer: int | None = None  # None: outside the layers
    count: int = 1  # of an expert's tensor: as many as there are experts

    @property
    def elements(self) -> int:
        return math.prod(self.shape) * self.count


@dataclass(frozen=True, slots=True)
class Said:
    """A switch in config.json under one of several spellings; "!" turns its sense around."""

    words: tuple[str, ...] = ()
    default: bool = False

    def holds(self, section: Mapping[str, Any]) -> bool:
        for word in self.words:
            value = dig(section, word.removeprefix("!"))
            if value is not None:
                return bool(value) is not word.startswith("!")
        return self.default


def _said(words: str, *, default: bool = False) -> Said:
    return Said(tuple(words.split()), default)


YES, NO = Said(default=True), Said()


class Width(enum.Enum):
    """How wide a norm or a gate of the heads is."""

    HEAD = "one head, shared by all"
    EACH = "one head, each with its own"
    HEADS = "one number for each head"
    ALL = "all heads side by side"


class Streams(enum.Enum):
    """Families with more than one residual stream."""

    ALTERNATING = "alternating updates"
    HYPER = "hyper-connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    names: tuple[str, ...] = ()  # in GGUF and in config.json
    # norms of the hidden width
    norms: int = 2  # in a layer with a mixer and a feed-forward
    lone_norms: int = 1  # in a layer that has only one of them
    more_norms: tuple[Said, ...] = ()  # one more for each that holds
    first_norms: int | None = None  # in layer 0, where it differs
    expert_norms: int = 0  # further ones in a layer with experts
    norm_bias: Said = NO
    final_norm: Said = YES
    embedding_norm: bool = False
    sub_norms: bool = False  # before the output and down matrices
    norm_rank: str = ""  # a low-rank gate on norms: the word that states its rank
    # attention
    qkv_bias: Said = NO
    output_bias: Said = NO
    head_norm: Width | None = None
    head_norm_said: Said = YES
    head_norm_bias: bool = False
    gate: Width | None = None
    gate_said: Said = YES
    latent_gate: Width | None = None  # of latent attention
    latent_gate_said: Said = YES
    sinks: Said = NO
    window_sinks: Said | None = None  # where sliding layers differ
    query_gain: bool = False  # one number for each head, in the place of a norm
    cache_scales: bool = False  # one for keys and one for values, where a layer has its own
    borrowed_keys: Said = Said(
        ("edgekit borrowed keys",), default=True
    )  # in layers that read another's cache
    round_gate: bool = (
        False  # looped models: a vector for each head, of what a further round takes in
    )
    # feed-forward
    ffn_bias: Said = NO
    expert_bias: Said = NO
    router_bias: Said = NO
    router_is_raw: bool = False  # mlx-lm keeps it as a plain array
    router_scales: bool = False  # Gemma 4: one for each hidden number, one for each expert
    correction: Said = NO  # a bias that only chooses experts
    shared_switch: Said = NO
    shared_mix: bool = (
        False  # Klear: a weight with a bias for the experts, and one for the shared one
    )
    latent_norms: int = 0  # of experts that work at a width of their own
    latent_norms_said: Said = YES
    picture_experts: bool = False  # ERNIE-VL: a second set, for the tokens of pictures
    small_experts: str = ""  # Grove: the word that states the width of those that two experts share
    activation: int = 0  # learned numbers of the activation function
    # recurrences
    state_bias: Said = NO  # into the recurrence
    state_out_bias: Said | None = None  # out of it, where it differs
    conv_bias: Said = YES
    state_norm: Said = YES  # Mamba-2's gated norm
    state_head_norms: Said = NO  # of queries and keys into Lightning attention
    value_rank: str = (
        ""  # RWKV-7: the word that states the rank of a mix with the first layer's values
    )
    whole_forget: Said = NO  # Kimi's gates, where they are not of low rank
    whole_output: Said = NO
    step_norms: bool = False  # of dt, B and C: Jamba and PLaMo 2
    # outside the layers, or beside them
    streams: Streams | None = None
    block_residual: Said = NO  # Kimi K3: attention over what earlier blocks left
    layer_scales: int = 0  # single numbers in each layer
    head_scale: bool = False  # and one at the end
    head_bias: Said = NO
    embedding_width: str = ""  # the word that states it where it is not the hidden one
    embedding_out: bool = False  # and the way back to it, before the head
    ngrams: bool = False  # LongCat: tables for the tokens before, beside that of the token
    positions: int | None = None  # a learned table has so many rows more than the context
    token_types: int = 0
    # how a GGUF names and holds it
    gguf_fused: tuple[str, ...] = ()  # matrices that are made of several
    gguf_names: Mapping[str, str] = field(default_factory=dict)  # where they differ from most


def _row(names: str = "", *, fused: str = "", gguf: str = "", **more: Any) -> TensorRecipe:
    """`gguf`: "usual=own", the name that most files have and this family's, nothing for what is no tensor there."""
    renamed = dict(pair.split("=") for pair in gguf.split())
    return TensorRecipe(
        names=tuple(names.split()), gguf_fused=tuple(fused.split()), gguf_names=renamed, **more
    )


def _biased(attention: Said, **more: Any) -> dict[str, Any]:
    return {"qkv_bias": attention, "output_bias": attention, **more}


_ATTENTION = _biased(_said("attention_bias"))
_LLAMA = _biased(_said("attention_bias"), ffn_bias=_said("mlp_bias"))
_ALL = _biased(YES, ffn_bias=YES, norm_bias=YES)
_HEAD: dict[str, Any] = {"head_norm": Width.HEAD}
_ALL_HEADS: dict[str, Any] = {"head_norm": Width.ALL}
# GGUF names of norms that come after what they belong to.
_POST_NORMS = "attn_norm=post_attention_norm ffn_norm=post_ffw_norm"
# Two families whose loader asks for norms without an ending.
_BARE_NORMS = "post_attention_norm.weight=post_attention_norm post_ffw_norm.weight=post_ffw_norm"
_OUTPUT_NORMS = "attn_norm=attn_output_norm ffn_norm=layer_output_norm"

# fmt: off
TABLE: tuple[TensorRecipe, ...] = (
    # Llama and what is built like it.
    _row("llama llama-embed LLaMAForCausalLM llava llava_llama yi aquila minicpm deci nemotron-nas decilm nanbeige "
         "granite smollm3 cwm multi_modality arcee mistral3 transformer eurobert aria_text telechat3 "
         "granitemoe granitemoeshared graniteswitch granite4_vision minicpm3 paddleocr youtu_dense llada",
         **_LLAMA),
    _row("mistral mixtral pixtral ministral ministral3 MistralForCausalLM internlm2 baichuan xverse refact exaone plm "
         "smallthinker deepseek"),
    _row("dbrx", fused="attn_qkv", gguf="ffn_norm=attn_output_norm"),
    _row("mpt", fused="attn_qkv"),
    _row("maincoder", **_HEAD, **_ATTENTION),
    _row("mistral4", correction=_said("sigmoid_router"), **_LLAMA),
    _row("talkie", norms=0, final_norm=NO, query_gain=True, layer_scales=3, head_scale=True),
    _row("iquestcoder emu3_text_model", **_LLAMA),
    _row("iquestloopcoder", round_gate=True, **_LLAMA),
    _row("afm7", cache_scales=True, borrowed_keys=NO, **_HEAD),
    _row("gear", norms=4, conv_bias=_said("attention_bias"), **_HEAD, **_ATTENTION),
    _row("helium", qkv_bias=_said("attention_bias"), ffn_bias=_said("mlp_bias")),
    _row("internlm", **_biased(_said("bias", default=True))),
    _row("internlm3", qkv_bias=_said("qkv_bias"), output_bias=_said("bias"), ffn_bias=_said("bias")),
    _row("hyperclovax", more_norms=(_said("use_post_norm", default=True),) * 2, **_LLAMA),
    _row("bitnet", sub_norms=True, **_ATTENTION),
    _row("orion", norm_bias=YES),
    _row("seed_oss", qkv_bias=_said("attention_bias", default=True), output_bias=_said("attention_out_bias"),
         gguf="ffn_norm=post_attention_norm", ffn_bias=_said("mlp_bias")),
    _row("pangu-embedded PanguEmbedded", **_biased(_said("bias", default=True))),
    _row("chameleon", norm_bias=NO, head_norm=Width.EACH, head_norm_bias=True, **_LLAMA),
    _row("apertus", activation=2, gguf="layer_output_scale.weight= scale_1=", **_HEAD, **_ATTENTION),
    _row("nanochat", norms=0, final_norm=NO, **_ATTENTION),
    _row("olmo", norms=0, final_norm=NO, **_ATTENTION),
    _row("openelm", fused="attn_qkv", head_norm_said=_said("normalize_qk_projections", default=True), **_HEAD),
    _row("llama4 llama4_text", **_ATTENTION),
    # Qwen.
    _row("qwen", qkv_bias=YES, fused="attn_qkv"),
    _row("qwen2 qwen2vl qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_thinker "
         "dream Dream", qkv_bias=YES),
    _row("mimo", qkv_bias=_said("attention_bias", default=True)),
    _row("qwen2moe qwen2_moe", qkv_bias=_said("qkv_bias", default=True), shared_switch=YES),
    _row("qwen3 qwen3vl qwen3_vl qwen3_vl_text qwen3moe qwen3vlmoe qwen3_moe qwen3_vl_moe qwen3_vl_moe_text "
         "qwen3_omni_moe_text qwen3_omni_moe_thinker rnd1 mellum llada-moe llada_moe", **_HEAD, **_ATTENTION),
    _row("qwen3next qwen3_next", shared_switch=YES, conv_bias=NO, gguf="ffn_norm=post_attention_norm", **_HEAD,
         **_ATTENTION),
    _row("qwen35 qwen35moe qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", shared_switch=YES, conv_bias=NO,
         gguf="ffn_norm=post_attention_norm ssm_ba=ssm_beta+ssm_alpha", **_HEAD, **_ATTENTION),
    # Cohere, OLMo, EXAONE, Granite.
    _row("command-r cohere", norms=1, head_norm=Width.EACH, head_norm_said=_said("use_qk_norm"), **_ATTENTION),
    _row("cohere2 cohere2moe cohere2_moe", norms=1, **_ATTENTION),
    _row("olmo2 olmo3", gguf=_POST_NORMS, **_ALL_HEADS, **_ATTENTION),
    _row("olmoe flex_olmo", **_ALL_HEADS, **_ATTENTION),
    _row("olmo_hybrid", conv_bias=NO, **_ALL_HEADS, **_ATTENTION),
    _row("exaone4 exaone4_5", gguf=_POST_NORMS, **_HEAD),
    _row("exaone-moe exaone_moe", correction=YES, **_HEAD),
    _row("granite_swa granitemoe_swa", sinks=YES, **_LLAMA),
    _row("granitehybrid granitemoehybrid bamba", state_bias=_said("mamba_proj_bias"),
         conv_bias=_said("mamba_conv_bias", default=True), **_LLAMA),
    # Gemma.
    _row("gemma vaultgemma", **_ATTENTION),
    _row("gemma2", norms=4, **_ATTENTION),
    _row("gemma3 gemma3_text gemma-embedding", norms=4, **_HEAD, **_ATTENTION),
    _row("gemma3n gemma3n_text", norms=4, streams=Streams.ALTERNATING, **_HEAD, **_ATTENTION),
    _row("gemma4 gemma4_text gemma4_unified gemma4_unified_text diffusion_gemma", norms=4, expert_norms=3,
         router_scales=True, layer_scales=1, fused="ffn_gate_up_exps", **_HEAD, **_ATTENTION),
    _row("recurrent_gemma", ffn_bias=YES, output_bias=YES, qkv_bias=_said("attention_bias"), state_bias=YES),
    # Phi, Falcon, GPT and their time.
    _row("phi3 phi4 phi3_v phi4mm phi4_multimodal", fused="attn_qkv ffn_up"),
    _row("phimoe", norm_bias=YES, head_bias=_said("lm_head_bias"), **_ATTENTION),
    _row("phi phi2 phi-msft mixformer-sequential", norms=1, head_bias=YES, head_norm=Width.HEAD, head_norm_bias=True,
         head_norm_said=_said("qk_layernorm"), fused="attn_qkv", expert_bias=YES, **_ALL),
    _row("phi3small", fused="attn_qkv", **_ALL),
    _row("persimmon", head_norm=Width.HEAD, head_norm_bias=True, head_norm_said=_said("qk_layernorm", default=True),
         **_ALL),
    _row("stablelm stablelm_epoch", norms=1, more_norms=(_said("!use_parallel_residual", default=True),), norm_bias=YES,
         qkv_bias=_said("use_qkv_bias"), head_norm=Width.EACH, head_norm_said=_said("qk_layernorm")),
    _row("starcoder2", norm_bias=YES, **_biased(_said("use_bias", default=True), ffn_bias=_said("use_bias",
         default=True))),
    _row("nemotron", norm_bias=YES, **_LLAMA),
    _row("gpt2 gpt_bigcode starcoder", positions=0, fused="attn_qkv", **_ALL),
    _row("gpt_neo", positions=0, norm_bias=YES, output_bias=YES, ffn_bias=YES),
    _row("gptneox gpt_neox gpt_neox_reward_model", norm_bias=YES, ffn_bias=YES, fused="attn_qkv",
         **_biased(_said("attention_bias", default=True))),
    _row("gptj codegen", norms=1, norm_bias=YES, ffn_bias=YES, head_bias=YES),
    _row("opt", positions=2, embedding_width="word_embed_proj_dim", embedding_out=True,
         final_norm=_said("do_layer_norm_before", default=True), **_ALL),
    _row("bloom", embedding_norm=True, fused="attn_qkv", **_ALL),
    _row("codeshell", fused="attn_qkv", **_ALL),
    _row("jais", fused="attn_qkv", **_ALL),
    _row("jais2", norm_bias=YES, ffn_bias=_said("mlp_bias", default=True), **_biased(_said("attention_bias",
         default=True))),
    _row("falcon RefinedWebModel RefinedWeb", norms=1, norm_bias=YES, fused="attn_qkv", gguf="ffn_norm=attn_norm_2",
         more_norms=(_said("new_decoder_architecture"), _said("!parallel_attn")),
         **_biased(_said("bias"), ffn_bias=_said("bias"))),
    # GLM, ERNIE, Hunyuan, MiniMax, Step, Bailing and further mixtures of experts.
    _row("chatglm", fused="attn_qkv ffn_up", qkv_bias=_said("add_qkv_bias add_bias_linear",
         default=True),
         output_bias=_said("add_bias_linear"), ffn_bias=_said("add_bias_linear")),
    _row("glm", qkv_bias=_said("attention_bias", default=True), fused="ffn_up"),
    _row("glm4 glm_ocr glm_ocr_text", norms=4, qkv_bias=_said("attention_bias"), fused="ffn_up"),
    _row("glm4v glm4v_text glm46v glmga", norms=4, qkv_bias=_said("attention_bias", default=True), fused="ffn_up"),
    _row("glm4_moe glm4v_moe glm4v_moe_text", qkv_bias=_said("attention_bias"), correction=YES, router_is_raw=True,
         head_norm_said=_said("use_qk_norm"), **_HEAD),
    _row("glm4moe", qkv_bias=YES, correction=YES, router_is_raw=True),  # a GGUF: GLM-4.5 and its successors
    _row("glm4_moe_lite glm_moe_dsa glm-dsa deepseek_v3 kimi_k2 kimi_k25 deepseek_v32 deepseek32 youtu kimi-linear "
         "joyai_llm_flash youtu_llm", correction=YES, router_is_raw=True, conv_bias=NO, **_ATTENTION),
    _row("kimi_linear kimi_k3 kimi-k3", correction=YES, router_is_raw=True, conv_bias=NO,
         whole_output=_said("linear_attn_config.use_full_rank_gate"), block_residual=_said("attn_res_block_size"),
         latent_gate=Width.ALL, latent_gate_said=_said("mla_use_output_gate"),
         latent_norms=1, latent_norms_said=_said("latent_moe_use_norm"), **_ATTENTION),
    # V3 has V2's name in a GGUF: what chooses its experts tells them apart.
    _row("deepseek2 deepseek2-ocr deepseek_v2 deepseek_vl_v2 deepseek_ocr2 DeepseekV2ForCausalLM", router_is_raw=True,
         correction=_said("sigmoid_router"), **_ATTENTION),
    _row("axk1", correction=YES, router_is_raw=True, expert_norms=1, **_ATTENTION),
    _row("axk2", correction=YES, router_is_raw=True, gate=Width.ALL, norm_rank="gated_norm_rank", **_ATTENTION),
    _row("deepseek4 deepseek_v4 deepseek_ref",
         gguf="attn_k=attn_kv attn_k_norm=attn_kv_a_norm attn_output=attn_output_b",
         correction=YES, router_is_raw=True, streams=Streams.HYPER),
    _row("longcat_flash", correction=YES, **_ATTENTION),
    _row("longcat_flash_ngram", correction=YES, ngrams=True, **_ATTENTION),
    _row("ernie4_5 ernie4_5_vl paddleocr_vl paddleocr_vl_text", **_biased(_said("use_bias"),
         ffn_bias=_said("use_bias"))),
    _row("ernie4_5-moe ernie4_5_moe", correction=YES,
         **_biased(_said("use_bias"), ffn_bias=_said("use_bias"), head_bias=_said("use_bias"))),
    _row("ernie4_5_vl_moe ernie4_5_vl_moe_text", correction=YES, picture_experts=True,
         **_biased(_said("use_bias"), ffn_bias=_said("use_bias"), head_bias=_said("use_bias"))),
    _row("hunyuan-dense hunyuan-moe hunyuan_vl hunyuan_v1_dense hunyuan_v1_moe", **_HEAD, **_ATTENTION),
    _row("hunyuan", head_norm_said=_said("use_qk_norm"), **_HEAD, **_ATTENTION),
    _row("hy_v3", gguf="exp_probs_b.bias=exp_probs_b", correction=YES, **_HEAD, **_LLAMA),
    _row("minimax-m2 minimax_m2", correction=_said("use_routing_bias", default=True), **_ALL_HEADS),
    _row("minimax-m3 minimax_m3 minimax_m3_vl minimax_m3_vl_text",
         gguf="indexer.attn_q_b=indexer.q_proj indexer.attn_k=indexer.k_proj",
         correction=_said("use_routing_bias", default=True),
         **_HEAD),
    _row("minimax-01 minimax minimax_text_01 minimax_m1"),
    _row("mimo2 mimo_v2_flash", correction=YES, sinks=_said("add_full_attention_sink_bias"),
         window_sinks=_said("add_swa_attention_sink_bias", default=True), qkv_bias=_said("attention_bias")),
    _row("step35 step3p5 step3p7 step3_text step3", correction=_said("use_moe_router_bias", default=True),
         gate=Width.HEADS,
         gate_said=_said("use_head_wise_attn_gate", default=True), **_HEAD, **_LLAMA),
    _row("bailingmoe bailing_moe", qkv_bias=_said("use_qkv_bias"), output_bias=_said("use_bias"),
         correction=_said("moe_router_enable_expert_bias"), head_norm_said=_said("use_qk_norm"), **_HEAD),
    _row("bailingmoe2 bailing_moe_v2", fused="attn_qkv", qkv_bias=_said("use_qkv_bias"), output_bias=_said("use_bias"),
         correction=_said("moe_router_enable_expert_bias", default=True), head_norm_said=_said("use_qk_norm",
         default=True),
         **_HEAD),
    _row("bailing_hybrid bailingmoe3", ffn_bias=_said("use_bias"), conv_bias=NO,
         correction=_said("moe_router_enable_expert_bias", default=True), **_biased(_said("use_qkv_bias")),
         state_bias=_said("use_qkv_bias"), state_out_bias=_said("use_bias"), whole_forget=YES, whole_output=YES,
         state_head_norms=_said("use_qk_norm", default=True),
         latent_gate=Width.HEADS, latent_gate_said=_said("short_conv_kernel_size")),
    _row("bailing_moe_linear", qkv_bias=_said("use_qkv_bias"), output_bias=_said("use_bias"),
         ffn_bias=_said("use_bias"), correction=_said("moe_router_enable_expert_bias"),
         head_norm_said=_said("use_qk_norm"),
         state_bias=_said("use_qkv_bias"), state_out_bias=_said("use_bias"), state_head_norms=_said("use_qk_norm"),
         **_HEAD),
    _row("Klear", correction=YES, shared_mix=True, **_HEAD, **_ATTENTION),
    _row("spark2_5", gate=Width.HEADS, **_LLAMA),
    _row("baichuan_m1"),
    _row("dots1", correction=YES, **_HEAD, **_ATTENTION),
    _row("solar_open", correction=YES, qkv_bias=_said("attention_bias"), head_norm_said=_said("use_qk_norm"), **_HEAD),
    _row("afmoe", norms=4, correction=YES, gate=Width.ALL, **_HEAD, **_ATTENTION),
    _row("laguna", correction=YES, gate=Width.HEADS, **_HEAD, **_ATTENTION),
    _row("muse-glimmer muse_glimmer muse_glimmer_text", norms=4, gate=Width.ALL, **_ATTENTION),
    # Its norms, and two gates on the residual stream that are as wide.
    _row("muse_spark muse_spark_text", norms=5, gate=Width.ALL, correction=YES, latent_norms=2, **_ATTENTION),
    _row("grovemoe grove_moe", small_experts="parallel_expert_intermediate_size", **_HEAD, **_ATTENTION),
    _row("grok grok-1", norms=4, gguf="post_attention_norm=attn_output_norm"),
    _row("arctic", norms=2, expert_norms=1),
    _row("gpt-oss gpt_oss", sinks=YES, router_bias=YES, expert_bias=YES,
         gguf="ffn_norm=post_attention_norm exp_probs_b=ffn_gate_inp",
         **_biased(_said("attention_bias", default=True))),
    _row("plamo", norms=1),
    _row("plamo2", norms=4, step_norms=True, conv_bias=NO, fused="attn_qkv ffn_up", head_norm=Width.EACH,
         gguf=f"{_BARE_NORMS} ssm_dt_norm.weight=ssm_dt_norm ssm_b_norm.weight=ssm_b_norm ssm_c_norm.weight=ssm_c_norm")
         ,
    _row("plamo3", norms=4, fused="attn_qkv ffn_up", gguf=_BARE_NORMS, **_HEAD),
    # Recurrences.
    _row("mamba falcon_mamba mamba2", state_bias=_said("use_bias"), conv_bias=_said("use_conv_bias", default=True)),
    _row("jamba", step_norms=True, state_bias=_said("mamba_proj_bias"), conv_bias=_said("mamba_conv_bias",
         default=True)),
    _row("falcon-h1 falcon_h1",
         gguf="ffn_norm.weight=ffn_norm", state_norm=_said("mamba_rms_norm"), state_bias=_said("mamba_proj_bias"),
         state_out_bias=_said("projectors_bias"), conv_bias=_said("mamba_conv_bias", default=True), **_LLAMA),
    _row("nemotron_h nemotron_h_moe V4X", gguf="ffn_norm=attn_norm", correction=YES, state_bias=_said("use_bias"),
         conv_bias=_said("use_conv_bias", default=True), ffn_bias=_said("mlp_bias")),
    _row("lfm2 lfm2_vl", gguf="output_norm=token_embd_norm", conv_bias=_said("conv_bias"), **_HEAD),
    _row("lfm2moe lfm2_moe",
         gguf="output_norm=token_embd_norm",
         conv_bias=_said("conv_bias"), correction=_said("use_expert_bias", default=True), **_HEAD),
    _row("gla"),
    _row("rwkv7", first_norms=3, norm_bias=YES, value_rank="v_low_rank_dim"),
    # Encoders.
    _row("bert", positions=0, token_types=2, embedding_norm=True, gguf=_OUTPUT_NORMS, final_norm=NO, **_ALL),
    _row("roberta xlm-roberta camembert data2vec-text", positions=0, token_types=1, embedding_norm=True,
         gguf=_OUTPUT_NORMS,
         final_norm=NO, **_ALL),
    _row("jina-bert-v3 nomic-bert-moe", token_types=1, embedding_norm=True,
         gguf=_OUTPUT_NORMS, final_norm=NO, fused="attn_qkv",
         **_ALL),
    _row("ernie", positions=0, token_types=2, embedding_norm=True, gguf=_OUTPUT_NORMS, final_norm=NO, **_ALL),
    _row("megatron-bert xlm-roberta-xl roberta-prelayernorm", positions=0, token_types=2, **_ALL),
    _row("distilbert mpnet", positions=0, embedding_norm=True, gguf=_OUTPUT_NORMS, final_norm=NO, **_ALL),
    _row("nomic-bert nomic_bert", token_types=2, embedding_norm=True, gguf=_OUTPUT_NORMS, final_norm=NO, norm_bias=YES,
         fused="attn_qkv"),
    _row("jina-bert-v2", token_types=2, embedding_norm=True,
         gguf=_OUTPUT_NORMS, final_norm=NO, norm_bias=YES, **_biased(YES)),
    _row("new", token_types=0, embedding_norm=True, gguf=_OUTPUT_NORMS, final_norm=NO, norm_bias=YES, **_biased(YES)),
    _row("modern-bert modernbert", embedding_norm=True, first_norms=1, norm_bias=_said("norm_bias"),
         fused="attn_qkv ffn_up", **_LLAMA),
    _row("neo-bert neobert", fused="attn_qkv ffn_up", gguf="output_norm=enc.output_norm"),
)
# fmt: on

PLAIN = TensorRecipe()


def switches(recipe: TensorRecipe) -> dict[str, bool]:
    """Words of config.json that decide whether tensors are there -> what holds where it is silent."""
    values = [getattr(recipe, one.name) for one in fields(recipe)]
    said = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
    return {
        one.words[0].removeprefix("!"): one.default is not one.words[0].startswith("!")
        for one in said
        if isinstance(one, Said) and one.words
    }


BY_NAME: Mapping[str, TensorRecipe] = {name: row for row in TABLE for name in row.names}


Rows = Iterator[ExpectedTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFamily:
    name: str  # the architecture, as its file calls it
    recipe: TensorRecipe
    section: Mapping[str, Any]  # the language model's part of config.json; empty without one
    hidden: int

    def says(self, switch: Said) -> bool:
        return switch.holds(self.section)

    @property
    def embedding(self) -> int:
        """Numbers of a token in the table, before they become the hidden width."""
        word = self.recipe.embedding_width
        return self.number(word, self.hidden) if word else self.hidden

    def number(self, word: str, default: int | None = None) -> int:
        """A width that geometry has no place for."""
        value = self.section.get(word, default)
        if value is None:
            raise UnknownArchitectureError(
                f"the tensors of {self.name!r} depend on {word}, which only its config.json states"
            )
        return _width(word, value)

    def second(self, word: str) -> int | None:
        """The second of several widths, None where there is one."""
        value = self.section.get(word)
        return _width(word, value[1]) if isinstance(value, list) and len(value) > 1 else None


def _width(word: str, value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise HeaderError(
            f"{word} is {value!r:.60}, which is not a valid width", file="config.json"
        )
    return value


def linear(role: TensorRole, out: int, into: int, *, bias: bool = False) -> Rows:
    """A matrix, and its bias if it has one; nothing where it has no size."""
    if out and into:
        yield ExpectedTensor(role=role, kind=TensorKind.LINEAR, shape=(out, into))
        if bias:
            yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=(out,))


def array(role: TensorRole, kind: TensorKind, *shape: int) -> ExpectedTensor:
    return ExpectedTensor(role=role, kind=kind, shape=shape)


def norm(family: TensorFamily, role: TensorRole = TensorRole.NORM, width: int = 0) -> Rows:
    """A norm as wide as the hidden stream, or as said."""
    yield array(role, TensorKind.NORM, width or family.hidden)
    if family.says(family.recipe.norm_bias):
        yield array(role, TensorKind.BIAS, width or family.hidden)
