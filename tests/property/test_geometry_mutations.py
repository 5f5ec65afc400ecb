"""Any config.json or GGUF has a geometry, for which laws hold, or raises an EdgekitError."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded import config_header, gguf_header, models, rows
from tests.thoroughness import LONG

from edgekit.errors import EdgekitError
from edgekit.model import not_a_language_model, read_geometry
from edgekit.model.architectures import names
from edgekit.model.hyperparameters import SPELLINGS
from edgekit.model.inspect import count_parameters
from edgekit.model.types import ModelGeometry

RECORDED = tuple({r["model"]: r["config"] for r in rows("mlx.jsonl.gz")}.values())
PLAIN = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 128, "vocab_size": 9,
         "conv_kernel": 4, "state_size": 8, "sliding_window": 16}  # fmt: skip
CONFIGS = (*RECORDED, *({**PLAIN, "model_type": name} for name in sorted(names(gguf=False))))
KEYS = tuple({m["model"]: m["hyper_parameters"] for m in models()}.values())
CONFIG_KEYS = sorted(
    {s.split(".")[0] for key in SPELLINGS.values() for s in key.config}
    | {"model_type", "text_config"}
)

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, 0.5, -1]),
    st.integers(0, 300),
    st.floats(),
    st.booleans(),
    st.none(),
)
inner_keys = st.text(max_size=8) | st.sampled_from(
    ["attention", "ffn", "n_heads_in_group", "no_op", "ffn_mult", "intermediate_size", "factor", "type", "rope_type",
     "original_max_position_embeddings", "full_attention", "head_dim", "num_heads", "full_attn_layers", "kv_n_heads"]
)  # fmt: skip
values = st.recursive(
    st.one_of(
        numbers, st.text(max_size=8), st.sampled_from(["mamba", "full_attention", "M*E-", "LLLG"])
    ),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def check(header: Any) -> None:
    try:
        if not_a_language_model(header) is not None:
            return
        geometry = read_geometry(header)
    except EdgekitError:
        return
    check_laws(geometry)


def check_laws(geometry: ModelGeometry) -> None:
    assert 1 <= len(geometry.layers) <= 1024
    for layer in geometry.layers:
        assert layer.mixer.label
        assert all(s.elements > 0 and s.tokens_per_row > 0 for s in layer.mixer.streams)
        assert all(s.elements > 0 for s in layer.mixer.states)
    counted = count_parameters(geometry)
    assert counted is None or 0 <= counted[1] <= counted[0]


@settings(max_examples=600 if LONG else 60, deadline=None)
@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(CONFIG_KEYS), values, max_size=5))
def test_mutated_config_has_a_geometry_or_an_error(
    config: dict[str, Any], changes: dict[str, Any]
) -> None:
    check(config_header(config | changes))


@settings(max_examples=600 if LONG else 60, deadline=None)
@given(st.data())
def test_mutated_gguf_keys_have_a_geometry_or_an_error(data: st.DataObject) -> None:
    keys = dict(data.draw(st.sampled_from(KEYS)))
    for name in data.draw(st.lists(st.sampled_from(sorted(keys)), max_size=4)):
        value = data.draw(numbers | st.text(max_size=6) | st.lists(numbers, max_size=70).map(tuple))
        keys[name] = value
    check(gguf_header({k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()}))
