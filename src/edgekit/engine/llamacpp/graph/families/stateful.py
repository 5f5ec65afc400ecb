"""TABLE of architectures whose layers carry a state, alone or beside attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgekit.engine.llamacpp.graph.families.delta_net import DeltaNet, linear_attention
from edgekit.engine.llamacpp.graph.families.hybrid import (
    Hybrid,
    SideBySide,
    logit_scale,
    residual_scale,
)
from edgekit.engine.llamacpp.graph.families.mamba import mamba, mamba2, short_convolution
from edgekit.engine.llamacpp.graph.families.short_conv import ShortConvolution, input_lfm2
from edgekit.engine.llamacpp.graph.families.transformer import (
    MROPE_SECTIONS,
    Transformer,
    plain_routing,
)
from edgekit.engine.llamacpp.graph.llama.attention import input_kv
from edgekit.engine.llamacpp.graph.llama.feed_forward import Routing, Gating
from edgekit.engine.llamacpp.graph.llama.hparams import Hparams


def sections(_hparams: Hparams) -> int:
    return MROPE_SECTIONS


def no_layer(_hparams: Hparams, _il: int) -> bool:
    return False


def if_trained(hparams: Hparams, _il: int) -> bool:
    """rope.scaling.finetuned is said of models that were trained without positions at all."""
    return hparams.flag("rope.scaling.finetuned", default=True)


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
    "qwen35moe": DeltaNet(
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
        routing=lambda hparams: Routing(gating=Gating(hparams.whole("expert_gating_func"))),
    ),
}
