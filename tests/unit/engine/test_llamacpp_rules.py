"""Two versions of llama.cpp, two bills: the newer one mostly needs a little more, and only to compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recorded import engine_models, models

from edgekit.basis import Basis
from edgekit.engine import llamacpp, rules_version
from edgekit.engine.llamacpp.types import Backend, LlamaCppSetup, Mode
from edgekit.engine.llamacpp.versions import NEWEST, Rules
from edgekit.memory.types import Component, Load, MemoryEstimate

NAMES = sorted({one["model"] for one in models() if one["quant"] == "Q4_K_M"})
SERVER = LlamaCppSetup(mode=Mode.SERVER, rules=Rules.V0_5)
LOAD = Load(context_tokens=4096)


def bill(name: str, setup: LlamaCppSetup) -> MemoryEstimate:
    return llamacpp.estimate(engine_models()[name, "Q4_K_M"], LOAD, setup)


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.CUDA])
@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_computed_with_differs(name: str, backend: Backend) -> None:
    old = bill(name, replace(SERVER, backend=backend))
    new = bill(name, replace(SERVER, backend=backend, rules=NEWEST))
    # Two hidden states more at most, and all states but one; less where what is freed lies better by chance (DeepSeek).
    assert new.of(Component.COMPUTE) != old.of(Component.COMPUTE)
    assert old.total_bytes * 0.99 < new.total_bytes < old.total_bytes * 1.01 + 40_000_000
    others = [
        [line for line in one.lines if line.component is not Component.COMPUTE]
        for one in (old, new)
    ]
    assert others[0] == others[1]


@pytest.mark.parametrize("backend", [Backend.CPU, Backend.CUDA])
def test_compute_is_exact_for_the_recorded_builds_alone(backend: Backend) -> None:
    known = {
        rules: {
            line.basis
            for line in bill("llama-3.2-1b", replace(SERVER, backend=backend, rules=rules)).lines
            if line.component is Component.COMPUTE
        }
        for rules in (Rules.V0_5, NEWEST, 9713)
    }
    assert known == {
        Rules.V0_5: {Basis.EXACT},
        NEWEST: {Basis.EXACT},
        9713: {Basis.MODELLED},  # known from the engine's log
    }


def test_the_version_that_is_told() -> None:
    assert rules_version("llama.cpp", SERVER) == "0.5.0-dev (0c1e570)"
    newest = rules_version("llama.cpp", replace(SERVER, rules=NEWEST))
    assert newest == llamacpp.VERSION == "0.6.0-dev (b11549)"
    assert rules_version("vllm", None) == "0.32.0"
