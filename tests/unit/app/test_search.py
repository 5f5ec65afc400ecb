"""`app.search`: which models match, their order, and that every figure is that of plan and check."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan.machines import cpu

from edgekit.app import candidates
from edgekit.app import search as module
from edgekit.app.candidates import OFFLINE, STEP_BYTES, Candidates, complete
from edgekit.app.check import Check, check
from edgekit.app.plan import plan
from edgekit.app.search import MAX_QUESTION_CHARS, Question, SearchAnswer, Sort, search
from edgekit.errors import CancelledError, HardwareError, UsageError
from edgekit.index import index_entries, most_used, read_index
from edgekit.index.names import find_entry
from edgekit.index.types import ModelPurpose
from edgekit.machine.types import Machine
from edgekit.plan.plan import make_plan
from edgekit.plan.recommend import is_notable, suits_task
from edgekit.request import Request, Session
from edgekit.sources.types import Reach
from edgekit.units import GIB, Basis

CARD: Mapping[str, Any] = {"devices": ("RTX 3060",), "ram": "32G"}


def ask(words: str = "", *, request: Mapping[str, Any] = CARD, **fields: Any) -> SearchAnswer:
    return search(Question.from_fields({"words": words, **fields}), Request(**request))


def ids(answer: SearchAnswer) -> list[str]:
    return [found.entry.id for found in answer.models]


# --- the figures


@pytest.mark.parametrize(
    "name", ["qwen3-0.6b", "qwen3-30b-a3b", "bge-small-en-v1.5", "llama-3.3-70b"]
)
def test_figures_are_those_of_plan(name: str) -> None:
    answer = ask(name, request={**CARD, "limit": 100})
    (found,) = (found for found in answer.models if found.entry.id == name)
    result = plan(f"catalog:{name}", Request(**CARD), OFFLINE).plan.result
    figures = found.figures
    if figures is None:
        assert (found.because, result.can_load) == ("too large", False)
        return
    assert figures.status == result.status.value
    assert (figures.quant, figures.cache) == (result.quantization, result.cache)
    assert figures.context_tokens == result.context_tokens
    assert (figures.required_bytes, figures.available_bytes) == (
        result.required_bytes,
        result.available_bytes,
    )
    if result.speed is None:  # of a model that does not fit
        assert figures.tokens_per_s is None
        return
    rates = result.speed.prefill if name.startswith("bge") else result.speed.decode
    assert rates is not None
    assert figures.tokens_per_s == round(math.sqrt(math.prod(rates)), 2)


@pytest.mark.parametrize(
    "more", [{"context": 8192}, {"quant": "Q8_0"}, {"users": 2, "context": 4096}, {"min_context": 65536}]
)  # fmt: skip
def test_figures_are_those_of_plan_with_the_same_flags(more: dict[str, Any]) -> None:
    request = {**CARD, **more}
    answer = ask("qwen3.5 4b", request={**request, "limit": 20}, sort="uses")
    found = answer.models[0]
    result = plan(f"catalog:{found.entry.id}", Request(**request), OFFLINE).plan.result
    assert found.figures is not None
    assert found.figures.required_bytes == result.required_bytes
    assert found.figures.context_tokens * result.streams == result.context_tokens
    assert found.figures.quant == result.quantization


def test_model_without_a_geometry_has_the_figures_of_check() -> None:
    name = next(
        entry.id for entry in most_used(index_entries()) if entry.sizes and not entry.has_geometry
    )
    (found,) = ask(name, request={**CARD, "limit": 1}, sort="uses").models
    assert not found.entry.has_geometry
    (answer,) = check(f"catalog:{found.entry.id}", Request(**CARD), OFFLINE)
    assert isinstance(answer, Check)
    assert found.figures is not None
    assert found.figures.required_bytes == answer.result.required_bytes
    assert (found.figures.quant, found.figures.basis) == ("Q4_K_M", "assumed")


def test_models_of_one_geometry_are_billed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def count(task: Any, **more: Any) -> Any:
        planned.append(task.label)
        return make_plan(task, **more)

    monkeypatch.setattr("edgekit.app.candidates.make_plan", count)
    answer = ask("qwen3 30b a3b", request={**CARD, "limit": 10}, exact=True)
    geometries = {found.entry.geometry for found in answer.models}
    assert len(planned) == len(geometries) < len(answer.models)


def test_plan_of_a_shared_geometry_has_the_name_of_its_model() -> None:
    candidates = Candidates(complete(Request(**CARD)), OFFLINE)
    for found in ask("qwen3 30b a3b", request={**CARD, "limit": 3}, exact=True).models:
        shared = candidates.plan(found.entry)
        assert shared.task.label == found.entry.id


# --- the order


@pytest.mark.parametrize("sort", Sort)
def test_order_is_that_of_judging_every_model(sort: Sort, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search stops early; without bounds every model is judged."""
    asked: dict[str, Any] = {"sort": sort.value, "fits": True, "max_params": "2B", "exact": True}
    early = ask("qwen", request={**CARD, "limit": 4}, **asked)
    monkeypatch.setattr(module._Search, "_bound", lambda _self, entry: (-math.inf, entry.id))
    monkeypatch.setenv("EDGEKIT_CACHE", "")
    assert ids(ask("qwen", request={**CARD, "limit": 4}, **asked)) == ids(early)
    assert len(early.models) == 4


def test_context_and_speed_stay_below_their_bounds() -> None:
    question, request = Question(fits=True, sort=Sort.CONTEXT), complete(Request(**CARD))
    searches = [
        module._Search(replace(question, sort=sort), request, OFFLINE)
        for sort in (Sort.CONTEXT, Sort.SPEED, Sort.QUALITY)
    ]
    most_used = sorted(read_index().entries, key=lambda entry: -entry.uses)
    for entry in most_used[:120:6]:
        found = searches[0].judged(entry)
        for one in searches if found.fits else ():
            assert one._bound(entry) <= one.key(found), entry.id


@pytest.mark.parametrize("sort", Sort)
@pytest.mark.parametrize("words", ["qwen3-8b", "Qwen/Qwen3-8B", "qwen3 8b"])
def test_model_that_is_named_exactly_comes_first_in_every_order(words: str, sort: Sort) -> None:
    answer = ask(words, request={**CARD, "limit": 3}, sort=sort.value)
    assert ids(answer)[0] == "qwen3-8b"
    assert len(answer.models) == 3


@pytest.mark.parametrize("more", [{}, {"fits": True}])
def test_context_is_the_one_that_is_shown(more: dict[str, Any]) -> None:
    answer = ask("qwen", request={**CARD, "limit": 8}, sort="context", max_params="9B", **more)
    shown = [found.figures.context_tokens for found in answer.models if found.figures is not None]
    assert len(shown) == 8
    assert shown == sorted(shown, reverse=True)


def test_quality_puts_models_that_do_not_suit_the_task_last() -> None:
    answer = ask("qwen coder", request={**CARD, "limit": 12})
    suited = [suits_task(found.entry, ModelPurpose.CODE) for found in answer.models]
    assert suited == sorted(suited, reverse=True)
    notable = [is_notable(found.entry, ModelPurpose.CODE) for found in answer.models if suits_task(found.entry, ModelPurpose.CODE)]  # fmt: skip
    assert notable == sorted(notable, reverse=True)


def test_uses_puts_the_most_used_first() -> None:
    answer = ask("llama", sort="uses", max_params="10B")
    uses = [found.entry.uses for found in answer.models]
    assert uses == sorted(uses, reverse=True)


# --- which models


def test_fits_leaves_out_what_does_not_fit_and_counts_it() -> None:
    everything, fitting = ask("llama 3.3 70b"), ask("llama 3.3 70b", fits=True)
    assert not any(found.fits for found in everything.models) or len(fitting.models) < len(
        everything.models
    )
    assert all(found.fits for found in fitting.models)
    assert everything.matching == fitting.matching
    small = ask("llama 3.3 70b", fits=True, request={"ram": "8G"})
    assert small.models == ()
    assert small.matching == sum(count for _, count in small.passed_over) > 0


def test_min_context_is_the_native_one_and_with_fits_that_of_the_plan() -> None:
    request = {**CARD, "min_context": 100_000, "limit": 30}
    native = ask("qwen3", request=request)
    assert all((found.entry.native_context or 0) >= 100_000 for found in native.models)
    for found in ask("qwen3", request=request, fits=True).models:
        assert found.figures is not None
        assert found.figures.context_tokens >= 100_000


def test_task_selects_general_models_that_suit_it() -> None:
    answer = ask(request={**CARD, "purpose": ModelPurpose.CODE, "limit": 5}, fits=True)
    assert all(suits_task(found.entry, ModelPurpose.CODE) for found in answer.models)
    assert any(ModelPurpose.CODE not in found.entry.kinds for found in answer.models)


def test_misspelt_word_is_corrected_and_said() -> None:
    answer = ask("mistrl small", request={**CARD, "limit": 1})
    assert answer.models
    assert answer.notes == ("no model matches 'mistrl small'; searched for 'mistral small'",)


def test_nothing_matches_shows_what_each_filter_lets_pass() -> None:
    answer = ask("qwen coder", licence="gpl-9")
    assert (answer.matching, answer.models) == (0, ())
    counts = {count.text: (count.met, count.removed) for count in answer.counts}
    assert counts["--licence gpl-9"] == (0, ask("qwen coder").matching)
    assert "qwen2.5-coder-7b-instruct" in answer.near


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"min_params": "nan"}, "--min-params"),
        ({"max_params": "7"}, "--max-params"),
        ({"max_params": "-7B"}, "--max-params"),
        ({"max_params": "9" * 50 + "B"}, "--max-params"),
        ({"released_after": "June"}, "--released-after"),
        ({"released_after": "2025-00"}, "--released-after"),
        ({"sort": "best"}, "--sort must be one of quality, speed"),
        ({"words": "x" * (MAX_QUESTION_CHARS + 1)}, "at most 400"),
    ],
)
def test_invalid_question_is_a_usage_error(fields: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Question.from_fields(fields)


def test_words_with_control_characters_match_nothing() -> None:
    assert ask("\x00\x1b[31m\u202e'; DROP TABLE models --").matching == 0


def test_engine_without_hardware_is_an_error() -> None:
    with pytest.raises(HardwareError):
        ask("qwen", request={"ram": "16G", "engines": ("vllm",)})


# --- stored answers


def stored() -> Path:
    (path,) = (Path(os.environ["EDGEKIT_CACHE"]) / "recommended").iterdir()
    return path


def test_repeated_question_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask("qwen3 0.6b", fits=True)
    monkeypatch.setattr(module._Search, "judged", None)
    assert ask("qwen3 0.6b", fits=True) == first


def test_answer_for_slightly_different_free_memory_is_planned_again() -> None:
    def here(size_bytes: int) -> Machine:
        machine = cpu(16)
        assert machine.host is not None
        host = replace(machine.host, free_bytes=size_bytes)
        return replace(machine, host=host, what_if=False)

    base = 12 * GIB
    for free_bytes in (base + 1, base + STEP_BYTES - 1):
        request = Request(machine=here(free_bytes), limit=2)
        answer = search(Question.from_fields({"words": "qwen3 8b"}), request)
        for found in answer.models:
            name = f"catalog:{found.entry.id}"
            result = plan(name, Request(machine=here(free_bytes)), OFFLINE).plan.result
            assert found.figures is not None
            assert found.figures.available_bytes == result.available_bytes
    stored()  # both requests share one answer


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": None},
        {"rows": [{"id": {}}]},
        {"rows": [{"id": "no-such-model", "task": "chat", "figures": None, "because": ""}]},
        {"matching": "many"},
        {"counts": [[1]]},
    ],
)
def test_damaged_stored_answer_is_ignored(damage: dict[str, Any]) -> None:
    first = ask("qwen3 0.6b")
    content = json.loads(stored().read_text())
    stored().write_text(json.dumps({**content, **damage}))
    assert ask("qwen3 0.6b") == first


@pytest.mark.parametrize(
    "damage", [{"status": "fine"}, {"tokens_per_s": 1e999}, {"context_tokens": "8K"}, {"more": 1}]
)
def test_damaged_stored_figures_are_ignored(damage: dict[str, Any]) -> None:
    first = ask("qwen3 0.6b")
    content = json.loads(stored().read_text())
    content["rows"][0]["figures"] |= damage
    stored().write_text(json.dumps(content))
    assert ask("qwen3 0.6b") == first


@pytest.mark.parametrize("name", ["__version__", "STORED_FORMAT"])
def test_answers_stored_by_another_version_are_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask("qwen3 0.6b")
    old = stored()
    old.write_text(json.dumps({**json.loads(old.read_text()), "matching": 7_000}))
    monkeypatch.setattr(candidates, name, "another")
    assert ask("qwen3 0.6b") == first


def test_cancelled_search_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "store", lambda *_: pytest.fail("it was stored"))

    def cancel(_line: str) -> None:
        raise CancelledError("cancelled")

    session = Session(reach=Reach(network=False, progress=cancel))
    with pytest.raises(CancelledError):
        search(Question(fits=True), Request(**CARD), session)


# --- bounds and entries


def test_plan_of_an_assumed_geometry_has_no_longer_context_than_the_model_states() -> None:
    """Its layers are those of another model of that architecture, which was trained for 128K."""
    entry = find_entry("llama3-chatqa-1.5-8b")
    assert (entry.basis, entry.native_context) == (Basis.ASSUMED, 8192)
    result = plan("catalog:llama3-chatqa-1.5-8b", Request(**CARD), OFFLINE).plan.result
    assert result.native_context == 8192
    assert result.context_tokens == 8192


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        # of 122B, the 10B that each token reads are mostly on the GPU
        ("qwen3.5-122b-a10b", Request(devices=("RTX 4090",), ram="64G")),
        ("gemma-4-e2b-it", Request(ram="32G")),  # reads one row of its largest tables
    ],
)
def test_speed_bound_holds(name: str, request_: Request) -> None:
    request = complete(request_)
    found = module._Search(Question(), request, OFFLINE).judged(find_entry(name))
    fastest = Candidates(request, OFFLINE).fastest_tokens_per_s(found.entry)
    assert found.figures is not None
    assert (found.figures.tokens_per_s or 0) < (fastest or 0)
