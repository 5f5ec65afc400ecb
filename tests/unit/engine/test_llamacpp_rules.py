"""Two versions of llama.cpp, two bills: the newer one mostly needs a little more, and only to compute."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.recorded import engine_models, models

from edgekit.basis import Basis
from edgekit.cli import main
from edgekit.engine import llamacpp, rules_version
from edgekit.engine.llamacpp.rows import read_row
from edgekit.engine.llamacpp.types import NEWEST, Backend, LlamaCppSetup, Mode, Rules
from edgekit.errors import UsageError
from edgekit.memory.types import Component, Load, MemoryEstimate

NAMES = sorted({one["model"] for one in models() if one["quant"] == "Q4_K_M"})
SERVER = LlamaCppSetup(mode=Mode.SERVER)
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


@pytest.mark.parametrize("rules", [Rules.V0_5, Rules.V0_6])
@pytest.mark.parametrize("backend", [Backend.CPU, Backend.CUDA])
def test_compute_of_a_recorded_version_is_exact(backend: Backend, rules: Rules) -> None:
    found = bill("llama-3.2-1b", replace(SERVER, backend=backend, rules=rules))
    compute = [line for line in found.lines if line.component is Component.COMPUTE]
    assert {line.basis for line in compute} == {Basis.EXACT}


def test_the_version_that_is_told() -> None:
    assert rules_version("llama.cpp", SERVER) == llamacpp.VERSION == "0.5.0-dev (0c1e570)"
    assert rules_version("llama.cpp", replace(SERVER, rules=NEWEST)) == "0.6.0-dev"
    assert rules_version("vllm", None) == "0.32.0"


def test_it_is_asked_for_by_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", "sample:gemma-3-27b", "-c", "4k", "--json")
    found = []
    for more in ((), ("--llama-version", "0.5"), ("--llama-version", "0.6")):
        assert main((*words, *more)) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert [one["engine_version"] for one in found[1:]] == ["0.5.0-dev (0c1e570)", "0.6.0-dev"]
    assert found[2]["total_bytes"] > found[1]["total_bytes"]
    assert found[2]["command"] == found[1]["command"]  # it is ours, not llama.cpp's
    assert main((*words, "--llama-version", "7")) == 2
    assert "0.5, 0.6" in capsys.readouterr().err


def test_rows_name_it_too() -> None:
    for version, rules in (("0.6", NEWEST), ("0.6.0-dev", NEWEST), ("0.5", Rules.V0_5)):
        assert read_row({"llama_version": version}, None)[1].rules is rules
    assert read_row({}, None)[1].rules is Rules.V0_5
    with pytest.raises(UsageError, match=r"llama_version .0\.4. is not 0\.5 or 0\.6"):
        read_row({"llama_version": "0.4"}, None)
