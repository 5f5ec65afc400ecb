"""MiniMax Text 01: lightning attention (linear, with a fixed decay for each head) beside attention.

llama.cpp allocates once more for all tokens in one sequence; its dry run, which is followed here, does not count that.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.families.transformer import Shared, Transformer
from edgekit.engines.llamacpp.graph.llama.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.llama.matrices import normalize
from edgekit.engines.llamacpp.graph.llama.recurrent import StateInput, input_rs, read_states, state
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decays:
    """Inputs that all linear layers share; each scales them for itself. `rs`: where their states are."""

    rs: StateInput
    slopes: GraphTensor
    q: GraphTensor
    k: GraphTensor
    diagonal: GraphTensor

    @classmethod
    def of(cls, build: Build) -> Decays:
        heads = build.hparams.n_head_arr[0]
        tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
        return cls(
            rs=input_rs(build),
            slopes=ggml.graph_input(F32, heads, name="inp_slopes"),
            q=ggml.graph_input(F32, 1, heads, tokens, seqs, name="inp_q_decay"),
            k=ggml.graph_input(F32, 1, heads, tokens, seqs, name="inp_k_decay"),
            diagonal=ggml.graph_input(F32, tokens, tokens, heads, seqs, name="inp_diag_decay"),
        )


def lightning(build: Build, layer: GraphLayer, decays: Decays, cur: GraphTensor) -> GraphTensor:
    heads, width = layer.facts.n_head, layer.facts.n_embd_head_k
    tokens, seqs = build.sizes.n_seq_tokens, build.sizes.n_seqs
    read_states(build, decays.rs, state(build, layer, "r", 0), 0)
    cur = ggml.reshape(cur, cur.ne[0], tokens, 1, seqs)
    fused = ggml.unary(ggml.mul_mat(layer["attn_qkv"], cur))
    fused = ggml.reshape(fused, 3 * width, heads, tokens, seqs)
    q, k, v = (ggml.view(fused, width, heads, tokens, seqs, strides=fused.nb[1:]) for _ in range(3))
    memory = width * width * heads
    cache = state(build, layer, "s", memory)
    before = ggml.reshape(read_states(build, decays.rs, cache, memory), width, width, heads, seqs)
    turned = ggml.cont(ggml.permute(v, 1, 2, 0, 3))
    out = _attended(decays, q, k, turned, before)
    build.expand(out)
    after = _remembered(decays, k, turned, before)
    build.expand(ggml.cpy(after, ggml.view(cache, memory * seqs)))
    out = ggml.cont(ggml.permute(out, 0, 2, 1, 3))
    out = ggml.reshape(out, out.ne[0] * out.ne[1], out.ne[2], 1, out.ne[3])
    out = normalize(out, layer["attn_norm_2"], layer=layer.index)
    gate = ggml.unary(ggml.mul_mat(layer["attn_gate"], cur))
    cur = ggml.mul_mat(layer["attn_output"], ggml.mul(gate, out))
    return ggml.reshape(cur, cur.ne[0], build.n_tokens)


def _attended(
    decays: Decays, q: GraphTensor, k: GraphTensor, v: GraphTensor, before: GraphTensor
) -> GraphTensor:
    """What the memory says, and what the tokens of the batch say to each other."""
    faded = ggml.mul(q, ggml.unary(ggml.scale(decays.q)))
    remembered = ggml.mul_mat(before, ggml.permute(faded, 0, 2, 1, 3))
    scores = ggml.mul_mat(ggml.permute(k, 0, 2, 1, 3), ggml.permute(q, 0, 2, 1, 3))
    scores = ggml.mul(scores, ggml.unary(ggml.scale(decays.diagonal)))
    return ggml.add(remembered, ggml.mul_mat(v, scores))


def _remembered(decays: Decays, k: GraphTensor, v: GraphTensor, before: GraphTensor) -> GraphTensor:
    slopes = ggml.unary(ggml.scale(ggml.scale(decays.slopes)))
    faded = ggml.mul(before, ggml.reshape(slopes, 1, 1, slopes.ne[0]))
    keys = ggml.mul(k, ggml.unary(ggml.scale(decays.k)))
    keys = ggml.cont(ggml.permute(keys, 1, 2, 0, 3))
    return ggml.add(faded, ggml.mul_mat(keys, v))


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniMax01(Transformer):
    """The residual stream is what was normalised, scaled."""

    def build(self, build: Build) -> None:
        cur = build.input_embd()
        shared, decays = self.shared(build), Decays.of(build)
        for layer in build.layers():
            cur = self.layer(build, layer, shared, decays, cur)
        self.head(build, cur)

    def layer(
        self, build: Build, layer: GraphLayer, shared: Shared, decays: Decays, cur: GraphTensor
    ) -> GraphTensor:
        stream = self.normalized(layer, cur, "attn_norm")
        if layer.facts.is_recr:
            cur = lightning(build, layer, decays, stream)
        else:
            cur = self.attention(build, layer, shared, stream)
        if layer.facts.is_last:
            cur, stream = (ggml.get_rows(one, shared.out_ids) for one in (cur, stream))
        cur = ggml.add(cur, ggml.scale(stream))
        stream = self.normalized(layer, cur, "ffn_norm")
        cur = self.feed_forward(build, layer, shared, stream)
        return ggml.add(cur, ggml.scale(stream))
