"""Multi-head latent attention (MLA): DeepSeek 2 and similar models, and MiniCPM 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.attention import attend, attend_k, input_k, input_kv
from edgekit.engines.llamacpp.graph.build import (
    AttnInput,
    Build,
    Gating,
    GraphLayer,
    Hparams,
    Routing,
)
from edgekit.engines.llamacpp.graph.families.transformer import (
    Transformer,
    change_routing,
    file_routing,
    nonzero,
    rope_factors,
)
from edgekit.engines.llamacpp.graph.layers import QKV, normalize
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
    cur = normalize(cur, layer["attn_q_a_norm"])
    return ggml.mul_mat(layer["attn_q_b"], cur)


def deepseek2_routing(hparams: Hparams) -> Routing:
    """GLM 4.7 Lite files do not state their sigmoid gating (deepseek2.cpp)."""
    lite = hparams.n_layer in {47, 48} and hparams.geometry.vocabulary == 154_880
    return file_routing(hparams, Gating.SIGMOID if lite else Gating.SOFTMAX)


Rotate = Callable[[GraphTensor], GraphTensor]


def latent_and_key(
    layer: GraphLayer, cur: GraphTensor, rotate: Rotate
) -> tuple[GraphTensor, GraphTensor]:
    """The normalised latent, and the rotated part of K that all heads share."""
    tokens, rope, rank = layer.build.n_tokens, layer.hparams.n_rot_full, _rank(layer)
    latent_and_k = ggml.mul_mat(layer["attn_kv_a_mqa"], cur)
    row = row_bytes(latent_and_k.type, rank + rope)
    latent = ggml.view(latent_and_k, rank, tokens, strides=(row,))
    k_pe = ggml.view(latent_and_k, rope, 1, tokens, strides=(row, row))
    if (norm := layer.weight("attn_k_norm")) is not None:  # dots3-note
        k_pe = normalize(k_pe, norm)
    return normalize(latent, layer["attn_kv_a_norm"]), rotate(k_pe)


def _rank(layer: GraphLayer) -> int:
    """The width of the latent, which sliding-window layers may have their own of."""
    windowed = "attention.kv_lora_rank_swa" if layer.facts.is_swa else "attention.kv_lora_rank"
    return layer.hparams.integer(windowed)


def absorbed_qkv(layer: GraphLayer, q: GraphTensor, cur: GraphTensor, rotate: Rotate) -> QKV:
    """Q in latent space, one K for all heads, and the latent as V."""
    tokens, heads = layer.build.n_tokens, layer.facts.n_head
    windowed = "_swa" if layer.facts.is_swa else ""
    width = layer.hparams.integer(f"attention.key_length_mla{windowed}")
    latent, k_pe = latent_and_key(layer, cur, rotate)
    rope, head = k_pe.ne[0], row_bytes(q.type, width)
    nope, q_pe = (
        ggml.view(q, count, heads, tokens, strides=(head, head * heads))
        for count in (width - rope, rope)
    )
    nope = ggml.mul_mat(layer["attn_k_b"], ggml.permute(nope, 0, 2, 1, 3))
    q = ggml.concat(ggml.permute(nope, 0, 2, 1, 3), rotate(q_pe), 0)
    v = ggml.reshape(latent, latent.ne[0], 1, tokens)
    return q, ggml.concat(v, k_pe, 0), v


def expanded_qkv(layer: GraphLayer, q: GraphTensor, cur: GraphTensor, rotate: Rotate) -> QKV:
    """Q, K and V of every head: K and V are expanded from the latent."""
    tokens, heads, value = layer.build.n_tokens, layer.facts.n_head, layer.facts.n_embd_head_v
    latent, k_pe = latent_and_key(layer, cur, rotate)
    kv = ggml.mul_mat(layer["attn_kv_b"], latent)
    rope = k_pe.ne[0]
    nope = q.ne[0] - rope
    head = row_bytes(kv.type, nope + value)
    strides = (head, head * heads)
    k_nope = ggml.view(kv, nope, heads, tokens, strides=strides)
    v = ggml.cont(ggml.view(kv, value, heads, tokens, strides=strides))
    if layer.build.options.rules >= Rules.ROPE_OFFSET:
        q = rotate(q)
    else:
        q_nope = ggml.view(q, nope, heads, tokens, strides=q.nb[1:3])
        q_pe = ggml.view(q, rope, heads, tokens, strides=q.nb[1:3])
        q = ggml.concat(q_nope, rotate(q_pe), 0)
    return q, ggml.concat(k_nope, ggml.repeat(k_pe, rope, heads, tokens, 1), 0), v


class Latent(Transformer):
    """Attention to the latent itself if the file has absorbed matrices, else to the K and V of every head."""

    def attention(self, layer: GraphLayer, cur: GraphTensor) -> GraphTensor:
        build, is_absorbed = layer.build, is_mla(layer.hparams)
        width = layer.hparams.integer("attention.key_length_mla", layer.hparams.n_embd_head_k_full)
        q = ggml.reshape(query(layer, cur), width, layer.facts.n_head, build.n_tokens)

        def rotate(cur: GraphTensor) -> GraphTensor:
            return ggml.rope(cur, layer.inputs.pos, rope_factors(build))

        make_qkv = absorbed_qkv if is_absorbed else expanded_qkv
        q, k, v = make_qkv(layer, q, cur, rotate)
        if layer.inputs.attn_scale is not None:
            q = ggml.mul(q, layer.inputs.attn_scale)
        return attend_k(layer, (q, k, v)) if is_absorbed else attend(layer, q, k, v)


_DEEPSEEK2 = Latent(
    attn_input=input_latent,
    temperature=nonzero("attention.temperature_scale"),
    routing=deepseek2_routing,
)
LATENT: Mapping[str, Latent] = {
    "deepseek2": _DEEPSEEK2,
    "mistral4": replace(_DEEPSEEK2, routing=change_routing(deepseek2_routing, precise=True)),
    "minicpm3": Latent(scaled_embd=True, scaled_residual=True),
}
