"""The policy's choice of tier, context, cache, drafter and number of sequences, with each row of the memo's table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engines.memo import tier_tasks
from tests.unit.engines.memo.tier_tasks import (
    first_placement,
    planned,
    ram,
    recommended,
    task_for,
    tasks_for,
)
from tests.unit.plan.machines import cards, cpu

from edgekit.bill.spill import Purpose, Store
from edgekit.bill.types import Component, Lever
from edgekit.engines.memo.policy import (
    TierPlan,
    ladder_plan,
    plan_tier_on,
    recommend_tier,
    recommend_tier_on,
)
from edgekit.engines.memo.rules import memory_notes
from edgekit.errors import HardwareError, KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.index.tiers import Layout, find_layout, find_tier, tiers
from edgekit.machine.types import HOST, Machine, System
from edgekit.machine.what_if import what_if_machine
from edgekit.report.tier import tier_json
from edgekit.units import GIB, MIB

RESERVE_GIB = 1.5  # of RAM, for the system


def usable(gib: float) -> Machine:
    """A phone or a Mac with this many GiB left for a model."""
    return ram(int((gib + RESERVE_GIB) * GIB))


def card(gib: float) -> Machine:
    return tier_tasks.card(int(gib * GIB))


# Situation: machine, tier (None: the best one), and the expected tier, cache, context, drafter and sequences. The memo's
# windows of 40,960 and 65,536 tokens are 131,072 by its audit note; docs/data/tiers_memo.tsv lists the other differences
# from the memo's table.
ROWS: dict[str, tuple[Machine, str | None, tuple[str, str, int, str | None, int]]] = {
    "phone, 4 GB usable": (usable(4), None, ("0.8B", "polar", 124_416, None, 2)),
    "phone, 6 GB usable": (usable(6), None, ("2B", "polar", 131_072, None, 8)),
    "phone, 8 GB usable": (usable(8), None, ("4B", "polar", 131_072, None, 8)),
    "phone or tablet, 12 GB": (ram(12 * GIB), None, ("9B", "polar", 131_072, None, 8)),
    "card of 16 GB": (card(16), None, ("9B", "f16", 131_072, None, 8)),
    "card of 16 GB, small model, long context": (card(16), "2B", ("2B", "polar", 131_072, None, 8)),
    "card of 24 GB": (card(24), None, ("27B", "polar", 131_072, None, 8)),
    "card of 24 GB, 0.8B for latency": (card(24), "0.8B", ("0.8B", "f16", 131_072, "2B", 8)),
    "card of 24 GB, 2B for latency": (card(24), "2B", ("2B", "f16", 131_072, None, 8)),
    "Mac, 48 GB": (ram(48 * GIB), None, ("27B", "polar", 131_072, "9B", 8)),
    "96 GB": (ram(96 * GIB), None, ("27B", "polar", 131_072, "9B", 8)),
}  # fmt: skip


@pytest.mark.parametrize("situation", ROWS)
def test_plan_of_each_row_of_the_decision_table(situation: str) -> None:
    machine, tier, (name, layout, tokens, drafter, sequences) = ROWS[situation]
    plan = recommended(machine) if tier is None else planned(machine, tier)
    assert plan.verdict.can_load
    assert (plan.tier.name, plan.layout) == (name, find_layout(layout))
    assert (plan.verdict.context_tokens, plan.parallel) == (tokens, sequences)
    assert drafter_name(plan) == drafter
    assert tier_json(plan)["draft_max"] == (6 if drafter else 0)
    assert plan.setup.spill is None  # a context that the policy chooses stays in memory
    assert "it could spill: one page of 256 tokens" in reason(plan, Lever.PLACEMENT)
    assert [step.lever for step in plan.steps] == [
        Lever.WEIGHTS, Lever.CONTEXT, Lever.CACHE, Lever.PLACEMENT, Lever.DRAFTER, Lever.SEQUENCES,
    ]  # fmt: skip


def reason(plan: TierPlan, lever: Lever) -> str:
    return next(step.because for step in plan.steps if step.lever is lever)


def drafter_name(plan: TierPlan) -> str | None:
    return None if plan.setup.drafter is None else plan.setup.drafter.name


def test_chosen_context_is_what_fits_minus_5_percent_in_whole_pages() -> None:
    """(4 - 0.5 - 0.6) GiB / 23,744 B = 131,143 tokens; minus 5 %: 124,585; in pages of 256: 124,416."""
    plan = recommended(usable(4))
    assert plan.verdict.context_tokens == 131_143 * 95 // 100 // 256 * 256 == 124_416


def test_bill_includes_the_drafter_and_the_states_of_all_sequences() -> None:
    plan = recommended(ram(48 * GIB))
    assert plan.required_bytes == sum(
        (
            round(16.8 * GIB) + round(2.5 * GIB),
            131_072 * 13_568 + 8 * 156_893_184,
            round(5.4 * GIB) + round(1.5 * GIB),  # the 9B as drafter
            131_072 * 6_784 + 8 * 52_690_944,
        )
    )


# The memo has 77k f16, 145k q8_0 and 372k compressed tokens of the 27B on a card of 24 GB.
@pytest.mark.parametrize(
    ("tokens", "layout"), [(65_536, "f16"), (80_000, "q8_0"), (131_072, "q8_0")]
)
def test_given_context_gets_the_most_accurate_cache_that_holds_it(tokens: int, layout: str) -> None:
    plan = planned(card(24), "27B", context=tokens)
    assert plan.verdict.can_load
    assert (plan.layout.name, plan.verdict.context_tokens) == (layout, tokens)
    assert reason(plan, Lever.CONTEXT) == "as requested"


@pytest.mark.parametrize(("tokens", "layout"), [(8192, "turbo3"), (8193, "polar")])
def test_given_context_that_fits_only_compressed_is_compressed(tokens: int, layout: str) -> None:
    """The compressed cache fills the card exactly."""
    tier = find_tier("4B")
    cache_bytes = tier.bytes_per_token(find_layout(layout)) * tokens
    memory = tier_tasks.card(tier.weights_bytes + tier.working_bytes + cache_bytes)
    plan = planned(memory, tier, context=tokens)
    assert (plan.verdict.can_load, plan.layout) == (True, find_layout(layout))
    assert plan.required_bytes == plan.budget.available_bytes


@pytest.mark.parametrize(
    ("gib", "layout", "tokens"),
    [
        (24, "f16", 70_656),  # (24 - 19.3) GiB minus a state of 156,893,184 B, minus 5 %, in pages
        (20.5, "f16", 16_384),
        (20.4, "q8_0", 27_904),
        (20, "polar", 41_472),
    ],
)
def test_prefer_accurate_kv_prefers_accuracy_to_length(
    gib: float, layout: str, tokens: int
) -> None:
    machine = tier_tasks.card(int(gib * GIB), total_bytes=24 * GIB)
    plan = planned(machine, "27B", prefer_accurate_kv=True)
    assert plan.layout == find_layout(layout)
    left_bytes = gib * GIB - round(19.3 * GIB) - 156_893_184
    largest = int(left_bytes) // find_tier("27B").bytes_per_token(plan.layout)
    assert plan.verdict.context_tokens == largest * 95 // 100 // 256 * 256 == tokens


def test_given_layout_is_the_only_one_tried() -> None:
    plan = planned(card(16), "9B", layout=find_layout("q8_0"))
    assert (plan.layout.name, plan.verdict.context_tokens) == ("q8_0", 131_072)


def test_turbo3_holds_at_most_8192_tokens() -> None:
    short = find_layout("turbo3")
    plan = planned(card(16), "9B", layout=short)
    assert (plan.verdict.can_load, plan.verdict.context_tokens, plan.parallel) == (True, 8192, 4)
    with pytest.raises(UsageError, match="holds up to 8,192 tokens, but 8,193 were requested"):
        planned(card(16), "9B", layout=short, context=8193)


@pytest.mark.parametrize(
    ("engine", "layout", "tokens"),
    [
        ("llama.cpp", None, None),  # contexts above 8K are compressed by default
        ("llama.cpp", find_layout("polar"), None),
        ("vllm", find_layout("q8_0"), None),
        ("llama.cpp", None, 131_072),  # the 27B fits neither with f16 nor with q8_0
    ],
)
def test_layout_that_the_engine_lacks_is_refused(
    engine: str, layout: Layout | None, tokens: int | None
) -> None:
    with pytest.raises(RefusedError, match="does not have the cache layout"):
        planned(card(21), "27B", engine=engine, layout=layout, context=tokens)


def test_layout_that_the_engine_has_is_planned() -> None:
    plan = planned(card(24), "27B", engine="llama.cpp", layout=find_layout("q8_0"))
    assert plan.verdict.can_load
    assert (plan.layout.name, plan.verdict.context_tokens) == ("q8_0", 131_072)


def test_context_beyond_the_header_is_rejected() -> None:
    for tokens in (131_073, 262_144):
        with pytest.raises(UsageError, match=r"longer than the 0\.8B supports: 131,072"):
            planned(card(80), "0.8B", context=tokens)
    with pytest.raises(UsageError, match="no tier has a context of 131,073 tokens"):
        recommended(card(80), context=131_073)


@pytest.mark.parametrize(
    ("catalog_window", "native_window", "chosen", "tokens"),
    [
        (262_144, 262_144, "2B-long", 262_144),
        (262_144, 131_072, "2B", 131_072),  # listed with a longer context than its header has
        (65_536, 262_144, "2B", 131_072),
        (1_048_576, 1_048_576, "2B-long", 601_344),  # 633,102 fit, minus 5 %
    ],
)
def test_recommend_tier_takes_the_variant_with_the_longest_context(
    catalog_window: int, native_window: int, chosen: str, tokens: int
) -> None:
    variant = replace(
        find_tier("2B"),
        name="2B-long",
        catalog_window=catalog_window,
        native_window=native_window,
    )
    plan = recommended(card(16), candidates=(*tiers()[:2], variant))
    assert (plan.tier.name, plan.verdict.context_tokens) == (chosen, tokens)


def test_context_listed_beyond_the_header_is_explained() -> None:
    tier = replace(find_tier("2B"), catalog_window=262_144, native_window=65_536)
    plan = planned(card(16), tier)
    assert plan.verdict.context_tokens == 65_536
    assert "in its header, although it is listed with 262,144" in reason(plan, Lever.CONTEXT)


def test_drafter_needs_the_same_vocabulary() -> None:
    other = replace(find_tier("0.8B"), vocabulary="another")
    plan = planned(card(24), other)
    assert plan.setup.drafter is None
    assert "the 2B has a different vocabulary" in reason(plan, Lever.DRAFTER)


def bytes_with_drafter() -> int:
    """The 27B and the 9B as its drafter, each with weights, working set, cache and one state."""
    large = round(19.3 * GIB) + 131_072 * 13_568 + 156_893_184
    return large + round(5.4 * GIB) + round(1.5 * GIB) + 131_072 * 6_784 + 52_690_944


@pytest.mark.parametrize(("spare_bytes", "drafter"), [(8, "9B"), (-8, None)])
def test_drafter_needs_memory_for_its_own_cache(spare_bytes: int, drafter: str | None) -> None:
    plan = planned(tier_tasks.card(bytes_with_drafter() + spare_bytes), "27B")
    assert drafter_name(plan) == drafter
    assert plan.verdict.context_tokens == 131_072
    # no second state fits next to the drafter
    assert plan.parallel == (1 if drafter else 8)


def test_may_draft_off_leaves_the_drafter_out() -> None:
    plan = recommended(ram(48 * GIB), may_draft=False)
    assert (plan.setup.drafter, tier_json(plan)["draft_max"]) == (None, 0)


@pytest.mark.parametrize(("tokens", "count"), [(131_072, 8), (131_071, 4), (4096, 4)])
def test_sequences_are_8_for_a_context_of_131072_tokens_and_4_below(
    tokens: int, count: int
) -> None:
    plan = planned(card(24), "2B", context=tokens)
    assert plan.parallel == count


@pytest.mark.parametrize(("states", "count"), [(8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, 1)])
def test_sequences_are_halved_until_their_states_fit(states: int, count: int) -> None:
    tier = find_tier("27B")
    without_states = tier.weights_bytes + tier.working_bytes + 131_072 * 34_816
    machine = tier_tasks.card(without_states + states * tier.state_bytes)
    plan = planned(machine, tier, context=131_072)
    assert (plan.layout.name, plan.parallel) == ("q8_0", count)


def test_users_have_a_full_context_each() -> None:
    """The memo has eight times about 0.9 GiB for the 0.8B with 40,960 tokens."""
    plan = planned(card(9), "0.8B", context=40_960, users=8, may_draft=False)
    cache = plan.verdict.estimate.of(Component.KV_CACHE)
    assert (plan.verdict.can_load, plan.layout) == (True, find_layout("polar"))
    assert cache == 8 * 40_960 * 23_744
    assert f"{cache / 8 / GIB:.1f}" == "0.9"
    assert plan.parallel == 8


def test_chosen_context_is_divided_among_users() -> None:
    alone = planned(card(8), "4B")
    shared = planned(card(8), "4B", users=4)
    assert alone.verdict.context_tokens == 131_072
    assert shared.verdict.context_tokens == 154_758 // 4 * 95 // 100 // 256 * 256
    assert shared.parallel == 4


# ladders


@pytest.mark.parametrize(
    ("gib", "first_run", "small", "large"),
    [(4, "0.8B", "0.8B", "0.8B"), (6, "2B", "0.8B", "2B"), (12, "2B", "0.8B", "2B")],
)
def test_ladder_plan_on_phones(gib: int, first_run: str, small: str, large: str) -> None:
    tasks = tasks_for(ram(gib * GIB))
    memory = first_placement(tasks[0])
    assert ladder_plan(None, tasks, memory).tier.name == first_run
    assert ladder_plan("small", tasks, memory).tier.name == small
    assert ladder_plan("large", tasks, memory).tier.name == large


def test_nothing_fits_gives_the_smallest_tier_and_the_missing_memory() -> None:
    """The 0.8B: 0.5 + 0.6 GiB, 16,384 tokens and their margin of 5 %, 1.5 GiB for the system, on a machine of 2 GiB."""
    tokens = -(-16_384 * 100 // 95)
    needed = round(0.5 * GIB) + round(0.6 * GIB) + tokens * 23_744 + 3 * GIB // 2
    tasks = tasks_for(ram(2 * GIB))
    memory = first_placement(tasks[0])
    plans = (
        ladder_plan(None, tasks, memory),
        ladder_plan("large", tasks, memory),
        recommend_tier(tasks, memory),
    )
    for plan in plans:
        assert (plan.verdict.can_load, plan.tier.name) == (False, "0.8B")
        assert plan.to_add_bytes == -(-(needed - 2 * GIB) // MIB) * MIB
    assert recommended(ram(2 * GIB + plan.to_add_bytes)).verdict.can_load
    assert not recommended(ram(2 * GIB + plan.to_add_bytes - MIB)).verdict.can_load


def test_ladder_plan_of_an_unknown_ladder() -> None:
    with pytest.raises(UsageError, match="choose one of small, large"):
        ladder_plan("medium", tasks_for(card(8)), first_placement(tasks_for(card(8))[0]))


# spill


def test_given_long_context_is_spilled() -> None:
    memory = tier_tasks.card(6 * GIB, host_bytes=32 * GIB)
    plan = planned(memory, "4B", context=131_072)
    assert plan.setup.spill is not None
    page = 256 * 30_528
    resident = (6 * GIB - round(3.6 * GIB)) // page
    assert plan.setup.spill.resident_tokens == resident * 256
    assert plan.setup.spill.spilled_pages == 512 - resident
    assert plan.verdict.estimate.total(lambda line: line.pool == HOST) == (512 - resident) * page
    assert plan.required_bytes <= 6 * GIB
    assert (plan.parallel, plan.setup.drafter) == (2, None)  # the cache limits the context


def test_given_context_of_65536_tokens_is_not_spilled() -> None:
    memory = tier_tasks.card(5 * GIB, host_bytes=32 * GIB)
    plan = planned(memory, "4B", context=65_536)
    assert not plan.verdict.can_load
    assert (plan.verdict.context_tokens, plan.setup.spill) == (65_536, None)
    assert "needs 5.46 GiB, 5.00 GiB usable" in plan.verdict.reasons[0]


def test_spill_to_full_ram_is_an_error() -> None:
    memory = tier_tasks.card(6 * GIB, host_bytes=2 * GIB)  # 0.5 GiB after the reserve
    with pytest.raises(KvSpillUnsupportedError, match=r"512\.00 MiB left in RAM"):
        planned(memory, "4B", context=131_072)


@pytest.mark.parametrize(("users", "purpose"), [(38, Purpose.VOICE), (39, Purpose.TEXT)])
def test_restore_time_of_a_spill_is_one_page_of_each_user(users: int, purpose: Purpose) -> None:
    """Pages have 256 x 30,528 B = 7.8 MB. Voice waits at most 200 ms: at 1.5 GB/s 300 MB, the pages of 38 users."""
    spill = planned(usable(8), "4B", context=65_537, users=users, purpose=purpose).setup.spill
    assert spill is not None
    assert spill.restore_ms == pytest.approx(users * 256 * 30_528 / 1.5e6)


def test_spill_for_39_voice_users_is_refused() -> None:
    options: dict[str, Any] = {"context": 65_537, "users": 39, "purpose": Purpose.VOICE}
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        planned(usable(8), "4B", **options)
    # pages of the 2B are 6.1 MB: in time for up to 49 users
    assert recommended(usable(8), **options).tier.name == "2B"
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        recommended(usable(8), **{**options, "users": 50})


def test_recommend_tier_prefers_a_smaller_tier_to_a_spill() -> None:
    """The 4B would need 7.33 GiB; the 2B with the same window needs 4.90."""
    memory = tier_tasks.card(6 * GIB, host_bytes=32 * GIB)
    plan = recommended(memory, context=131_072)
    assert (plan.tier.name, plan.setup.spill) == ("2B", None)


def test_recommend_tier_spills_if_no_tier_has_the_whole_context_in_memory() -> None:
    memory = tier_tasks.card(int(3.5 * GIB), host_bytes=32 * GIB)
    plan = recommended(memory, context=131_072)
    assert plan.setup.spill is not None
    assert (plan.tier.name, plan.setup.spill.store) == ("2B", Store.HOST_RAM)
    assert "no tier has the whole context in memory" in reason(plan, Lever.WEIGHTS)


# machines


def test_recommend_tier_prefers_the_card_to_ram() -> None:
    assert recommend_tier_on(tasks_for(cards(16, ram=64))).tier.name == "9B"
    assert recommend_tier_on(tasks_for(cards(1, ram=64))).tier.name == "27B"  # none fits the card


def test_plan_tier_on_uses_ram_if_the_card_is_too_small() -> None:
    plan = plan_tier_on(task_for(cards(16, ram=64), "27B"))
    assert (plan.verdict.can_load, plan.budget.name) == (True, "cards")


def test_recommend_tier_uses_one_card_and_notes_the_other() -> None:
    machine = cards(16, 8, ram=None)
    plan = recommend_tier_on(tasks_for(machine))
    assert plan.tier.name == "9B"
    (note,) = memory_notes(machine, plan.budget)
    assert note == "a tier runs on one GPU: the other one is not counted"


def test_recommend_tier_on_a_machine_of_unknown_memory_is_an_error() -> None:
    with pytest.raises(HardwareError, match="is unknown"):
        recommend_tier_on(tasks_for(Machine(name="nothing", system=System.LINUX, host=None)))


@pytest.mark.parametrize(
    ("device", "tier", "tokens"),
    [("phone-4", "0.8B", 38_656), ("phone-8", "2B", 85_760), ("iPhone 15 Pro", "4B", 66_304)],
)
def test_recommend_tier_on_phones(device: str, tier: str, tokens: int) -> None:
    plan = recommend_tier_on(tasks_for(what_if_machine(devices=[device])))
    assert (plan.tier.name, plan.verdict.context_tokens) == (tier, tokens)


def test_recommend_tier_without_a_card() -> None:
    assert recommend_tier_on(tasks_for(cpu(12))).tier.name == "9B"


@pytest.mark.parametrize(
    "numbers", [{"context": 0}, {"min_context": 0}, {"users": 0}, {"users": 10**6}]
)
def test_plan_tier_rejects_invalid_numbers(numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        planned(card(8), "2B", **numbers)
