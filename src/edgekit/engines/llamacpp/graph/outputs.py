"""The end of a graph: logits, or pooled embeddings (build_pooling, build_dense_out)."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Build
from edgekit.engines.llamacpp.graph.matrices import Norm, normalize, project
from edgekit.engines.llamacpp.graph.tensor import GraphTensor


def logits(build: Build, cur: GraphTensor) -> GraphTensor:
    """Logits. Without an output matrix, the token embedding is used."""
    matrix = build.weight("output") or build["token_embd"]
    return project(matrix, cur, scale=build.tensor("output.scale"))


def softcapped(cur: GraphTensor) -> GraphTensor:
    return ggml.scale(ggml.unary(ggml.scale(cur)))


def results(build: Build, embd: GraphTensor, *, scale: bool = False, softcap: bool = False) -> None:
    """Sets t_embd and t_logits."""
    build.embd = embd
    build.output(embd)
    cur = logits(build, embd)
    cur = ggml.scale(cur) if scale else cur
    cur = softcapped(cur) if softcap else cur
    build.output(cur)
    build.expand(cur)


def output_rows(
    build: Build, tensors: Sequence[GraphTensor], out_ids: GraphTensor
) -> list[GraphTensor]:
    """Selects the output rows after attention in the last layer."""
    if not build.crops_early:
        return list(tensors)
    return [ggml.get_rows(one, out_ids) for one in tensors]


def rows_after_norm(
    build: Build, cur: GraphTensor, out_ids: GraphTensor, *, kind: Norm = Norm.RMS
) -> GraphTensor:
    """The final norm, which is also an output for prediction blocks (t_h_nextn), then its output rows."""
    cur = normalize(cur, build["output_norm"], kind=kind)
    if build.predicts:
        build.output(cur)
    return cur if build.crops_early else ggml.get_rows(cur, out_ids)


class GraphPooling(enum.Enum):
    """llama_pooling_type; values are those of the key pooling_type."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


_RANK_DEFAULTS = {"modern-bert": GraphPooling.MEAN.value}  # modern-bert.cpp
_SOFT_MAX_RANK = frozenset({"qwen3", "qwen3vl"})


def pool(build: Build) -> None:
    if not build.options.embeddings or build.embd is None:
        return
    cur = _pooled(build, build.embd, GraphPooling(build.hparams.whole("pooling_type", 0)))
    build.expand(cur)
    cur = _dense_out(build, cur)
    build.output(cur)


def _pooled(build: Build, cur: GraphTensor, pooling: GraphPooling) -> GraphTensor:
    match pooling:
        case GraphPooling.NONE:
            return cur
        case GraphPooling.MEAN:
            return _mean(build, cur)
        case GraphPooling.CLS | GraphPooling.LAST:
            return ggml.get_rows(cur, build.input_cls())
        case GraphPooling.RANK:
            return _ranked(build, cur)


def _mean(build: Build, cur: GraphTensor) -> GraphTensor:
    return ggml.mul_mat(ggml.cont(ggml.transpose(cur)), build.input_mean())


def _ranked(build: Build, cur: GraphTensor) -> GraphTensor:
    """The classification head; its optional parts are used if the file has them."""
    default = _RANK_DEFAULTS.get(build.hparams.arch, -1)
    mean = build.hparams.whole("classifier.pooling_type", default) == GraphPooling.MEAN.value
    cur = _mean(build, cur) if mean else ggml.get_rows(cur, build.input_cls())
    if build.weight("cls") is not None:
        cur = ggml.unary(_product(build, "cls", cur))
        if (norm := build.weight("cls.norm")) is not None:
            cur = normalize(cur, norm, kind=Norm.LAYER)
    if build.weight("cls.output") is not None:
        cur = _product(build, "cls.output", cur)
    return ggml.soft_max(cur) if build.hparams.arch in _SOFT_MAX_RANK else cur


def _product(build: Build, name: str, cur: GraphTensor) -> GraphTensor:
    cur = ggml.mul_mat(build[name], cur)
    bias = build.tensor(f"{name}.bias")
    return cur if bias is None else ggml.add(cur, bias)


def _dense_out(build: Build, cur: GraphTensor) -> GraphTensor:
    """The embedding model's projections after pooling."""
    before = cur
    if build.weight("dense_2") is not None:
        cur = ggml.mul_mat(build["dense_2"], cur)
    if (bias := build.tensor("dense_2.bias")) is not None:
        cur = ggml.add(cur, bias)
    if build.weight("dense_3") is not None:
        cur = ggml.mul_mat(build["dense_3"], cur)
    if cur is not before:
        build.expand(cur)
    return cur
