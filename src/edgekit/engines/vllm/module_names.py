"""The modules that a quantisation config lists, for example as not quantised -> roles of matrices by layer.

Configs contain whole names, parts of names, wildcards or regular expressions. Regular expressions from a file are never
executed: their syntax is stripped, and the rest is compared segment by segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgekit.engines.vllm.models import vllm_model
from edgekit.model.tensor_recipes import TensorRole

# fmt: off
LEAVES: Mapping[TensorRole, tuple[str, ...]] = {
    TensorRole.QUERY: ("self_attn.q_proj", "self_attn.qkv_proj", "mixer.q_proj"),
    TensorRole.KEY: ("self_attn.k_proj", "self_attn.qkv_proj", "mixer.k_proj"),
    TensorRole.VALUE: ("self_attn.v_proj", "self_attn.qkv_proj", "mixer.v_proj"),
    TensorRole.OUTPUT: ("self_attn.o_proj", "mixer.o_proj"),
    TensorRole.QUERY_DOWN: ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj"),
    TensorRole.QUERY_UP: ("self_attn.q_b_proj",),
    TensorRole.LATENT_DOWN: ("self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj"),
    TensorRole.LATENT_UP: ("self_attn.kv_b_proj",),
    TensorRole.INDEX_QUERY: ("self_attn.indexer.wq_b", "self_attn.indexer.q_proj"),
    TensorRole.INDEX_KEY: ("self_attn.indexer.wk", "self_attn.indexer.k_proj"),
    TensorRole.INDEX_WEIGHTS: ("self_attn.indexer.weights_proj",),
    TensorRole.GATE: ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
    TensorRole.UP: ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj", "mixer.up_proj"),
    TensorRole.DOWN: ("mlp.down_proj", "feed_forward.down_proj", "mixer.down_proj"),
    TensorRole.EXPERT_GATE: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts"),
    TensorRole.EXPERT_UP: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts"),
    TensorRole.EXPERT_DOWN: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts"),
    TensorRole.SHARED_GATE: ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj",
                             "feed_forward.shared_expert.gate_proj"),
    TensorRole.SHARED_UP: ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj",
                           "feed_forward.shared_expert.up_proj", "mixer.shared_experts.up_proj"),
    TensorRole.SHARED_DOWN: ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj",
                             "feed_forward.shared_expert.down_proj", "mixer.shared_experts.down_proj"),
    TensorRole.ROUTER: ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "feed_forward.router", "mixer.gate"),
    TensorRole.STATE_IN: ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "mamba.in_proj", "mixer.in_proj",
                          "conv.in_proj"),
    TensorRole.STATE_GATE: ("linear_attn.in_proj_z", "linear_attn.in_proj_qkvz"),
    TensorRole.STATE_BETA: ("linear_attn.in_proj_ba", "linear_attn.in_proj_b", "linear_attn.in_proj_a"),
    TensorRole.STATE_OUT: ("linear_attn.out_proj", "mamba.out_proj", "mixer.out_proj", "conv.out_proj"),
}
# fmt: on
_OUTSIDE_MLP = dict.fromkeys(
    (TensorRole.EXPERT_GATE, TensorRole.EXPERT_UP, TensorRole.EXPERT_DOWN), ("experts",)
)
MOST_PATTERNS = 20_000  # real lists have a few thousand: some modules of every layer


class ListedModules:
    def __init__(self, patterns: Sequence[str], architecture: str) -> None:
        outside = _OUTSIDE_MLP if vllm_model(architecture).experts_outside_mlp else {}
        leaves = {**LEAVES, **outside}
        self._roles: dict[int | None, set[TensorRole]] = {}
        known: dict[str, frozenset[TensorRole]] = {}
        for pattern in patterns[:MOST_PATTERNS]:
            layer, rest = _parse(pattern)
            if rest not in known:
                known[rest] = _covered(rest, leaves)
            self._roles.setdefault(layer, set()).update(known[rest])

    def covers(self, role: TensorRole, layer: int | None) -> bool:
        return any(role in self._roles.get(place, ()) for place in (None, layer))


def _covered(rest: str, leaves: Mapping[TensorRole, tuple[str, ...]]) -> frozenset[TensorRole]:
    """Roles whose module name has `rest` as whole segments."""
    inner = f".{rest}."
    return frozenset(
        role
        for role, names in leaves.items()
        if rest and any(inner in f".{name}." for name in names)
    )


def _parse(pattern: str) -> tuple[int | None, str]:
    """(layer, rest of the name): "model.layers.3.mlp.gate" is (3, "mlp.gate")."""
    text = pattern.removeprefix("re:").replace("\\", "").replace(".*", "*").replace("d+", "*")
    text = text.strip("^$*.()")
    _, found, after = text.rpartition("layers.")
    if not found:
        return None, text
    number, _, rest = after.partition(".")
    layer = int(number) if number.isdecimal() and len(number) < 6 else None
    return layer, rest.strip("*.")
