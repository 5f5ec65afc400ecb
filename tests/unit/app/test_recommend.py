"""`app.recommend`: the order of suggestions, why models are skipped, and the nearest one if nothing fits."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import is_within, rated

from edgekit.app.candidates import TOO_LARGE, complete, task_for
from edgekit.app.recommend import SLOW, Recommendation, find_best
from edgekit.bill.types import ChangeKind
from edgekit.errors import HardwareError
from edgekit.index import read_index
from edgekit.index.database import header_of
from edgekit.index.names import find_entry
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.recommend import POINTS_OF_DRAWBACK, POINTS_PER_HALVING, rank_of
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

NAMES = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "llama-3.1-8b", "llama-3.2-1b", "gemma-3-27b", "smollm3-3b")  # fmt: skip
CARD = rated(cards(24), card=1000)


@cache
def few_entries() -> tuple[Entry, ...]:
    return tuple(find_entry(name) for name in NAMES)


@cache
def best_of_few(machine: Machine, **more: Any) -> Recommendation:
    """The best of these models for this machine, cached for several tests."""
    return find_best(few_entries(), Request(machine=machine, **more))


def entry(name: str, **more: Any) -> Entry:
    return replace(find_entry(name), **more)


def ids(recommendation: Recommendation) -> list[str]:
    return [suggestion.entry.id for suggestion in recommendation.suggestions]


def skipped(recommendation: Recommendation) -> dict[str, int]:
    return dict(recommendation.passed_over)


# --- the order


def test_suggestions_are_ordered_with_one_per_family() -> None:
    result = best_of_few(CARD)
    orders = [suggestion.order for suggestion in result.suggestions]
    assert orders == sorted(orders, reverse=True)
    families = [suggestion.entry.family for suggestion in result.suggestions]
    assert len(set(families)) == len(families)
    assert {"qwen3", "gemma-3"} <= set(families)
    for suggestion in result.suggestions:
        assert suggestion.rank == rank_of(suggestion.entry)
        assert suggestion.is_quick
        assert suggestion.plan.fits
        assert is_within(suggestion.plan)


def test_each_family_shows_its_best_model_that_fits() -> None:
    assert ids(best_of_few(CARD))[0] in {"gemma-3-27b", "qwen3-30b-a3b"}
    assert "qwen3-30b-a3b" in ids(best_of_few(CARD))
    small = best_of_few(rated(cards(12, ram=4), card=1000))
    assert [name for name in ids(small) if name.startswith("qwen3")] == ["qwen3-8b"]
    assert skipped(small)[TOO_LARGE] >= 2


def test_all_sizes_shows_several_of_a_family() -> None:
    result = best_of_few(CARD, all_sizes=True, limit=10)
    assert sum(suggestion.entry.family == "qwen3" for suggestion in result.suggestions) == 3


@pytest.mark.parametrize("limit", [1, 3])
def test_limit_keeps_the_first_suggestions(limit: int) -> None:
    all_ids = ids(best_of_few(CARD, limit=10))
    assert ids(best_of_few(CARD, limit=limit)) == all_ids[:limit]


def test_order_of_the_catalog_does_not_matter() -> None:
    first, second = best_of_few(CARD), find_best(few_entries()[::-1], Request(machine=CARD))
    assert summary(first) == summary(second)
    assert first.passed_over == second.passed_over


def summary(recommendation: Recommendation) -> list[tuple[Any, ...]]:
    return [
        (
            suggestion.entry.id,
            suggestion.plan.decisions,
            [tried.told for step in suggestion.plan.decisions for tried in step.tried],
            suggestion.plan.load,
            suggestion.plan.result.estimate,
            suggestion.plan.speed,
        )
        for suggestion in recommendation.suggestions
    ]


def test_equal_ranks_are_ordered_by_name() -> None:
    twins = [entry("qwen3-8b", id=name, family=name) for name in ("b", "c", "a")]
    assert ids(find_best(twins, Request(machine=CARD, all_sizes=True))) == ["a", "b", "c"]


def test_of_models_with_the_same_geometry_one_is_shown() -> None:
    twins = [entry("qwen3-8b", id=name, family=name) for name in ("b", "c", "a")]
    assert ids(find_best(twins, Request(machine=CARD))) == ["a"]


# --- slow models


def test_slow_model_is_worth_less() -> None:
    # 16.5 GB per token at 60 GB/s of RAM: between three and four tokens per second
    result = best_of_few(rated(cpu(64)), limit=10)
    orders = [suggestion.order for suggestion in result.suggestions]
    assert orders == sorted(orders, reverse=True)
    slow = next(
        suggestion for suggestion in result.suggestions if suggestion.entry.id == "gemma-3-27b"
    )
    assert not slow.is_quick
    halvings = -math.log2((slow.plan.steady_tokens_per_s or 0) / 8)
    lost = slow.loss.value + slow.cache_loss.value + POINTS_PER_HALVING * halvings
    assert slow.drawback == "slower than reading"
    assert slow.worth == pytest.approx(slow.rank - lost - POINTS_OF_DRAWBACK)
    assert result.suggestions[0].entry.id != "gemma-3-27b"
    for suggestion in result.suggestions:
        assert suggestion.plan.speed is not None
        assert suggestion.is_quick is (suggestion.plan.speed.typical >= READING_TOKENS_PER_S)


def test_no_slow_model_ranks_before_one_at_reading_speed() -> None:
    """The dense 31B writes about 4 tokens/s there, its mixture-of-experts sibling 24."""
    names = ("gemma-4-31b-it", "gemma-4-26b-a4b", "qwen3.6-27b", "gpt-oss-20b", "gemma-4-e2b-it")
    entries, request = [find_entry(name) for name in names], Request(machine=what_if_machine(devices=["M3 Pro 36GB"]))  # fmt: skip
    result = find_best(entries, request)
    assert ids(result) == ["gemma-4-26b-a4b", "gpt-oss-20b", "qwen3.6-27b"]
    assert [suggestion.is_quick for suggestion in result.suggestions] == [True, True, False]
    assert skipped(result) == {SLOW: 1}


@pytest.mark.parametrize(
    ("device", "task"),
    [("iPhone 16", "chat"), ("RTX 3060", "code"), ("M2 8GB", "vision")],
)
def test_terms_add_up_to_the_worth_that_the_list_is_sorted_by(device: str, task: str) -> None:
    request = Request(machine=what_if_machine(devices=[device]), purpose=ModelPurpose(task))
    found = find_best(sampled(read_index().entries, each=2), request).suggestions
    for each in found:
        assert sum(each.terms.values()) == each.worth
        assert each.worth == pytest.approx(each.rank + sum(list(each.terms.values())[4:]))
    listed = [(each.is_notable, each.worth) for each in found]
    # only the last place may go to a model at reading speed instead
    ordered = listed if any(each.is_quick for each in found[:-1]) else listed[:-1]
    assert ordered == sorted(ordered, reverse=True)


def test_much_better_model_just_below_reading_speed_ranks_before_a_poor_quick_one() -> None:
    names = ("qwen3.5-4b", "granite-3.3-2b-instruct")
    request = Request(machine=rated(cpu(8), host=34), purpose=ModelPurpose.CODE)
    better, poor = find_best([find_entry(name) for name in names], request).suggestions
    assert (better.entry.id, poor.entry.id) == names
    assert (better.is_quick, poor.is_quick) == (False, True)


def test_tiny_fast_model_does_not_displace_a_better_slow_one() -> None:
    """At 30 GB/s the 8B writes 6 tokens/s and the 0.6B some 60: too small to be preferred for that."""
    both = [find_entry(name) for name in ("qwen3-0.6b", "qwen3-8b")]
    result = find_best(both, Request(machine=rated(cpu(64), host=30), all_sizes=True))
    assert ids(result) == ["qwen3-8b", "qwen3-0.6b"]
    assert [suggestion.is_quick for suggestion in result.suggestions] == [False, True]


def test_only_the_newest_version_of_a_model_is_shown() -> None:
    both = [find_entry(name) for name in ("qwen3.5-27b", "qwen3.6-27b")]
    for machine in (CARD, rated(cpu(64))):
        assert ids(find_best(both, Request(machine=machine))) == ["qwen3.6-27b"]
    assert set(ids(find_best(both, Request(machine=CARD, all_sizes=True)))) == {"qwen3.5-27b", "qwen3.6-27b"}  # fmt: skip
    assert ids(find_best(both[:1], Request(machine=CARD))) == ["qwen3.5-27b"]


def test_large_model_that_is_much_too_slow_is_skipped() -> None:
    result = best_of_few(rated(cpu(64), host=5), limit=1)
    assert skipped(result)[SLOW] >= 1


def test_small_speed_change_keeps_the_list() -> None:
    lists = [ids(best_of_few(rated(cpu(64), host=rate))) for rate in (69, 70, 71)]
    assert lists[0] == lists[1] == lists[2]


def test_slow_models_are_suggested_if_all_are_slow() -> None:
    result = best_of_few(rated(cpu(64), host=1), limit=10)
    assert result.suggestions
    assert not any(suggestion.is_quick for suggestion in result.suggestions)
    families = [suggestion.entry.family for suggestion in result.suggestions]
    assert len(set(families)) == len(families)


def test_best_model_at_reading_speed_is_shown_among_slow_ones() -> None:
    """At 30 GB/s, 8B models write 4 tokens/s, a 0.6B model more than 8."""
    result = best_of_few(rated(cpu(64), host=30), limit=2)
    assert [suggestion.is_quick for suggestion in result.suggestions] == [False, True]


def test_slow_embedding_model_is_worth_less() -> None:
    both = [find_entry(name) for name in ("qwen3-embedding-8b", "nomic-embed-text-v1.5")]
    best = {}
    for machine in (CARD, what_if_machine(devices=["Raspberry Pi 5 16GB"])):
        request = Request(machine=machine, purpose=ModelPurpose.EMBEDDING)
        best[machine.name] = ids(find_best(both, request))[0]
    assert list(best.values()) == ["qwen3-embedding-8b", "nomic-embed-text-v1.5"]


def test_unknown_speed_is_not_slow() -> None:
    result = best_of_few(cards(24))
    assert result.suggestions
    assert all(
        suggestion.is_quick and suggestion.plan.speed is None for suggestion in result.suggestions
    )


# --- skipped models


def test_purpose_without_models_has_no_suggestion() -> None:
    result = best_of_few(CARD, purpose=ModelPurpose.EMBEDDING)
    assert result.suggestions == ()
    assert result.nearest is None


def test_models_with_too_short_a_context_are_counted() -> None:
    short = entry("qwen3-8b", native_context=4096)
    result = find_best([short], Request(machine=CARD))
    assert ids(result) == []
    assert skipped(result) == {"with too short a context": 1}
    long_context = best_of_few(CARD, context=100_000)
    assert set(ids(long_context)) <= {"llama-3.1-8b", "llama-3.2-1b", "gemma-3-27b"}


def test_refused_models_are_counted() -> None:
    refused = entry("phi-3-small-8k-instruct", native_context=32_768, kinds=(ModelPurpose.CHAT,))
    result = find_best([refused, find_entry("qwen3-0.6b")], Request(machine=CARD))
    assert ids(result) == ["qwen3-0.6b"]
    assert skipped(result) == {"not supported by the engine": 1}


def test_damaged_models_are_counted() -> None:
    stored = header_of(find_entry("qwen3-8b"))
    damaged = entry("qwen3-8b", header=replace(stored, tensors=("nonsense",)), geometry=None)
    result = find_best([damaged, find_entry("qwen3-0.6b")], Request(machine=CARD, all_sizes=True))
    assert ids(result) == ["qwen3-0.6b"]
    assert sum(skipped(result).values()) == 1


def test_model_of_unknown_context_length_is_skipped() -> None:
    result = find_best([entry("qwen3-8b", native_context=None)], Request(machine=CARD))
    assert ids(result) == []
    assert sum(skipped(result).values()) == 1


def test_models_without_files_for_the_engine_are_counted() -> None:
    stored = header_of(find_entry("qwen3-8b"))
    bare = entry("qwen3-8b", header=replace(stored, config={}), geometry=None)
    result = find_best([bare, find_entry("qwen3-0.6b")], Request(machine=CARD, engines=("vllm",)))
    assert ids(result) == ["qwen3-0.6b"]
    assert sum(skipped(result).values()) == 1


def test_three_bit_weights_are_not_recommended() -> None:
    # 4 of 5 GiB are usable; an 8B needs 4.3 at four bits and 3.1 at three
    result = find_best([find_entry("llama-3.1-8b")], Request(machine=rated(cpu(5), host=400)))
    assert result.suggestions == ()
    assert result.nearest is not None
    assert not result.nearest.plan.fits
    assert "--quant IQ3_XXS" in result.nearest.plan.to_fit[0].told


# --- nothing fits


def test_nearest_model_is_the_smallest_with_suggested_changes() -> None:
    result = best_of_few(rated(cpu(1)))
    assert result.suggestions == ()
    assert skipped(result)[TOO_LARGE] == len(few_entries())
    assert result.nearest is not None
    assert result.nearest.entry.id == "qwen3-0.6b"  # the smallest
    assert not result.nearest.plan.fits
    assert {ChangeKind.MEMORY} <= {change.kind for change in result.nearest.plan.to_fit}


def test_empty_catalog_has_no_suggestion() -> None:
    result = find_best([], Request(machine=CARD))
    assert (result.suggestions, result.passed_over, result.nearest) == ((), (), None)


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cpu(64)), ("mlx", cards(24))])
def test_missing_hardware_for_the_engine_is_an_error(engine: str, machine: Machine) -> None:
    with pytest.raises(HardwareError):
        find_best(few_entries(), Request(machine=machine, engines=(engine,)))


# --- options of the request


@pytest.mark.parametrize(
    ("engine", "machine"), [("llama.cpp", CARD), ("vllm", rated(cards(48))), ("mlx", rated(mac(64, 48)))]
)  # fmt: skip
def test_context_and_users_are_planned_for(engine: str, machine: Machine) -> None:
    result = best_of_few(machine, engines=(engine,), context=16_384, users=2, limit=2)  # fmt: skip
    assert len(result.suggestions) == 2
    for suggestion in result.suggestions:
        assert suggestion.plan.context_tokens == 16_384
        assert suggestion.plan.load.sequences == 2
        assert suggestion.plan.task.engine == engine


def test_prefer_accurate_kv_shortens_the_context() -> None:
    request = Request(machine=rated(cards(9), card=1000))
    entries = [find_entry("llama-3.1-8b")]
    (longest,), (accurate,) = (find_best(entries, replace(request, prefer_accurate_kv=prefer)).suggestions for prefer in (False, True))  # fmt: skip
    assert (longest.plan.context_tokens, longest.plan.result.cache) == (32_768, "q8_0")
    assert (accurate.plan.context_tokens, accurate.plan.result.cache) == (16_384, "f16")


def test_embedding_model_starts_with_embeddings() -> None:
    result = find_best(
        read_index().entries, Request(machine=rated(cpu(16)), purpose=ModelPurpose.EMBEDDING)
    )
    assert result.suggestions
    for suggestion in result.suggestions:
        assert ModelPurpose.EMBEDDING in suggestion.entry.kinds
        assert suggestion.plan.result.way.setup.embeddings


def test_progress_message_names_a_model() -> None:
    messages: list[str] = []
    find_best(
        few_entries(),
        Request(machine=CARD, limit=1),
        Session(reach=Reach(progress=messages.append)),
    )
    assert messages
    assert all(any(name in line for name in NAMES) for line in messages)


def test_task_has_the_repository_of_its_weights() -> None:
    task = task_for(find_entry("qwen3-8b"), complete(Request(machine=CARD)))
    assert (task.label, task.repository) == ("qwen3-8b", "Qwen/Qwen3-8B")


# --- the whole catalog (a sample of it in the default run)


@pytest.mark.parametrize("machine", [rated(cpu(8)), rated(cards(8))], ids=["processor", "card"])
def test_every_suggestion_of_the_catalog_fits(machine: Machine) -> None:
    result = find_best(sampled(read_index().entries, each=5), Request(machine=machine))
    assert len(result.suggestions) == 5
    assert all(is_within(suggestion.plan) for suggestion in result.suggestions)
    assert all(suggestion.plan.variant.is_good for suggestion in result.suggestions)


def test_model_that_fills_the_ram_is_not_preferred() -> None:
    """Because other programs need some of it. A full GPU does not matter."""
    request = Request(machine=rated(cpu(10), host=1000), context=32_768)
    (full,) = find_best([find_entry("llama-3.1-8b")], request).suggestions
    assert full.plan.result.warning
    assert full.plan.speed is not None
    assert not full.is_preferred
    (card,) = find_best(
        [find_entry("llama-3.1-8b")], replace(request, machine=rated(cards(8)))
    ).suggestions
    assert card.plan.result.warning
    assert card.plan.speed is not None
    assert card.is_preferred
