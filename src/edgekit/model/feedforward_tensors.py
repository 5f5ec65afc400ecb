"""The feed-forward half of one layer -> its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.model.tensor_family import Rows, TensorFamily, array, linear
from edgekit.model.tensor_roles import ExpectedTensor, TensorKind, TensorRole
from edgekit.model.types import Experts, FeedForward

_DENSE = (TensorRole.GATE, TensorRole.UP, TensorRole.DOWN)
_SHARED = (TensorRole.SHARED_GATE, TensorRole.SHARED_UP, TensorRole.SHARED_DOWN)


def dense(half: FeedForward, family: TensorFamily) -> Rows:
    yield from _half(_DENSE, half.width, family, gated=half.gated)
    if family.recipe.sub_norms:
        yield array(TensorRole.DOWN, TensorKind.NORM, half.width)
    for _ in range(family.recipe.activation):
        yield array(TensorRole.SCALE, TensorKind.RAW, 1)


def _half(
    roles: tuple[TensorRole, TensorRole, TensorRole],
    width: int,
    family: TensorFamily,
    *,
    gated: bool,
) -> Rows:
    gate, up, down = roles
    bias = family.says(family.recipe.ffn_bias)
    if gated:
        yield from linear(gate, width, family.hidden, bias=bias)
    yield from linear(up, width, family.hidden, bias=bias)
    yield from linear(down, family.hidden, width, bias=bias)


def experts(half: Experts, family: TensorFamily, *, layer: int) -> Rows:
    yield from _routed(half, family, layer)
    if family.recipe.picture_experts and (width := family.second("moe_intermediate_size")):
        count = family.second("moe_num_experts") or half.count
        pictures = replace(half, width=width, count=count, shared_width=0)
        yield from _routed(pictures, family, layer)


def _routed(half: Experts, family: TensorFamily, layer: int) -> Rows:
    yield from _router(half, family, layer)
    within = half.latent or family.hidden
    if half.latent:
        yield from linear(TensorRole.EXPERTS_IN, within, family.hidden)
        yield from linear(TensorRole.EXPERTS_OUT, family.hidden, within)
        said = family.says(family.recipe.latent_norms_said)
        for _ in range(family.recipe.latent_norms if said else 0):
            yield array(TensorRole.EXPERTS_IN, TensorKind.NORM, within)
    if half.gated:
        yield from _expert(TensorRole.EXPERT_GATE, half.width, within, half.count, family)
    yield from _expert(TensorRole.EXPERT_UP, half.width, within, half.count, family)
    yield from _expert(TensorRole.EXPERT_DOWN, within, half.width, half.count, family)
    if half.shared_width:
        yield from _half(_SHARED, half.shared_width, family, gated=half.gated)
        if family.says(family.recipe.shared_switch):
            yield from linear(TensorRole.SHARED_SWITCH, 1, family.hidden)
        if family.recipe.shared_mix:
            yield from linear(TensorRole.SHARED_SWITCH, 2, family.hidden, bias=True)
    if family.recipe.small_experts:
        yield from _small_experts(half, family)


def _small_experts(half: Experts, family: TensorFamily) -> Rows:
    width = family.number(family.recipe.small_experts, 128)  # conversion/grovemoe.py @ 0c1e570
    for role, shape in (
        (TensorRole.EXPERT_GATE, (width, family.hidden)),
        (TensorRole.EXPERT_UP, (width, family.hidden)),
        (TensorRole.EXPERT_DOWN, (family.hidden, width)),
    ):
        yield from _expert(role, *shape, half.count // 2, family)


def _router(half: Experts, family: TensorFamily, layer: int) -> Rows:
    recipe = family.recipe
    rows = half.count + family.number("zero_expert_num", 0)  # LongCat: experts that do nothing
    kind = TensorKind.RAW if recipe.router_is_raw else TensorKind.LINEAR
    yield array(TensorRole.ROUTER, kind, rows, family.hidden)
    if family.says(recipe.router_bias):
        yield array(TensorRole.ROUTER, TensorKind.BIAS, rows)
    if family.says(recipe.correction) and not chooses_by_token(family.section, layer):
        yield array(TensorRole.ROUTER, TensorKind.BIAS, rows)
    if recipe.router_scales:
        yield array(TensorRole.SCALE, TensorKind.RAW, family.hidden)
        yield array(TensorRole.SCALE, TensorKind.RAW, half.count)


def chooses_by_token(section: Mapping[str, Any], layer: int) -> bool:
    """DeepSeek-V4's first layers: by a hash of the token, listed or counted."""
    kinds, count = section.get("mlp_layer_types"), section.get("num_hash_layers")
    if isinstance(kinds, list):
        return layer < len(kinds) and kinds[layer] == "hash_moe"
    return isinstance(count, int) and layer < count


def _expert(role: TensorRole, out: int, into: int, count: int, family: TensorFamily) -> Rows:
    yield ExpectedTensor(role=role, kind=TensorKind.EXPERT, shape=(out, into), count=count)
    if family.says(family.recipe.expert_bias):
        yield ExpectedTensor(role=role, kind=TensorKind.BIAS, shape=(out,), count=count)
