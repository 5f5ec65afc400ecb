"""TABLE of quantisation mixes: which type llama.cpp gives each kind of tensor. To add one: one row.

The rules of llama_tensor_get_type_impl, src/llama-quant.cpp @ 0c1e570, as rows: of every kind the first case that holds
counts, and the mix's own type where none does. Compared with the engine's own choice for 48 models in tests/truth.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class TensorCategory(enum.Enum):
    """llama.cpp's categories of tensors. Fused queries, keys and values, and MLA's kv_b, count as values."""

    OUTPUT = "output"
    EMBEDDING = "token embedding"
    VALUE = "values"
    KEY = "keys"
    QUERY = "queries"
    ATTENTION_OUT = "attention output"
    UP = "up"
    GATE = "gate"
    DOWN = "down"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFacts:
    """What the rules ask about a model."""

    architecture: str  # as GGUF names it
    layers: int  # prediction blocks counted in
    experts: int = 0
    group: int = 1  # heads that share a KV head in layer 0; 0: it has none
    seventy: bool = False  # llama.cpp takes it for the 70B
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """Where a tensor stands among those of its kind."""

    index: int
    of: int
    model: MixFacts
    imatrix: bool = False


When = Callable[[TensorPlace], bool]
Cases = tuple[tuple[When, str], ...]


def always(_: TensorPlace) -> bool:
    return True


def grouped(place: TensorPlace) -> bool:
    return place.model.group >= 4


def grouped_or_routed(place: TensorPlace) -> bool:
    return place.model.group >= 4 or place.model.experts >= 4


def eight(place: TensorPlace) -> bool:
    """Mixtral: its attention is so small beside the experts that more bits cost nothing."""
    return place.model.experts == 8


def falcon(place: TensorPlace) -> bool:
    return place.model.architecture == "falcon"


def guided(place: TensorPlace) -> bool:
    """Made with an importance matrix."""
    return place.imatrix


def blind(place: TensorPlace) -> bool:
    return not place.imatrix


def more_bits(place: TensorPlace) -> bool:
    """The first and the last eighth, and every third between."""
    start = place.of // 8
    return place.index < start or place.index >= 7 * place.of // 8 or (place.index - start) % 3 == 2


def fewer_bits(place: TensorPlace) -> bool:
    return not more_bits(place)


def middle(place: TensorPlace) -> bool:
    return place.of // 8 <= place.index < 7 * place.of // 8


def before(count: int) -> When:
    return lambda place: place.index < count


def first(share: int) -> When:
    return lambda place: place.index < place.of // share


def both(*conditions: When) -> When:
    return lambda place: all(condition(place) for condition in conditions)


KEEP = ""  # the mix's own type


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRow:
    name: str
    base: str
    output: str = "Q6_K"
    embedding: str = KEEP
    value: Cases = ()
    key: Cases = ()
    query: Cases = ()
    out: Cases = ()
    down: Cases = ()
    gate_up: Cases = ()
    down_by_count: bool = False  # counts down matrices as they come, not by their layer
    needs_imatrix: bool = False  # llama-quantize refuses to make it without one
    raises_values: bool = True  # more bits for values of Mixtral and of the 70B

    def cases(self, kind: TensorCategory) -> Cases:
        found: Cases = getattr(self, _FIELDS[kind]) if kind in _FIELDS else ()
        return found


_FIELDS = {
    TensorCategory.VALUE: "value",
    TensorCategory.KEY: "key",
    TensorCategory.QUERY: "query",
    TensorCategory.ATTENTION_OUT: "out",
    TensorCategory.DOWN: "down",
    TensorCategory.GATE: "gate_up",
    TensorCategory.UP: "gate_up",
}
_KEY: Cases = ((eight, "Q8_0"),)
_OUT: Cases = ((falcon, KEEP), (eight, "Q5_K"))


def _mix(name: str, base: str = "", *, key: Cases = (), **more: Any) -> MixRow:
    return MixRow(name=name, base=base or name, key=_KEY + key, **more)


def _low(name: str, base: str, *, high: str, embedding: str, attention_out: str = KEEP) -> MixRow:
    """Below three bits: `high` for values and the first down matrices."""
    return MixRow(
        name=name,
        base=base,
        output="Q5_K",
        embedding=embedding,
        value=((grouped_or_routed, "Q4_K"), (always, high)),
        key=((eight, "Q4_K"),),
        out=((eight, "Q5_K"), (always, attention_out)),
        down=((first(8), high),),
        down_by_count=True,
        needs_imatrix=True,
        raises_values=False,
    )


TABLE: tuple[MixRow, ...] = (
    _mix("F32"),
    _mix("F16"),
    _mix("BF16"),
    _mix("Q8_0", output="Q8_0"),
    _mix("Q4_0", down=((both(guided, first(8)), "Q4_1"),)),
    _mix("Q5_0", down=((both(guided, first(8)), "Q5_1"),)),
    _mix("Q4_1"),
    _mix("Q5_1"),
    _mix("Q1_0"),
    _mix("Q2_0", embedding="Q4_K"),
    _mix("TQ1_0", embedding="Q4_K"),
    _mix("TQ2_0", embedding="Q4_K"),
    _mix(
        "Q2_K",
        value=((grouped, "Q4_K"), (always, "Q3_K")),
        down=((always, "Q3_K"),),
        out=(*_OUT, (always, "Q3_K")),
    ),
    _mix(
        "Q2_K_S",
        "Q2_K",
        value=((grouped, "Q4_K"),),
        down=((first(8), "Q4_K"),),
        needs_imatrix=True,
    ),
    _mix("Q3_K_S", "Q3_K", out=_OUT),
    _mix(
        "Q3_K_M",
        "Q3_K",
        value=((before(2), "Q5_K"), (always, "Q4_K")),
        down=(
            (first(16), "Q5_K"),
            (both(falcon, fewer_bits), KEEP),
            (always, "Q4_K"),
        ),
        out=(*_OUT, (always, "Q4_K")),
    ),
    _mix(
        "Q3_K_L",
        "Q3_K",
        value=((always, "Q5_K"),),
        down=((falcon, "Q4_K"), (always, "Q5_K")),
        out=((falcon, "Q4_K"), (eight, KEEP), (always, "Q5_K")),
    ),
    _mix(
        "Q4_K_S",
        "Q4_K",
        value=((before(4), "Q5_K"),),
        down=((falcon, KEEP), (first(8), "Q5_K")),
        out=_OUT,
    ),
    _mix(
        "Q4_K_M",
        "Q4_K",
        value=((more_bits, "Q6_K"),),
        down=(
            (both(falcon, first(16)), "Q6_K"),
            (both(falcon, more_bits), "Q5_K"),
            (falcon, KEEP),
            (more_bits, "Q6_K"),
        ),
        out=_OUT,
    ),
    _mix("Q5_K_S", "Q5_K"),
    _mix("Q5_K_M", "Q5_K", value=((more_bits, "Q6_K"),), down=((more_bits, "Q6_K"),)),
    _mix("Q6_K"),
    _low("IQ1_S", "IQ1_S", high="Q2_K", embedding="Q2_K", attention_out="IQ2_XXS"),
    _low("IQ1_M", "IQ1_M", high="Q2_K", embedding="Q2_K", attention_out="IQ2_XXS"),
    _low("IQ2_XXS", "IQ2_XXS", high="Q2_K", embedding="Q2_K"),
    _low("IQ2_XS", "IQ2_XS", high="Q2_K", embedding="Q2_K"),
    _low("IQ2_S", "IQ2_XS", high="IQ3_S", embedding="IQ3_S", attention_out="IQ3_S"),
    _low("IQ2_M", "IQ2_S", high="IQ3_S", embedding="IQ3_S", attention_out="IQ3_S"),
    _mix(
        "IQ3_XXS",
        output="Q5_K",
        embedding="IQ3_S",
        value=((grouped, "Q4_K"), (blind, "IQ3_S")),
        key=((always, "IQ2_S"),),
        query=((always, "IQ2_S"),),
        down=((both(blind, first(8)), "Q4_K"), (blind, "Q3_K")),
        out=(*_OUT, (always, "IQ3_S")),
        needs_imatrix=True,
    ),
    _mix(
        "IQ3_XS",
        "IQ3_S",
        value=((grouped, "Q4_K"),),
        key=((always, "IQ3_XXS"),),
        query=((always, "IQ3_XXS"),),
        gate_up=((middle, "IQ3_XXS"),),
        out=_OUT,
        needs_imatrix=True,
    ),
    _mix("IQ3_S", value=((grouped, "Q4_K"),), out=_OUT),
    _mix(
        "IQ3_M",
        "IQ3_S",
        value=((always, "Q4_K"),),
        down=((first(8), "Q4_K"), (both(eight, more_bits), "Q4_K")),
        out=(*_OUT, (always, "Q4_K")),
    ),
    _mix("IQ4_NL", value=((grouped, "Q5_K"),), down=((both(blind, first(8)), "Q5_K"),), out=_OUT),
    _mix("IQ4_XS", value=((grouped, "Q5_K"),), down=((both(blind, first(8)), "Q5_K"),), out=_OUT),
    MixRow(name="MXFP4_MOE", base="Q8_0", output="Q8_0", embedding="Q8_0", raises_values=False),
)

BY_NAME = {row.name: row for row in TABLE}

# Where a row's length is no multiple of the block: the type that stands in (tensor_type_fallback).
STAND_INS = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

# fmt: off
_TIME_MIX = ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2",
             "lerp_fused")
# fmt: on
# Parts of names whose tensors stay as they are (tensor_allows_quantization).
KEPT_PARTS = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(f"time_mix_{part}.weight" for part in _TIME_MIX),
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
)
KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})
