"""TABLE of the architectures that most models have: transformers, each a row of switches."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    not_each,
    sections_if_stated,
    sliding_layers,
    stated_routing,
)
from edgekit.engines.llamacpp.graph.llama.attention import input_kv, input_kv_iswa
from edgekit.engines.llamacpp.graph.llama.feed_forward import Act, Gating, Routing
from edgekit.engines.llamacpp.graph.llama.matrices import Norm

USUAL: Mapping[str, Transformer] = {
    "llama": Transformer(attn_input=input_kv),
    "smollm3": Transformer(attn_input=input_kv, rope=not_each(4)),
    "gemma2": Transformer(
        attn_input=input_kv_iswa,
        scaled_embd=True,
        scaled_q=True,
        softcap=1,
        post_norms=True,
        logit_softcap=lambda _hparams: True,
    ),
    "gemma3": Transformer(
        scaled_embd=True,
        scaled_q=True,
        post_norms=True,
        logit_softcap=lambda hparams: bool(hparams.real("final_logit_softcapping")),
    ),
    "phi3": Transformer(
        attn_input=input_kv, scaled_q=True, act=Act.FUSED, gated=False, residual_first=True
    ),
    "gpt-oss": Transformer(
        attn_input=input_kv_iswa,
        predicts=True,
        ffn_norm="post_attention_norm",
        routing=lambda _hparams: Routing(gating=Gating.SOFTMAX_WEIGHT, norm_w=False),
    ),
    "glm4": Transformer(
        n_pos=sections_if_stated, attn_input=input_kv, post_norms=True, act=Act.FUSED, gated=False
    ),
    "glm4moe": Transformer(
        n_pos=sections_if_stated,
        attn_input=input_kv,
        ffn_norm="post_attention_norm",
        routing=lambda hparams: stated_routing(hparams, Gating.SIGMOID),
    ),
    "olmo2": Transformer(flat_qk_norm=True, post_norms=True, ffn_norm=None),
    "command-r": Transformer(
        attn_input=input_kv,
        norm=Norm.LAYER,
        parallel=True,
        logit_scale=lambda hparams: bool(hparams.real("logit_scale")),
    ),
    "cohere2": Transformer(
        attn_input=input_kv_iswa,
        norm=Norm.LAYER,
        parallel=True,
        rope=sliding_layers,
        logit_scale=lambda hparams: bool(hparams.real("logit_scale")),
    ),
    "starcoder2": Transformer(attn_input=input_kv, norm=Norm.LAYER, gated=False),
}
