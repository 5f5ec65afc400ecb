"""Feed-forward layers, dense and with experts (build_ffn, build_moe_ffn of llama-graph.cpp)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.engines.llamacpp.graph import ggml
from edgekit.engines.llamacpp.graph.build import Build, GraphLayer
from edgekit.engines.llamacpp.graph.matrices import project_experts
from edgekit.engines.llamacpp.graph.tensor import GraphTensor
from edgekit.engines.llamacpp.versions import Rules


class Act(enum.Enum):
    """The activation between the two products; only its number of nodes matters to the allocator."""

    UNARY = "silu, gelu or relu, times up where there is a gate"
    SQUARED = "relu, then its square"
    FUSED = "gate and up are halves of one product"
    CLAMPED = "silu and up are clamped before they are multiplied"
    SITU = "two tanh and a sigmoid"


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
    cur = _activated(cur, tmp if has_gate and parallel else None, act)
    if scales is not None:
        cur = ggml.div(cur, scales)
    return _product(layer, down, cur) if down in layer else cur


def _product(layer: GraphLayer, name: str, cur: GraphTensor) -> GraphTensor:
    cur = ggml.mul_mat(layer[name], cur)
    if (bias := layer.bias(name)) is not None:
        cur = ggml.add(cur, bias)
    if (scale := layer.scale(name)) is not None:
        cur = ggml.mul(cur, scale)
    return cur


def _activated(cur: GraphTensor, up: GraphTensor | None, act: Act) -> GraphTensor:
    """`up` is None if the activation has no multiplicative gate."""
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


class Gating(enum.Enum):
    """llama_expert_gating_func_type; values are those of the key expert_gating_func."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_WEIGHT = 3
    SQRT_SOFTPLUS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How experts are selected and weighted."""

    gating: Gating = Gating.SOFTMAX
    norm_w: bool = True
    scaled: bool = False  # weights have a scale other than 0 and 1
    act: Act = Act.UNARY
    weight_before: bool = False  # llama4: weights multiply the input, not the output
    select_logits: bool = False  # llama4: experts are selected by logits
    groups: int = 0  # of experts, `groups_used` of which are selected first
    groups_used: int = 0
    precise: bool = False  # mistral4: the input of the down projection may overflow f16


def experts(
    build: Build,
    layer: GraphLayer,
    cur: GraphTensor,
    routing: Routing,
    *,
    probs_in: GraphTensor | None = None,
    selected: GraphTensor | None = None,
    suffix: str = "_exps",
) -> GraphTensor:
    """build_moe_ffn. `probs_in` and `selected`: logits and selected experts computed elsewhere."""
    used = layer.facts.n_expert_used
    tokens = cur.ne[1]
    probs, selection = _scores(layer, cur, routing, probs_in)
    if routing.groups > 1:
        selection = _best_groups(selection, routing)
    chosen = selected or ggml.argsort_top_k(selection, used)
    weights = _weights(probs, chosen, routing, used)
    build.expand(weights)
    cur = ggml.reshape(cur, cur.ne[0], 1, tokens)
    if routing.weight_before:
        cur = ggml.mul(ggml.repeat(cur, cur.ne[0], used, tokens, 1), weights)
    result = _run_experts(layer, cur, chosen, routing, suffix)
    if not routing.weight_before:
        result = ggml.mul(result, weights)
    build.expand(result)
    return _added_up(build, result, used)


def _scores(
    layer: GraphLayer, cur: GraphTensor, routing: Routing, probs_in: GraphTensor | None
) -> tuple[GraphTensor, GraphTensor]:
    """Router probabilities, and the scores that experts are selected by."""
    logits = ggml.mul_mat(layer["ffn_gate_inp"], cur) if probs_in is None else probs_in
    if (bias := layer.bias("ffn_gate_inp")) is not None:
        logits = ggml.add(logits, bias)
    probs = _gated(logits, routing.gating)
    selection = probs
    # Some loaders omit the suffix (hy-v3.cpp).
    if (bias := layer.bias("exp_probs_b") or layer.tensor("exp_probs_b")) is not None:
        selection = ggml.add(probs, bias)
    return probs, logits if routing.select_logits else selection


def _gated(logits: GraphTensor, gating: Gating) -> GraphTensor:
    match gating:
        case Gating.SOFTMAX:
            return ggml.soft_max(logits)
        case Gating.SIGMOID:
            return ggml.unary(logits)
        case Gating.SQRT_SOFTPLUS:
            return ggml.sqrt(ggml.unary(logits))
        case Gating.SOFTMAX_WEIGHT:
            return logits


def _best_groups(selection: GraphTensor, routing: Routing) -> GraphTensor:
    """Masks out the experts outside the best groups."""
    count, tokens = selection.ne[:2]
    groups = ggml.reshape(selection, count // routing.groups, routing.groups, tokens)
    best = ggml.argsort_top_k(groups, 2)
    scores = ggml.get_rows(ggml.reshape(groups, 1, *groups.ne[:3]), best)
    scores = ggml.sum_rows(ggml.reshape(scores, *scores.ne[1:]))
    scores = ggml.reshape(scores, scores.ne[1], scores.ne[2])
    chosen = ggml.argsort_top_k(scores, routing.groups_used)
    kept = ggml.get_rows(groups, chosen)
    masked = ggml.set_rows(ggml.fill(groups), kept, chosen)
    return ggml.reshape(masked, count, tokens)


def _weights(probs: GraphTensor, chosen: GraphTensor, routing: Routing, used: int) -> GraphTensor:
    count, tokens = probs.ne[0], probs.ne[1]
    weights = ggml.get_rows(ggml.reshape(probs, 1, count, tokens), chosen)
    if routing.gating is Gating.SOFTMAX_WEIGHT:
        weights = ggml.soft_max(ggml.reshape(weights, used, tokens))
        weights = ggml.reshape(weights, 1, used, tokens)
    if routing.norm_w:
        weights = ggml.reshape(weights, used, tokens)
        total = ggml.clamp(ggml.sum_rows(weights))
        weights = ggml.reshape(ggml.div(weights, total), 1, used, tokens)
    return ggml.scale(weights) if routing.scaled else weights


def _run_experts(
    layer: GraphLayer, cur: GraphTensor, chosen: GraphTensor, routing: Routing, suffix: str
) -> GraphTensor:
    both = f"ffn_gate_up{suffix}"
    if both in layer:
        halves = _expert(layer, both, cur, chosen, scale=layer.scale(f"ffn_up{suffix}"))
        width = halves.ne[0] // 2
        ne, strides = (width, *halves.ne[1:3]), halves.nb[1:3]
        gate: GraphTensor | None = ggml.view(halves, *ne, strides=strides)
        up = ggml.view(halves, *ne, strides=strides)
    else:
        up = _expert(layer, f"ffn_up{suffix}", cur, chosen)
        has_gate = f"ffn_gate{suffix}" in layer
        gate = _expert(layer, f"ffn_gate{suffix}", cur, chosen) if has_gate else None
    cur = _activated(up if gate is None else gate, None if gate is None else up, routing.act)
    cur = _expert(layer, f"ffn_down{suffix}", cur, chosen)
    if routing.precise:
        cur.name = PRECISE
    return cur


def _expert(
    layer: GraphLayer,
    name: str,
    cur: GraphTensor,
    chosen: GraphTensor,
    scale: GraphTensor | None = None,
) -> GraphTensor:
    cur = project_experts(layer[name], cur, chosen, scale=scale or layer.scale(name))
    bias = layer.bias(name)
    return cur if bias is None else ggml.add_id(cur, bias, chosen)


def _added_up(build: Build, result: GraphTensor, used: int) -> GraphTensor:
    """Sums the expert outputs. All views precede the sums in the graph."""
    width, tokens = result.ne[0], result.ne[2]
    views = [ggml.view(result, width, tokens, strides=(result.nb[2],)) for _ in range(used)]
    for view in views:
        build.expand(view)
    total = views[0]
    for view in views[1:]:
        total = ggml.add(total, view)
        if build.options.rules >= Rules.EXPERTS_FIRST:
            build.expand(total)
    return ggml.cont(total) if used == 1 else total


def shared_expert(layer: GraphLayer, cur: GraphTensor, *, act: Act = Act.UNARY) -> GraphTensor:
    return feed_forward(layer, cur, act=act, suffix="_shexp")
