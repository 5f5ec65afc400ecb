"""Gated delta nets next to gated attention: Qwen 3 Next and Qwen 3.5 (delta-net-base.cpp)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend, read_states, state
from edgekit.engines.llamacpp.graph.build import GraphLayer
from edgekit.engines.llamacpp.graph.families.hybrid import Hybrid
from edgekit.engines.llamacpp.graph.families.mamba import Ssm, convolution_input
from edgekit.engines.llamacpp.graph.families.transformer import four_positions
from edgekit.engines.llamacpp.graph.layers import QKV, Heads, normalize, project, qkv, shared_expert
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, Size, row_bytes


def l2_normalize(cur: GraphTensor) -> GraphTensor:
    """build_gdn_l2_norm: a rescaled RMS norm."""
    return ggml.scale(ggml.rms_norm(cur))


def delta_net(
    layer: GraphLayer, state_elements: int, qkv: QKV, gates: tuple[GraphTensor, GraphTensor]
) -> GraphTensor:
    """build_recurrent_attn with ggml's fused operation; returns outputs as [width, heads, tokens, sequences].

    `state_elements`: elements of a sequence's state.
    """
    build, (q, k, v) = layer.build, qkv
    width, heads, tokens, seqs = v.ne
    cache = state(layer, "s", state_elements)
    before = ggml.reshape(read_states(build, cache), width, width, heads, seqs)
    result = ggml.gated_delta_net(q, k, v, *gates, before)
    row = row_bytes(result.type, width)
    strides = (row, row * heads, row * heads * tokens)
    output = ggml.view(result, width, heads, tokens, seqs, strides=strides)
    strides = (row, row * width, row * width * heads)
    after = ggml.view(result, width, width, heads, seqs, strides=strides)
    into = ggml.view(cache, cache.ne[0], seqs, strides=(cache.nb[1],))
    build.expand(ggml.cpy(after, into))
    return output


def linear_attention(layer: GraphLayer, cur: GraphTensor, *, twice: bool = False) -> GraphTensor:
    """build_layer_attn_linear: a gated delta net, from the normed stream to its output projection.

    `twice`: the tail of the convolution is made contiguous before it is stored.
    """
    build = layer.build
    ssm = Ssm.of(build.hparams, grouped=True)
    heads, width = ssm.dt_rank, ssm.d_inner // ssm.dt_rank
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    mixed, z = _conv_input_and_gate(layer, ssm, cur)
    gates = gates_of(layer, ssm, cur)
    conv = convolution_input(layer, ggml.transpose(mixed), ssm.d_conv - 1, twice=twice)
    conv = ggml.unary(ggml.ssm_conv(conv, layer["ssm_conv1d"]))
    out = delta_net(layer, ssm.n_embd_s, split_convolved(layer, ssm, conv), gates)
    z = ggml.reshape(z, width, heads, tokens, seqs)
    out = normalize(out, layer["ssm_norm"])
    out = ggml.mul(out, ggml.unary(z))
    cur = project(layer, "ssm_out", ggml.reshape(out, width * heads, tokens, seqs))
    return ggml.reshape(cur, build.hparams.n_embd, build.n_tokens)


def _conv_input_and_gate(
    layer: GraphLayer, ssm: Ssm, cur: GraphTensor
) -> tuple[GraphTensor, GraphTensor]:
    """build_qkvz: the input of the convolution, and the output gate."""
    tokens, seqs = layer.build.sizes.n_seq_tokens, layer.build.sizes.n_seqs
    if "attn_qkv" in layer:
        mixed = project(layer, "attn_qkv", cur)
        mixed = ggml.reshape(mixed, mixed.ne[0], tokens, seqs)
        return mixed, project(layer, "attn_gate", cur)
    # Old files interleave query, key, value and gate head by head.
    key, value = ssm.d_state, ssm.d_inner // ssm.n_group
    cur = ggml.mul_mat(layer["ssm_in"], cur)
    cur = ggml.reshape(cur, 2 * key + 2 * value, ssm.n_group, tokens, seqs)
    q, k, v, z = (
        ggml.view(cur, width, *cur.ne[1:], strides=cur.nb[1:]) for width in (key, key, value, value)
    )
    z = ggml.cont(z)
    q, k, v = (ggml.cont(side, side.ne[0] * ssm.n_group, tokens, seqs) for side in (q, k, v))
    return ggml.concat(ggml.concat(q, k, 0), v, 0), z


def gates_of(
    layer: GraphLayer, ssm: Ssm, cur: GraphTensor, sequences: Size | None = None
) -> tuple[GraphTensor, GraphTensor]:
    """Decay and beta: one value per head and token. `sequences`: if not those of the batch."""
    seqs, heads = layer.build.sizes.n_seqs if sequences is None else sequences, ssm.dt_rank
    tokens = layer.build.n_tokens // seqs
    if "ssm_ba" in layer:
        ba = ggml.mul_mat(layer["ssm_ba"], cur)
        per_group = heads // ssm.n_group
        ba = ggml.reshape(ba, 2 * heads // ssm.n_group, ssm.n_group, tokens, seqs)
        b, a = (ggml.view(ba, per_group, *ba.ne[1:], strides=ba.nb[1:]) for _ in range(2))
        beta = ggml.unary(ggml.cont(b))
        alpha = ggml.cont(a, heads, tokens, seqs)
        beta = ggml.reshape(beta, 1, heads, tokens, seqs)
    else:
        beta = ggml.reshape(project(layer, "ssm_beta", cur), 1, heads, tokens, seqs)
        beta = ggml.unary(beta)
        alpha = ggml.reshape(project(layer, "ssm_alpha", cur), heads, tokens, seqs)
    alpha = ggml.unary(ggml.add(alpha, layer.required("ssm_dt.bias")))
    decay = ggml.mul(alpha, layer.required("ssm_a"))
    return ggml.reshape(decay, 1, heads, tokens, seqs), beta


def split_convolved(
    layer: GraphLayer, ssm: Ssm, conv: GraphTensor, sequences: Size | None = None
) -> QKV:
    """Splits the convolution's output into queries, keys and values. `sequences`: if not those of the batch."""
    build = layer.build
    seqs = build.sizes.n_seqs if sequences is None else sequences
    tokens = build.n_tokens // seqs
    value = ssm.d_inner // ssm.dt_rank
    shapes = ((ssm.d_state, ssm.n_group), (ssm.d_state, ssm.n_group), (value, ssm.dt_rank))
    row = row_bytes(conv.type, 2 * ssm.d_state * ssm.n_group + ssm.d_inner)
    q, k, v = (
        ggml.view(
            conv,
            width,
            heads,
            tokens,
            seqs,
            strides=(row_bytes(conv.type, width), row, row * tokens),
        )
        for width, heads in shapes
    )
    q, k = l2_normalize(q), l2_normalize(k)
    # qwen3next repeats keys to match the value heads.
    if "ssm_ba" in layer and ssm.n_group != ssm.dt_rank:
        times, total = ssm.dt_rank // ssm.n_group, build.n_tokens
        q, k = (ggml.reshape(side, ssm.d_state, 1, ssm.n_group, total) for side in (q, k))
        q, k = (ggml.repeat(side, ssm.d_state, times, ssm.n_group, total) for side in (q, k))
        q, k = (
            ggml.reshape(side, ssm.d_state, ssm.n_group * times, tokens, seqs) for side in (q, k)
        )
    return q, k, v


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet(Hybrid):
    norm_first: bool = True
    late_gate: bool = False  # the gate is sliced out after attention, not before

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        layer.build.expand(cur)
        return Hybrid.attention(self, layer, cur)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        """Gated attention: Q and its gate are the halves of one projection."""
        mask = self.mask_of(layer, cur)
        facts, tokens = layer.facts, layer.build.n_tokens
        width, heads, kv_heads = facts.n_embd_head_v, facts.n_head, facts.n_head_kv
        shapes = Heads((2 * width, heads), (width, kv_heads), (width, kv_heads))
        q_and_gate, k, v = qkv(layer, cur, heads=shapes, flat=True)
        if self.late_gate:
            q_and_gate = ggml.reshape(q_and_gate, 2 * width, heads, tokens, 1)
        row = row_bytes(q_and_gate.type, 2 * width)
        q, gate = (
            ggml.view(q_and_gate, width, heads, tokens, strides=(row, row * heads))
            for _ in range(2)
        )
        if not self.late_gate:
            gate = ggml.cont(gate, width * heads, tokens)
        k, v = (ggml.reshape(side, width, kv_heads, tokens) for side in (k, v))
        q, k = self.norm_qk(layer, q, k)
        q, k = ggml.rope(q, layer.inputs.pos), ggml.rope(k, layer.inputs.pos)
        cur = self.attend_masked(layer, (q, k, v), mask)
        if self.late_gate:
            gate = ggml.cont(gate, width * heads, tokens)
        gate = ggml.unary(gate)
        if self.late_gate and not layer.build.predicts:  # qwen3next.cpp before 4ed2b13
            gate = ggml.reshape(gate, width * heads, tokens)
        return project(layer, "attn_output", ggml.mul(cur, gate))

    def attend_masked(self, layer: GraphLayer, heads: QKV, mask: GraphTensor | None) -> GraphTensor:
        """Attention before its gate and its output projection."""
        return attend(layer, *heads, mask=mask, project=False)

    def mask_of(self, _layer: GraphLayer, _cur: GraphTensor) -> GraphTensor | None:
        """The mask of the layer's attention, if not that of its cache."""
        return None

    def shared_expert(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        gate = ggml.unary(ggml.mul_mat(layer["ffn_gate_inp_shexp"], cur))
        return ggml.mul(shared_expert(layer, cur), gate)


DELTA_NETS: Mapping[str, DeltaNet] = {
    "qwen3next": DeltaNet(mixer=linear_attention, ffn_norm="post_attention_norm", late_gate=True),
    "qwen35": DeltaNet(
        mixer=linear_attention, n_pos=four_positions, ffn_norm="post_attention_norm"
    ),
}
