"""The bills of two versions of llama.cpp differ only in compute; the newer one mostly needs a little more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import engine_models, models

from edgekit.bill.types import Component, Load, MemoryEstimate
from edgekit.engines import engine_named
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    LlamaCppSetup,
    LlamaMode,
    Rules,
    read_version,
)
from edgekit.engines.vllm.types import VllmSetup
from edgekit.model import open_config
from edgekit.units import Basis

NAMES = sorted({model["model"] for model in models() if model["quant"] == "Q4_K_M"})
SERVER = LlamaCppSetup(mode=LlamaMode.SERVER, rules=Rules.V0_5)
LOAD = Load(context_tokens=4096)


def bill(name: str, setup: LlamaCppSetup) -> MemoryEstimate:
    return llamacpp.estimate(engine_models()[name, "Q4_K_M"], LOAD, setup)


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.CUDA])
@pytest.mark.parametrize("name", NAMES)
def test_versions_differ_only_in_compute(name: str, backend: Backend) -> None:
    old = bill(name, replace(SERVER, backend=backend))
    new = bill(name, replace(SERVER, backend=backend, rules=NEWEST))
    # 0.6 keeps up to two more hidden states and all states but one; freed blocks may be reused better (DeepSeek).
    assert new.of(Component.COMPUTE) != old.of(Component.COMPUTE)
    assert old.total_bytes * 0.99 < new.total_bytes < old.total_bytes * 1.01 + 40_000_000
    others = [
        [line for line in item.lines if line.component is not Component.COMPUTE]
        for item in (old, new)
    ]
    assert others[0] == others[1]


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.CUDA])
def test_compute_is_exact_only_for_recorded_builds(backend: Backend) -> None:
    bases = {
        rules: {
            line.basis
            for line in bill("llama-3.2-1b", replace(SERVER, backend=backend, rules=rules)).lines
            if line.component is Component.COMPUTE
        }
        for rules in (Rules.V0_5, NEWEST, 9713)
    }
    assert bases == {
        Rules.V0_5: {Basis.EXACT},
        NEWEST: {Basis.EXACT},
        9713: {Basis.MODELLED},  # known from the engine's log
    }


def test_version_of_an_engine() -> None:
    assert engine_named("llama.cpp").version(SERVER) == "0.5.0-dev (0c1e570)"
    newest = engine_named("llama.cpp").version(replace(SERVER, rules=NEWEST))
    assert newest == llamacpp.VERSION == "0.6.0-dev (b11549)"
    assert engine_named("vllm").version(VllmSetup()) == "0.32.0"


def test_compute_of_a_build_newer_than_the_rules_is_not_exact() -> None:
    result = bill("llama-3.2-1b", replace(SERVER, **read_version("b12000")._asdict()))
    compute = [line for line in result.lines if line.component is Component.COMPUTE]
    assert {line.basis for line in compute} == {Basis.MODELLED}


def test_hybrid_architecture_with_only_attention_layers() -> None:
    """Granite 4 Micro: its architecture has Mamba layers, this model has none."""
    config = {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 2560,
        "intermediate_size": 8192, "shared_intermediate_size": 8192, "num_hidden_layers": 4,
        "layer_types": ["attention"] * 4, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 100352,
        "num_local_experts": 0, "num_experts_per_tok": 0, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "mamba_n_heads": 64, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1,
        "mamba_d_head": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    assert llamacpp.estimate(
        open_config(config).model, Load(context_tokens=4096), LlamaCppSetup()
    ).lines
