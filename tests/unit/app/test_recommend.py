"""The best few for a machine: their order, why others are not among them, and what is said where nothing fits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import is_within, rated

from edgekit.app.recommend import SLOW, TOO_LARGE, Recommendation, complete, find_best, task_for
from edgekit.bill.types import ChangeKind
from edgekit.catalog import read_catalog
from edgekit.catalog.names import find_entry
from edgekit.catalog.types import Entry, ModelPurpose
from edgekit.errors import HardwareError
from edgekit.machine.types import Machine
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.choice import READING_TOKENS_PER_S
from edgekit.plan.recommend import quickness, rank_of
from edgekit.request import Request, Session
from edgekit.sources.types import Reach

NAMES = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "llama-3.1-8b", "llama-3.2-1b", "gemma-3-27b", "smollm3-3b")  # fmt: skip
CARD = rated(cards(24), card=1000)


@cache
def few() -> tuple[Entry, ...]:
    return tuple(find_entry(name) for name in NAMES)


@cache
def asked(machine: Machine, **more: Any) -> Recommendation:
    """Of the few, once for all tests that only look at the answer."""
    return find_best(few(), Request(machine=machine, **more))


def entry(name: str, **more: Any) -> Entry:
    return replace(find_entry(name), **more)


def ids(found: Recommendation) -> list[str]:
    return [suggestion.entry.id for suggestion in found.suggestions]


def over(found: Recommendation) -> dict[str, int]:
    return dict(found.passed_over)


# --- the order


def test_the_best_rank_first_one_of_a_family() -> None:
    result = asked(CARD)
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


def test_the_first_of_its_family_is_its_best_that_fits() -> None:
    # 30.5 billion with 3.4 active come before 8.2: the root of 102 is 10.1
    assert ids(asked(CARD))[0] in {"gemma-3-27b", "qwen3-30b-a3b"}
    assert "qwen3-30b-a3b" in ids(asked(CARD))
    small = asked(rated(cards(12, ram=4), card=1000))
    assert [name for name in ids(small) if name.startswith("qwen3")] == ["qwen3-8b"]
    assert over(small)[TOO_LARGE] >= 2


def test_all_sizes_shows_several_of_a_family() -> None:
    result = asked(CARD, all_sizes=True, limit=10)
    assert sum(suggestion.entry.family == "qwen3" for suggestion in result.suggestions) == 3


@pytest.mark.parametrize("most", [1, 3])
def test_limit(most: int) -> None:
    whole = ids(asked(CARD, limit=10))
    assert ids(asked(CARD, limit=most)) == whole[:most]


def test_the_order_of_the_catalog_does_not_matter() -> None:
    one, other = asked(CARD), find_best(few()[::-1], Request(machine=CARD))
    assert answer(one) == answer(other)
    assert one.passed_over == other.passed_over


def answer(found: Recommendation) -> list[tuple[Any, ...]]:
    return [
        (
            suggestion.entry.id,
            suggestion.plan.decisions,
            [tried.told for step in suggestion.plan.decisions for tried in step.tried],
            suggestion.plan.load,
            suggestion.plan.result.estimate,
            suggestion.plan.speed,
        )
        for suggestion in found.suggestions
    ]


def test_equal_ranks_are_ordered_by_name() -> None:
    twins = [entry("qwen3-8b", id=name, family=name) for name in ("b", "c", "a")]
    assert ids(find_best(twins, Request(machine=CARD))) == ["a", "b", "c"]


# --- slow ones


def test_a_slow_model_is_worth_less() -> None:
    # 16.5 GB for a token at 60 GB/s of the processor: about three times a second
    result = asked(rated(cpu(64)), limit=10)
    orders = [suggestion.order for suggestion in result.suggestions]
    assert orders == sorted(orders, reverse=True)
    slow = next(
        suggestion for suggestion in result.suggestions if suggestion.entry.id == "gemma-3-27b"
    )
    assert not slow.is_quick
    assert slow.worth == slow.rank * ((slow.plan.steady_tokens_per_s or 0) / 8) ** 2
    assert result.suggestions[0].entry.id != "gemma-3-27b"
    for suggestion in result.suggestions:
        assert suggestion.plan.speed is not None
        assert suggestion.is_quick is (suggestion.plan.speed.typical >= READING_TOKENS_PER_S)


def test_no_slow_model_ranks_before_one_at_reading_speed() -> None:
    """The dense 31B writes about four tokens a second there, its sibling with experts 24."""
    names = ("gemma-4-31b-it", "gemma-4-26b-a4b", "qwen3.6-27b", "gpt-oss-20b", "gemma-4-e2b-it")
    entries, ask = [find_entry(name) for name in names], Request(machine=what_if_machine(devices=["M3 Pro 36GB"]))  # fmt: skip
    result = find_best(entries, ask)
    assert ids(result) == ["gemma-4-26b-a4b", "gpt-oss-20b", "qwen3.6-27b"]
    assert [suggestion.is_quick for suggestion in result.suggestions] == [True, True, False]
    assert over(result) == {SLOW: 1}


def test_a_small_fast_model_does_not_displace_a_better_slow_one() -> None:
    names = ("gemma-4-26b-a4b", "gemma-4-e2b-it", "deepseek-v2-lite", "gpt-oss-20b")
    entries = [find_entry(name) for name in names]
    for gib in (21.5, 22, 23):
        result = find_best(entries, Request(machine=what_if_machine(ram=f"{gib}G")))
        assert ids(result) == ["gpt-oss-20b", "gemma-4-26b-a4b", "deepseek-v2-lite"]
        assert [suggestion.is_quick for suggestion in result.suggestions] == [True, False, True]


def test_only_the_newest_version_of_a_model_is_shown() -> None:
    both = [find_entry(name) for name in ("qwen3.5-27b", "qwen3.6-27b")]
    for machine in (CARD, rated(cpu(64))):
        assert ids(find_best(both, Request(machine=machine))) == ["qwen3.6-27b"]
    assert set(ids(find_best(both, Request(machine=CARD, all_sizes=True)))) == {"qwen3.5-27b", "qwen3.6-27b"}  # fmt: skip
    assert ids(find_best(both[:1], Request(machine=CARD))) == ["qwen3.5-27b"]


def test_a_large_model_that_is_much_too_slow_is_skipped() -> None:
    result = asked(rated(cpu(64), host=5), limit=1)
    assert over(result)[SLOW] >= 1


def test_small_speed_change_keeps_the_list() -> None:
    lists = [ids(asked(rated(cpu(64), host=rate))) for rate in (59, 60, 61)]
    assert lists[0] == lists[1] == lists[2]


def test_all_models_slow() -> None:
    result = asked(rated(cpu(64), host=1), limit=10)
    assert result.suggestions
    assert not any(suggestion.is_quick for suggestion in result.suggestions)
    families = [suggestion.entry.family for suggestion in result.suggestions]
    assert len(set(families)) == len(families)


def test_among_slow_ones_the_best_at_reading_speed_is_shown() -> None:
    """30 GB/s: 8B models write four tokens a second, a 0.6B model more than eight."""
    result = asked(rated(cpu(64), host=30), limit=2)
    assert [suggestion.is_quick for suggestion in result.suggestions] == [False, True]


def test_a_slow_embedding_model_is_worth_less() -> None:
    both = [find_entry(name) for name in ("qwen3-embedding-8b", "nomic-embed-text-v1.5")]
    best = {}
    for machine in (CARD, what_if_machine(devices=["Raspberry Pi 5 16GB"])):
        ask = Request(machine=machine, purpose=ModelPurpose.EMBEDDING)
        best[machine.name] = ids(find_best(both, ask))[0]
    assert list(best.values()) == ["qwen3-embedding-8b", "nomic-embed-text-v1.5"]


def test_unknown_speed_is_not_slow() -> None:
    result = asked(cards(24))
    assert result.suggestions
    assert all(
        suggestion.is_quick and suggestion.plan.speed is None for suggestion in result.suggestions
    )


# --- who is passed over


def test_another_task() -> None:
    result = asked(CARD, purpose=ModelPurpose.EMBEDDING)
    assert result.suggestions == ()
    assert result.nearest is None


def test_context_too_short() -> None:
    short = entry("qwen3-8b", native_context=4096)
    result = find_best([short], Request(machine=CARD))
    assert ids(result) == []
    assert over(result) == {"with too short a context": 1}
    wanted = asked(CARD, context=100_000)
    assert set(ids(wanted)) <= {"llama-3.1-8b", "llama-3.2-1b", "gemma-3-27b"}


def test_refused_models_are_counted() -> None:
    refused = entry("phi-3-small-8k-instruct", native_context=32_768, kinds=(ModelPurpose.CHAT,))
    result = find_best([refused, find_entry("qwen3-0.6b")], Request(machine=CARD))
    assert ids(result) == ["qwen3-0.6b"]
    assert over(result) == {"not supported by the engine": 1}


def test_damaged_models_are_counted() -> None:
    damaged = entry("qwen3-8b", tensors=("nonsense",))
    result = find_best([damaged, find_entry("qwen3-0.6b")], Request(machine=CARD, all_sizes=True))
    assert ids(result) == ["qwen3-0.6b"]
    assert sum(over(result).values()) == 1


def test_unknown_context_length() -> None:
    result = find_best([entry("qwen3-8b", native_context=None)], Request(machine=CARD))
    assert ids(result) == []
    assert sum(over(result).values()) == 1


def test_models_without_files_for_the_engine_are_counted() -> None:
    bare = entry("qwen3-8b", config={})
    result = find_best([bare, find_entry("qwen3-0.6b")], Request(machine=CARD, engines=("vllm",)))
    assert ids(result) == ["qwen3-0.6b"]
    assert sum(over(result).values()) == 1


def test_three_bit_weights_are_not_recommended() -> None:
    # 5 GiB: 4 usable, less than 4.3 of an 8B at four bits, more than 3.1 at three
    result = find_best([find_entry("llama-3.1-8b")], Request(machine=rated(cpu(5), host=400)))
    assert result.suggestions == ()
    assert result.nearest is not None
    assert not result.nearest.plan.fits
    assert "--quant IQ3_XXS" in result.nearest.plan.to_fit[0].told


# --- nothing fits


def test_nearest_model_and_what_would_help() -> None:
    result = asked(rated(cpu(1)))
    assert result.suggestions == ()
    assert over(result)[TOO_LARGE] == len(few())
    assert result.nearest is not None
    assert result.nearest.entry.id == "qwen3-0.6b"  # the fewest bytes
    assert not result.nearest.plan.fits
    assert {ChangeKind.MEMORY} <= {change.kind for change in result.nearest.plan.to_fit}


def test_empty_catalog() -> None:
    result = find_best([], Request(machine=CARD))
    assert (result.suggestions, result.passed_over, result.nearest) == ((), (), None)


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cpu(64)), ("mlx", cards(24))])
def test_no_hardware_for_the_engine(engine: str, machine: Machine) -> None:
    with pytest.raises(HardwareError):
        find_best(few(), Request(machine=machine, engines=(engine,)))


# --- what is asked for reaches the plan


@pytest.mark.parametrize(
    ("engine", "machine"), [("llama.cpp", CARD), ("vllm", rated(cards(48))), ("mlx", rated(mac(64, 48)))]
)  # fmt: skip
def test_a_context_for_several_users(engine: str, machine: Machine) -> None:
    result = asked(machine, engines=(engine,), context=16_384, users=2, limit=2)  # fmt: skip
    assert len(result.suggestions) == 2
    for suggestion in result.suggestions:
        assert suggestion.plan.context_tokens == 16_384
        assert suggestion.plan.load.sequences == 2
        assert suggestion.plan.task.engine == engine


def test_prefer_accurate_kv() -> None:
    ask = Request(machine=rated(cards(9), card=1000))
    entries = [find_entry("llama-3.1-8b")]
    (longest,), (accurate,) = (find_best(entries, replace(ask, prefer_accurate_kv=prefer)).suggestions for prefer in (False, True))  # fmt: skip
    assert (longest.plan.context_tokens, longest.plan.result.cache) == (32_768, "q8_0")
    assert (accurate.plan.context_tokens, accurate.plan.result.cache) == (16_384, "f16")


def test_embedding_model_starts_with_embeddings() -> None:
    result = find_best(
        read_catalog().entries, Request(machine=rated(cpu(16)), purpose=ModelPurpose.EMBEDDING)
    )
    assert result.suggestions
    for suggestion in result.suggestions:
        assert ModelPurpose.EMBEDDING in suggestion.entry.kinds
        assert suggestion.plan.result.way.setup.embeddings


def test_progress() -> None:
    messages: list[str] = []
    find_best(few(), Request(machine=CARD, limit=1), Session(reach=Reach(progress=messages.append)))
    assert messages
    assert all(any(name in line for name in NAMES) for line in messages)


def test_task_has_the_repository_of_its_weights() -> None:
    task = task_for(find_entry("qwen3-8b"), complete(Request(machine=CARD)))
    assert (task.label, task.repository) == ("qwen3-8b", "Qwen/Qwen3-8B")


# --- the whole catalog (in the normal run a part of it)


@pytest.mark.parametrize("machine", [rated(cpu(8)), rated(cards(8))], ids=["processor", "card"])
def test_every_suggestion_of_the_catalog_fits(machine: Machine) -> None:
    result = find_best(sampled(read_catalog().entries, each=5), Request(machine=machine))
    assert len(result.suggestions) == 5
    assert all(is_within(suggestion.plan) for suggestion in result.suggestions)
    assert all(suggestion.plan.variant.is_good for suggestion in result.suggestions)


def test_a_model_that_fills_the_ram_is_worth_a_quarter() -> None:
    """Other programs need some of it. A full GPU does not count."""
    ask = Request(machine=rated(cpu(10), host=1000), context=32_768)
    (full,) = find_best([find_entry("llama-3.1-8b")], ask).suggestions
    assert full.plan.result.warning
    assert full.plan.speed is not None
    assert full.worth == pytest.approx(full.rank * quickness(full.plan.speed.typical) / 4)
    (card,) = find_best(
        [find_entry("llama-3.1-8b")], replace(ask, machine=rated(cards(8)))
    ).suggestions
    assert card.plan.result.warning
    assert card.plan.speed is not None
    assert card.worth == card.rank * quickness(card.plan.speed.typical)
