"""The layers that architectures share, except attention: projections, norms, Q, K and V, feed-forwards, outputs.

llama-graph.cpp @ 0c1e570: build_lora_mm, build_norm, build_qkv, build_ffn, build_moe_ffn and build_pooling.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Act, Build, Gating, GraphLayer, Routing
from edgekit.engines.llamacpp.graph.tensor import F32, GraphTensor, row_bytes
from edgekit.engines.llamacpp.types import Rules
from edgekit.errors import RefusedError


class Norm(enum.Enum):
    LAYER = "LLM_NORM"
    RMS = "LLM_NORM_RMS"


def project(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    """build_lora_mm with the weight's scale."""
    cur = ggml.mul_mat(layer[name], cur)
    return cur if (scale := layer.scale(name)) is None else ggml.mul(cur, scale)


def project_biased(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    cur = project(layer, name, cur)
    return cur if (bias := layer.bias(name)) is None else ggml.add(cur, bias)


def normalize(
    cur: GraphTensor,
    weight: GraphTensor | None,
    bias: GraphTensor | None = None,
    *,
    kind: Norm = Norm.RMS,
) -> GraphTensor:
    """build_norm: an RMS or layer norm, times the weight, plus the bias."""
    cur = ggml.norm(cur) if kind is Norm.LAYER else ggml.rms_norm(cur)
    if weight is not None:
        cur = ggml.mul(cur, weight)
    return cur if bias is None else ggml.add(cur, bias)


def hadamard(build: Build, cur: GraphTensor, rotation: GraphTensor) -> GraphTensor:
    """Rotates rows in pieces of the matrix's width."""
    width = rotation.ne[0]
    is_contiguous = build.graph.is_contiguous(cur)
    if not is_contiguous and build.options.rules < Rules.ROTATION_OF_VIEWS:
        raise RefusedError(
            "llama.cpp aborts: builds before b9027 cannot use a quantised cache with fused matrices"
        )
    flatten = ggml.reshape if is_contiguous else ggml.cont
    flat = flatten(cur, width, cur.elements // width)
    return ggml.reshape(ggml.mul_mat(rotation, flat), *cur.ne)


QKV = tuple[GraphTensor, GraphTensor, GraphTensor]


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


def split_heads(layer: GraphLayer, qkv: QKV, heads: Heads | None = None) -> QKV:
    """Reshapes Q, K and V from [width x heads, tokens] to [width, heads, tokens]."""
    q, k, v = (
        ggml.reshape(side, *shape, layer.build.n_tokens)
        for side, shape in zip(qkv, heads or Heads.of(layer), strict=True)
    )
    return q, k, v


def qkv(
    layer: GraphLayer, cur: GraphTensor, *, heads: Heads | None = None, flat: bool = False
) -> QKV:
    """Q, K and V as [width, heads, tokens]; `flat` (reshape = false): as [width x heads, tokens]."""
    heads, tokens = heads or Heads.of(layer), layer.build.n_tokens
    clamped = not flat and layer.hparams.real("attention.clamp_kqv") > 0
    if "attn_qkv" not in layer:
        q, k, v = (project_biased(layer, f"attn_{side}", cur) for side in "qkv")
        if clamped:
            q, k, v = ggml.clamp(q), ggml.clamp(k), ggml.clamp(v)
        return (q, k, v) if flat else split_heads(layer, (q, k, v), heads)
    cur = project_biased(layer, "attn_qkv", cur)
    biases = [bias for side in "qkv" if (bias := layer.bias(f"attn_{side}")) is not None]
    if layer.bias("attn_qkv") is None and len(biases) == 3:
        cur = ggml.add(cur, ggml.concat(ggml.concat(biases[0], biases[1], 0), biases[2], 0))
    if clamped:
        cur = ggml.clamp(cur)
    sides: list[GraphTensor] = []
    for width, count in heads:
        if flat:
            side = ggml.view(cur, width * count, tokens, strides=(cur.nb[1],))
            sides.append(ggml.cont(side))
        else:
            strides = (row_bytes(cur.type, width), cur.nb[1])
            sides.append(ggml.view(cur, width, count, tokens, strides=strides))
    q, k, v = sides
    return q, k, v


def feed_forward(
    layer: GraphLayer,
    cur: GraphTensor,
    *,
    act: Act = Act.UNARY,
    suffix: str = "",
    parallel: bool = True,
    scales: GraphTensor | None = None,
    gated: bool = True,
) -> GraphTensor:
    """build_ffn with the tensors ffn_{up,gate,down}SUFFIX, with the biases and scales that the file has.

    `parallel` (LLM_FFN_PAR): the gate reads the input of up; otherwise its output. `scales`: act_scales.
    """
    up, gate, down = (f"ffn_{name}{suffix}" for name in ("up", "gate", "down"))
    tmp = _product(layer, up, cur) if up in layer else cur
    has_gate = gated and gate in layer
    cur = _product(layer, gate, cur if parallel else tmp) if has_gate else tmp
    cur = _activate(cur, tmp if has_gate and parallel else None, act)
    if scales is not None:
        cur = ggml.div(cur, scales)
    return _product(layer, down, cur) if down in layer else cur


def _product(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    """Multiplies by a weight, then adds its bias, then applies its scale, if the file has them."""
    cur = ggml.mul_mat(layer[name], cur)
    if (bias := layer.bias(name)) is not None:
        cur = ggml.add(cur, bias)
    if (scale := layer.scale(name)) is not None:
        cur = ggml.mul(cur, scale)
    return cur


def _activate(cur: GraphTensor, up: GraphTensor | None, act: Act) -> GraphTensor:
    """The activation of `cur`, times `up` if there is a multiplicative gate."""
    if act is Act.FUSED:
        return ggml.glu(cur)
    if act is Act.SQUARED:
        cur = ggml.sqr(ggml.unary(cur))
        return cur if up is None else ggml.mul(cur, up)
    if up is None:
        return ggml.unary(cur)
    if act is Act.CLAMPED:
        up = ggml.clamp(up)
        return ggml.mul(ggml.clamp(ggml.unary(cur)), up)
    if act is Act.SITU:
        gate = ggml.mul(ggml.scale(ggml.unary(ggml.scale(cur))), ggml.unary(cur))
        return ggml.mul(gate, ggml.scale(ggml.unary(ggml.scale(up))))
    return ggml.glu(cur, up)


PRECISE = "precise"  # a product that CUDA does not support (ggml_prec_set_src)


def experts(
    layer: GraphLayer,
    cur: GraphTensor,
    *,
    routing: Routing | None = None,
    probs_in: GraphTensor | None = None,
    selected: GraphTensor | None = None,
    suffix: str = "_exps",
) -> GraphTensor:
    """build_moe_ffn: the weighted sum of the selected experts' outputs. `routing`: if not that of all layers.

    `probs_in` and `selected`: logits and selected experts, if computed elsewhere.
    """
    build, used, tokens = layer.build, layer.facts.n_expert_used, cur.ne[1]
    routing = routing or layer.inputs.routing
    logits = ggml.mul_mat(layer["ffn_gate_inp"], cur) if probs_in is None else probs_in
    if (bias := layer.bias("ffn_gate_inp")) is not None:
        logits = ggml.add(logits, bias)
    match routing.gating:
        case Gating.SOFTMAX:
            probs = ggml.soft_max(logits)
        case Gating.SIGMOID:
            probs = ggml.unary(logits)
        case Gating.SQRT_SOFTPLUS:
            probs = ggml.sqrt(ggml.unary(logits))
        case Gating.SOFTMAX_WEIGHT:
            probs = logits
    selection = logits if routing.select_logits else probs
    # Some loaders omit the suffix (hy-v3.cpp).
    bias = layer.bias("exp_probs_b") or layer.tensor("exp_probs_b")
    if bias is not None and not routing.select_logits:
        selection = ggml.add(probs, bias)
    if routing.groups > 1:
        selection = _best_groups(selection, routing)
    ids = selected or ggml.argsort_top_k(selection, used)

    weights = ggml.get_rows(ggml.reshape(probs, 1, *probs.ne[:2]), ids)
    if routing.gating is Gating.SOFTMAX_WEIGHT:
        weights = ggml.soft_max(ggml.reshape(weights, used, tokens))
        weights = ggml.reshape(weights, 1, used, tokens)
    if routing.norm_w:
        weights = ggml.reshape(weights, used, tokens)
        total = ggml.clamp(ggml.sum_rows(weights))
        weights = ggml.reshape(ggml.div(weights, total), 1, used, tokens)
    if routing.scaled:
        weights = ggml.scale(weights)
    build.expand(weights)

    cur = ggml.reshape(cur, cur.ne[0], 1, tokens)
    if routing.weight_before:
        cur = ggml.mul(ggml.repeat(cur, cur.ne[0], used, tokens, 1), weights)
    result = _run_experts(layer, cur, ids, routing, suffix)
    if not routing.weight_before:
        result = ggml.mul(result, weights)
    build.expand(result)
    # All views precede the sums in the graph.
    views = [ggml.view(result, result.ne[0], tokens, strides=(result.nb[2],)) for _ in range(used)]
    for view in views:
        build.expand(view)
    result = views[0]
    for view in views[1:]:
        result = ggml.add(result, view)
        if build.options.rules >= Rules.EXPERTS_FIRST:
            build.expand(result)
    return ggml.cont(result) if used == 1 else result


def _best_groups(selection: GraphTensor, routing: Routing) -> GraphTensor:
    """Masks out the experts outside the best groups."""
    count, tokens = selection.ne[:2]
    groups = ggml.reshape(selection, count // routing.groups, routing.groups, tokens)
    best = ggml.argsort_top_k(groups, 2)
    scores = ggml.get_rows(ggml.reshape(groups, 1, *groups.ne[:3]), best)
    scores = ggml.sum_rows(ggml.reshape(scores, *scores.ne[1:]))
    scores = ggml.reshape(scores, scores.ne[1], scores.ne[2])
    ids = ggml.argsort_top_k(scores, routing.groups_used)
    masked = ggml.set_rows(ggml.fill(groups), ggml.get_rows(groups, ids), ids)
    return ggml.reshape(masked, count, tokens)


def _run_experts(
    layer: GraphLayer, cur: GraphTensor, ids: GraphTensor, routing: Routing, suffix: str
) -> GraphTensor:
    """The outputs of the selected experts, whose gate and up may be one matrix."""
    fused_name = f"ffn_gate_up{suffix}"
    if fused_name in layer:
        halves = _expert(layer, fused_name, cur, ids, scale=layer.scale(f"ffn_up{suffix}"))
        width = halves.ne[0] // 2
        ne, strides = (width, *halves.ne[1:3]), halves.nb[1:3]
        gate: GraphTensor | None = ggml.view(halves, *ne, strides=strides)
        up = ggml.view(halves, *ne, strides=strides)
    else:
        up = _expert(layer, f"ffn_up{suffix}", cur, ids)
        has_gate = f"ffn_gate{suffix}" in layer
        gate = _expert(layer, f"ffn_gate{suffix}", cur, ids) if has_gate else None
    cur = _activate(up if gate is None else gate, None if gate is None else up, routing.act)
    cur = _expert(layer, f"ffn_down{suffix}", cur, ids)
    if routing.precise:
        cur.name = PRECISE
    return cur


def _expert(
    layer: GraphLayer,
    name: str,
    cur: GraphTensor,
    ids: GraphTensor,
    scale: GraphTensor | None = None,
) -> GraphTensor:
    """Multiplies by the matrices of the selected experts (build_lora_mm_id), with their scales and biases."""
    result = ggml.mul_mat_id(layer[name], cur, ids)
    scale = scale or layer.scale(name)
    if scale is not None:
        count = scale.ne[0]
        scales = ggml.repeat(ggml.reshape(scale, 1, count, 1), 1, count, cur.ne[2], 1)
        result = ggml.mul(result, ggml.get_rows(scales, ids))
    bias = layer.bias(name)
    return result if bias is None else ggml.add_id(result, bias, ids)


def shared_expert(layer: GraphLayer, cur: GraphTensor, *, act: Act = Act.UNARY) -> GraphTensor:
    return feed_forward(layer, cur, act=act, suffix="_shexp")


def logits(build: Build, cur: GraphTensor) -> GraphTensor:
    """Logits. Without an output matrix, the token embedding is used."""
    cur = ggml.mul_mat(build.weight("output") or build["token_embd"], cur)
    scale = build.tensor("output.scale")
    return cur if scale is None else ggml.mul(cur, scale)


def results(
    build: Build,
    embd: GraphTensor,
    *,
    scaled_embd: bool = False,
    bias: GraphTensor | None = None,
    scale: bool = False,
    softcap: bool = False,
) -> None:
    """Marks the embeddings (t_embd) as an output, and computes the logits (t_logits)."""
    build.output_embd(embd)
    cur = logits(build, ggml.scale(embd) if scaled_embd else embd)
    if bias is not None:
        cur = ggml.add(cur, bias)
    if scale:
        cur = ggml.scale(cur)
    if softcap:
        cur = ggml.scale(ggml.unary(ggml.scale(cur)))
    build.output(cur)
    build.expand(cur)


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
    """Pools the hidden states to one embedding per sequence (build_pooling, build_dense_out)."""
    cur = build.embd
    if not build.options.embeddings or cur is None:
        return
    match GraphPooling(build.hparams.integer("pooling_type", 0)):
        case GraphPooling.MEAN:
            cur = _mean(build, cur)
        case GraphPooling.CLS | GraphPooling.LAST:
            cur = ggml.get_rows(cur, build.input_cls())
        case GraphPooling.RANK:
            cur = _rank(build, cur)
    build.expand(cur)
    if (matrix := build.weight("dense_2")) is not None:
        cur = ggml.mul_mat(matrix, cur)
    if (bias := build.tensor("dense_2.bias")) is not None:
        cur = ggml.add(cur, bias)
    if (matrix := build.weight("dense_3")) is not None:
        cur = ggml.mul_mat(matrix, cur)
    build.expand(cur)
    build.output(cur)


def _mean(build: Build, cur: GraphTensor) -> GraphTensor:
    weights = ggml.graph_input(F32, build.n_tokens, build.sizes.n_seqs, name="mean")
    return ggml.mul_mat(ggml.cont(ggml.transpose(cur)), weights)


def _rank(build: Build, cur: GraphTensor) -> GraphTensor:
    """The classification head, with the optional parts that the file has."""
    default = _RANK_DEFAULTS.get(build.hparams.arch, -1)
    mean = build.hparams.integer("classifier.pooling_type", default) == GraphPooling.MEAN.value
    cur = _mean(build, cur) if mean else ggml.get_rows(cur, build.input_cls())
    if build.weight("cls") is not None:
        cur = ggml.unary(_linear(build, "cls", cur))
        if (norm := build.weight("cls.norm")) is not None:
            cur = normalize(cur, norm, kind=Norm.LAYER)
    if build.weight("cls.output") is not None:
        cur = _linear(build, "cls.output", cur)
    return ggml.soft_max(cur) if build.hparams.arch in _SOFT_MAX_RANK else cur


def _linear(build: Build, name: str, cur: GraphTensor) -> GraphTensor:
    """A product with a weight outside the layers, plus its bias."""
    cur = ggml.mul_mat(build[name], cur)
    bias = build.tensor(f"{name}.bias")
    return cur if bias is None else ggml.add(cur, bias)
