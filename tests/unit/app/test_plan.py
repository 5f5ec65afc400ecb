"""`app.plan`: the task of a named model (variants, draft models) and its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cli.test_estimate import write_model
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import rated

from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.bill.types import Lever
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import RefusedError
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

SESSION = Session(reach=Reach())


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 9 of this machine is closed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


def variant_names(resolved: ResolvedModel, request: Request) -> list[str]:
    return [variant.name for variant in task_to_plan(resolved, request, SESSION).variants]


MIXES = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"]


def test_plan_for_an_engine_without_files_is_refused() -> None:
    with pytest.raises(RefusedError, match="the index has only the GGUF header"):
        task_to_plan(
            open_named("mamba-2.8b"), Request(machine=cards(24), engines=("vllm",)), SESSION
        )


def test_variants_of_a_catalog_model() -> None:
    assert variant_names(open_named("qwen3-8b"), Request(machine=cpu(16))) == MIXES
    request = Request(machine=mac(16), engines=("mlx",))
    published = {  # where 4 bits are, others need not be made
        "qwen3-8b": ["8 bit", "6 bit", "4 bit", "3 bit"],
        "llama-3.1-8b": ["8 bit", "4 bit"],
        "mistral-7b-instruct-v0.2": ["8 bit", "6 bit", "5 bit", "4 bit", "3 bit"],
    }
    for name, bits in published.items():
        assert variant_names(open_named(name), request) == bits
    assert variant_names(open_named("qwen3-8b"), Request(machine=cards(24), engines=("vllm",))) == [
        "as stored", "FP8", "AWQ"
    ]  # fmt: skip


def test_requested_quantisation_is_the_only_variant() -> None:
    flags = {"llama.cpp": {"mix": "Q6_K"}}
    request = Request(machine=cpu(32), context=4096, flags=flags, drafter=False)
    task = task_to_plan(open_named("qwen3-8b"), request, SESSION)
    assert len(task.variants) == 1
    plan = plan_model(open_named("qwen3-8b"), request)
    assert LlamaCppSetup.of(plan.result.way.setup).mix == "Q6_K"
    assert 6 * 2**30 < plan.result.estimate.weights_bytes < 6.5 * 2**30  # 8.2 billion at 6.56 bits


def test_quantisation_of_a_file_is_the_only_variant(tmp_path: Path) -> None:
    path = write_model(tmp_path, "llama-3.1-8b")
    named = open_named(path)
    (only,) = task_to_plan(named, Request(machine=cpu(64)), SESSION).variants
    assert (only.name, dict(only.changes)) == ("Q4_K_M", {})
    plan = plan_model(named, Request(machine=rated(cards(48))))
    assert plan.result.estimate.weights_bytes == 4_912_898_304  # the file's own tensors
    assert plan.result.estimate.basis.name in {"EXACT", "MODELLED"}


def test_drafters_of_the_catalog() -> None:
    request = Request(machine=cpu(64))
    drafters = task_to_plan(open_named("qwen3-8b"), request, SESSION).drafters
    assert [drafter.name for drafter in drafters] == ["qwen3-0.6b at Q4_K_M"]
    assert (
        task_to_plan(open_named("qwen3-8b"), replace(request, drafter=False), SESSION).drafters
        == ()
    )
    on_vllm = replace(request, machine=cards(48), engines=("vllm",))
    assert task_to_plan(open_named("qwen3-8b"), on_vllm, SESSION).drafters == ()


def test_drafters_start_with_the_models_own_prediction_layers() -> None:
    drafters = task_to_plan(open_named("qwen3.6-27b"), Request(machine=cpu(64)), SESSION).drafters
    assert drafters[0].name == "its own prediction layers"


def test_plan_model_of_a_catalog_name() -> None:
    plan = plan_model(open_named("qwen3-8b"), Request(machine=cpu(16), context=16_384))  # fmt: skip
    assert plan.fits
    assert (plan.variant.name, plan.context_tokens) == ("Q4_K_M", 16_384)
    assert plan.drafter is not None  # suggested, but not counted
    # K and V of 8 heads of 128, 16 bit, in 36 layers
    assert plan.result.estimate.kv_cache_bytes == 16_384 * 36 * 2 * 8 * 128 * 2
    assert plan.task.repository == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("thorough", [True, False])
def test_plan_model_of_a_sample(thorough: bool) -> None:  # noqa: FBT001 - a table
    plan = plan_model(open_named("sample:gemma-3-27b"), Request(machine=cpu(64)), thorough=thorough)
    assert plan.fits
    assert (plan.decision(Lever.SEQUENCES) is not None) is thorough


def test_plan_model_is_deterministic() -> None:
    first, second = (
        plan_model(open_named("qwen3-8b"), Request(machine=cards(12))) for _ in range(2)
    )
    assert (first.decisions, first.load, first.result.estimate) == (second.decisions, second.load, second.result.estimate)  # fmt: skip
