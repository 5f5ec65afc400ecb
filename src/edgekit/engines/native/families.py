"""The families of models that the built-in engine runs: one row each.

Which tensors a family has, which of them it may lack, and what its graph does with them:
src/models/{bert,nomic-bert,jina-bert-v2,qwen2,qwen3,llama,gemma3}.cpp and llama-model.cpp
(create_tensor_qkv, llama_model_rope_type), llama.cpp @ b21e4de. Two things are ours: GELU is the
exact one that these models were trained with (ggml has its tanh form, in half precision), and a
tensor that no row names is refused where ggml would load and not use it.
"""

from __future__ import annotations

from dataclasses import replace

from edgekit.engines.native.types import (
    Activation,
    ModelUse,
    NativeFamily,
    NativeNorm,
    Need,
    Position,
    TensorRule,
)
from edgekit.errors import UnknownArchitectureError
from edgekit.terminal import quoted


def _rules(need: Need, **shapes: tuple[str, ...]) -> tuple[TensorRule, ...]:
    """attn_q__weight=("query", "width") -> a rule for attn_q.weight."""
    return tuple(
        TensorRule(name=name.replace("__", "."), shape=shape, need=need)
        for name, shape in shapes.items()
    )


_SCORES = _rules(  # for a ranking: neither for vectors nor for tokens
    Need.UNUSED,
    cls__weight=(),
    cls__bias=(),
    cls__output__weight=(),
    cls__output__bias=(),
)
_HEAD = _rules(  # for tokens; where it is missing, the embedding serves
    Need.MAY, output__weight=("vocabulary", "width"), output__bias=("vocabulary",)
)
_QKV = _rules(
    Need.MAY,  # either the three or the one: see tensors.py
    attn_q__weight=("query", "width"),
    attn_k__weight=("key", "width"),
    attn_v__weight=("key", "width"),
    attn_qkv__weight=("qkv", "width"),
    attn_q__bias=("query",),
    attn_k__bias=("key",),
    attn_v__bias=("key",),
    attn_qkv__bias=("qkv",),
)
_ATTENTION_OUT = _rules(Need.YES, attn_output__weight=("width", "query"))
_ATTENTION_OUT_BIAS = _rules(Need.MAY, attn_output__bias=("width",))
_UP_DOWN = _rules(Need.YES, ffn_up__weight=("inner", "width"), ffn_down__weight=("width", "inner"))
_UP_DOWN_BIAS = _rules(Need.MAY, ffn_up__bias=("inner",), ffn_down__bias=("width",))
_GATE = _rules(Need.YES, ffn_gate__weight=("inner", "width"))

# --- norm after the sum: BERT and its children
_BERT_OUTSIDE = (
    *_rules(
        Need.YES,
        token_embd__weight=("vocabulary", "width"),
        token_embd_norm__weight=("width",),
        token_embd_norm__bias=("width",),
    ),
    *_SCORES,
)
_TOKEN_TYPES = _rules(Need.MAY, token_types__weight=("types", "width"))
_BERT_LAYER = (
    *_QKV,
    *_ATTENTION_OUT,
    *_ATTENTION_OUT_BIAS,
    *_rules(
        Need.YES,
        attn_output_norm__weight=("width",),
        attn_output_norm__bias=("width",),
        layer_output_norm__weight=("width",),
        layer_output_norm__bias=("width",),
    ),
)
_JINA_MAY = _rules(
    Need.MAY,
    attn_q_norm__weight=("query",),
    attn_q_norm__bias=("query",),
    attn_k_norm__weight=("key",),
    attn_k_norm__bias=("key",),
    attn_norm_2__weight=("width",),
    attn_norm_2__bias=("width",),
    ffn_gate__weight=("inner", "width"),
    ffn_up__bias=("up",),
)

# --- norm before: decoders
_DECODER_OUTSIDE = (
    *_rules(Need.YES, token_embd__weight=("vocabulary", "width"), output_norm__weight=("width",)),
    *_SCORES,
)
_DECODER_LAYER = (
    *_rules(Need.YES, attn_norm__weight=("width",), ffn_norm__weight=("width",)),
    *_QKV,
    *_ATTENTION_OUT,
    *_GATE,
    *_UP_DOWN,
)
_HEAD_NORMS = _rules(Need.YES, attn_q_norm__weight=("head",), attn_k_norm__weight=("head",))
_POST_NORMS = _rules(  # of what attention and feed-forward add
    Need.YES, post_attention_norm__weight=("width",), post_ffw_norm__weight=("width",)
)


def _bert(
    architecture: str,
    position: Position,
    activation: Activation,
    *,
    outside: tuple[TensorRule, ...],
    layer: tuple[TensorRule, ...],
) -> NativeFamily:
    return NativeFamily(
        architecture=architecture,
        position=position,
        norm=NativeNorm.LAYER,
        norm_first=False,
        activation=activation,
        causal=False,
        outside=(*_BERT_OUTSIDE, *outside),
        layer=(*_BERT_LAYER, *layer),
        head=_HEAD,
    )


def _decoder(
    architecture: str,
    position: Position,
    *,
    outside: tuple[TensorRule, ...] = (),
    layer: tuple[TensorRule, ...] = (),
) -> NativeFamily:
    return NativeFamily(
        architecture=architecture,
        position=position,
        norm=NativeNorm.RMS,
        norm_first=True,
        activation=Activation.SILU,
        causal=True,
        outside=(*_DECODER_OUTSIDE, *outside),
        layer=(*_DECODER_LAYER, *layer),
        head=_HEAD,
        uses=frozenset({ModelUse.EMBED, ModelUse.GENERATE}),
    )


FAMILIES: tuple[NativeFamily, ...] = (
    _bert(
        "bert",
        Position.LEARNED,
        Activation.GELU,
        outside=(*_TOKEN_TYPES, *_rules(Need.YES, position_embd__weight=("context", "width"))),
        layer=(*_UP_DOWN, *_UP_DOWN_BIAS),
    ),
    _bert(
        "nomic-bert",
        Position.ROPE_NEOX,
        Activation.SILU,
        outside=_TOKEN_TYPES,
        layer=(*_UP_DOWN, *_GATE),
    ),
    _bert(
        "jina-bert-v2",
        Position.ALIBI,
        Activation.GELU,
        outside=_rules(Need.YES, token_types__weight=("types", "width")),
        layer=(
            *_JINA_MAY,
            *_rules(
                Need.YES,
                ffn_up__weight=("up", "width"),
                ffn_down__weight=("width", "inner"),
                ffn_down__bias=("width",),
            ),
        ),
    ),
    _decoder("qwen2", Position.ROPE_NEOX),
    _decoder(
        "qwen3",
        Position.ROPE_NEOX,
        layer=_HEAD_NORMS,
    ),
    _decoder(
        "llama",  # and Mistral: its files say llama
        Position.ROPE_NORM,
        outside=_rules(Need.MAY, rope_freqs__weight=("pairs",)),
        layer=(
            *_ATTENTION_OUT_BIAS,
            *_UP_DOWN_BIAS,
            *_rules(Need.MAY, ffn_gate__bias=("inner",)),
        ),
    ),
    replace(
        _decoder("gemma3", Position.ROPE_NEOX, layer=(*_HEAD_NORMS, *_POST_NORMS)),
        activation=Activation.GELU_TANH,
        uses=frozenset({ModelUse.GENERATE}),
        window_period=6,
        scales_tokens=True,
        shared_scale_layers=62,  # the 27B
    ),
)


def families_for(use: ModelUse) -> tuple[str, ...]:
    """Their architectures."""
    return tuple(family.architecture for family in FAMILIES if use in family.uses)


def family_of(architecture: object, use: ModelUse = ModelUse.EMBED) -> NativeFamily:
    for family in FAMILIES:
        if family.architecture == architecture and use in family.uses:
            return family
    raise UnknownArchitectureError(
        f"architecture {quoted(architecture)} is not supported by {use.engine}, which "
        f"{('knows' if use is ModelUse.EMBED else 'generates with')} "
        f"{', '.join(families_for(use))}: use engine llama.cpp, or add a row to "
        "engines/native/families.py"
    )
