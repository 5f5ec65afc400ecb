"""The graph of most architectures: attention and feed-forward on a residual stream, configured by switches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    Extras,
    attend,
    input_auto,
    input_kv,
    input_kv_iswa,
)
from edgekit.engines.llamacpp.graph.build import (
    Act,
    AttnInput,
    Build,
    Gating,
    GraphLayer,
    Hparams,
    LayerInputs,
    Routing,
)
from edgekit.engines.llamacpp.graph.layers import (
    QKV,
    Norm,
    experts,
    feed_forward,
    normalize,
    qkv,
    results,
    shared_expert,
    split_heads,
)
from edgekit.engines.llamacpp.graph.tensor import F32, I32, GraphTensor

MROPE_SECTIONS = 4  # positions per image token: GGML_MROPE_SECTIONS


def every_layer(_hparams: Hparams, _il: int) -> bool:
    return True


def no_layer(_hparams: Hparams, _il: int) -> bool:
    return False


def sliding_layers(hparams: Hparams, il: int) -> bool:
    return hparams.swa[il]


def except_each(period: int) -> Callable[[Hparams, int], bool]:
    """Every layer except each `period`-th."""
    return lambda _hparams, il: (il + 1) % period != 0


def trained_rope(hparams: Hparams, _il: int) -> bool:
    """False for models trained without positions (rope.scaling.finetuned)."""
    return hparams.flag("rope.scaling.finetuned", default=True)


def one_position(_hparams: Hparams) -> int:
    return 1


def four_positions(_hparams: Hparams) -> int:
    return MROPE_SECTIONS


def rope_sections(hparams: Hparams) -> int:
    """Several positions per token if the file has rope sections (use_mrope)."""
    sections = hparams.key("rope.dimension_sections")
    has_sections = isinstance(sections, tuple) and len(sections) > 1 and all(sections[:2])
    return MROPE_SECTIONS if has_sections else 1


def change_routing(
    routing: Callable[[Hparams], Routing], **changes: Any
) -> Callable[[Hparams], Routing]:
    """The same routing with these fields changed."""
    return lambda hparams: replace(routing(hparams), **changes)


def plain_routing(hparams: Hparams) -> Routing:
    """Soft-max over all experts, with the selected weights normalised to sum to one."""
    return Routing(
        groups=hparams.integer("expert_group_count", 0),
        groups_used=hparams.integer("expert_group_used_count", 0),
    )


def file_routing(hparams: Hparams, default: Gating = Gating.SOFTMAX) -> Routing:
    """Gating function, weight normalisation and scale from the file's keys. `default`: the gating without a key."""
    gating = hparams.integer("expert_gating_func", 0)
    return replace(
        plain_routing(hparams),
        gating=Gating(gating) if gating else default,
        norm_w=hparams.flag("expert_weights_norm"),
        scaled=hparams.real("expert_weights_scale") not in {0.0, 1.0},
    )


def sigmoid_routing(hparams: Hparams) -> Routing:
    """Sigmoid gating, unless the file states another."""
    return file_routing(hparams, Gating.SIGMOID)


def never(_hparams: Hparams) -> bool:
    return False


def always(_hparams: Hparams) -> bool:
    return True


def nonzero(name: str) -> Callable[[Hparams], bool]:
    """True if the file has this key, and its value is not zero."""
    return lambda hparams: bool(hparams.real(name))


def stream_then_attention(
    result: GraphTensor, stream: GraphTensor, attended: GraphTensor
) -> GraphTensor:
    """Parallel layers: adds the stream, then attention, to the feed-forward's output."""
    return ggml.add(ggml.add(result, stream), attended)


def attention_then_stream(
    result: GraphTensor, stream: GraphTensor, attended: GraphTensor
) -> GraphTensor:
    """Parallel layers: adds attention, then the stream, to the feed-forward's output."""
    return ggml.add(ggml.add(result, attended), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The switches of one architecture. Weights that a file lacks (a bias, a Q norm) are skipped without a switch."""

    attn_input: Callable[[Build], AttnInput] = input_kv
    norm: Norm = Norm.RMS
    scaled_embd: bool = False  # the embeddings are multiplied by a constant
    embedding_scale: Callable[[Hparams], bool] = never  # the file has such a constant
    embd_norm: bool = False  # the embeddings are normalised
    positions_added: bool = False  # learned position embeddings, if the file has them
    n_pos: Callable[[Hparams], int] = one_position
    rope: Callable[[Hparams, int], bool] = every_layer  # which layers use rope
    flat_qk_norm: bool = False  # Q and K are normalised before the split into heads
    norm_across_heads: bool = False  # Q and K are normalised with all heads of a token as one row
    late_qk_norm: bool = False  # Q and K are normalised after rope
    scaled_q: bool = False
    softcap: int = 0
    predicts: bool = False  # the state after the last layer is an output (t_h_nextn)
    norm_first: bool = False  # the final norm precedes the choice of rows, and is an output too
    parallel: bool = False  # attention and feed-forward share one norm
    parallel_sum: Callable[[GraphTensor, GraphTensor, GraphTensor], GraphTensor] = (
        stream_then_attention
    )
    post_norms: bool = False  # attention and feed-forward outputs are normalised
    ffn_norm: str | None = "ffn_norm"
    act: Act = Act.UNARY
    gated: bool = True
    stream_first: bool = False  # stream + attention, not attention + stream
    residual_first: bool = False  # stream + feed-forward, not feed-forward + stream
    scaled_residual: bool = False  # what a layer adds to the stream is multiplied by a constant
    residual_scale: Callable[[Hparams], bool] = never  # like scaled_residual, except the logits
    routing: Callable[[Hparams], Routing] = plain_routing
    temperature: Callable[[Hparams], bool] = never  # Q is scaled by position
    logit_scale: Callable[[Hparams], bool] = never
    logit_softcap: Callable[[Hparams], bool] = never

    def variant(self, hparams: Hparams, il: int) -> Hashable:
        """What distinguishes layers that are otherwise alike: whether they use rope."""
        return self.rope(hparams, il)

    def build(self, build: Build) -> None:
        """Builds the graph: embeddings, the layers, the outputs."""
        build.inputs = self.layer_inputs(build)
        cur = self.embed(build)
        for layer in build.layers():
            cur = self.block(layer, cur)
        self.finish(build, cur)

    def finish(self, build: Build, cur: GraphTensor) -> None:
        """The outputs, from the state after the last layer."""
        hparams = build.hparams
        if self.norm_first:
            cur = normalize(cur, build["output_norm"], kind=self.norm)
            if build.predicts:  # also an output for prediction blocks (t_h_nextn)
                build.output(cur)
            cur = cur if build.crops_early else ggml.get_rows(cur, build.inputs.out_ids)
            scale, softcap = self.logit_scale(hparams), self.logit_softcap(hparams)
            results(build, cur, scale=scale, softcap=softcap)
            return
        if self.predicts and build.predicts:
            build.output(cur)
            if not build.crops_early:
                cur = ggml.get_rows(cur, build.inputs.out_ids)
        self.head(build, cur)

    def embed(self, build: Build) -> GraphTensor:
        """The first layer's input: token embeddings, which some architectures scale or normalise."""
        cur = build.input_embd(scaled=self.embedding_scale(build.hparams))
        if self.scaled_embd:
            cur = build.scale_embd(cur)
        if self.positions_added and (table := build.weight("position_embd")) is not None:
            cur = ggml.add(cur, ggml.get_rows(table, build.inputs.pos))
        return self.norm_embd(build, cur) if self.embd_norm else cur

    def norm_embd(self, build: Build, cur: GraphTensor) -> GraphTensor:
        bias = build.tensor("token_embd_norm.bias")
        return normalize(cur, build["token_embd_norm"], bias, kind=self.norm)

    def layer_inputs(self, build: Build) -> LayerInputs:
        tokens = build.n_tokens
        return LayerInputs(
            pos=ggml.graph_input(I32, tokens * self.n_pos(build.hparams), name="inp_pos"),
            attn=self.attn_input(build),
            out_ids=build.input_out_ids(),
            routing=self.routing(build.hparams),
            attn_scale=ggml.graph_input(F32, 1, 1, tokens, name="inp_attn_scale")
            if self.temperature(build.hparams)
            else None,
        )

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        """The residual stream after one layer."""
        normed = self.apply_norm(layer, stream, "attn_norm")
        cur = self.attention(layer, normed)
        cur, stream, normed = self.output_rows(layer, cur, stream, normed)
        if self.parallel:
            return self.parallel_sum(self.feed_forward(layer, normed), stream, cur)
        return self.after_attention(layer, cur, stream)

    def output_rows(self, layer: GraphLayer, *tensors: GraphTensor) -> tuple[GraphTensor, ...]:
        """Selects the output rows of each tensor in the last layer: only those are needed after its attention."""
        if not (layer.facts.is_last and self.selects_rows(layer.build)):
            return tensors
        return tuple(ggml.get_rows(tensor, layer.inputs.out_ids) for tensor in tensors)

    def selects_rows(self, build: Build) -> bool:
        """True if the last layer selects the output rows after attention."""
        return build.crops_early or not (self.predicts or self.norm_first)

    def after_attention(
        self, layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        """The stream after adding attention's output `cur`, and then the feed-forward."""
        cur = self.post(layer, cur, "post_attention_norm")
        stream = ggml.add(stream, cur) if self.stream_first else ggml.add(cur, stream)
        name = self.ffn_norm
        cur = stream if name is None else self.apply_norm(layer, stream, name)
        cur = self.feed_forward(layer, cur)
        cur = self.post(layer, cur, "post_ffw_norm")
        return ggml.add(stream, cur) if self.residual_first else ggml.add(cur, stream)

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        """Applies the post norm of this name and the residual scale, if the architecture has them."""
        if self.post_norms:
            cur = self.apply_norm(layer, cur, name)
        scaled = self.scaled_residual or self.residual_scale(layer.hparams)
        return ggml.scale(cur) if scaled else cur

    def apply_norm(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        """Applies the norm of this name; returns the input if the file has no such norm."""
        if name not in layer:
            return cur
        return normalize(cur, layer.weight(name), layer.bias(name), kind=self.norm)

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Attention from the normed stream to its output projection."""
        q, k, v = self.qkv(layer, cur)
        if self.late_qk_norm:
            q, k = self.rope_qk(layer, q, k)
        q, k = self.norm_qk(layer, q, k)
        if self.flat_qk_norm:
            q, k, v = split_heads(layer, (q, k, v))
        if not self.late_qk_norm:
            q, k = self.rope_qk(layer, q, k)
        if self.scaled_q:
            q = ggml.scale(q)
        if layer.inputs.attn_scale is not None:
            q = ggml.mul(q, layer.inputs.attn_scale)
        return self.attend(layer, cur, (q, k, v))

    def qkv(self, layer: GraphLayer, cur: GraphTensor) -> QKV:
        return qkv(layer, cur, flat=self.flat_qk_norm)

    def attend(self, layer: GraphLayer, _cur: GraphTensor, heads: QKV) -> GraphTensor:
        """Attention and its output projection. `_cur`: the input of the Q, K and V projections."""
        extras = Extras(sinks=layer.weight("attn_sinks"), softcap=self.softcap)
        return attend(layer, *heads, extras=extras)

    def norm_qk(
        self, layer: GraphLayer, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        return self.norm_heads(layer, q, "attn_q_norm"), self.norm_heads(layer, k, "attn_k_norm")

    def norm_heads(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        """Normalises Q or K per head, or with all heads of a token as one row."""
        if not self.norm_across_heads or name not in layer:
            return self.apply_norm(layer, cur, name)
        width, heads, tokens, _ = cur.ne
        cur = self.apply_norm(layer, ggml.reshape(cur, width * heads, tokens), name)
        return ggml.reshape(cur, width, heads, tokens)

    def rope_qk(
        self, layer: GraphLayer, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        """Applies rotary positions to Q and K in layers that use rope."""
        if not self.rope(layer.hparams, layer.index):
            return q, k
        factors = self.rope_factors(layer)
        return ggml.rope(q, layer.inputs.pos, factors), ggml.rope(k, layer.inputs.pos, factors)

    def rope_factors(self, layer: GraphLayer) -> GraphTensor | None:
        return rope_factors(layer.build)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """A dense feed-forward, or routed experts plus the shared expert if there is one."""
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=self.act, gated=self.gated)
        result = experts(layer, cur)
        if "ffn_up_shexp" in layer:
            result = ggml.add(result, self.shared_expert(layer, cur))
        return result

    def shared_expert(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return shared_expert(layer, cur)

    def head(self, build: Build, cur: GraphTensor) -> None:
        """The final norm and the logits."""
        cur = normalize(
            cur, build.weight("output_norm"), build.tensor("output_norm.bias"), kind=self.norm
        )
        results(
            build,
            cur,
            scaled_embd=self.scaled_residual,
            bias=build.tensor("output.bias"),
            scale=self.logit_scale(build.hparams),
            softcap=self.logit_softcap(build.hparams),
        )


def rope_factors(build: Build) -> GraphTensor | None:
    """get_rope_factors: all tables have one shape, so it does not matter which one is used."""
    names = ("rope_freqs", "rope_factors_long", "rope_factors_short")
    return next((table for name in names if (table := build.weight(name)) is not None), None)


# The most frequent architectures: no other family is imported to build their graphs.
FREQUENT: Mapping[str, Transformer] = {
    "llama": Transformer(),
    "smollm3": Transformer(rope=except_each(4)),
    "gemma2": Transformer(
        attn_input=input_kv_iswa,
        scaled_embd=True,
        scaled_q=True,
        softcap=1,
        post_norms=True,
        logit_softcap=always,
    ),
    "gemma3": Transformer(
        attn_input=input_auto,
        scaled_embd=True,
        scaled_q=True,
        post_norms=True,
        logit_softcap=nonzero("final_logit_softcapping"),
    ),
    "phi3": Transformer(scaled_q=True, act=Act.FUSED, gated=False, residual_first=True),
    "gpt-oss": Transformer(
        attn_input=input_kv_iswa,
        predicts=True,
        ffn_norm="post_attention_norm",
        routing=lambda _hparams: Routing(gating=Gating.SOFTMAX_WEIGHT, norm_w=False),
    ),
    "glm4": Transformer(n_pos=rope_sections, post_norms=True, act=Act.FUSED, gated=False),
    "glm4moe": Transformer(
        n_pos=rope_sections, ffn_norm="post_attention_norm", routing=sigmoid_routing
    ),
    "olmo2": Transformer(attn_input=input_auto, flat_qk_norm=True, post_norms=True, ffn_norm=None),
    "command-r": Transformer(norm=Norm.LAYER, parallel=True, logit_scale=nonzero("logit_scale")),
    "cohere2": Transformer(
        attn_input=input_kv_iswa,
        norm=Norm.LAYER,
        parallel=True,
        rope=sliding_layers,
        logit_scale=nonzero("logit_scale"),
    ),
    "starcoder2": Transformer(norm=Norm.LAYER, gated=False),
}
