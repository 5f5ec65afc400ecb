"""Rules of thumb: every number of the policy is a row here."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recorded import config_header

from edgekit.basis import Basis
from edgekit.bill.cache_types import cache_type
from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines import engine_named
from edgekit.errors import UsageError
from edgekit.model import read_geometry
from edgekit.plan.assumed import AssumedModel, assumed_estimate, bits_of, from_name, read_name
from edgekit.units import GIB

BILLION = 10**9
ENGINE = "llama.cpp"


@pytest.mark.parametrize(
    ("name", "parameters", "experts"),
    [
        ("Qwen3-8B-Q4_K_M", 8 * BILLION, False),
        ("org/name-7B-GGUF:Q5_K_M", 7 * BILLION, False),
        ("Qwen2.5-0.5B-Instruct", BILLION // 2, False),
        ("qwen2-1.5b", 3 * BILLION // 2, False),
        ("gemma-3-270M-it", 270 * 10**6, False),
        ("bloom-7b1", 71 * BILLION // 10, False),
        ("Mixtral-8x7B-Instruct-v0.1", 56 * BILLION, True),
        ("Qwen3-30B-A3B", 30 * BILLION, True),
        ("granite-3.1-1b-a400m-instruct", BILLION, True),
        ("Ling-1T", 1000 * BILLION, False),
        ("OLMoE-1B-7B", 7 * BILLION, True),
        ("Llama-3.2-3B-Instruct-4bit", 3 * BILLION, False),
        ("Qwen2.5-7B-Instruct-1M", 7 * BILLION, False),  # a window of a million tokens
        ("Falcon3-10B-Instruct-1.58bit", 10 * BILLION, False),
        ("/models/tinyllama-1.1b-chat-v1.0.Q8_0.gguf", 11 * BILLION // 10, False),
    ],
)
def test_sizes_in_names(name: str, parameters: int, *, experts: bool) -> None:
    named = read_name(name)
    assert (named.parameters, named.has_experts) == (parameters, experts)


@pytest.mark.parametrize(
    "name",
    [
        "DeepSeek-V3-Q4_K_M",
        "phi-4-mini",
        "Qwen2.5-Turbo-1M",
        "a/7B/model.gguf",
        "",
        "v1.5",
        "x" * 10_000,
    ],
)
def test_a_name_without_a_size_is_told_what_to_do(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"does not state the number of parameters.*give the model's files"
    ):
        read_name(name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gemma-3n-E4B-it", "E4B"),  # effective: it has nearly seven
        ("llama-4-scout-17b-16e", "17b"),  # active: it has 109
        ("Qwen3-Next-A3B", "A3B"),
    ],
)
def test_a_part_of_the_parameters_is_not_taken_for_all(name: str, part: str) -> None:
    with pytest.raises(UsageError, match=f"{part} counts only some"):
        read_name(name)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("Qwen3-8B-Q4_K_M", 4.85),
        ("Qwen3-8B-GGUF:Q5_K_M", 5.69),
        ("Qwen3-8B-Q8_0", 8.5),
        ("Qwen3-8B-BF16", 16.0),
        ("Qwen3-8B-4bit", 4.5),
        ("Qwen3-8B-MLX-8bit", 8.5),
        ("Qwen3-8B", 16.0),  # nothing is said
    ],
)
def test_bits_in_names(name: str, bits: float) -> None:
    assert from_name(name).bits_per_weight == bits


def test_a_mix_that_is_asked_for_goes_before_the_one_in_the_name() -> None:
    assert from_name("Qwen3-8B-Q8_0", mix="Q4_K_M").bits_per_weight == 4.85
    with pytest.raises(UsageError, match="unknown quantisation 'Q4_K_XXL'"):
        from_name("Qwen3-8B", mix="Q4_K_XXL")


@pytest.mark.parametrize("method", ["AWQ", "GPTQ-Int4", "FP8"])
def test_packed_weights_cannot_be_told_from_a_name(method: str) -> None:
    with pytest.raises(UsageError, match="quantises only some of the weights"):
        from_name(f"Qwen3-8B-{method}")


def of_size(parameters: int, *, experts: bool = False) -> AssumedModel:
    return AssumedModel(
        name="x",
        parameters=parameters,
        has_experts=experts,
        bits_per_weight=4.5,
        mix="Q4_0",
    )


def overhead(model: AssumedModel, *, wired: bool = False) -> int:
    return assumed_estimate(model, Load(), engine=ENGINE, wired=wired).of(Component.RUNTIME)


@pytest.mark.parametrize(
    ("parameters", "experts", "tenths"),
    [
        (10 * BILLION - 1, False, 12),
        (10 * BILLION, False, 25),
        (30 * BILLION - 1, False, 25),
        (30 * BILLION, False, 40),
        (BILLION, True, 30),
        (700 * BILLION, True, 30),
    ],
)
def test_overhead_goes_by_size(parameters: int, *, experts: bool, tenths: int) -> None:
    model = of_size(parameters, experts=experts)
    assert overhead(model) == -(-tenths * GIB // 10)
    assert overhead(model) == overhead(model, wired=engine_named("vllm").wires_memory)
    assert overhead(model, wired=engine_named("mlx").wires_memory) == -(-tenths * 115 * GIB // 1000)


def test_weights_are_parameters_times_bits_and_more_for_experts() -> None:
    plain, routed = of_size(8 * BILLION), of_size(8 * BILLION, experts=True)
    assert assumed_estimate(plain, Load(), engine=ENGINE).weights_bytes == 8 * BILLION * 9 // 16
    assert (
        assumed_estimate(routed, Load(), engine=ENGINE).weights_bytes
        == 8 * BILLION * 9 * 105 // 1600
    )


def test_a_name_has_no_cache_and_says_so() -> None:
    bill = assumed_estimate(
        from_name("Qwen3-8B-Q4_K_M"), Load(context_tokens=32_768), engine=ENGINE
    )
    assert bill.kv_cache_bytes == 0
    assert "the KV cache is not included" in bill.notes[0]
    assert bill.basis is Basis.ASSUMED
    assert {line.basis for line in bill.lines} == {Basis.ASSUMED}
    assert [line.because for line in bill.lines] == [
        "8.00 B parameters x 4.85 bits / 8 (Q4_K_M)",
        "8.00 B parameters: 1.2 GiB",
    ]


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 1024,
    "vocab_size": 1000,
}
PARAMETERS = 2 * 1000 * 256 + 2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512) + 5 * 256


def of_config(load: Load, mix: str = "Q8_0", **changes: Any) -> MemoryEstimate:
    model = AssumedModel(
        name="of a config",
        parameters=PARAMETERS,
        has_experts=False,
        bits_per_weight=bits_of(mix),
        mix=mix,
        geometry=read_geometry(config_header({**CONFIG, **changes})),
    )
    return assumed_estimate(model, load, engine=ENGINE)


def test_assumed_estimate_of_a_geometry_counts_the_cache() -> None:
    bill = of_config(Load(context_tokens=512))
    assert bill.weights_bytes == -(-PARAMETERS * 34 // 32)
    assert bill.kv_cache_bytes == 512 * 2 * (128 + 128) * 2
    assert bill.notes == ()
    assert bill.basis is Basis.ASSUMED


def test_the_cache_follows_window_type_and_native_context() -> None:
    assert of_config(Load()).kv_cache_bytes == 1024 * 2 * 256 * 2
    q8 = Load(cache_k=cache_type("q8_0"), cache_v=cache_type("q8_0"))
    assert of_config(q8).kv_cache_bytes == 1024 * 2 * 256 * 34 // 32
    sliding = of_config(Load(), model_type="mistral", sliding_window=256)
    assert sliding.kv_cache_bytes == 256 * 2 * 256 * 2


def test_states_are_held_for_each_sequence() -> None:
    mamba: dict[str, Any] = {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "expand": 2,
    }
    bill = of_config(Load(sequences=3), **mamba)
    states = 2 * (3 * (512 + 2 * 16) + 16 * 512)
    assert bill.of(Component.STATE) == 3 * 4 * states


def test_a_number_of_parameters_that_makes_no_sense() -> None:
    with pytest.raises(UsageError, match="invalid parameter count"):
        assumed_estimate(of_size(10**15), Load(), engine=ENGINE)
