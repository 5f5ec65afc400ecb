"""TABLE of what mlx-lm's model files make of their weights: ties, 8-bit routers, names that a recipe looks for.

A model without a row follows the plain rules: every matrix and embedding is packed alike, values are `v_proj`,
feed-forwards end in `down_proj`. Rows are `quant_predicate`, `cast_predicate`, `sanitize` and the module names of
mlx_lm/models/*.py, 0.32.2.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.model.tensor_recipes import TensorRole as R

_Roles = frozenset[R]


class Head(enum.Enum):
    """Whether the output head is the embedding."""

    AS_STATED = "as config.json says, else it is not"
    TIED_BY_DEFAULT = "as config.json says, else it is"
    TIED = "always"
    OWN = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxRules:
    head: Head = Head.AS_STATED
    eight_bit: _Roles = frozenset()  # 8 bits in groups of 64, whatever the rest has
    plain: _Roles = frozenset()  # never packed
    f32: _Roles = frozenset()  # vectors that are not cast
    values: _Roles = frozenset(
        {R.VALUE}
    )  # modules whose path contains v_proj, v_a_proj or v_b_proj
    downs: _Roles = frozenset({R.DOWN, R.EXPERT_DOWN, R.SHARED_DOWN})  # ... down_proj
    split_latent: bool = False  # kv_b_proj becomes embed_q and unembed_out
    raw_head: bool = False  # the output head is such an array
    raw_router: bool = False  # the router is an array of its own, no module: it is never packed
    shared_kv: bool = (
        True  # layers that read another's cache have keys and values of their own all the same
    )
    split_state: bool = (
        False  # queries, keys and values into the recurrence are modules of their own
    )
    ternary: bool = False  # BitLinear: two bits a weight, never packed otherwise


PLAIN = MlxRules()
_ROUTER: _Roles = frozenset({R.ROUTER})
_SWITCHED: _Roles = frozenset({R.ROUTER, R.SHARED_SWITCH})
_QKV: _Roles = frozenset({R.QUERY, R.KEY, R.VALUE})
_NONE: _Roles = frozenset()
_LATENT_DOWN: _Roles = frozenset({R.LATENT_DOWN})

_Row = tuple[str, Mapping[str, Any]]


def _row(names: str, **facts: Any) -> _Row:
    return names, facts


# fmt: off
# One aspect a row; a model may stand in several.
_ROWS: tuple[_Row, ...] = (
    _row("cohere cohere2 gemma gemma2 gemma3 gemma3_text gemma3n gpt2 lfm2 lfm2-vl lfm2_moe phi3small "
         "recurrent_gemma afm7",
         head=Head.TIED),
    _row("talkie", head=Head.OWN, raw_head=True),
    _row("dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 glm4 glm_moe_dsa gpt_neox gpt_oss gptj kimi_k25 "
         "kimi_vl helium mimo_v2_flash nanochat nemotron_h phi phimoe phixtral plamo qwen stablelm Klear "
         "longcat_flash longcat_flash_ngram",
         head=Head.OWN),
    _row("bitnet exaone falcon_h1 gemma4_text gear glm gpt_bigcode granite granitemoe granitemoehybrid jamba "
         "lille-130m llama mamba ministral3 olmo2 olmoe openelm plamo2 plamo3 qwen2 qwen2_vl seed_oss smollm3 "
         "spark2_5 starcoder2 youtu_llm",
         head=Head.TIED_BY_DEFAULT),
    _row("Klear afmoe bailing_hybrid bailing_moe bailing_moe_linear gemma4 gemma4_text gpt_oss granitemoehybrid "
         "jamba kimi_k3 kimi_linear laguna lfm2_moe longcat_flash longcat_flash_ngram mellum minimax minimax_m3_vl "
         "qwen3_moe qwen3_vl_moe step3p5",
         eight_bit=_ROUTER),
    _row("qwen3_next qwen3_5 qwen3_5_moe", eight_bit=_SWITCHED),
    _row("granite", eight_bit=frozenset({R.OUTPUT, R.DOWN, R.HEAD})),
    _row("granitemoe", eight_bit=frozenset({R.ROUTER, R.OUTPUT, R.EXPERT_DOWN, R.HEAD})),
    _row("spark2_5", plain=frozenset({R.ATTENTION_GATE})),
    _row("rwkv7", eight_bit=frozenset({R.EMBEDDING, R.STATE_LOW_OUT})),
    _row("bailing_hybrid", split_latent=True, plain=frozenset({R.LATENT_UP}), values=_LATENT_DOWN),
    _row("bailing_moe_v3",
         split_latent=True, split_state=True, values=frozenset({R.VALUE, R.LATENT_DOWN}),
         plain=frozenset({R.EMBEDDING, R.HEAD, R.QUERY, R.QUERY_DOWN, R.QUERY_UP, R.LATENT_DOWN, R.LATENT_UP,
                          R.ATTENTION_GATE, R.STATE_BETA})),
    _row("Klear afmoe bailing_hybrid bailing_moe bailing_moe_linear deepseek_v3 deepseek_v32 exaone_moe glm4_moe "
         "glm4_moe_lite glm_moe_dsa kimi_k25 kimi_vl laguna lfm2_moe longcat_flash longcat_flash_ngram mimo_v2_flash "
         "minimax minimax_m3_vl step3p5",
         f32=_ROUTER),
    _row("qwen3_5 qwen3_5_moe", f32=frozenset({R.STATE_A})),
    _row("nemotron_h", f32=frozenset({R.STATE_A, R.ROUTER})),
    _row("kimi_linear kimi_k3", f32=frozenset({R.STATE_A, R.STATE_DT, R.ROUTER})),
    _row("deepseek_v3 deepseek_v32 glm_moe_dsa glm4_moe_lite kimi_k25 kimi_vl longcat_flash "
         "longcat_flash_ngram mistral4",
         split_latent=True, values=_LATENT_DOWN),
    _row("kimi_linear", split_latent=True, values=frozenset({R.VALUE, R.LATENT_DOWN})),
    _row("kimi_k3",  # qkv_proj, routed_expert_down_proj
         split_latent=True, values=frozenset({R.STATE_IN, R.LATENT_DOWN}),
         downs=frozenset({R.DOWN, R.EXPERT_DOWN, R.SHARED_DOWN, R.EXPERTS_IN})),
    _row("deepseek_v2 minicpm3 youtu_llm", values=frozenset({R.LATENT_DOWN, R.LATENT_UP})),
    _row("bailing_moe_v3 deepseek deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone_moe glm4_moe glm4_moe_lite "
         "glm_moe_dsa kimi_k25 kimi_vl mimo_v2_flash nemotron_h solar_open",
         raw_router=True),
    _row("hunyuan gemma4 gemma4_text", shared_kv=False),
    _row("kimi_linear olmo_hybrid", split_state=True),
    _row("bitnet", ternary=True),
    _row("phi3 lille-130m plamo2 plamo3 spark2_5", values=_QKV),
    _row("phi3small bailing_moe bailing_moe_linear baichuan_m1", values=_NONE),
    _row("nemotron_h", downs=frozenset({R.DOWN, R.SHARED_DOWN})),
    _row("granitemoehybrid", downs=frozenset({R.EXPERT_DOWN, R.DOWN})),
    _row("dbrx exaone gpt2 gpt_bigcode gpt_neox gptj internlm2 lfm2 lfm2-vl mamba mamba2 nanochat openelm phi "
         "phixtral qwen rwkv7 starcoder2 talkie",
         downs=_NONE),
)
# fmt: on


def _collected() -> dict[str, MlxRules]:
    found: dict[str, dict[str, Any]] = {}
    for names, aspect in _ROWS:
        for name in names.split():
            found.setdefault(name, {}).update(aspect)
    return {name: MlxRules(**aspects) for name, aspects in found.items()}


TABLE: Mapping[str, MlxRules] = _collected()


def rules_of(name: str) -> MlxRules:
    return TABLE.get(name, PLAIN)
