"""Llama 4: chunked layers rotate and normalise, the others scale their queries by position."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer, rope_factors
from edgekit.engines.llamacpp.graph.llama.attention import attend
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import Gating, Routing
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.qkv import qkv
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

NO_ROPE_STEP = 4  # llama-hparams.h @ 0c1e570: n_no_rope_layer_step
MAVERICK_EXPERTS = 128  # llama4.cpp: the one without norms of queries and keys


def llama4_routing(_hparams: Hparams) -> Routing:
    return Routing(gating=Gating.SIGMOID, norm_w=False, weight_before=True, select_logits=True)


def rotates(hparams: Hparams, il: int) -> bool:
    stated = hparams.key("attention.sliding_window")
    return (il + 1) % (hparams.n_layer if stated == 0 else NO_ROPE_STEP) != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4(Transformer):
    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        q, k, v = qkv(build, layer, cur)
        if layer.facts.more is True:
            factors = rope_factors(build)
            q, k = ggml.rope(q, shared.pos, factors), ggml.rope(k, shared.pos, factors)
            if build.hparams.n_expert != MAVERICK_EXPERTS:
                q, k = ggml.rms_norm(q), ggml.rms_norm(k)
        elif shared.attn_scale is not None:
            q = ggml.mul(q, shared.attn_scale)
        return attend(build, layer, shared.attn, q, k, v)
