"""Hybrid models such as LFM 2: some layers use attention, others are recurrent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    attend,
    input_kv,
    input_kv_iswa,
    read_states,
    state,
)
from edgekit.engines.llamacpp.graph.build import Act, AttnInput, Build, Gating, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.mamba import (
    mamba,
    mamba2,
    plamo2_mamba,
    short_convolution,
)
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    change_routing,
    file_routing,
    no_layer,
    nonzero,
    plain_routing,
    trained_rope,
)
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    feed_forward,
    logits,
    normalize,
    qkv,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, NoGraphError

Mixer = Callable[[GraphLayer, GraphTensor], GraphTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Transformer):
    """Attention in some layers; `mixer` builds the recurrent ones."""

    mixer: Mixer

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if layer.facts.is_recr:
            return self.mixer(layer, cur)
        return self.full_attention(layer, cur)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Attention of the layers that are not recurrent."""
        return Transformer.attention(self, layer, cur)


class RecurrentOnly(Hybrid):
    """Mamba: layers without a feed-forward."""

    def after_attention(
        self, _layer: GraphLayer, cur: GraphTensor, stream: GraphTensor
    ) -> GraphTensor:
        return ggml.add(cur, stream)


class SideBySide(Hybrid):
    """Falcon H1: every layer has attention and a recurrent part, whose outputs are added."""

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        normed = self.apply_norm(layer, stream, "attn_norm")
        attended = Transformer.attention(self, layer, normed)
        normed = self.apply_norm(layer, stream, "attn_norm")  # llama.cpp computes it twice
        recurrent = self.mixer(layer, normed)
        stream = ggml.add(ggml.add(attended, recurrent), stream)
        (stream,) = self.output_rows(layer, stream)
        cur = normalize(stream, layer.required("ffn_norm"))  # its name has no .weight
        return ggml.add(self.feed_forward(layer, cur), stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEach(Hybrid):
    """Nemotron H: each layer is either attention, recurrent or a feed-forward."""

    norm_first: bool = True

    def variant(self, hparams: Hparams, il: int) -> bool:
        """True if the layer is a feed-forward."""
        return hparams.per_layer("feed_forward_length", 0)[il] != 0

    def block(self, layer: GraphLayer, stream: GraphTensor) -> GraphTensor:
        cur = self.apply_norm(layer, stream, "attn_norm")
        is_feed_forward = self.variant(layer.hparams, layer.index)
        sublayer = self.feed_forward if is_feed_forward else self.attention
        cur = sublayer(layer, cur)
        cur, stream = self.output_rows(layer, cur, stream)
        return ggml.add(cur, stream)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return attend(layer, *qkv(layer, cur))

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Experts may have their own input width; the router uses the hidden width."""
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=self.act, gated=False)
        narrow, wide = layer.weight("ffn_latent_down"), layer.weight("ffn_latent_up")
        latent = cur if narrow is None else ggml.mul_mat(narrow, cur)
        router = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        result = experts(layer, latent, probs_in=router)
        result = result if wide is None else ggml.mul_mat(wide, result)
        return ggml.add(result, shared_expert(layer, cur, act=self.act))


class Plamo2(Hybrid):
    """PLaMo 2: post norms, whose names have no .weight suffix."""

    def post(self, layer: GraphLayer, cur: GraphTensor, name: str) -> GraphTensor:
        return normalize(cur, layer.required(name))


def input_lfm2(build: Build) -> AttnInput:
    """LFM 2's attention inputs: build_inp_mem_hybrid, or build_inp_mem_hybrid_iswa, which has no rotations."""
    if build.hparams.has_swa:
        return input_kv_iswa(build, rotate=False)
    if build.hparams.arch == "lfm2" and build.hparams.integer("attention.sliding_window", 0):
        # The geometry does not state which layers have it.
        raise NoGraphError("LFM 2 with a window")
    return input_kv(build)


class ShortConvolution(Hybrid):
    """LFM 2. For embeddings it has no logits."""

    def head(self, build: Build, cur: GraphTensor) -> None:
        cur = normalize(cur, build["token_embd_norm"])
        build.output_embd(cur)
        if not build.options.embeddings:
            cur = logits(build, cur)
            build.output(cur)
        build.expand(cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decays:
    """The decays of lightning attention: inputs that all layers share, and that each layer scales."""

    slopes: GraphTensor
    q: GraphTensor
    k: GraphTensor
    diagonal: GraphTensor

    @classmethod
    def of(cls, build: Build) -> Decays:
        heads = build.hparams.n_head_arr[0]
        tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
        return cls(
            slopes=ggml.graph_input(F32, heads, name="inp_slopes"),
            q=ggml.graph_input(F32, 1, heads, tokens, seqs, name="inp_q_decay"),
            k=ggml.graph_input(F32, 1, heads, tokens, seqs, name="inp_k_decay"),
            diagonal=ggml.graph_input(F32, tokens, tokens, heads, seqs, name="inp_diag_decay"),
        )


def lightning(layer: GraphLayer, decays: Decays, cur: GraphTensor) -> GraphTensor:
    """Linear attention with a fixed decay per head."""
    build = layer.build
    heads, width = layer.facts.n_head, layer.facts.n_embd_head_k
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    read_states(build, state(layer, "r", 0))
    cur = ggml.reshape(cur, cur.ne[0], tokens, 1, seqs)
    fused = ggml.unary(ggml.mul_mat(layer["attn_qkv"], cur))
    fused = ggml.reshape(fused, 3 * width, heads, tokens, seqs)
    q, k, v = (ggml.view(fused, width, heads, tokens, seqs, strides=fused.nb[1:]) for _ in range(3))
    state_elements = width * width * heads
    cache = state(layer, "s", state_elements)
    old_state = ggml.reshape(read_states(build, cache), width, width, heads, seqs)
    v_by_channel = ggml.cont(ggml.permute(v, 1, 2, 0, 3))
    # Attention to the state, plus attention within the batch.
    decayed = ggml.mul(q, ggml.unary(ggml.scale(decays.q)))
    from_state = ggml.mul_mat(old_state, ggml.permute(decayed, 0, 2, 1, 3))
    scores = ggml.mul_mat(ggml.permute(k, 0, 2, 1, 3), ggml.permute(q, 0, 2, 1, 3))
    scores = ggml.mul(scores, ggml.unary(ggml.scale(decays.diagonal)))
    out = ggml.add(from_state, ggml.mul_mat(v_by_channel, scores))
    build.expand(out)
    slopes = ggml.unary(ggml.scale(ggml.scale(decays.slopes)))
    decayed = ggml.mul(old_state, ggml.reshape(slopes, 1, 1, slopes.ne[0]))
    keys = ggml.mul(k, ggml.unary(ggml.scale(decays.k)))
    keys = ggml.cont(ggml.permute(keys, 1, 2, 0, 3))
    new_state = ggml.add(decayed, ggml.mul_mat(keys, v_by_channel))
    build.expand(ggml.cpy(new_state, ggml.view(cache, state_elements * seqs)))
    out = ggml.cont(ggml.permute(out, 0, 2, 1, 3))
    out = ggml.reshape(out, out.ne[0] * out.ne[1], out.ne[2], 1, out.ne[3])
    out = normalize(out, layer["attn_norm_2"])
    gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
    cur = ggml.mul_mat(layer["attn_output"], ggml.mul(gate, out))
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


class MiniMax01(Transformer):
    """Lightning attention in some layers, full attention in the others. The residual is the scaled, normalised state.

    llama.cpp also reserves a graph with all tokens in one sequence; its dry run, followed here, does not count it.
    """

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        decays = Decays.of(build)
        for layer in build.layers():
            stream = self.apply_norm(layer, cur, "attn_norm")
            is_linear = layer.facts.is_recr
            cur = lightning(layer, decays, stream) if is_linear else self.attention(layer, stream)
            cur, stream = self.output_rows(layer, cur, stream)
            cur = ggml.add(cur, ggml.scale(stream))
            stream = self.apply_norm(layer, cur, "ffn_norm")
            cur = self.feed_forward(layer, stream)
            cur = ggml.add(cur, ggml.scale(stream))
        self.head(build, cur)


HYBRID: Mapping[str, Transformer] = {
    "mamba": RecurrentOnly(mixer=mamba),
    "mamba2": RecurrentOnly(mixer=mamba2),
    "granitehybrid": Hybrid(
        mixer=mamba2,
        embedding_scale=nonzero("embedding_scale"),
        rope=trained_rope,
        residual_scale=nonzero("residual_scale"),
        logit_scale=nonzero("logit_scale"),
    ),
    "jamba": Hybrid(
        mixer=mamba,
        rope=no_layer,
        stream_first=True,
        residual_first=True,
        routing=change_routing(plain_routing, norm_w=False),
    ),
    "falcon-h1": SideBySide(mixer=mamba2),
    "lfm2": ShortConvolution(
        attn_input=input_lfm2, mixer=short_convolution, stream_first=True, residual_first=True
    ),
    "lfm2moe": ShortConvolution(
        attn_input=input_lfm2,
        mixer=short_convolution,
        stream_first=True,
        residual_first=True,
        routing=lambda hparams: replace(
            plain_routing(hparams), gating=Gating(hparams.integer("expert_gating_func"))
        ),
    ),
    "nemotron_h": OneEach(
        mixer=mamba2,
        act=Act.SQUARED,
        routing=change_routing(file_routing, gating=Gating.SIGMOID, act=Act.SQUARED),
    ),
    "plamo2": Plamo2(mixer=plamo2_mamba, act=Act.FUSED, gated=False),
    "minimax-01": MiniMax01(),
}
