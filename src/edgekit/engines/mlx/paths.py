"""TABLE of module paths in mlx-lm's models -> what their matrix is for. The first match counts."""

from __future__ import annotations

import re
from functools import lru_cache

from edgekit.model.tensor_recipes import TensorRole as R

# fmt: off
_TABLE: tuple[tuple[str, tuple[R, ...]], ...] = (
    (r"shared_?(experts?|mlp)\.gate_proj$", (R.SHARED_GATE,)),
    (r"shared_?(experts?|mlp)\.up_proj$", (R.SHARED_UP,)),
    (r"shared_?(experts?|mlp)\.down_proj$", (R.SHARED_DOWN,)),
    (r"(switch_mlp|switch_glu|experts)\.gate_proj$", (R.EXPERT_GATE,)),
    (r"(switch_mlp|switch_glu|experts)\.(up_proj|fc1)$", (R.EXPERT_UP,)),
    (r"(switch_mlp|switch_glu|experts)\.(down_proj|fc2)$", (R.EXPERT_DOWN,)),
    (r"shared_expert_gate$", (R.SHARED_SWITCH,)),
    (r"(mlp|moe|feed_forward)\.gate(\.gate|\.proj|\.gate_proj)?$|\brouter(\.\w+)?$|classifier$", (R.ROUTER,)),
    (r"embed_tokens_per_layer$", (R.LAYER_EMBEDDING,)),
    (r"embed_tokens$|word_embeddings$|tok_embeddings$|\bwte$|\bembeddings$|embed_in$", (R.EMBEDDING,)),
    (r"lm_head$|embed_out$|^output$", (R.HEAD,)),
    (r"linear_attn\.in_proj_qkvz$", (R.STATE_IN, R.STATE_GATE)),
    (r"linear_attn\.in_proj_(qkv|q|k|v)$|(mamba|mixer|conv)\.in_proj$", (R.STATE_IN,)),
    (r"linear_attn\.in_proj_z$", (R.STATE_GATE,)),
    (r"linear_attn\.in_proj_(ba|a|b)$", (R.STATE_BETA,)),
    (r"(linear_attn|mamba|mixer|conv)\.out_proj$", (R.STATE_OUT,)),
    (r"x_proj$", (R.STATE_X,)),
    (r"dt_proj$", (R.STATE_DT,)),
    (r"q_a_proj$", (R.QUERY_DOWN,)),
    (r"q_b_proj$", (R.QUERY_UP,)),
    (r"kv_a_proj_with_mqa$", (R.LATENT_DOWN,)),
    (r"kv_b_proj$|embed_q$|unembed_out$", (R.LATENT_UP,)),
    (r"qkv_proj$|query_key_value$|\bWqkv$|c_attn$", (R.QUERY, R.KEY, R.VALUE)),
    (r"q_proj$", (R.QUERY,)),
    (r"k_proj$", (R.KEY,)),
    (r"v_proj$", (R.VALUE,)),
    (r"o_proj$|attn\.(out_proj|dense)$", (R.OUTPUT,)),
    (r"gate_up_proj$", (R.GATE, R.UP)),
    (r"gate_proj$|\bw1$", (R.GATE,)),
    (r"up_proj$|\bw3$|c_fc$|fc1$", (R.UP,)),
    (r"down_proj$|\bw2$|c_proj$|fc2$", (R.DOWN,)),
)
# fmt: on
_RULES = tuple((re.compile(pattern), roles) for pattern, roles in _TABLE)
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.(\d{1,6})\b")


def module_of(path: str) -> tuple[int | None, tuple[R, ...]]:
    """The layer and the roles of the module at that path; no roles for a path that is not known."""
    found = _LAYER.search(path)
    tail = path[found.end() :] if found is not None else path
    return (int(found[1]) if found is not None else None), _roles(tail)


@lru_cache(maxsize=1024)
def _roles(tail: str) -> tuple[R, ...]:
    return next((roles for rule, roles in _RULES if rule.search(tail)), ())
