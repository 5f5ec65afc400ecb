"""The graph of most architectures: attention and feed-forward on a residual stream, configured by switches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    AttnInput,
    Extras,
    attend,
    input_auto,
    input_kv,
    input_kv_iswa,
)
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.layers import (
    Act,
    Gating,
    Norm,
    Routing,
    experts,
    feed_forward,
    normalize,
    project,
    qkv,
    results,
    rows_after_norm,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import GraphTensor

if TYPE_CHECKING:
    from edgekit.engines.llamacpp.graph.attention import StateInput

QKV = tuple[GraphTensor, GraphTensor, GraphTensor]
MROPE_SECTIONS = 4  # positions per image token: GGML_MROPE_SECTIONS


def every_layer(_hparams: Hparams, _il: int) -> bool:
    return True


def no_layer(_hparams: Hparams, _il: int) -> bool:
    return False


def sliding_layers(hparams: Hparams, il: int) -> bool:
    return hparams.swa[il]


def not_each(period: int) -> Callable[[Hparams, int], bool]:
    """Every layer except each `period`-th."""
    return lambda _hparams, il: (il + 1) % period != 0


def one_position(_hparams: Hparams) -> int:
    return 1


def rope_sections(hparams: Hparams) -> int:
    """Several positions per token if the file has rope sections (use_mrope)."""
    sections = hparams.key("rope.dimension_sections")
    used = isinstance(sections, tuple) and len(sections) > 1 and all(map(bool, sections[:2]))
    return MROPE_SECTIONS if used else 1


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


def never(_hparams: Hparams) -> bool:
    return False


def stream_then_attention(
    result: GraphTensor, stream: GraphTensor, attended: GraphTensor
) -> GraphTensor:
    """Parallel layers: adds the stream, then attention, to the feed-forward's output."""
    return ggml.add(ggml.add(result, stream), attended)


def attention_then_stream(
    result: GraphTensor, stream: GraphTensor, attended: GraphTensor
) -> GraphTensor:
    return ggml.add(ggml.add(result, attended), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The switches of one architecture. Weights that a file lacks (a bias, a Q norm) are skipped without a switch."""

    attn_input: Callable[[Build], AttnInput] = input_auto
    norm: Norm = Norm.RMS
    scaled_embd: bool = False  # the embeddings are multiplied by a constant
    embedding_scale: bool = False  # the same, if the file has the key (f_embedding_scale)
    positions_added: bool = False  # learned position embeddings, if the file has them
    n_pos: Callable[[Hparams], int] = one_position
    rope: Callable[[Hparams, int], bool] = every_layer  # which layers use rope
    flat_qk_norm: bool = False  # Q and K are normalised before the split into heads
    late_qk_norm: bool = False  # Q and K are normalised after rope
    scaled_q: bool = False
    softcap: int = 0
    predicts: bool = False  # the state after the last layer is an output (t_h_nextn)
    norm_first: bool = (
        False  # the final norm precedes the choice of output rows and is an output too
    )
    parallel: bool = False  # attention and feed-forward share one norm
    parallel_sum: Callable[[GraphTensor, GraphTensor, GraphTensor], GraphTensor] = (
        stream_then_attention
    )
    post_norms: bool = False  # attention and feed-forward outputs are normalised
    ffn_norm: str | None = "ffn_norm"
    act: Act = Act.UNARY
    gated: bool = True
    residual_first: bool = False  # stream + feed-forward, not feed-forward + stream
    scaled_residual: bool = False  # what a layer adds to the stream is multiplied by a constant
    residual_scale: Callable[[Hparams], bool] = never  # the same, but not before the logits
    routing: Callable[[Hparams], Routing] = plain_routing
    temperature: Callable[[Hparams], bool] = never  # Q is scaled by position
    logit_scale: Callable[[Hparams], bool] = never
    logit_softcap: Callable[[Hparams], bool] = never

    def variant(self, hparams: Hparams, il: int) -> Hashable:
        """Whether the layer uses rope; subclasses may need more."""
        return self.rope(hparams, il)

    def build(self, build: Build) -> None:
        shared = self.shared(build)
        cur = self.embed(build, shared)
        for layer in build.layers():
            cur = self.block(build, layer, shared, cur)
        if self.norm_first:
            cur = rows_after_norm(build, cur, shared.out_ids, kind=self.norm)
            results(build, cur, scale=self.logit_scale(build.hparams))
            return
        if self.predicts and build.predicts:
            build.output(cur)
            if not build.crops_early:
                cur = ggml.get_rows(cur, shared.out_ids)
        self.head(build, cur)

    def embed(self, build: Build, shared: Shared) -> GraphTensor:
        scaled = self.embedding_scale and bool(build.hparams.real("embedding_scale"))
        cur = build.input_embd(scaled=scaled)
        if self.scaled_embd:
            cur = build.scaled_embd(cur)
        if self.positions_added and (table := build.weight("position_embd")) is not None:
            cur = ggml.add(cur, ggml.get_rows(table, shared.pos))
        return cur

    def shared(self, build: Build) -> Shared:
        return Shared(
            pos=build.input_pos(self.n_pos(build.hparams)),
            attn=self.attn_input(build),
            out_ids=build.input_out_ids(),
            routing=self.routing(build.hparams),
            attn_scale=build.input_attn_scale() if self.temperature(build.hparams) else None,
        )

    def block(
        self, build: Build, layer: GraphLayer, shared: Shared, stream: GraphTensor
    ) -> GraphTensor:
        normed = self.normalized(layer, stream, "attn_norm")
        cur = self.attention(build, layer, shared, normed)
        if layer.facts.is_last and self.selects_rows(build):
            cur, stream = ggml.get_rows(cur, shared.out_ids), ggml.get_rows(stream, shared.out_ids)
            if self.parallel:
                normed = ggml.get_rows(normed, shared.out_ids)
        if self.parallel:
            result = self.feed_forward(build, layer, shared, normed)
            return self.parallel_sum(result, stream, cur)
        return self.after_attention(build, layer, shared, cur, stream)

    def selects_rows(self, build: Build) -> bool:
        """True if the last layer selects the output rows after attention."""
        return build.crops_early or not self.predicts

    def after_attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        cur = self.post(layer, cur, "post_attention_norm")
        stream = ggml.add(cur, stream)
        name = self.ffn_norm
        cur = stream if name is None else self.normalized(layer, stream, name)
        cur = self.feed_forward(build, layer, shared, cur)
        cur = self.post(layer, cur, "post_ffw_norm")
        return ggml.add(stream, cur) if self.residual_first else ggml.add(cur, stream)

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        if self.post_norms:
            cur = self.normalized(layer, cur, name)
        scaled = self.scaled_residual or self.residual_scale(layer.build.hparams)
        return ggml.scale(cur) if scaled else cur

    def normalized(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        """Normalised, or unchanged if the file has no such norm."""
        if name not in layer:
            return cur
        return normalize(
            cur, layer.weight(name), layer.bias(name), kind=self.norm, layer=layer.index
        )

    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        q, k, v = qkv(build, layer, cur, flat=self.flat_qk_norm)
        if self.late_qk_norm:
            q, k = self.rope_qk(build, layer, shared, q, k)
        q, k = self.norm_qk(layer, q, k)
        if self.flat_qk_norm:
            q, k, v = split_heads(build, layer, q, k, v)
        if not self.late_qk_norm:
            q, k = self.rope_qk(build, layer, shared, q, k)
        if self.scaled_q:
            q = ggml.scale(q)
        if shared.attn_scale is not None:
            q = ggml.mul(q, shared.attn_scale)
        return self.attend(build, layer, shared, cur, (q, k, v))

    def attend(
        self, build: Build, layer: GraphLayer, shared: Shared, _cur: GraphTensor, heads: QKV
    ) -> GraphTensor:
        """Attention and its output projection. `_cur`: the input of the Q, K and V projections."""
        extras = Extras(sinks=layer.weight("attn_sinks"), softcap=self.softcap)
        return attend(build, layer, shared.attn, *heads, extras=extras)

    def norm_qk(
        self, layer: GraphLayer, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        return self.normalized(layer, q, "attn_q_norm"), self.normalized(layer, k, "attn_k_norm")

    def has_rope(self, layer: GraphLayer) -> bool:
        return layer.facts.variant is True

    def rope_qk(
        self, build: Build, layer: GraphLayer, shared: Shared, q: GraphTensor, k: GraphTensor
    ) -> tuple[GraphTensor, GraphTensor]:
        if not self.has_rope(layer):
            return q, k
        factors = rope_factors(build)
        return ggml.rope(q, shared.pos, factors), ggml.rope(k, shared.pos, factors)

    def feed_forward(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=self.act, gated=self.gated)
        result = experts(build, layer, cur, shared.routing)
        if "ffn_up_shexp" in layer:
            result = ggml.add(result, shared_expert(layer, cur))
        return result

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(
            cur, build.weight("output_norm"), build.tensor("output_norm.bias"), kind=self.norm
        )
        build.embd = cur
        build.output(cur)
        if self.scaled_residual:
            cur = ggml.scale(cur)
        cur = project(
            build.weight("output") or build["token_embd"], cur, scale=build.tensor("output.scale")
        )
        if (bias := build.tensor("output.bias")) is not None:
            cur = ggml.add(cur, bias)
        if self.logit_scale(build.hparams):
            cur = ggml.scale(cur)
        if self.logit_softcap(build.hparams):
            cur = ggml.scale(ggml.unary(ggml.scale(cur)))
        build.output(cur)
        build.expand(cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Shared by all layers of a graph."""

    pos: GraphTensor
    attn: AttnInput
    out_ids: GraphTensor
    routing: Routing
    attn_scale: GraphTensor | None = None
    rs: StateInput | None = None  # if some layers are recurrent


def rope_factors(build: Build) -> GraphTensor | None:
    """get_rope_factors: all tables have one shape, so it does not matter which one is used."""
    names = ("rope_freqs", "rope_factors_long", "rope_factors_short")
    return next((table for name in names if (table := build.weight(name)) is not None), None)


def split_heads(build: Build, layer: GraphLayer, *qkv: GraphTensor) -> list[GraphTensor]:
    facts = layer.facts
    counts = (facts.n_head, facts.n_head_kv, facts.n_head_kv)
    widths = (facts.n_embd_head_k, facts.n_embd_head_k, facts.n_embd_head_v)
    return [
        ggml.reshape(one, width, count, build.n_tokens)
        for one, width, count in zip(qkv, widths, counts, strict=True)
    ]


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
        n_pos=rope_sections, attn_input=input_kv, post_norms=True, act=Act.FUSED, gated=False
    ),
    "glm4moe": Transformer(
        n_pos=rope_sections,
        attn_input=input_kv,
        ffn_norm="post_attention_norm",
        routing=lambda hparams: file_routing(hparams, Gating.SIGMOID),
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
