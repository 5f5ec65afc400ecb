"""Multi-head latent attention (MLA): DeepSeek 2 and similar models, and MiniCPM 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import (
    AttnInput,
    Extras,
    attend,
    attend_k,
    input_k,
    input_kv,
)
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer, Hparams
from edgekit.engines.llamacpp.graph.families.transformer import (
    Shared,
    Transformer,
    file_routing,
    rope_factors,
)
from edgekit.engines.llamacpp.graph.layers import Gating, Routing, normalize
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, row_bytes
from edgekit.engines.llamacpp.types import Rules


def is_mla(hparams: Hparams) -> bool:
    """True if the file has absorbed matrices, so that the cache holds only the latent."""
    return bool(hparams.integer("attention.key_length_mla", 0))


def input_latent(build: Build) -> AttnInput:
    return input_k(build) if is_mla(build.hparams) else input_kv(build)


def query(layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
    """Q through a low-rank projection, or through one matrix."""
    if "attn_q_a" not in layer:
        return ggml.mul_mat(layer["attn_q"], cur)
    cur = ggml.mul_mat(layer["attn_q_a"], cur)
    cur = normalize(cur, layer["attn_q_a_norm"], layer=layer.index)
    return ggml.mul_mat(layer["attn_q_b"], cur)


def deepseek2_routing(hparams: Hparams) -> Routing:
    """GLM 4.7 Lite files do not state their sigmoid gating (deepseek2.cpp)."""
    lite = hparams.n_layer in {47, 48} and hparams.geometry.vocabulary == 154_880
    return file_routing(hparams, Gating.SIGMOID if lite else Gating.SOFTMAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Transformer):
    def attention(
        self, build: Build, layer: GraphLayer, shared: Shared, cur: GraphTensor
    ) -> GraphTensor:
        hparams, tokens = build.hparams, build.n_tokens
        rope, rank = hparams.n_rot_full, hparams.integer("attention.kv_lora_rank")
        width = hparams.integer("attention.key_length_mla", hparams.n_embd_head_k_full)
        q = ggml.reshape(query(layer, cur), width, layer.facts.n_head, tokens)
        both = ggml.mul_mat(layer["attn_kv_a_mqa"], cur)
        row = row_bytes(both.type, rank + rope)
        latent = ggml.view(both, rank, tokens, strides=(row,))
        k_pe = ggml.view(both, rope, 1, tokens, strides=(row, row))
        k_pe = ggml.rope(k_pe, shared.pos, rope_factors(build))
        latent = normalize(latent, layer["attn_kv_a_norm"], layer=layer.index)
        attention = self.absorbed if is_mla(hparams) else self.expanded
        return attention(build, layer, shared, q, latent, k_pe)

    def absorbed(  # noqa: PLR0917 - in llama.cpp's order
        self,
        build: Build,
        layer: GraphLayer,
        shared: Shared,
        q: GraphTensor,
        latent: GraphTensor,
        k_pe: GraphTensor,
    ) -> GraphTensor:
        """Q is projected into latent space; one K serves all heads."""
        tokens, heads = build.n_tokens, layer.facts.n_head
        rope = k_pe.ne[0]
        nope = ggml.view(q, q.ne[0] - rope, heads, tokens, strides=q.nb[1:3])
        q_pe = ggml.view(q, rope, heads, tokens, strides=q.nb[1:3])
        q_pe = ggml.rope(q_pe, shared.pos, rope_factors(build))
        nope = ggml.mul_mat(layer["attn_k_b"], ggml.permute(nope, 0, 2, 1, 3))
        q = ggml.concat(ggml.permute(nope, 0, 2, 1, 3), q_pe, 0)
        v = ggml.reshape(latent, latent.ne[0], 1, tokens)
        k = ggml.concat(v, k_pe, 0)
        if shared.attn_scale is not None:
            q = ggml.mul(q, shared.attn_scale)
        extras = Extras(v_mla=layer["attn_v_b"])
        return attend_k(build, layer, shared.attn, q, k, v, extras=extras)

    def expanded(  # noqa: PLR0917 - in llama.cpp's order
        self,
        build: Build,
        layer: GraphLayer,
        shared: Shared,
        q: GraphTensor,
        latent: GraphTensor,
        k_pe: GraphTensor,
    ) -> GraphTensor:
        """The latent is expanded to K and V of every head."""
        tokens, facts = build.n_tokens, layer.facts
        rope, value = k_pe.ne[0], facts.n_embd_head_v
        kv = ggml.mul_mat(layer["attn_kv_b"], latent)
        nope = q.ne[0] - rope
        head = row_bytes(kv.type, nope + value)
        strides = (head, head * facts.n_head)
        k_nope = ggml.view(kv, nope, facts.n_head, tokens, strides=strides)
        v = ggml.cont(ggml.view(kv, value, facts.n_head, tokens, strides=strides))
        if build.options.rules >= Rules.ROPE_OFFSET:
            q = ggml.rope(q, shared.pos, rope_factors(build))
        else:
            q_nope = ggml.view(q, nope, facts.n_head, tokens, strides=q.nb[1:3])
            q_pe = ggml.view(q, rope, facts.n_head, tokens, strides=q.nb[1:3])
            q = ggml.concat(q_nope, ggml.rope(q_pe, shared.pos, rope_factors(build)), 0)
        k = ggml.concat(k_nope, ggml.repeat(k_pe, rope, facts.n_head, tokens, 1), 0)
        if shared.attn_scale is not None:
            q = ggml.mul(q, shared.attn_scale)
        return attend(build, layer, shared.attn, q, k, v)


_DEEPSEEK2 = Latent(
    attn_input=input_latent,
    temperature=lambda hparams: bool(hparams.real("attention.temperature_scale")),
    routing=deepseek2_routing,
)
LATENT: Mapping[str, Latent] = {
    "deepseek2": _DEEPSEEK2,
    "mistral4": replace(
        _DEEPSEEK2, routing=lambda hparams: replace(deepseek2_routing(hparams), precise=True)
    ),
    "minicpm3": Latent(attn_input=input_kv, scaled_embd=True, scaled_residual=True),
}
