"""TABLE of further decoders with experts, and those of them that are built differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.dense import Diffusion
from edgekit.engines.llamacpp.graph.families.sparse import sigmoid_routing
from edgekit.engines.llamacpp.graph.families.transformer import (
    QKV,
    Shared,
    Transformer,
    in_heads,
    plain_routing,
    rope_factors,
)
from edgekit.engines.llamacpp.graph.llama.attention import (
    attend,
    input_kv,
    input_kv_iswa,
    input_no_cache,
)
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.feed_forward import (
    Act,
    Gating,
    Routing,
    experts,
    feed_forward,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.engines.llamacpp.graph.llama.matrices import project
from edgekit.engines.llamacpp.graph.llama.qkv import qkv
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.engines.llamacpp.versions import Rules


def unnormalized(hparams: Hparams) -> Routing:
    return replace(plain_routing(hparams), norm_w=False)


def as_gated(hparams: Hparams) -> Routing:
    """With the gating function of the file; there is no other (build_moe_ffn aborts)."""
    return replace(plain_routing(hparams), gating=Gating(hparams.whole("expert_gating_func", 0)))


def by_sigmoid(hparams: Hparams) -> Routing:
    return replace(plain_routing(hparams), gating=Gating.SIGMOID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Moe(Transformer):
    """The shared expert has a gate."""

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        result = experts(build, layer, cur, shared.routing)
        gate = ggml.mul_mat(layer["ffn_gate_inp_shexp"], cur)
        gate = ggml.div(ggml.unary(gate), gate)  # silu(x) / x: a sigmoid
        return ggml.add(result, ggml.mul(shared_expert(layer, cur), gate))


NO_ROPE_STEP = 4  # llama-hparams.h @ 0c1e570: n_no_rope_layer_step


def smallthinker_rope(hparams: Hparams, il: int) -> bool:
    return not hparams.has_swa or il % NO_ROPE_STEP != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallThinker(Transformer):
    """Experts are chosen before attention."""

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        logits = ggml.mul_mat(layer["ffn_gate_inp"], stream)
        cur = self.normalized(layer, stream, "attn_norm")
        cur = self.attention(build, layer, shared, cur)
        if layer.facts.is_last:
            cur, stream, logits = (
                ggml.get_rows(one, shared.out_ids) for one in (cur, stream, logits)
            )
        stream = ggml.add(cur, stream)
        cur = self.normalized(layer, stream, "ffn_norm")
        cur = experts(build, layer, cur, shared.routing, probs_in=logits)
        return ggml.add(cur, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mimo2(Transformer):
    """Values may be scaled, which is done to the result of attention. From 0.6 on its last state is a result."""

    def head(self, build: Build, cur: GraphTensor) -> None:
        if build.options.rules >= Rules.V0_6:  # t_h_nextn, whether it is read or not
            build.output(cur)
        Transformer.head(self, build, cur)

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        cur = Transformer.attention(self, build, layer, shared, cur)
        scaled = build.hparams.real("attention.value_scale") not in {0.0, 1.0}
        return ggml.scale(cur) if scaled else cur


@dataclass(frozen=True, slots=True, kw_only=True)
class Laguna(Transformer):
    """What the heads saw is gated: one number for each head, or for each element."""

    def attended(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, heads: QKV
    ) -> GraphTensor:
        result = attend(build, layer, shared.attn, *heads, output=None)
        if "attn_gate" in layer:
            gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
            result = _gated(build, layer, result, gate)
        return project(layer["attn_output"], result, scale=layer.scale("attn_output"))


def _gated(build: Build, layer: GraphLayer, cur: GraphTensor, gate: GraphTensor) -> GraphTensor:
    heads, width, tokens = layer.facts.n_head, layer.facts.n_embd_head_v, build.n_tokens
    if gate.ne[0] != heads:
        return ggml.mul(cur, gate)
    cur = ggml.reshape(cur, width, heads, tokens)
    cur = ggml.mul(cur, ggml.reshape(gate, 1, heads, tokens))
    return ggml.reshape(cur, width * heads, tokens)


CLAMP_EPSILON = 1e-6  # llama-graph.cpp @ 0c1e570: build_ffn, build_moe_ffn


def clamps(hparams: Hparams, name: str, il: int) -> bool:
    """Whether the activations of a layer are limited: one number for each layer, or for all."""
    stated = hparams.key(name)
    limit = stated[il] if isinstance(stated, tuple) else stated
    return isinstance(limit, (int, float)) and limit > CLAMP_EPSILON


@dataclass(frozen=True, slots=True, kw_only=True)
class Step35(Laguna):
    """Only layers that see everything use rope factors; some limit what they activate."""

    def more(self, hparams: Hparams, il: int) -> tuple[bool, bool]:
        """Whether experts, and whether other feed-forwards clamp."""
        return clamps(hparams, "swiglu_clamp_exp", il), clamps(hparams, "swiglu_clamp_shexp", il)

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        q, k, v = in_heads(build, layer, *qkv(build, layer, cur, flat=True))
        q, k = self.normalized(layer, q, "attn_q_norm"), self.normalized(layer, k, "attn_k_norm")
        factors = None if layer.facts.is_swa else rope_factors(build)
        q, k = ggml.rope(q, shared.pos, factors), ggml.rope(k, shared.pos, factors)
        return self.attended(build, layer, shared, cur, (q, k, v))

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        of_experts, of_others = (
            Act.CLAMPED if clamped else Act.UNARY
            for clamped in self.more(build.hparams, layer.index)
        )
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=of_others)
        result = experts(build, layer, cur, replace(shared.routing, act=of_experts))
        return ggml.add(result, shared_expert(layer, cur, act=of_others))


MIXTURES: Mapping[str, Transformer] = {
    "laguna": Laguna(routing=sigmoid_routing),
    "llada-moe": Diffusion(attn_input=input_no_cache, routing=unnormalized),
    "mellum": Transformer(),
    "mimo2": Mimo2(attn_input=input_kv_iswa, routing=by_sigmoid),
    "minimax-m2": Transformer(attn_input=input_kv, flat_qk_norm=True, routing=as_gated),
    "olmoe": Transformer(attn_input=input_kv, flat_qk_norm=True, routing=unnormalized),
    "phimoe": Transformer(attn_input=input_kv, scaled_q=True, residual_first=True),
    "qwen2moe": Qwen2Moe(attn_input=input_kv, routing=unnormalized),
    "smallthinker": SmallThinker(rope=smallthinker_rope, routing=as_gated),
    "step35": Step35(attn_input=input_kv_iswa, predicts=True, routing=sigmoid_routing),
}
