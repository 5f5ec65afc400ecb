"""TABLE of architectures: a GGUF name -> how its graph is built."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Protocol

from edgekit.engine.llamacpp.graph.families.blocks import BLOCKS
from edgekit.engine.llamacpp.graph.families.compressed import COMPRESSED
from edgekit.engine.llamacpp.graph.families.decoders import DECODERS
from edgekit.engine.llamacpp.graph.families.dense import DENSE
from edgekit.engine.llamacpp.graph.families.encoders import ENCODERS
from edgekit.engine.llamacpp.graph.families.gemma3n import Gemma3n
from edgekit.engine.llamacpp.graph.families.indexed import INDEXED
from edgekit.engine.llamacpp.graph.families.latent import (
    Latent,
    deepseek2_routing,
    input_latent,
)
from edgekit.engine.llamacpp.graph.families.llama4 import Llama4, llama4_routing, rotates
from edgekit.engine.llamacpp.graph.families.mixtures import MIXTURES
from edgekit.engine.llamacpp.graph.families.per_layer import Gemma4
from edgekit.engine.llamacpp.graph.families.pictures import PICTURES
from edgekit.engine.llamacpp.graph.families.rwkv import RWKV
from edgekit.engine.llamacpp.graph.families.sparse import SPARSE
from edgekit.engine.llamacpp.graph.families.stateful import STATEFUL
from edgekit.engine.llamacpp.graph.families.t5 import CROSSING
from edgekit.engine.llamacpp.graph.families.transformer import (
    Transformer,
    not_each,
    sections_if_stated,
    sliding_layers,
    stated_routing,
)
from edgekit.engine.llamacpp.graph.llama.attention import input_kv, input_kv_iswa
from edgekit.engine.llamacpp.graph.llama.build import Build
from edgekit.engine.llamacpp.graph.llama.feed_forward import Act, Gating, Routing
from edgekit.engine.llamacpp.graph.llama.hparams import Hparams
from edgekit.engine.llamacpp.graph.llama.matrices import Norm


class Family(Protocol):
    def more(self, hparams: Hparams, il: int) -> Hashable:
        """What layer `il` depends on besides the facts of every layer."""

    def build(self, build: Build) -> None:
        """Makes the whole graph."""


_DEEPSEEK2 = Latent(
    attn_input=input_latent,
    temperature=lambda hparams: bool(hparams.real("attention.temperature_scale")),
    routing=deepseek2_routing,
)

FAMILIES: Mapping[str, Family] = {
    "llama": Transformer(attn_input=input_kv),
    "qwen2": Transformer(attn_input=input_kv),
    "qwen3": Transformer(attn_input=input_kv),
    "qwen3moe": Transformer(attn_input=input_kv),
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
        late_out_ids=True,
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
    "deepseek2": _DEEPSEEK2,
    "mistral4": replace(
        _DEEPSEEK2, routing=lambda hparams: replace(deepseek2_routing(hparams), precise=True)
    ),
    "minicpm3": Latent(attn_input=input_kv, scaled_embd=True, scaled_residual=True),
    "llama4": Llama4(rope=rotates, routing=llama4_routing, temperature=lambda _hparams: True),
    "gemma3n": Gemma3n(attn_input=input_kv_iswa),
    "gemma4": Gemma4(
        attn_input=input_kv_iswa,
        routing=lambda _hparams: Routing(),
        logit_softcap=lambda hparams: bool(hparams.real("final_logit_softcapping")),
    ),
    **BLOCKS,
    **COMPRESSED,
    **DECODERS,
    **DENSE,
    **ENCODERS,
    **INDEXED,
    **MIXTURES,
    **PICTURES,
    **RWKV,
    **SPARSE,
    **STATEFUL,
    **CROSSING,
}
