"""TABLE of architectures whose layers carry a state, alone or beside attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgekit.engines.llamacpp.graph.families.delta_net import DeltaNet, linear_attention
from edgekit.engines.llamacpp.graph.families.granite import if_trained
from edgekit.engines.llamacpp.graph.families.hybrid import (
    Hybrid,
    OneEach,
    Plamo2,
    SideBySide,
    logit_scale,
    residual_scale,
)
from edgekit.engines.llamacpp.graph.families.kimi import Kimi, Ling3, kimi_delta, ling_delta
from edgekit.engines.llamacpp.graph.families.lightning import MiniMax01
from edgekit.engines.llamacpp.graph.families.mamba import (
    mamba,
    mamba2,
    plamo2_mamba,
    short_convolution,
)
from edgekit.engines.llamacpp.graph.families.short_conv import ShortConvolution, input_lfm2
from edgekit.engines.llamacpp.graph.families.transformer import (
    MROPE_SECTIONS,
    Transformer,
    plain_routing,
    sections_if_stated,
    stated_routing,
)
from edgekit.engines.llamacpp.graph.llama.attention import input_k, input_kv
from edgekit.engines.llamacpp.graph.llama.feed_forward import Act, Gating, Routing
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams


def sections(_hparams: Hparams) -> int:
    return MROPE_SECTIONS


def no_layer(_hparams: Hparams, _il: int) -> bool:
    return False


def nemotron_routing(hparams: Hparams) -> Routing:
    return replace(stated_routing(hparams), gating=Gating.SIGMOID, act=Act.SQUARED)


STATEFUL: Mapping[str, Transformer] = {
    "qwen3next": DeltaNet(
        attn_input=input_kv,
        mixer=linear_attention,
        ffn_norm="post_attention_norm",
        late_gate=True,
    ),
    "qwen35": DeltaNet(
        attn_input=input_kv, mixer=linear_attention, n_pos=sections, ffn_norm="post_attention_norm"
    ),
    "mamba": Hybrid(attn_input=input_kv, mixer=mamba, ffn_norm=None),
    "mamba2": Hybrid(attn_input=input_kv, mixer=mamba2, ffn_norm=None),
    "granitehybrid": Hybrid(
        attn_input=input_kv,
        mixer=mamba2,
        embedding_scale=True,
        rope=if_trained,
        residual_scale=residual_scale,
        logit_scale=logit_scale,
    ),
    "jamba": Hybrid(
        attn_input=input_kv,
        mixer=mamba,
        rope=no_layer,
        stream_first=True,
        routing=lambda hparams: replace(plain_routing(hparams), norm_w=False),
    ),
    "falcon-h1": SideBySide(attn_input=input_kv, mixer=mamba2),
    "lfm2": ShortConvolution(attn_input=input_lfm2, mixer=short_convolution, stream_first=True),
    "lfm2moe": ShortConvolution(
        attn_input=input_lfm2,
        mixer=short_convolution,
        stream_first=True,
        routing=lambda hparams: replace(
            plain_routing(hparams), gating=Gating(hparams.whole("expert_gating_func"))
        ),
    ),
    "nemotron_h": OneEach(
        attn_input=input_kv, mixer=mamba2, act=Act.SQUARED, routing=nemotron_routing
    ),
    "plamo2": Plamo2(attn_input=input_kv, mixer=plamo2_mamba, act=Act.FUSED, gated=False),
    "kimi-linear": Kimi(
        attn_input=input_k,
        mixer=kimi_delta,
        routing=lambda hparams: replace(stated_routing(hparams), norm_w=True),
    ),
    "bailingmoe3": Ling3(
        attn_input=input_k, mixer=ling_delta, n_pos=sections_if_stated, routing=stated_routing
    ),
    "minimax-01": MiniMax01(attn_input=input_kv),
}
