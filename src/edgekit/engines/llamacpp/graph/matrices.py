"""Weight products, norms, rotations, and the Q, K and V projections.

Follows build_lora_mm, build_norm, build_qkv and llama_mul_mat_hadamard.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.tensor import GraphTensor, row_bytes
from edgekit.engines.llamacpp.versions import Rules
from edgekit.errors import RefusedError


class Norm(enum.Enum):
    LAYER = "LLM_NORM"
    RMS = "LLM_NORM_RMS"
    GROUP = "LLM_NORM_GROUP"


def project(
    matrix: GraphTensor, cur: GraphTensor, *, scale: GraphTensor | None = None
) -> GraphTensor:
    cur = ggml.mul_mat(matrix, cur)
    return cur if scale is None else ggml.mul(cur, scale)


def project_experts(
    experts: GraphTensor, cur: GraphTensor, ids: GraphTensor, *, scale: GraphTensor | None = None
) -> GraphTensor:
    """build_lora_mm_id: a scale has one value per expert."""
    result = ggml.mul_mat_id(experts, cur, ids)
    if scale is None:
        return result
    count, tokens = scale.ne[0], cur.ne[2]
    scales = ggml.repeat(ggml.reshape(scale, 1, count, 1), 1, count, tokens, 1)
    return ggml.mul(result, ggml.get_rows(scales, ids))


def normalize(
    cur: GraphTensor,
    weight: GraphTensor | None,
    bias: GraphTensor | None = None,
    *,
    kind: Norm = Norm.RMS,
    layer: int | None = None,
) -> GraphTensor:
    if kind is Norm.GROUP:
        wide = ggml.group_norm(ggml.reshape(cur, cur.ne[0], 1, cur.ne[1]))
        cur = ggml.reshape(wide, wide.ne[0], wide.ne[2])
    else:
        cur = ggml.norm(cur) if kind is Norm.LAYER else ggml.rms_norm(cur)
    if weight is not None or bias is not None:
        cur.name, cur.layer = "norm", layer  # as llama.cpp calls it
    if weight is not None:
        cur = ggml.mul(cur, weight)
    return cur if bias is None else ggml.add(cur, bias)


def hadamard(build: Build, cur: GraphTensor, rotation: GraphTensor) -> GraphTensor:
    width = rotation.ne[0]
    whole = build.graph.is_contiguous(cur)
    if not whole and build.options.rules < Rules.ROTATION_OF_VIEWS:
        raise RefusedError(
            "llama.cpp aborts: builds before b9027 cannot use a quantised cache with fused matrices"
        )
    flatten = ggml.reshape if whole else ggml.cont
    flat = flatten(cur, width, cur.elements // width)
    return ggml.reshape(ggml.mul_mat(rotation, flat), *cur.ne)


class Heads(NamedTuple):
    """Head widths and counts of Q, K and V."""

    q: tuple[int, int]
    k: tuple[int, int]
    v: tuple[int, int]

    @classmethod
    def of(cls, layer: GraphLayer) -> Heads:
        facts = layer.facts
        return cls(
            (facts.n_embd_head_k, facts.n_head),
            (facts.n_embd_head_k, facts.n_head_kv),
            (facts.n_embd_head_v, facts.n_head_kv),
        )


def qkv(
    build: Build,
    layer: GraphLayer,
    cur: GraphTensor,
    *,
    heads: Heads | None = None,
    flat: bool = False,
) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Q, K and V as [width, heads, tokens]; `flat` (reshape = false): as [width x heads, tokens]."""
    heads = heads or Heads.of(layer)
    clamped = not flat and build.hparams.real("attention.clamp_kqv") > 0
    if "attn_qkv" in layer:
        return _fused(build, layer, cur, heads, flat=flat, clamped=clamped)
    q, k, v = (_separate(layer, name, cur, clamped=clamped) for name in ("q", "k", "v"))
    if flat:
        return q, k, v
    return (
        ggml.reshape(q, *heads.q, build.n_tokens),
        ggml.reshape(k, *heads.k, build.n_tokens),
        ggml.reshape(v, *heads.v, build.n_tokens),
    )


def _separate(layer: GraphLayer, side: str, cur: GraphTensor, *, clamped: bool) -> GraphTensor:
    name = f"attn_{side}"
    cur = project(layer[name], cur, scale=layer.scale(name))
    if (bias := layer.bias(name)) is not None:
        cur = ggml.add(cur, bias)
    return ggml.clamp(cur) if clamped else cur


def _fused(
    build: Build, layer: GraphLayer, cur: GraphTensor, heads: Heads, *, flat: bool, clamped: bool
) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    cur = project(layer["attn_qkv"], cur, scale=layer.scale("attn_qkv"))
    if (bias := _fused_bias(layer)) is not None:
        cur = ggml.add(cur, bias)
    if clamped:
        cur = ggml.clamp(cur)
    if flat:
        q, k, v = (
            ggml.cont(ggml.view(cur, width * count, build.n_tokens, strides=(cur.nb[1],)))
            for width, count in heads
        )
    else:
        q, k, v = (
            ggml.view(
                cur,
                width,
                count,
                build.n_tokens,
                strides=(row_bytes(cur.type, width), cur.nb[1]),
            )
            for width, count in heads
        )
    return q, k, v


def _fused_bias(layer: GraphLayer) -> GraphTensor | None:
    """The fused QKV bias, or the three biases concatenated."""
    whole = layer.bias("attn_qkv")
    q, k, v = (layer.bias(f"attn_{side}") for side in ("q", "k", "v"))
    if whole is None and q is not None and k is not None and v is not None:
        return ggml.concat(ggml.concat(q, k, 0), v, 0)
    return whole
