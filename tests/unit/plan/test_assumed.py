"""plan/assumed.py: a model of which only the name is known, by the size and quantisation in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.recorded import config_header

from edgekit.bill.types import Component, Load, MemoryEstimate, Verdict, cache_type
from edgekit.cli import main
from edgekit.engines import engine_named
from edgekit.errors import EdgekitError, NotFoundError, RefusedError, UsageError
from edgekit.model import read_geometry
from edgekit.models import can_load, model_preflight
from edgekit.plan.assumed import AssumedModel, assumed_estimate, bits_of, from_name
from edgekit.units import GIB, Basis

BILLION = 10**9
ENGINE = "llama.cpp"
NAME = "13B at Q5_K_M"
WEIGHTS = 13 * 10**9 * 5.69 / 8  # the mix's bits per weight
OVERHEAD = 2.5 * GIB  # of 10 to 30 billion parameters
CACHE_TOKEN = 40 * 2 * 40 * 128 * 2  # Llama 2 13B: 40 layers, K and V of 40 heads of 128, 16 bit


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of loopback refuses connections."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def preflight(name: str = NAME, **more: Any) -> Verdict:
    return model_preflight(name, context=16_384, **more)


@pytest.mark.parametrize("name", [NAME, "Some-13B-Q5_K_M", "some-13b-q5_k_m", "13B Q5_K_M"])
def test_preflight_of_a_bare_name_adds_weights_cache_and_overhead(name: str) -> None:
    result = preflight(name, ram="64G")
    bill = result.estimate
    assert bill.weights_bytes == pytest.approx(WEIGHTS, rel=1e-6)
    assert bill.kv_cache_bytes == 16_384 * CACHE_TOKEN
    assert bill.of(Component.RUNTIME) == OVERHEAD
    assert {line.basis for line in bill.lines} == {Basis.ASSUMED}
    assert any("ASSUMED from the name alone" in note for note in bill.notes)
    assert (result.native_context, result.max_context) == (None, 32_768)


@pytest.mark.parametrize(
    ("ram", "status"), [("40G", "PASSED"), ("33G", "WARNING"), ("26G", "FAILED")]
)
def test_preflight_judges_an_assumed_bill_by_70_and_85_percent(ram: str, status: str) -> None:
    """23.6 GiB = 8.6 weights + 12.5 f16 cache + 2.5 overhead: 61, 74 and 94 % of the RAM less 1 GiB."""
    result = preflight(ram=ram, options={"type_k": "f16", "type_v": "f16"})
    assert f"{result.required_gb:.1f}" == "23.6"
    assert result.status.name == status


@pytest.mark.parametrize(
    "flags", [("--mix", "Q8_0"), ("-md", "sample:gemma-3-27b"), ("--mmproj", "sample:gemma-3-27b")]
)
def test_check_of_a_bare_name_rejects_flags_that_need_a_model(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", NAME, *flags, "--ram", "32G"]) == 2
    assert re.search(rf"{flags[0]}\S* does not apply to '{NAME}'", capsys.readouterr().err)


def test_assumed_bill_is_divided_among_cards_and_ram() -> None:
    in_ram, on_two_cards = preflight(ram="32G"), preflight(ram="32G", vram="16G,16G")
    partly_on_a_card = preflight(ram="32G", vram="10G")
    assert on_two_cards.estimate.total_bytes == in_ram.estimate.total_bytes
    assert partly_on_a_card.estimate.total_bytes == in_ram.estimate.total_bytes
    assert [pool.label for pool in on_two_cards.estimate.pools] == ["device", "device 1"]
    assert [pool.label for pool in partly_on_a_card.estimate.pools] == ["device", "host"]
    assert partly_on_a_card.can_load


def test_check_of_a_bare_name_is_marked_assumed_and_has_no_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", NAME, "--ram", "64G"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Runs on the CPU: ")
    assert out.splitlines()[0].endswith("(rough estimate from the name alone)")
    assert "\nRun" not in out
    assert main(["check", NAME, "--ram", "32G", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["basis"], output["command"]) == ("assumed", None)


def test_model_of_the_index_without_layers_is_estimated_from_its_size_and_has_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bill is that of 32.2 B parameters, not of words in the name."""
    name = "granite-4.0-h-small"
    assert main(["check", name, "--device", "RTX 4090", "--ram", "64G", "--offline"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(rough estimate: its layers are not known)" in out.partition(name)[0]
    assert "Run llama-server -hf unsloth/granite-4.0-h-small-GGUF:Q4_K_M -c 32768" in out
    assert "estimated from 32.21 B parameters (5.86 B active) at Q4_K_M" in out
    result = model_preflight(name, ram="64G", allow_download=False)
    assert result.estimate.weights_bytes == pytest.approx(32.207e9 * 4.85 / 8 * 1.05, rel=1e-3)
    assert {line.basis for line in result.estimate.lines} == {Basis.ASSUMED}


@pytest.mark.parametrize(
    "words",
    [
        ["aya-expanse-32b:Q8_0"],
        ["aya-expanse-32b", "--quant", "Q8_0"],
        ["aya-expanse-32b", "--mix", "Q8_0"],
    ],
)
def test_model_without_layers_is_estimated_at_the_quantisation_that_was_given(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words, "--device", "RTX 4090", "--ram", "64G", "--offline"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "-hf bartowski/aya-expanse-32b-GGUF:Q8_0 " in out
    assert "estimated from 32.30 B parameters at Q8_0" in out


def test_bare_name_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(ram="32G").speed is None
    main(["check", NAME, "--ram", "32G", "--why"])
    assert "tokens/s" not in capsys.readouterr().out


def test_bare_name_is_refused_for_vllm() -> None:
    with pytest.raises(RefusedError, match="give a repository"):
        preflight(engine="vllm", device="RTX 4090")


@pytest.mark.parametrize("name", ["13B", "no-such-model-Q4_K_M", "no-such-13B-Q4_K_M.gguf"])
def test_name_without_size_and_quantisation_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        preflight(name, ram="32G")


def test_unknown_name_with_a_tag_is_not_estimated() -> None:
    """NAME:TAG is a model of Ollama or of the catalog: an estimate would look like the figures of that model."""
    with pytest.raises(EdgekitError, match="acme-9b:Q8_0"):
        preflight("acme-9b:Q8_0", ram="32G")


def test_plan_and_can_load_of_a_bare_name_find_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", NAME, "--ram", "32G"]) == NotFoundError.exit_code
    assert "model not found" in capsys.readouterr().err
    with pytest.raises(NotFoundError):
        can_load(NAME, ram="32G")


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
        ("Qwen2.5-7B-Instruct-1M", 7 * BILLION, False),  # 1M is the context length
        ("Falcon3-10B-Instruct-1.58bit", 10 * BILLION, False),
        ("/models/tinyllama-1.1b-chat-v1.0.Q8_0.gguf", 11 * BILLION // 10, False),
    ],
)
def test_from_name_reads_the_number_of_parameters(
    name: str, parameters: int, *, experts: bool
) -> None:
    model = from_name(name)
    assert (model.parameters, model.has_experts) == (parameters, experts)


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
def test_from_name_without_a_size_is_an_error(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"does not state the number of parameters.*give the model's files"
    ):
        from_name(name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gemma-3n-E4B-it", "E4B"),  # effective parameters: it has nearly 7B
        ("llama-4-scout-17b-16e", "17b"),  # active parameters: it has 109B
        ("Qwen3-Next-A3B", "A3B"),
    ],
)
def test_from_name_rejects_active_and_effective_parameters(name: str, part: str) -> None:
    with pytest.raises(UsageError, match=f"{part} counts only some"):
        from_name(name)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("Qwen3-8B-Q4_K_M", 4.85),
        ("Qwen3-8B-GGUF:Q5_K_M", 5.69),
        ("Qwen3-8B-Q8_0", 8.5),
        ("Qwen3-8B-BF16", 16.0),
        ("Qwen3-8B-4bit", 4.5),
        ("Qwen3-8B-MLX-8bit", 8.5),
        ("Qwen3-8B", 16.0),  # no quantisation in the name
    ],
)
def test_from_name_reads_the_bits_per_weight(name: str, bits: float) -> None:
    assert from_name(name).bits_per_weight == bits


def test_from_name_prefers_the_requested_quantisation() -> None:
    assert from_name("Qwen3-8B-Q8_0", mix="Q4_K_M").bits_per_weight == 4.85
    with pytest.raises(UsageError, match="unknown quantisation 'Q4_K_XXL'"):
        from_name("Qwen3-8B", mix="Q4_K_XXL")


@pytest.mark.parametrize("method", ["AWQ", "GPTQ-Int4", "FP8"])
def test_from_name_rejects_methods_that_quantise_only_some_weights(method: str) -> None:
    with pytest.raises(UsageError, match="quantises only some of the weights"):
        from_name(f"Qwen3-8B-{method}")


def assumed_model(parameters: int, *, experts: bool = False) -> AssumedModel:
    return AssumedModel(
        name="x",
        parameters=parameters,
        has_experts=experts,
        bits_per_weight=4.5,
        mix="Q4_0",
    )


def overhead_bytes(model: AssumedModel, *, wired: bool = False) -> int:
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
def test_overhead_by_size_experts_and_wired_memory(
    parameters: int, *, experts: bool, tenths: int
) -> None:
    model = assumed_model(parameters, experts=experts)
    assert overhead_bytes(model) == -(-tenths * GIB // 10)
    assert overhead_bytes(model) == overhead_bytes(model, wired=engine_named("vllm").wires_memory)
    assert overhead_bytes(model, wired=engine_named("mlx").wires_memory) == -(
        -tenths * 115 * GIB // 1000
    )


def test_weights_are_parameters_times_bits_plus_5_percent_with_experts() -> None:
    plain, routed = assumed_model(8 * BILLION), assumed_model(8 * BILLION, experts=True)
    assert assumed_estimate(plain, Load(), engine=ENGINE).weights_bytes == 8 * BILLION * 9 // 16
    assert (
        assumed_estimate(routed, Load(), engine=ENGINE).weights_bytes
        == 8 * BILLION * 9 * 105 // 1600
    )


def test_estimate_without_a_geometry_notes_the_missing_cache() -> None:
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


def estimate_of_config(load: Load, mix: str = "Q8_0", **changes: Any) -> MemoryEstimate:
    model = AssumedModel(
        name="of a config",
        parameters=PARAMETERS,
        has_experts=False,
        bits_per_weight=bits_of(mix),
        mix=mix,
        geometry=read_geometry(config_header({**CONFIG, **changes})),
    )
    return assumed_estimate(model, load, engine=ENGINE)


def test_estimate_with_a_geometry_counts_the_cache() -> None:
    bill = estimate_of_config(Load(context_tokens=512))
    assert bill.weights_bytes == -(-PARAMETERS * 34 // 32)
    assert bill.kv_cache_bytes == 512 * 2 * (128 + 128) * 2
    assert bill.notes == ()
    assert bill.basis is Basis.ASSUMED


def test_cache_follows_native_context_cache_type_and_sliding_window() -> None:
    assert estimate_of_config(Load()).kv_cache_bytes == 1024 * 2 * 256 * 2
    q8 = Load(cache_k=cache_type("q8_0"), cache_v=cache_type("q8_0"))
    assert estimate_of_config(q8).kv_cache_bytes == 1024 * 2 * 256 * 34 // 32
    sliding = estimate_of_config(Load(), model_type="mistral", sliding_window=256)
    assert sliding.kv_cache_bytes == 256 * 2 * 256 * 2


def test_recurrent_state_is_counted_for_each_sequence() -> None:
    mamba: dict[str, Any] = {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "expand": 2,
    }
    bill = estimate_of_config(Load(sequences=3), **mamba)
    states = 2 * (3 * (512 + 2 * 16) + 16 * 512)
    assert bill.of(Component.STATE) == 3 * 4 * states


def test_from_name_rejects_an_impossible_number_of_parameters() -> None:
    with pytest.raises(UsageError, match="invalid parameter count"):
        from_name("Giant-9999T-Q4_K_M")
