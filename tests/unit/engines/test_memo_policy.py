"""Which tier, context, cache, drafter and how many sequences: the memo's decision table, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engines import tier_tasks
from tests.unit.engines.tier_tasks import (
    first_placement,
    planned,
    ram,
    recommended,
    task_for,
    tasks_for,
)
from tests.unit.plan.machines import cards, cpu, mac

from edgekit.bill.spill import Purpose, Store
from edgekit.bill.types import Component, Lever
from edgekit.catalog.tiers import Layout, find_layout, find_tier, tiers
from edgekit.engines.memo.policy import (
    TierPlan,
    ladder_plan,
    plan_tier_on,
    recommend_tier,
    recommend_tier_on,
)
from edgekit.engines.memo.rules import budgets, memory_notes, placements, store_of
from edgekit.errors import HardwareError, KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.machine.types import HOST, HostMemory, Machine, System
from edgekit.machine.what_if import what_if_machine
from edgekit.report.tier import tier_json
from edgekit.units import GIB, MIB

RESERVE = 1.5  # GiB that the system keeps of RAM


def usable(gib: float) -> Machine:
    """A phone or a Mac with this much left for a model."""
    return ram(int((gib + RESERVE) * GIB))


def card(gib: float) -> Machine:
    return tier_tasks.card(int(gib * GIB))


# situation: memory, the tier if it was chosen on purpose, and what comes of it. The memo's windows of 40,960 and
# 65,536 tokens are 131,072 by its audit note; docs/data/tiers_memo.tsv lists what else differs from the cells of the memo.
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
def test_decision_table(situation: str) -> None:
    memory, tier, (name, layout, tokens, drafter, sequences) = ROWS[situation]
    plan = recommended(memory) if tier is None else planned(memory, tier)
    assert plan.verdict.can_load
    assert (plan.tier.name, plan.layout, plan.verdict.context_tokens) == (
        name,
        find_layout(layout),
        tokens,
    )
    assert (plan.setup.drafter.name if plan.setup.drafter else None, plan.parallel) == (
        drafter,
        sequences,
    )
    assert tier_json(plan)["draft_max"] == (6 if drafter else 0)
    assert (
        plan.setup.spill is None
    )  # a chosen window stays whole; the step says that it could spill
    assert "it could spill: one page of 256 tokens" in step(plan, Lever.PLACEMENT)
    assert [item.lever for item in plan.steps] == [
        Lever.WEIGHTS, Lever.CONTEXT, Lever.CACHE, Lever.PLACEMENT, Lever.DRAFTER, Lever.SEQUENCES,
    ]  # fmt: skip


def step(plan: TierPlan, lever: Lever) -> str:
    return next(item for item in plan.steps if item.lever is lever).because


def test_context_of_a_4_gb_phone() -> None:
    """(4 - 0.5 - 0.6) GiB / 23,744 B = 131,143 tokens, less 5 % 124,585, in pages of 256 124,416."""
    plan = recommended(usable(4))
    assert plan.verdict.context_tokens == 131_143 * 95 // 100 // 256 * 256 == 124_416


def test_bill_with_a_drafter() -> None:
    plan = recommended(ram(48 * GIB))
    assert plan.required_bytes == sum(
        (
            round(16.8 * GIB) + round(2.5 * GIB),
            131_072 * 13_568 + 8 * 156_893_184,
            round(5.4 * GIB) + round(1.5 * GIB),  # the 9B in front of it
            131_072 * 6_784 + 8 * 52_690_944,
        )
    )


# The memo has 77k f16, 145k q8_0 and 372k compressed tokens of the 27B on a card of 24 GB.
@pytest.mark.parametrize(
    ("tokens", "layout"), [(65_536, "f16"), (80_000, "q8_0"), (131_072, "q8_0")]
)
def test_given_context_gets_the_most_accurate_cache(tokens: int, layout: str) -> None:
    plan = planned(card(24), "27B", context=tokens)
    assert (plan.verdict.can_load, plan.layout.name, plan.verdict.context_tokens) == (
        True,
        layout,
        tokens,
    )
    assert step(plan, Lever.CONTEXT) == "as requested"


@pytest.mark.parametrize(("tokens", "layout"), [(8192, "turbo3"), (8193, "polar")])
def test_given_context_in_the_compressed_layout(tokens: int, layout: str) -> None:
    """A card with room for the compressed cache, and for no other."""
    tier = find_tier("4B")
    room = tier.bytes_per_token(find_layout(layout)) * tokens
    memory = tier_tasks.card(tier.weights_bytes + tier.working_bytes + room)
    plan = planned(memory, tier, context=tokens)
    assert (plan.verdict.can_load, plan.layout) == (True, find_layout(layout))
    assert plan.required_bytes == plan.budget.available_bytes


@pytest.mark.parametrize(
    ("gib", "layout", "tokens"),
    [
        (24, "f16", 70_656),  # (24 - 19.3) GiB less a state of 156,893,184 B, less 5 %, in pages
        (20.5, "f16", 16_384),
        (20.4, "q8_0", 27_904),
        (20, "polar", 41_472),
    ],
)
def test_prefer_accurate_kv_takes_accuracy_before_length(
    gib: float, layout: str, tokens: int
) -> None:
    machine = tier_tasks.card(int(gib * GIB), total_bytes=24 * GIB)
    plan = planned(machine, "27B", prefer_accurate_kv=True)
    assert plan.layout == find_layout(layout)
    room = gib * GIB - round(19.3 * GIB) - 156_893_184
    largest = int(room) // find_tier("27B").bytes_per_token(plan.layout)
    assert plan.verdict.context_tokens == largest * 95 // 100 // 256 * 256 == tokens


def test_given_layout_is_the_only_one_tried() -> None:
    plan = planned(card(16), "9B", layout=find_layout("q8_0"))
    assert (plan.layout.name, plan.verdict.context_tokens) == ("q8_0", 131_072)


def test_turbo3_holds_8192_tokens() -> None:
    short = find_layout("turbo3")
    plan = planned(card(16), "9B", layout=short)
    assert (plan.verdict.can_load, plan.verdict.context_tokens, plan.parallel) == (True, 8192, 4)
    with pytest.raises(UsageError, match="holds up to 8,192 tokens, but 8,193 were requested"):
        planned(card(16), "9B", layout=short, context=8193)


@pytest.mark.parametrize(
    ("engine", "layout", "tokens"),
    [
        ("llama.cpp", None, None),  # above 8K the rule is a layout that it lacks
        ("llama.cpp", find_layout("polar"), None),
        ("vllm", find_layout("q8_0"), None),
        ("llama.cpp", None, 131_072),  # 27B: neither f16 nor q8_0 hold it in 20 GiB
    ],
)
def test_layout_that_the_engine_lacks_is_refused(
    engine: str, layout: Layout | None, tokens: int | None
) -> None:
    with pytest.raises(RefusedError, match="does not have the cache layout"):
        planned(card(21), "27B", engine=engine, layout=layout, context=tokens)


def test_layout_of_a_real_engine() -> None:
    plan = planned(card(24), "27B", engine="llama.cpp", layout=find_layout("q8_0"))
    assert (plan.verdict.can_load, plan.layout.name, plan.verdict.context_tokens) == (
        True,
        "q8_0",
        131_072,
    )


def test_context_beyond_the_header_is_rejected() -> None:
    for tokens in (131_073, 262_144):
        with pytest.raises(UsageError, match=r"longer than the 0\.8B supports: 131,072"):
            planned(card(80), "0.8B", context=tokens)
    with pytest.raises(UsageError, match="no tier has a context of 131,073 tokens"):
        recommended(card(80), context=131_073)


def variant(window: int, header: int) -> TierPlan:
    long = replace(find_tier("2B"), name="2B-long", catalog_window=window, native_window=header)
    return recommended(card(16), among=(*tiers()[:2], long))


@pytest.mark.parametrize(
    ("window", "header", "taken", "tokens"),
    [
        (262_144, 262_144, "2B-long", 262_144),
        (262_144, 131_072, "2B", 131_072),  # listed with more than its header says
        (65_536, 262_144, "2B", 131_072),
        (1_048_576, 1_048_576, "2B-long", 601_344),  # what fits: 633,102 less 5 %
    ],
)
def test_recommend_tier_takes_the_variant_with_the_longest_context(
    window: int, header: int, taken: str, tokens: int
) -> None:
    plan = variant(window, header)
    assert (plan.tier.name, plan.verdict.context_tokens) == (taken, tokens)


def test_context_listed_beyond_the_header_is_explained() -> None:
    tier = replace(find_tier("2B"), catalog_window=262_144, native_window=65_536)
    plan = planned(card(16), tier)
    assert plan.verdict.context_tokens == 65_536
    assert "in its header, although it is listed with 262,144" in step(plan, Lever.CONTEXT)


def test_drafter_needs_the_same_vocabulary() -> None:
    other = replace(find_tier("0.8B"), vocabulary="another")
    plan = planned(card(24), other)
    assert plan.setup.drafter is None
    assert "the 2B has a different vocabulary" in step(plan, Lever.DRAFTER)


def drafter_edge() -> int:
    """27B and, in front of it, the 9B: weights, working sets, caches, a state of each."""
    big = round(19.3 * GIB) + 131_072 * 13_568 + 156_893_184
    return big + round(5.4 * GIB) + round(1.5 * GIB) + 131_072 * 6_784 + 52_690_944


@pytest.mark.parametrize(("less", "drafter"), [(-8, "9B"), (8, None)])
def test_drafter_is_billed_with_its_own_cache(less: int, drafter: str | None) -> None:
    plan = planned(tier_tasks.card(drafter_edge() - less), "27B")
    assert (plan.setup.drafter.name if plan.setup.drafter else None) == drafter
    assert plan.verdict.context_tokens == 131_072
    # where the drafter takes all there is, no second state fits
    assert plan.parallel == (1 if drafter else 8)


def test_no_drafter_if_not_requested() -> None:
    plan = recommended(ram(48 * GIB), may_draft=False)
    assert (plan.setup.drafter, tier_json(plan)["draft_max"]) == (None, 0)


@pytest.mark.parametrize(("tokens", "count"), [(131_072, 8), (131_071, 4), (4096, 4)])
def test_sequences(tokens: int, count: int) -> None:
    plan = planned(card(24), "2B", context=tokens)
    assert plan.parallel == count


@pytest.mark.parametrize(("states", "count"), [(8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, 1)])
def test_sequences_of_a_hybrid_cost_a_state_each(states: int, count: int) -> None:
    tier = find_tier("27B")
    held = tier.weights_bytes + tier.working_bytes + 131_072 * 34_816
    memory = tier_tasks.card(held + states * tier.state_bytes)
    plan = planned(memory, tier, context=131_072)
    assert (plan.layout.name, plan.parallel) == ("q8_0", count)


def test_users_have_a_full_context_each() -> None:
    """The memo: eight times ~0.9 GiB for the 0.8B at 40,960 tokens."""
    plan = planned(card(9), "0.8B", context=40_960, users=8, may_draft=False)
    cache = plan.verdict.estimate.of(Component.KV_CACHE)
    assert (plan.verdict.can_load, plan.layout, cache) == (
        True,
        find_layout("polar"),
        8 * 40_960 * 23_744,
    )
    assert f"{cache / 8 / GIB:.1f}" == "0.9"
    assert plan.parallel == 8


def test_chosen_context_with_users() -> None:
    alone = planned(card(8), "4B")
    shared = planned(card(8), "4B", users=4)
    assert alone.verdict.context_tokens == 131_072
    assert shared.verdict.context_tokens == 154_758 // 4 * 95 // 100 // 256 * 256
    assert shared.parallel == 4


# first run and ladders, on phones of so many GB


@pytest.mark.parametrize(
    ("gib", "first", "small", "large"),
    [(4, "0.8B", "0.8B", "0.8B"), (6, "2B", "0.8B", "2B"), (12, "2B", "0.8B", "2B")],
)
def test_ladders(gib: int, first: str, small: str, large: str) -> None:
    tasks = tasks_for(ram(gib * GIB))
    memory = first_placement(tasks[0])
    assert ladder_plan(None, tasks, memory).tier.name == first
    assert ladder_plan("small", tasks, memory).tier.name == small
    assert ladder_plan("large", tasks, memory).tier.name == large


def test_nothing_fits_gives_the_smallest_tier_and_what_to_add() -> None:
    """0.8B: 0.5 + 0.6 GiB, 16,384 tokens with the 5 % to spare, 1.5 GiB for the system; 2 GiB are there."""
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
    assert (plan.parallel, plan.setup.drafter) == (2, None)  # the cache is the squeeze


def test_given_context_of_64k_is_not_spilled() -> None:
    memory = tier_tasks.card(5 * GIB, host_bytes=32 * GIB)
    plan = planned(memory, "4B", context=65_536)
    assert (plan.verdict.can_load, plan.verdict.context_tokens, plan.setup.spill) == (
        False,
        65_536,
        None,
    )
    assert "needs 5.46 GiB, 5.00 GiB usable" in plan.verdict.reasons[0]


def test_spill_to_full_ram_is_an_error() -> None:
    memory = tier_tasks.card(6 * GIB, host_bytes=2 * GIB)  # 0.5 GiB beside the system
    with pytest.raises(KvSpillUnsupportedError, match=r"512\.00 MiB left in RAM"):
        planned(memory, "4B", context=131_072)


@pytest.mark.parametrize(("users", "purpose"), [(38, Purpose.VOICE), (39, Purpose.TEXT)])
def test_spill_of_many_users_in_time(users: int, purpose: Purpose) -> None:
    """A page of each is 256 x 30,528 B = 7.8 MB: 200 ms at 1.5 GB/s are 300 MB, the pages of 38."""
    spill = planned(usable(8), "4B", context=65_537, users=users, purpose=purpose).setup.spill
    assert spill is not None
    assert spill.restore_ms == pytest.approx(users * 256 * 30_528 / 1.5e6)


def test_spill_of_one_user_more_is_too_late_for_voice() -> None:
    wish: dict[str, Any] = {"context": 65_537, "users": 39, "purpose": Purpose.VOICE}
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        planned(usable(8), "4B", **wish)
    assert (
        recommended(usable(8), **wish).tier.name == "2B"
    )  # its pages are 6.1 MB: in time up to 49
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        recommended(usable(8), **{**wish, "users": 50})


def test_recommend_tier_prefers_a_smaller_tier_to_a_spill() -> None:
    """The 4B would need 7.33 GiB; the 2B with the same window needs 4.90."""
    memory = tier_tasks.card(6 * GIB, host_bytes=32 * GIB)
    plan = recommended(memory, context=131_072)
    assert (plan.tier.name, plan.setup.spill) == ("2B", None)


def test_recommend_tier_spills_if_no_tier_holds_the_context() -> None:
    memory = tier_tasks.card(int(3.5 * GIB), host_bytes=32 * GIB)
    plan = recommended(memory, context=131_072)
    assert plan.setup.spill is not None
    assert (plan.tier.name, plan.setup.spill.store) == ("2B", Store.HOST_RAM)
    assert "no tier has the whole context in memory" in step(plan, Lever.WEIGHTS)


# machines


def test_placements_reserve_ram_only() -> None:
    on_card, in_ram = placements(task_for(cards(16, ram=64), "27B"))
    left_bytes = 64 * GIB - 3 * GIB // 2
    assert [budget.available_bytes for budget in on_card.budgets] == [16 * GIB, left_bytes]
    assert [budget.available_bytes for budget in in_ram.budgets] == [left_bytes]
    assert store_of(on_card) == (Store.HOST_RAM, left_bytes)
    assert store_of(in_ram) == (Store.NVME, None)


def test_budgets_of_a_mac_end_at_the_wired_limit() -> None:
    (memory,) = budgets(mac(48, limit_gib=36))
    assert memory.available_bytes == 36 * GIB
    assert budgets(mac(48))[0].available_bytes == 48 * GIB - 3 * GIB // 2


def test_recommend_tier_on_a_card_before_ram() -> None:
    assert recommend_tier_on(tasks_for(cards(16, ram=64))).tier.name == "9B"
    assert recommend_tier_on(tasks_for(cards(1, ram=64))).tier.name == "27B"  # none fits the card
    on_ram = plan_tier_on(task_for(cards(16, ram=64), "27B"))
    assert (on_ram.verdict.can_load, on_ram.budget.name) == (True, "cards")


def test_recommend_tier_on_one_of_several_cards() -> None:
    machine = cards(16, 8, ram=None)
    plan = recommend_tier_on(tasks_for(machine))
    assert plan.tier.name == "9B"
    (note,) = memory_notes(machine, plan.budget)
    assert note == "a tier runs on one GPU: the other one is not counted"


def test_recommend_tier_on_a_machine_of_unknown_memory() -> None:
    with pytest.raises(HardwareError, match="is unknown"):
        recommend_tier_on(tasks_for(Machine(name="nothing", system=System.LINUX, host=None)))


def test_budgets_of_a_busy_desktop_and_of_a_phone() -> None:
    busy = HostMemory(total_bytes=16 * GIB, free_bytes=4 * GIB)
    desk = Machine(name="desk", system=System.LINUX, host=busy)
    assert budgets(desk)[0].available_bytes == 4 * GIB - 3 * GIB // 2
    phone = what_if_machine(devices=["iPhone 15 Pro"])
    (memory,) = budgets(phone)
    assert memory.available_bytes == 5722 * MIB  # 6 GB, less than 8 GiB without the system's 1.5
    (note,) = memory_notes(phone, memory)
    assert note == "the memory limit of iOS for one app: 5.59 GiB of it"


@pytest.mark.parametrize(
    ("device", "tier", "tokens"),
    [("phone-4", "0.8B", 38_656), ("phone-8", "2B", 85_760), ("iPhone 15 Pro", "4B", 66_304)],
)
def test_recommend_tier_on_phones(device: str, tier: str, tokens: int) -> None:
    plan = recommend_tier_on(tasks_for(what_if_machine(devices=[device])))
    assert (plan.tier.name, plan.verdict.context_tokens) == (tier, tokens)


def test_recommend_tier_on_a_cpu() -> None:
    assert recommend_tier_on(tasks_for(cpu(12))).tier.name == "9B"


@pytest.mark.parametrize(
    "wrong", [{"context": 0}, {"min_context": 0}, {"users": 0}, {"users": 10**6}]
)
def test_plan_tier_rejects_invalid_numbers(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        planned(card(8), "2B", **wrong)
