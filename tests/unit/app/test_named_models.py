"""A name -> the model, from the catalog or from a file, and the plan for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_estimate import write_model
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import rated

from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.plan import plan_model, task_to_plan
from edgekit.app.recommend import Recommendation, recommend
from edgekit.bill.types import Lever
from edgekit.catalog import read_catalog
from edgekit.catalog.names import find_entry
from edgekit.catalog.types import Catalog
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.errors import EdgekitError, NotFoundError, RefusedError, UsageError
from edgekit.machine.types import Machine
from edgekit.plan.recommend import Suggestion
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

SESSION = Session(reach=Reach())


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on port 9 of this machine."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EDGEKIT_OLLAMA_REGISTRY", "http://127.0.0.1:9")


# --- names


@pytest.mark.parametrize("name", ["qwen3-8b", "QWEN3-8B", "catalog:qwen3-8b", "Catalog:Qwen3-8B", "catalog:Qwen/Qwen3-8B"])  # fmt: skip
def test_open_named_finds_a_model_of_the_catalog(name: str) -> None:
    named = open_named(name)
    assert named.entry is not None
    assert (named.entry.id, named.found, named.notes, named.files) == ("qwen3-8b", None, (), None)


def test_open_named_prefers_a_path_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "qwen3-0.6b").rename(tmp_path / "qwen3-8b")
    monkeypatch.chdir(tmp_path)
    named = open_named("qwen3-8b")
    assert named.found is not None
    assert len(named.found.model.geometry.layers) == 28  # of the 0.6B in the file; the 8B has 36
    known = open_named("catalog:qwen3-8b")
    assert known.found is None
    assert len(known.opened("llama.cpp").model.geometry.layers) == 36


def test_open_named_opens_a_sample() -> None:
    named = open_named("sample:gemma-3-27b")
    assert named.found is not None
    assert named.engine(cpu(64)) == "llama.cpp"


@pytest.mark.parametrize("name", ["catalog:qwen3-9b", "catalog:", "catalog:no such model"])
def test_open_named_refuses_an_unknown_catalog_name(name: str) -> None:
    with pytest.raises(NotFoundError, match="in the catalog"):
        open_named(name)


def test_open_named_suggests_a_similar_name() -> None:
    with pytest.raises(NotFoundError) as caught:
        open_named("catalog:qwen3-8")
    assert "qwen3-8b" in caught.value.candidates


def test_open_named_refuses_an_unknown_name() -> None:
    with pytest.raises(EdgekitError, match="model not found: 'no-such-model'"):
        open_named("no-such-model")


def test_open_named_takes_the_entry_of_an_unreachable_repository() -> None:
    named = open_named("Qwen/Qwen3-8B")
    assert named.entry is not None
    assert (named.entry.id, named.found) == ("qwen3-8b", None)
    (note,) = named.notes
    assert note.startswith(
        "taken from the catalog (qwen3-8b), because Qwen/Qwen3-8B could not be read: "
    )
    assert "127.0.0.1:9" in note


def test_open_named_refuses_an_unreachable_repository_without_an_entry() -> None:
    with pytest.raises(EdgekitError, match=r"cannot reach 127\.0\.0\.1:9"):
        open_named("acme/nobody-knows-it")


def test_resolved_model_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="neither opened nor in the catalog"):
        ResolvedModel(name="x", catalog=read_catalog()).opened("llama.cpp")


# --- the engine


@pytest.mark.parametrize("machine", [cards(24), mac(64), cpu(16)])
def test_engine_of_a_catalog_model(machine: Machine) -> None:
    assert open_named("qwen3-8b").engine(machine) == "llama.cpp"


def test_plan_refuses_what_the_engine_cannot_load() -> None:
    with pytest.raises(RefusedError, match="the catalog has only the GGUF header"):
        task_to_plan(
            open_named("llama-2-7b"), Request(machine=cards(24), engines=("vllm",)), SESSION
        )


# --- wishes


def names(named: ResolvedModel, wanted: Request) -> list[str]:
    return [variant.name for variant in task_to_plan(named, wanted, SESSION).variants]


MIXES = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"]


def test_variants_of_a_catalog_model() -> None:
    assert names(open_named("qwen3-8b"), Request(machine=cpu(16))) == MIXES
    assert names(open_named("qwen3-8b"), Request(machine=mac(16), engines=("mlx",))) == ["8 bit", "6 bit", "5 bit", "4 bit", "3 bit"]  # fmt: skip
    assert names(open_named("qwen3-8b"), Request(machine=cards(24), engines=("vllm",))) == [
        "as stored", "FP8", "AWQ"
    ]  # fmt: skip


def test_variants_of_a_requested_quantisation() -> None:
    flags = {"llama.cpp": {"mix": "Q6_K"}}
    wanted = Request(machine=cpu(32), context=4096, flags=flags, drafter=False)
    task = task_to_plan(open_named("qwen3-8b"), wanted, SESSION)
    assert len(task.variants) == 1
    plan = plan_model(open_named("qwen3-8b"), wanted)
    assert LlamaCppSetup.of(plan.result.way.setup).mix == "Q6_K"
    assert 6 * 2**30 < plan.result.estimate.weights_bytes < 6.5 * 2**30  # 8.2 billion at 6.56 bits


def test_variants_of_a_file(tmp_path: Path) -> None:
    path = write_model(tmp_path, "llama-3.1-8b")
    named = open_named(path)
    (only,) = task_to_plan(named, Request(machine=cpu(64)), SESSION).variants
    assert (only.name, dict(only.changes)) == ("Q4_K_M", {})
    plan = plan_model(named, Request(machine=rated(cards(48))))
    assert plan.result.estimate.weights_bytes == 4_912_898_304  # the file's own tensors
    assert plan.result.estimate.basis.name in {"EXACT", "MODELLED"}


def test_drafters_of_the_catalog() -> None:
    wanted = Request(machine=cpu(64))
    drafters = task_to_plan(open_named("qwen3-8b"), wanted, SESSION).drafters
    assert [drafter.name for drafter in drafters] == ["qwen3-0.6b at Q4_K_M"]
    assert (
        task_to_plan(open_named("qwen3-8b"), replace(wanted, drafter=False), SESSION).drafters == ()
    )
    on_vllm = replace(wanted, machine=cards(48), engines=("vllm",))
    assert task_to_plan(open_named("qwen3-8b"), on_vllm, SESSION).drafters == ()


def test_drafters_start_with_the_models_own_blocks() -> None:
    drafters = task_to_plan(open_named("qwen3.6-27b"), Request(machine=cpu(64)), SESSION).drafters
    assert drafters[0].name == "its own prediction layers"


# --- plans


def test_plan_model_of_a_catalog_name() -> None:
    plan = plan_model(open_named("qwen3-8b"), Request(machine=cpu(16), context=16_384))  # fmt: skip
    assert plan.fits
    assert (plan.variant.name, plan.context_tokens) == ("Q4_K_M", 16_384)
    assert plan.drafter is not None  # proposed, and not in the bill
    # K and V of 8 heads of 128, 16 bit, in 36 layers
    assert plan.result.estimate.kv_cache_bytes == 16_384 * 36 * 2 * 8 * 128 * 2
    assert plan.task.repository == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("thorough", [True, False])
def test_plan_model_of_a_sample(thorough: bool) -> None:  # noqa: FBT001 - a table
    plan = plan_model(open_named("sample:gemma-3-27b"), Request(machine=cpu(64)), thorough=thorough)
    assert plan.fits
    assert (plan.decision(Lever.SEQUENCES) is not None) is thorough


def test_plan_model_is_deterministic() -> None:
    one, other = (plan_model(open_named("qwen3-8b"), Request(machine=cards(12))) for _ in range(2))
    assert (one.decisions, one.load, one.result.estimate) == (other.decisions, other.load, other.result.estimate)  # fmt: skip


# --- what was recommended before

PROCESSOR = rated(cpu(12))


@cache
def few() -> Catalog:
    return Catalog(entries=tuple(map(find_entry, ("qwen3-0.6b", "llama-3.1-8b"))))


def priced(one: Suggestion) -> tuple[Any, ...]:
    plan = one.plan
    shown = [(why.lever, why.value, why.because) for why in plan.decisions]
    return one.entry.id, shown, plan.load, plan.result.way, plan.result.estimate, plan.speed, plan.drafter  # fmt: skip


def answer(found: Recommendation) -> list[tuple[Any, ...]]:
    return [priced(suggestion) for suggestion in found.suggestions]


def stored_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: Request
) -> tuple[Path, Recommendation]:
    """An answer, and the file that it is stored in."""
    monkeypatch.setenv("EDGEKIT_CACHE", str(folder / "cache"))
    result = recommend(request, catalog=few())
    (path,) = folder.rglob("*.json")
    return path, result


@pytest.mark.parametrize("machine", [PROCESSOR, rated(cards(16, 8), card=1000)])
def test_stored_recommendation_is_the_same_answer(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(machine=machine)
    path, first = stored_in(tmp_path, monkeypatch, request)
    again = recommend(request, catalog=few())
    assert answer(again) == answer(first)
    assert again.passed_over == first.passed_over
    path.unlink()
    assert answer(recommend(request, catalog=few())) == answer(first)


BODIES = (
    b"{", b"[]", b'{"picks": [], "passed_over": []}', b'{"picks": [{"id": "qwen3-0.6b"}], "passed_over": []}',
    b'{"picks": [3, null, []], "passed_over": [[]]}', b"[" * 50_000, b" " * 200_000,
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_damaged_stored_recommendation_is_ignored(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first = stored_in(tmp_path, monkeypatch, Request(machine=PROCESSOR))
    path.write_bytes(body)
    assert answer(recommend(Request(machine=PROCESSOR), catalog=few())) == answer(first)


def test_recommend_without_a_writable_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "file" / "cache"))
    assert recommend(Request(machine=PROCESSOR), catalog=few()).suggestions


def test_recommend_with_slightly_different_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "cache"))
    machine = rated(cpu(16))
    assert machine.host is not None
    for more in (0, 1, 2**20):
        host = replace(machine.host, free_bytes=(12 << 30) + more)
        result = recommend(Request(machine=replace(machine, host=host)), catalog=few())
        (used,) = result.suggestions[0].plan.result.uses
        assert used.budget.free_bytes == (12 << 30) + more  # what is judged is what is free
    assert len(list(tmp_path.rglob("*.json"))) == 1
