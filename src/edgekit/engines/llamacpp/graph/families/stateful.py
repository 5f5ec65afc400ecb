"""TABLE of recurrent and hybrid architectures; MiniMax Text 01."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import input_k, read_states, state
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.families.delta_net import DeltaNet, linear_attention
from edgekit.engines.llamacpp.graph.families.dense import sections, trained_rope
from edgekit.engines.llamacpp.graph.families.hybrid import (
    Hybrid,
    OneEach,
    Plamo2,
    RecurrentOnly,
    ShortConvolution,
    SideBySide,
    input_lfm2,
)
from edgekit.engines.llamacpp.graph.families.kimi import Kimi, Ling3, kimi_delta, ling_delta
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
    rope_sections,
)
from edgekit.engines.llamacpp.graph.layers import Act, Gating, normalize
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decays:
    """Inputs shared by all linear-attention layers; each scales them."""

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
    memory = width * width * heads
    cache = state(layer, "s", memory)
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
    build.expand(ggml.cpy(new_state, ggml.view(cache, memory * seqs)))
    out = ggml.cont(ggml.permute(out, 0, 2, 1, 3))
    out = ggml.reshape(out, out.ne[0] * out.ne[1], out.ne[2], 1, out.ne[3])
    out = normalize(out, layer["attn_norm_2"])
    gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
    cur = ggml.mul_mat(layer["attn_output"], ggml.mul(gate, out))
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


class MiniMax01(Transformer):
    """Lightning attention (linear, with a fixed decay per head) and full attention. The residual is the scaled,
    normalised state. llama.cpp also reserves a graph with all tokens in one sequence; its dry run, followed here, does
    not count it.
    """

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        decays = Decays.of(build)
        for layer in build.layers():
            stream = self.apply_norm(layer, cur, "attn_norm")
            full = self.attention(layer, stream) if not layer.facts.is_recr else None
            cur = full or lightning(layer, decays, stream)
            cur, stream = self.output_rows(layer, cur, stream)
            cur = ggml.add(cur, ggml.scale(stream))
            stream = self.apply_norm(layer, cur, "ffn_norm")
            cur = self.feed_forward(layer, stream)
            cur = ggml.add(cur, ggml.scale(stream))
        self.head(build, cur)


STATEFUL: Mapping[str, Transformer] = {
    "qwen3next": DeltaNet(mixer=linear_attention, ffn_norm="post_attention_norm", late_gate=True),
    "qwen35": DeltaNet(mixer=linear_attention, n_pos=sections, ffn_norm="post_attention_norm"),
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
    "kimi-linear": Kimi(
        attn_input=input_k, mixer=kimi_delta, routing=change_routing(file_routing, norm_w=True)
    ),
    "bailingmoe3": Ling3(
        attn_input=input_k, mixer=ling_delta, n_pos=rope_sections, routing=file_routing
    ),
    "minimax-01": MiniMax01(),
}
