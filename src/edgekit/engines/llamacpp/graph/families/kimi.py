"""Kimi delta attention and latent attention: Kimi Linear and Ling 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend_k, input_k, read_states, state
from edgekit.engines.llamacpp.graph.build import GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.delta_net import delta_net, l2_normalize
from edgekit.engines.llamacpp.graph.families.hybrid import Hybrid
from edgekit.engines.llamacpp.graph.families.latent import absorbed_qkv, query
from edgekit.engines.llamacpp.graph.families.sparse import Clamps, clamped_feed_forward
from edgekit.engines.llamacpp.graph.families.transformer import (
    change_routing,
    file_routing,
    rope_sections,
)
from edgekit.engines.llamacpp.graph.layers import normalize
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


class Kda(NamedTuple):
    """Sizes of a delta-attention layer; Q, K and V have separate convolutions."""

    width: int
    heads: int
    kept_inputs: int  # inputs that a convolution keeps for the next batch

    @classmethod
    def of(cls, hparams: Hparams) -> Kda:
        width, kernel = hparams.integer("kda.head_dim"), hparams.integer("ssm.conv_kernel")
        return cls(width, hparams.n_head_arr[0], kernel - 1 if kernel else 3)

    @property
    def inner(self) -> int:
        return self.width * self.heads

    @property
    def tail(self) -> int:
        """Elements that one convolution keeps."""
        return self.kept_inputs * self.inner

    @property
    def state_elements(self) -> int:
        """Elements of a sequence's recurrent state."""
        return self.width * self.width * self.heads


def convolve_qkv(layer: GraphLayer, cur: GraphTensor) -> tuple[GraphTensor, ...]:
    """causal_conv1d for Q, K and V: [width, heads, tokens, sequences] each."""
    build, kda = layer.build, Kda.of(layer.hparams)
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    cache = state(layer, "r", 3 * kda.tail)
    before = read_states(build, cache)
    if "attn_qkv" in layer:
        fused = ggml.mul_mat(layer["attn_qkv"], cur)
        views = [ggml.view(fused, kda.inner, build.n_tokens, strides=(fused.nb[1],)) for _ in "qkv"]
        sides = [ggml.cont(view) for view in views]
    else:
        sides = [ggml.mul_mat(layer[f"attn_{side}"], cur) for side in "qkv"]
    element = before.type.block_bytes
    strides = (kda.kept_inputs * element, 3 * kda.tail * element)
    outputs: list[GraphTensor] = []
    for name, side in zip("qkv", sides, strict=True):
        kernel = layer[f"ssm_conv1d_{name}"]
        previous_inputs = ggml.view(before, kda.kept_inputs, kda.inner, seqs, strides=strides)
        conv_input = ggml.concat(
            previous_inputs, ggml.transpose(ggml.reshape(side, kda.inner, tokens, seqs)), 0
        )
        tail = ggml.view(conv_input, kda.kept_inputs, kda.inner, seqs, strides=conv_input.nb[1:3])
        into = ggml.view(cache, kda.kept_inputs, kda.inner, seqs, strides=strides)
        build.expand(ggml.cpy(tail, into))
        out = ggml.ssm_conv(conv_input, ggml.reshape(kernel, kernel.ne[0], kda.inner))
        out = ggml.unary(ggml.reshape(out, kda.inner, build.n_tokens))
        outputs.append(ggml.reshape(out, kda.width, kda.heads, tokens, seqs))
    return tuple(outputs)


def _delta_attention(layer: GraphLayer, cur: GraphTensor, decay: GraphTensor) -> GraphTensor:
    """Delta attention up to its output gate, which is not yet applied."""
    build, kda = layer.build, Kda.of(layer.hparams)
    q, k, v = convolve_qkv(layer, cur)
    beta = ggml.mul_mat(layer["ssm_beta"], cur)
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    beta = ggml.unary(ggml.reshape(beta, 1, kda.heads, tokens, seqs))
    qkv = (l2_normalize(q), l2_normalize(k), v)
    out = delta_net(layer, kda.state_elements, qkv, (decay, beta))
    return ggml.reshape(ggml.cont(out), kda.width, kda.heads, build.n_tokens)


def _apply_gate(layer: GraphLayer, out: GraphTensor, gate: GraphTensor) -> GraphTensor:
    """Normalises and gates the output of delta attention, and projects it."""
    kda, tokens = Kda.of(layer.hparams), layer.build.n_tokens
    gate = ggml.reshape(gate, kda.width, kda.heads, tokens)
    out = ggml.mul(normalize(out, layer["ssm_norm"]), ggml.unary(gate))
    return ggml.mul_mat(layer["attn_output"], ggml.cont(out, kda.inner, tokens))


def kimi_delta(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Delta attention with low-rank gates."""
    build = layer.build
    kda = Kda.of(build.hparams)
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    decay = ggml.mul_mat(layer["ssm_f_b"], ggml.mul_mat(layer["ssm_f_a"], cur))
    decay = ggml.unary(ggml.add(decay, layer.required("ssm_dt.bias")))
    decay = ggml.reshape(decay, kda.width, kda.heads, build.n_tokens)
    decay = ggml.mul(decay, ggml.reshape(layer.required("ssm_a"), 1, kda.heads, 1))
    decay = ggml.reshape(decay, kda.width, kda.heads, tokens, seqs)
    out = _delta_attention(layer, cur, decay)
    cur = ggml.reshape(ggml.reshape(cur, cur.ne[0], tokens, seqs), cur.ne[0], build.n_tokens)
    gate = ggml.mul_mat(layer["ssm_g_b"], ggml.mul_mat(layer["ssm_g_a"], cur))
    return _apply_gate(layer, out, gate)


def ling_delta(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Delta attention with full-rank gates and a decay that has a lower bound."""
    build = layer.build
    kda = Kda.of(build.hparams)
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    decay = ggml.add(ggml.mul_mat(layer["ssm_f_a"], cur), layer.required("ssm_dt.bias"))
    decay = ggml.reshape(decay, kda.width, kda.heads, build.n_tokens)
    decay = ggml.mul(decay, ggml.reshape(layer.required("ssm_a"), 1, kda.heads, 1))
    decay = ggml.reshape(ggml.scale(ggml.unary(decay)), kda.width, kda.heads, tokens, seqs)
    out = _delta_attention(layer, cur, decay)
    return _apply_gate(layer, out, ggml.mul_mat(layer["ssm_g_a"], cur))


class Kimi(Hybrid):
    """Kimi Linear: latent attention without rope."""

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        layer.build.expand(cur)
        return Hybrid.attention(self, layer, cur)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        qkv = absorbed_qkv(layer, query(layer, cur), cur, lambda part: part)
        return attend_k(layer, qkv)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return Hybrid.feed_forward(self, layer.without_scales(), cur)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ling3(Hybrid):
    """Ling 3: latent attention with rope and an output gate; some layers clamp activations."""

    norm_first: bool = True

    def variant(self, hparams: Hparams, il: int) -> Clamps:
        return Clamps.of(hparams, il)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        heads, tokens = layer.facts.n_head, layer.build.n_tokens
        width = layer.hparams.integer("attention.value_length_mla")
        qkv = absorbed_qkv(
            layer, query(layer, cur), cur, lambda part: ggml.rope(part, layer.inputs.pos)
        )
        out = attend_k(layer, qkv, project=False)
        gate = ggml.mul_mat(layer["attn_gate"], cur)
        gate = ggml.unary(ggml.reshape(gate, 1, heads, tokens))
        out = ggml.mul(ggml.reshape(out, width, heads, tokens), gate)
        return ggml.mul_mat(layer["attn_output"], ggml.cont(out, width * heads, tokens))

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        return clamped_feed_forward(layer, cur)


KIMI: Mapping[str, Hybrid] = {
    "kimi-linear": Kimi(
        attn_input=input_k, mixer=kimi_delta, routing=change_routing(file_routing, norm_w=True)
    ),
    "bailingmoe3": Ling3(
        attn_input=input_k, mixer=ling_delta, n_pos=rope_sections, routing=file_routing
    ),
}
