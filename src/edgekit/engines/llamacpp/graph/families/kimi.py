"""Kimi delta attention and latent attention: Kimi Linear, Kimi K3 and Ling 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend_k, input_k, read_states, state
from edgekit.engines.llamacpp.graph.build import Act, Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.delta_net import delta_net, l2_normalize
from edgekit.engines.llamacpp.graph.families.hybrid import Hybrid
from edgekit.engines.llamacpp.graph.families.latent import absorbed_qkv, query
from edgekit.engines.llamacpp.graph.families.sparse import Clamps, clamped_feed_forward
from edgekit.engines.llamacpp.graph.families.transformer import (
    change_routing,
    file_routing,
    rope_sections,
)
from edgekit.engines.llamacpp.graph.layers import (
    experts,
    feed_forward,
    normalize,
    results,
    shared_expert,
)
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, NoGraphError, shape


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


def bounded_decay(layer: GraphLayer, decay: GraphTensor) -> GraphTensor:
    """The decay of a delta attention from its low-rank input: softplus, or a sigmoid with a lower bound."""
    build, kda = layer.build, Kda.of(layer.hparams)
    rates = ggml.reshape(layer.required("ssm_a"), 1, kda.heads, 1)
    shape = (kda.width, kda.heads, build.n_tokens)
    decay = ggml.add(decay, layer.required("ssm_dt.bias"))
    if layer.hparams.key("kda.gate_lower_bound") is None:
        decay = ggml.mul(ggml.reshape(ggml.unary(decay), *shape), rates)
    else:
        decay = ggml.mul(ggml.reshape(decay, *shape), rates)
        decay = ggml.scale(ggml.unary(ggml.scale(decay)))
    sizes = build.sizes
    return ggml.reshape(decay, kda.width, kda.heads, sizes.n_seq_tokens, sizes.n_seqs)


def low_rank_delta(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Delta attention of Kimi K3 and GLM 5 Next; the gate is of full rank or of low rank."""
    build = layer.build
    decay = ggml.mul_mat(layer["ssm_f_b"], ggml.mul_mat(layer["ssm_f_a"], cur))
    out = _delta_attention(layer, cur, bounded_decay(layer, decay))
    if "ssm_g" not in layer:
        return _apply_gate(
            layer, out, ggml.mul_mat(layer["ssm_g_b"], ggml.mul_mat(layer["ssm_g_a"], cur))
        )
    width, tokens, seqs = cur.ne[0], build.sizes.n_seq_tokens, build.sizes.n_seqs
    cur = ggml.reshape(ggml.reshape(cur, width, tokens, seqs), width, build.n_tokens)
    return _apply_gate(layer, out, ggml.mul_mat(layer["ssm_g"], cur))


class BankedStream(NamedTuple):
    """Kimi K3: the residual stream, and the copies of it that were banked at every `attn_res.block_size`-th layer."""

    banked: GraphTensor | None  # [width, copies, tokens]

    def mix(self, cur: GraphTensor, weight: GraphTensor) -> GraphTensor:
        """res_mix: the sum of the banked copies and the current stream, weighted by their scores."""
        if self.banked is None:
            return cur
        width, count, tokens, _ = self.banked.ne
        scores = ggml.sum_rows(ggml.mul(ggml.rms_norm(self.banked), weight))
        scores = ggml.reshape(scores, count, tokens)
        score = ggml.sum_rows(ggml.mul(ggml.rms_norm(cur), weight))
        probs = ggml.soft_max(ggml.concat(scores, score, 0))
        of_banked, of_current = (
            ggml.cont(ggml.view(probs, size, tokens, strides=(probs.nb[1],))) for size in (count, 1)
        )
        mixed = ggml.new("DSV4_HC_PRE", F32, shape(width, tokens), self.banked, of_banked)
        return ggml.add(mixed, ggml.mul(cur, of_current))

    def push(self, cur: GraphTensor) -> BankedStream:
        """res_push: with a copy of the stream."""
        copy = ggml.reshape(cur, cur.ne[0], 1, cur.ne[1])
        return BankedStream(copy if self.banked is None else ggml.concat(self.banked, copy, 1))


class KimiK3(Hybrid):
    """Kimi K3: earlier states of the residual stream are mixed in; experts read a narrower input."""

    def variant(self, hparams: Hparams, il: int) -> tuple[int, bool]:
        """How many copies were banked before the layer, and whether it banks one."""
        size = hparams.integer("attn_res.block_size")
        return (-(-il // size), il % size == 0) if size else (0, False)

    def build(self, build: Build) -> None:
        if build.hparams.real("activation.situ_linear_beta") <= 0:
            raise NoGraphError("an activation that does not limit the up projection")
        cur = build.input_embd()
        build.inputs = self.layer_inputs(build)
        size, bank = build.hparams.integer("attn_res.block_size"), BankedStream(None)
        for index, layer in zip(build.facts, build.layers(), strict=True):
            layer = layer.without_scales()  # noqa: PLW2901 - K3 has no scales
            stream = cur
            if size:
                cur = bank.mix(stream, layer["attn_res_score"])
            banks = bool(size) and index % size == 0
            if banks:
                bank = bank.push(stream)
            cur = self.attention(layer, self.apply_norm(layer, cur, "attn_norm"))
            stream = cur if banks else ggml.add(stream, cur)
            cur = bank.mix(stream, layer["ffn_res_score"]) if size else stream
            cur = self.feed_forward(layer, self.apply_norm(layer, cur, "ffn_norm"))
            cur = ggml.add(stream, cur)
        if size:
            cur = bank.mix(cur, build["output_res_score"])
        cur = ggml.get_rows(cur, build.inputs.out_ids)
        results(build, normalize(cur, build["output_norm"]))

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        layer.build.expand(cur)
        return Hybrid.attention(self, layer, cur)

    def full_attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        qkv = absorbed_qkv(layer, query(layer, cur), cur, lambda part: part)
        out = attend_k(layer, qkv, project=False)
        if "attn_gate" in layer:
            out = ggml.mul(out, ggml.unary(ggml.mul_mat(layer["attn_gate"], cur)))
        return ggml.mul_mat(layer["attn_output"], out)

    def feed_forward(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        if "ffn_gate_inp" not in layer:
            return feed_forward(layer, cur, act=Act.SITU)
        narrow = layer.weight("ffn_routed_down")
        latent = cur if narrow is None else ggml.mul_mat(narrow, cur)
        router = ggml.mul_mat(layer["ffn_gate_inp"], cur)
        result = experts(layer, latent, probs_in=router)
        if (norm := layer.weight("ffn_routed_norm")) is not None:
            result = normalize(result, norm)
        if (wide := layer.weight("ffn_routed_up")) is not None:
            result = ggml.mul_mat(wide, result)
        if "ffn_gate_shexp" not in layer:
            return result
        return ggml.add(result, shared_expert(layer, cur, act=Act.SITU))


KIMI: Mapping[str, Hybrid] = {
    "kimi-k3": KimiK3(
        attn_input=input_k,
        mixer=low_rank_delta,
        routing=change_routing(file_routing, act=Act.SITU),
    ),
    "kimi-linear": Kimi(
        attn_input=input_k, mixer=kimi_delta, routing=change_routing(file_routing, norm_w=True)
    ),
    "bailingmoe3": Ling3(
        attn_input=input_k, mixer=ling_delta, n_pos=rope_sections, routing=file_routing
    ),
}
