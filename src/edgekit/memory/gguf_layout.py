"""Expected tensors -> how a GGUF at F16 would hold them: names, shapes, and which stay at F32.

Names are those of llama-arch.cpp, the types those of conversion/base.py (prepare_tensors), llama.cpp @ 0c1e570.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.geometry.expected import ExpectedTensor, TensorKind, TensorRole, expected_tensors
from edgekit.geometry.tensor_rows import BY_NAME, PLAIN, Recipe
from edgekit.geometry.types import Cell, HybridLayer, LatentAttention, ModelGeometry, Recurrent
from edgekit.header.dtype import by_name
from edgekit.memory.mixing import LaidTensor

_F32, _F16 = by_name("F32"), by_name("F16")

_OUTSIDE = {
    TensorRole.EMBEDDING: "token_embd",
    TensorRole.POSITION: "position_embd",
    TensorRole.SEGMENT: "token_types",
    TensorRole.LAYER_EMBEDDING: "per_layer_token_embd",
    TensorRole.LAYER_EMBEDDING_IN: "per_layer_model_proj",
    TensorRole.HEAD: "output",
    TensorRole.RESIDUAL: "altup_proj",
}
_INSIDE = {
    TensorRole.QUERY: "attn_q",
    TensorRole.KEY: "attn_k",
    TensorRole.VALUE: "attn_v",
    TensorRole.OUTPUT: "attn_output",
    TensorRole.OUTPUT_DOWN: "attn_output_a",
    TensorRole.ATTENTION_GATE: "attn_gate",
    TensorRole.QUERY_DOWN: "attn_q_a",
    TensorRole.QUERY_UP: "attn_q_b",
    TensorRole.LATENT_DOWN: "attn_kv_a_mqa",
    TensorRole.LATENT_UP: "attn_kv_b",
    TensorRole.INDEX_QUERY: "indexer.attn_q_b",
    TensorRole.INDEX_KEY: "indexer.attn_k",
    TensorRole.INDEX_WEIGHTS: "indexer.proj",
    TensorRole.COMPRESSOR_KEY: "attn_compressor_kv",
    TensorRole.COMPRESSOR_GATE: "attn_compressor_gate",
    TensorRole.GATE: "ffn_gate",
    TensorRole.UP: "ffn_up",
    TensorRole.DOWN: "ffn_down",
    TensorRole.EXPERT_GATE: "ffn_gate_exps",
    TensorRole.EXPERT_UP: "ffn_up_exps",
    TensorRole.EXPERT_DOWN: "ffn_down_exps",
    TensorRole.EXPERTS_IN: "ffn_latent_down",
    TensorRole.EXPERTS_OUT: "ffn_latent_up",
    TensorRole.SHARED_GATE: "ffn_gate_shexp",
    TensorRole.SHARED_UP: "ffn_up_shexp",
    TensorRole.SHARED_DOWN: "ffn_down_shexp",
    TensorRole.SHARED_SWITCH: "ffn_gate_inp_shexp",
    TensorRole.ROUTER: "ffn_gate_inp",
    TensorRole.STATE_IN: "ssm_in",
    TensorRole.STATE_GATE: "attn_gate",
    TensorRole.STATE_BETA: "ssm_ba",
    TensorRole.STATE_LOW: "ssm_f_a",
    TensorRole.STATE_X: "ssm_x",
    TensorRole.STATE_DT: "ssm_dt",
    TensorRole.STATE_OUT: "ssm_out",
    TensorRole.CONV: "ssm_conv1d",
    TensorRole.RESIDUAL: "laurel",
    TensorRole.LAYER_GATE: "inp_gate",
    TensorRole.LAYER_OUT: "proj",
}
# Recurrences that llama.cpp names otherwise.
_BY_CELL = {
    Cell.GATED_DELTA: {TensorRole.STATE_IN: "attn_qkv"},
    Cell.LIGHTNING: {TensorRole.STATE_IN: "attn_qkv", TensorRole.STATE_OUT: "attn_output"},
    Cell.KIMI_DELTA: {TensorRole.STATE_OUT: "attn_output"},
    Cell.SHORT_CONV: {
        TensorRole.STATE_IN: "shortconv.in_proj",
        TensorRole.STATE_OUT: "shortconv.out_proj",
        TensorRole.CONV: "shortconv.conv",
    },
}
_MATRICES = frozenset({TensorKind.LINEAR, TensorKind.EXPERT, TensorKind.EMBEDDING})
_AT_F32 = frozenset(
    {
        TensorRole.ROUTER,
        TensorRole.POSITION,
        TensorRole.SEGMENT,
        TensorRole.INDEX_WEIGHTS,
    }
)
_QKV = (TensorRole.QUERY, TensorRole.KEY, TensorRole.VALUE)
_GATE_UP = (TensorRole.GATE, TensorRole.UP)
# Models of one latent whose files keep it in one matrix; the others' is cut into keys and values.
_WHOLE_LATENT = frozenset({"minicpm3", "plm"})


def gguf_tensors(
    geometry: ModelGeometry, config: Mapping[str, Any] | None = None
) -> tuple[LaidTensor, ...]:
    """What the converter would write at F16, but for the small tables of rope factors."""
    recipe = BY_NAME.get(geometry.architecture, PLAIN)
    tensors = expected_tensors(geometry, config)
    return tuple(row for tensor in _fused(tensors, recipe) for row in _laid(tensor, geometry))


def _fused(tensors: Iterable[ExpectedTensor], recipe: Recipe) -> Iterator[ExpectedTensor]:
    """Matrices that llama.cpp keeps as one: their rows go to the last of them."""
    fused = (_QKV if recipe.gguf_fused_qkv else ()) + (_GATE_UP if recipe.gguf_fused_ffn else ())
    waiting = 0
    for tensor in tensors:
        if tensor.role not in fused or tensor.kind is not TensorKind.LINEAR:
            yield tensor
        elif tensor.role not in {TensorRole.VALUE, TensorRole.UP}:
            waiting += tensor.shape[0]
        else:
            yield replace(tensor, shape=(tensor.shape[0] + waiting, tensor.shape[1]))
            waiting = 0


def _laid(tensor: ExpectedTensor, geometry: ModelGeometry) -> Iterator[LaidTensor]:
    if tensor.kind not in _MATRICES and tensor.role is not TensorRole.ROUTER:
        yield LaidTensor(name=_name(tensor, "x", "f32"), shape=(tensor.elements,), type=_F32)
        return
    kind = None if tensor.layer is None else geometry.layers[tensor.layer].mixer
    if tensor.role is TensorRole.LATENT_UP and isinstance(kind, LatentAttention):
        yield from _latent(tensor, kind, geometry.architecture)
        return
    cell = _cell(kind)
    if tensor.role is TensorRole.STATE_IN and cell is Cell.KIMI_DELTA:
        third = (tensor.shape[0] // 3, tensor.shape[1])
        for name in ("attn_q", "attn_k", "attn_v"):
            yield LaidTensor(name=_name(tensor, name), shape=third, type=_F16)
        return
    names = _OUTSIDE if tensor.layer is None else {**_INSIDE, **_BY_CELL.get(cell, {})}
    yield _matrix(tensor, names.get(tensor.role, "other"))


def _matrix(tensor: ExpectedTensor, name: str) -> LaidTensor:
    shape = (tensor.count, *tensor.shape) if tensor.count > 1 else tensor.shape
    thin = math.prod(shape[:-1]) == 1  # one row: a vector
    type_ = _F32 if thin or tensor.role in _AT_F32 else _F16
    return LaidTensor(name=_name(tensor, name), shape=shape[-1:] if thin else shape, type=type_)


def _latent(
    tensor: ExpectedTensor, kind: LatentAttention, architecture: str
) -> Iterator[LaidTensor]:
    if architecture in _WHOLE_LATENT or not kind.absorbed:
        yield _matrix(tensor, "attn_kv_b")
        return
    plain = kind.key_dim - kind.rope_dim
    keys, values = (
        (kind.heads, kind.latent_dim, plain),
        (kind.heads, kind.value_dim, kind.latent_dim),
    )
    yield LaidTensor(name=_name(tensor, "attn_k_b"), shape=keys, type=_F16)
    yield LaidTensor(name=_name(tensor, "attn_v_b"), shape=values, type=_F16)


def _name(tensor: ExpectedTensor, name: str, ending: str = "weight") -> str:
    return f"{name}.{ending}" if tensor.layer is None else f"blk.{tensor.layer}.{name}.{ending}"


def _cell(kind: object) -> Cell:
    if isinstance(kind, HybridLayer):
        return kind.recurrent.cell
    return kind.cell if isinstance(kind, Recurrent) else Cell.MAMBA
