"""Mixture-of-experts decoders: TABLE of switches, and the architectures that need code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    attend,
    input_auto,
    input_kv_iswa,
    input_no_cache,
)
from edgekit.engines.llamacpp.graph.build import Act, Build, Gating, GraphLayer, Hparams, Routing
from edgekit.engines.llamacpp.graph.families.dense import Diffusion
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    always,
    change_routing,
    except_each,
    file_routing,
    nonzero,
    plain_routing,
    rope_factors,
    sigmoid_routing,
    sliding_layers,
)
from edgekit.engines.llamacpp.graph.layers import (
    QKV,
    Norm,
    experts,
    feed_forward,
    project,
    project_biased,
    qkv,
    results,
    shared_expert,
    split_heads,
)
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor
from edgekit.engines.llamacpp.types import Rules

NO_ROPE_STEP = 4  # llama-hparams.h @ 0c1e570: n_no_rope_layer_step
CLAMP_EPSILON = 1e-6  # llama-graph.cpp @ 0c1e570: build_ffn, build_moe_ffn
MAVERICK_EXPERTS = 128  # llama4.cpp: the model without Q and K norms


def sliding_or_leading(hparams: Hparams, il: int) -> bool:
    return hparams.swa[il] or il < hparams.integer("leading_dense_block_count")


class Afmoe(Transformer):
    """AFMoE: gated attention; the post-attention norm comes before the output rows are selected."""

    def attend(self, layer: GraphLayer, cur: GraphTensor, heads: QKV) -> GraphTensor:
        gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
        cur = ggml.mul(attend(layer, *heads, project=False), gate)
        cur = project(layer, "attn_output", cur)
        return self.apply_norm(layer, cur, "post_attention_norm")

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return self.apply_norm(layer, cur, name) if name == "post_ffw_norm" else cur


class MuseGlimmer(Afmoe):
    """Muse Glimmer: like AFMoE without experts; the embeddings are normalised without a weight."""

    def embed(self, build: Build) -> GraphTensor:
        return ggml.rms_norm(Transformer.embed(self, build))


class Arctic(Transformer):
    """Arctic: experts run parallel to the whole layer, on attention's input."""

    def after_attention(
        self, layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        after = ggml.add(cur, stream)
        dense = feed_forward(layer, self.apply_norm(layer, after, "ffn_norm"))
        cur = self.apply_norm(layer, stream, "ffn_norm_exps")
        cur = experts(layer, cur)
        return ggml.add(cur, ggml.add(dense, after))


class Grok(Transformer):
    """Grok: post norms, and a dense feed-forward parallel to the experts."""

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        grok_name = "layer_output_norm" if name == "post_ffw_norm" else "attn_output_norm"
        return self.apply_norm(layer, cur, grok_name if grok_name in layer else name)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        result = experts(layer, cur)
        if "ffn_up" not in layer:
            return result
        return ggml.scale(ggml.add(feed_forward(layer, cur), result))


class GroveMoe(Transformer):
    """GroveMoE: groups of experts, and a smaller expert per group that reads their output."""

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        logits = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        cur = experts(layer, cur, probs_in=logits, selected=_select_experts(layer, logits))
        group_ids = ggml.scale(ggml.cast(_select_experts(layer, logits), F32))
        group_output = experts(
            layer, cur, probs_in=logits, selected=ggml.cast(group_ids, I32), suffix="_chexps"
        )
        return ggml.add(cur, ggml.scale(group_output))


def _select_experts(layer: GraphLayer, logits: GraphTensor) -> GraphTensor:
    """GroveMoE's experts: selected by sigmoid, although their weights come from a soft-max."""
    return ggml.argsort_top_k(ggml.unary(logits), layer.facts.n_expert_used)


class Cohere2Moe(Transformer):
    """Cohere 2 MoE: routed and shared experts are averaged."""

    def build(self, build: Build) -> None:
        rms = bool(build.hparams.real("attention.layer_norm_rms_epsilon"))
        Transformer.build(replace(self, norm=Norm.RMS if rms else Norm.LAYER), build)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if "ffn_up_shexp" not in layer:
            return Transformer.feed_forward(self, layer, cur)
        result = experts(layer, cur)
        return ggml.scale(ggml.add(result, shared_expert(layer, cur)))


def required_gating(hparams: Hparams) -> Routing:
    """Routing by the file's gating function, which is required (build_moe_ffn aborts without it)."""
    return replace(plain_routing(hparams), gating=Gating(hparams.integer("expert_gating_func", 0)))


class Qwen2Moe(Transformer):
    """Qwen 2 MoE: the shared expert has a gate."""

    def shared_expert(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        gate = ggml.mul_mat(layer["ffn_gate_inp_shexp"], cur)
        gate = ggml.div(ggml.unary(gate), gate)  # silu(x) / x: a sigmoid
        return ggml.mul(shared_expert(layer, cur), gate)


def smallthinker_rope(hparams: Hparams, il: int) -> bool:
    return not hparams.has_swa or il % NO_ROPE_STEP != 0


class SmallThinker(Transformer):
    """SmallThinker: experts are selected before attention."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        logits = ggml.mul_mat(layer["ffn_gate_inp"], stream)
        cur = self.apply_norm(layer, stream, "attn_norm")
        cur = self.attention(layer, cur)
        cur, stream, logits = self.output_rows(layer, cur, stream, logits)
        stream = ggml.add(cur, stream)
        cur = self.apply_norm(layer, stream, "ffn_norm")
        cur = experts(layer, cur, probs_in=logits)
        return ggml.add(cur, stream)


class Mimo2(Transformer):
    """MiMo 2: attention outputs may be scaled. Since 0.6 the last state is an output."""

    def head(self, build: Build, cur: GraphTensor) -> None:
        if build.options.rules >= Rules.V0_6:  # t_h_nextn, whether it is read or not
            build.output(cur)
        Transformer.head(self, build, cur)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        cur = Transformer.attention(self, layer, cur)
        scaled = layer.hparams.real("attention.value_scale") not in {0.0, 1.0}
        return ggml.scale(cur) if scaled else cur


class Laguna(Transformer):
    """Laguna: attention is gated per head or per element."""

    def attend(self, layer: GraphLayer, cur: GraphTensor, heads: QKV) -> GraphTensor:
        result = attend(layer, *heads, project=False)
        if "attn_gate" in layer:
            gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
            n_head, width = layer.facts.n_head, layer.facts.n_embd_head_v
            if gate.ne[0] == n_head:
                tokens = layer.build.n_tokens
                result = ggml.reshape(result, width, n_head, tokens)
                result = ggml.mul(result, ggml.reshape(gate, 1, n_head, tokens))
                result = ggml.reshape(result, width * n_head, tokens)
            else:
                result = ggml.mul(result, gate)
        return project(layer, "attn_output", result)


class Clamps(NamedTuple):
    """Which activations of a layer are clamped."""

    experts: bool
    others: bool  # of shared experts and dense feed-forwards

    @classmethod
    def of(cls, hparams: Hparams, il: int) -> Clamps:
        """Reads the limits of a layer: each key has one limit for all layers, or a list."""
        limits = []
        for name in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
            limit = hparams.key(name)
            if isinstance(limit, tuple) and il < len(limit):
                limit = limit[il]
            limits.append(isinstance(limit, (int, float)) and limit > CLAMP_EPSILON)
        return cls(*limits)


def clamped_feed_forward(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """A dense feed-forward, or routed and shared experts, with the layer's clamps."""
    experts_act, dense_act = (
        Act.CLAMPED if clamped else Act.UNARY for clamped in Clamps.of(layer.hparams, layer.index)
    )
    if "ffn_gate_inp" not in layer:
        return feed_forward(layer, cur, act=dense_act)
    result = experts(layer, cur, routing=replace(layer.inputs.routing, act=experts_act))
    return ggml.add(result, shared_expert(layer, cur, act=dense_act))


class Step35(Laguna):
    """Step 3.5: only full-attention layers use rope factors; some clamp activations."""

    def variant(self, hparams: Hparams, il: int) -> Clamps:
        return Clamps.of(hparams, il)

    def qkv(self, layer: GraphLayer, cur: GraphTensor) -> QKV:
        return split_heads(layer, qkv(layer, cur, flat=True))

    def rope_factors(self, layer: GraphLayer) -> GraphTensor | None:
        return None if layer.facts.is_swa else rope_factors(layer.build)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return clamped_feed_forward(layer, cur)


class K2Horizon(Transformer):
    """K2 Horizon: norms over groups of channels; V may be a sum of routed experts; attention may be gated."""

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        if name in {"attn_norm", "ffn_norm"}:
            return _group_norm(layer.build, cur, layer[name])
        return Transformer.apply_norm(self, layer, cur, name)

    def qkv(self, layer: GraphLayer, cur: GraphTensor) -> QKV:
        q, k = project(layer, "attn_q", cur), project(layer, "attn_k", cur)
        routed = "attn_v_gate" in layer
        v = _routed_value(layer, cur) if routed else project(layer, "attn_v", cur)
        return split_heads(layer, (q, k, v))

    def attend(self, layer: GraphLayer, cur: GraphTensor, heads: QKV) -> GraphTensor:
        if "attn_gate" not in layer:
            return attend(layer, *heads)
        result = attend(layer, *heads, project=False)
        gate = ggml.scale(project(layer, "attn_gate", cur))
        gate = ggml.scale(ggml.unary(gate))
        return project_biased(layer, "attn_output", ggml.mul(result, gate))

    def head(self, build: Build, cur: GraphTensor) -> None:
        results(build, _group_norm(build, cur, build["output_norm"]))


def _group_norm(build: Build, cur: GraphTensor, weight: GraphTensor) -> GraphTensor:
    """k2_horizon_group_rms_norm: each group of channels is normalised by itself; one weight for all."""
    groups = build.hparams.integer("attention.group_norm_groups", 0) or 1
    width, tokens, *_ = cur.ne
    cur = ggml.rms_norm(ggml.reshape(cur, width // groups, groups, tokens))
    return ggml.mul(ggml.reshape(cur, width, tokens), weight)


def _routed_value(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """build_routed_value (MoVA): V as the weighted sum of the selected value experts."""
    build, routing, tokens = layer.build, layer.inputs.routing, layer.build.n_tokens
    used = layer.hparams.integer("attention.value_expert_used_count")
    logits = ggml.mul_mat(layer["attn_v_gate"], cur)
    probs = ggml.soft_max(logits) if routing.gating is Gating.SOFTMAX else ggml.unary(logits)
    bias = layer.bias("attn_v_gate")
    ids = ggml.argsort_top_k(probs if bias is None else ggml.add(probs, bias), used)
    weights = ggml.get_rows(ggml.reshape(probs, 1, *probs.ne[:2]), ids)
    if routing.norm_w:
        weights = ggml.reshape(weights, used, tokens)
        weights = ggml.div(weights, ggml.clamp(ggml.sum_rows(weights)))
        weights = ggml.reshape(weights, 1, used, tokens)
    if routing.scaled:
        weights = ggml.scale(weights)
    values = ggml.mul_mat_id(layer["attn_v_exps"], ggml.reshape(cur, cur.ne[0], 1, tokens), ids)
    values = ggml.mul(ggml.unary(values), weights)
    views = [
        ggml.view(values, values.ne[0], 1, tokens, strides=values.nb[1:3]) for _ in range(used)
    ]
    for view in views:  # all views precede the sums in the graph
        build.expand(view)
    result = views[0]
    for view in views[1:]:
        result = ggml.add(result, view)
        build.expand(result)
    return ggml.cont(result) if used == 1 else result


def llama4_routing(_hparams: Hparams) -> Routing:
    return Routing(gating=Gating.SIGMOID, norm_w=False, weight_before=True, select_logits=True)


def llama4_rope(hparams: Hparams, il: int) -> bool:
    window = hparams.key("attention.sliding_window")
    return (il + 1) % (hparams.n_layer if window == 0 else NO_ROPE_STEP) != 0


class Llama4(Transformer):
    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        q, k, v = qkv(layer, cur)
        if self.rope(layer.hparams, layer.index):
            factors = rope_factors(layer.build)
            q, k = ggml.rope(q, layer.inputs.pos, factors), ggml.rope(k, layer.inputs.pos, factors)
            if layer.hparams.n_expert != MAVERICK_EXPERTS:
                q, k = ggml.rms_norm(q), ggml.rms_norm(k)
        elif layer.inputs.attn_scale is not None:
            q = ggml.mul(q, layer.inputs.attn_scale)
        return attend(layer, q, k, v)


SPARSE: Mapping[str, Transformer] = {
    "afmoe": Afmoe(
        attn_input=input_kv_iswa, scaled_embd=True, rope=except_each(4), routing=sigmoid_routing
    ),
    "arctic": Arctic(),
    "bailingmoe": Transformer(routing=change_routing(file_routing, gating=Gating.SOFTMAX)),
    "cohere2moe": Cohere2Moe(
        attn_input=input_kv_iswa,
        norm_first=True,
        parallel=True,
        rope=sliding_or_leading,
        routing=sigmoid_routing,
        logit_scale=nonzero("logit_scale"),
    ),
    "dbrx": Transformer(norm=Norm.LAYER, ffn_norm="attn_output_norm"),
    "deepseek": Transformer(
        routing=change_routing(file_routing, gating=Gating.SOFTMAX, norm_w=False)
    ),
    "dots1": Transformer(routing=file_routing),
    "exaone-moe": Transformer(attn_input=input_kv_iswa, rope=sliding_layers, routing=file_routing),
    "grok": Grok(
        embedding_scale=lambda hparams: bool(hparams.real("embedding_scale", 1.0)),
        softcap=1,
        logit_scale=always,
        logit_softcap=nonzero("final_logit_softcapping"),
    ),
    "grovemoe": GroveMoe(),
    "hy_v3": Transformer(norm_first=True, routing=sigmoid_routing),
    "laguna": Laguna(attn_input=input_auto, routing=sigmoid_routing),
    "llada-moe": Diffusion(
        attn_input=input_no_cache, routing=change_routing(plain_routing, norm_w=False)
    ),
    "k2-horizon": K2Horizon(routing=sigmoid_routing),
    "maple": Transformer(attn_input=input_kv_iswa, rope=sliding_layers),
    "mellum": Transformer(attn_input=input_auto),
    "mimo2": Mimo2(
        attn_input=input_kv_iswa, routing=change_routing(plain_routing, gating=Gating.SIGMOID)
    ),
    "minimax-m2": Transformer(flat_qk_norm=True, routing=required_gating),
    "muse-glimmer": MuseGlimmer(
        attn_input=input_kv_iswa,
        rope=sliding_layers,
        logit_scale=always,
        logit_softcap=nonzero("final_logit_softcapping"),
    ),
    "olmoe": Transformer(flat_qk_norm=True, routing=change_routing(plain_routing, norm_w=False)),
    "phimoe": Transformer(scaled_q=True, residual_first=True),
    "qwen2moe": Qwen2Moe(routing=change_routing(plain_routing, norm_w=False)),
    "smallthinker": SmallThinker(
        attn_input=input_auto, rope=smallthinker_rope, routing=required_gating
    ),
    "spark2_5": Laguna(attn_input=input_kv_iswa),
    "step35": Step35(attn_input=input_kv_iswa, predicts=True, routing=sigmoid_routing),
    "llama4": Llama4(
        attn_input=input_auto, rope=llama4_rope, routing=llama4_routing, temperature=always
    ),
}
