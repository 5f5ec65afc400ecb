"""Products with weights, norms and rotations (build_lora_mm, build_norm, llama_mul_mat_hadamard)."""

from __future__ import annotations

import enum

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.llama.build import Build
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
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
    """build_lora_mm_id: a scale has one number for each expert."""
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
