"""Which tier, context, cache, drafter and how many sequences: the memo's decision table, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, mac

from edgekit.bill.decisions import Lever
from edgekit.bill.types import Component
from edgekit.catalog.tiers import Layout, find_layout, find_tier, tiers
from edgekit.engines.memo import (
    TierPlan,
    TierWish,
    card_memory,
    first_run_plan,
    ladder_plan,
    memories_of,
    plan_tier,
    plan_tier_on,
    ram_memory,
    recommend_tier,
    recommend_tier_on,
)
from edgekit.engines.memo.types import TierMemory
from edgekit.engines.spill import Purpose, Store
from edgekit.errors import HardwareError, KvSpillUnsupportedError, RefusedError, UsageError
from edgekit.machine.types import HOST, HostMemory, Machine, System
from edgekit.machine.wishes import wished_machine
from edgekit.units import GIB, MIB

RESERVE = 1.5  # GiB that the system keeps of RAM


def usable(gib: float) -> TierMemory:
    """A phone or a Mac of which so many GiB are left for a model."""
    return ram_memory(int((gib + RESERVE) * GIB))


def card(gib: float) -> TierMemory:
    return card_memory(int(gib * GIB))


# situation: memory, the tier if it was chosen on purpose, and what comes of it. The memo's windows of 40,960 and
# 65,536 tokens are 131,072 by its audit note; what else differs from the memo's cells stands in docs/tiers.md.
ROWS: dict[str, tuple[TierMemory, str | None, tuple[str, str, int, str | None, int]]] = {
    "phone, 4 GB usable": (usable(4), None, ("0.8B", "polar", 124_416, None, 2)),
    "phone, 6 GB usable": (usable(6), None, ("2B", "polar", 131_072, None, 8)),
    "phone, 8 GB usable": (usable(8), None, ("4B", "polar", 131_072, None, 8)),
    "phone or tablet, 12 GB": (ram_memory(12 * GIB), None, ("9B", "polar", 131_072, None, 8)),
    "card of 16 GB": (card(16), None, ("9B", "f16", 131_072, None, 8)),
    "card of 16 GB, small model, long context": (card(16), "2B", ("2B", "polar", 131_072, None, 8)),
    "card of 24 GB": (card(24), None, ("27B", "polar", 131_072, None, 8)),
    "card of 24 GB, 0.8B for latency": (card(24), "0.8B", ("0.8B", "f16", 131_072, "2B", 8)),
    "card of 24 GB, 2B for latency": (card(24), "2B", ("2B", "f16", 131_072, None, 8)),
    "Mac, 48 GB": (ram_memory(48 * GIB), None, ("27B", "polar", 131_072, "9B", 8)),
    "96 GB": (ram_memory(96 * GIB), None, ("27B", "polar", 131_072, "9B", 8)),
}  # fmt: skip


@pytest.mark.parametrize("situation", ROWS)
def test_decision_table(situation: str) -> None:
    memory, tier, (name, layout, tokens, drafter, sequences) = ROWS[situation]
    wish = TierWish(memory=memory)
    plan = recommend_tier(wish) if tier is None else plan_tier(find_tier(tier), wish)
    assert plan.holds
    assert (plan.tier.name, plan.layout, plan.context_tokens) == (name, find_layout(layout), tokens)
    assert (plan.drafter.name if plan.drafter else None, plan.parallel) == (drafter, sequences)
    assert plan.draft_max == (6 if drafter else 0)
    assert plan.spill is None  # a chosen window stays whole; the step says that it could spill
    assert "it could spill: one page of 256 tokens" in step(plan, Lever.PLACEMENT)
    assert [one.lever for one in plan.steps] == [
        Lever.WEIGHTS, Lever.CONTEXT, Lever.CACHE, Lever.PLACEMENT, Lever.DRAFTER, Lever.SEQUENCES,
    ]  # fmt: skip


def step(plan: TierPlan, lever: Lever) -> str:
    found = plan.step(lever)
    assert found is not None
    return found.because


def test_the_4_gb_phone_on_paper() -> None:
    """(4 - 0.5 - 0.6) GiB / 23,744 B = 131,143 tokens, less 5 % 124,585, in pages of 256 124,416."""
    plan = recommend_tier(TierWish(memory=usable(4)))
    assert plan.context_tokens == 131_143 * 95 // 100 // 256 * 256 == 124_416


def test_the_bill_on_paper() -> None:
    plan = recommend_tier(TierWish(memory=ram_memory(48 * GIB)))
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
def test_a_context_that_was_asked_for_gets_the_most_accurate_cache(
    tokens: int, layout: str
) -> None:
    plan = plan_tier(find_tier("27B"), TierWish(memory=card(24), context_tokens=tokens))
    assert (plan.holds, plan.layout.name, plan.context_tokens) == (True, layout, tokens)
    assert step(plan, Lever.CONTEXT) == "as requested"


@pytest.mark.parametrize(("tokens", "layout"), [(8192, "turbo3"), (8193, "polar")])
def test_the_compressed_layout_of_a_context_that_was_asked_for(tokens: int, layout: str) -> None:
    """A card with room for the compressed cache, and for no other."""
    tier = find_tier("4B")
    room = tier.bytes_per_token(find_layout(layout)) * tokens
    memory = card_memory(tier.weights_bytes + tier.working_bytes + room)
    plan = plan_tier(tier, TierWish(memory=memory, context_tokens=tokens))
    assert (plan.holds, plan.layout, plan.left_bytes) == (True, find_layout(layout), 0)


@pytest.mark.parametrize(
    ("gib", "layout", "tokens"),
    [
        (24, "f16", 70_656),  # (24 - 19.3) GiB less a state of 156,893,184 B, less 5 %, in pages
        (20.5, "f16", 16_384),
        (20.4, "q8_0", 27_904),
        (20, "polar", 41_472),
    ],
)
def test_accuracy_first(gib: float, layout: str, tokens: int) -> None:
    wish = TierWish(memory=card(gib), prefer_accurate_kv=True)
    plan = plan_tier(
        find_tier("27B"), replace(wish, memory=replace(wish.memory, total_bytes=24 * GIB))
    )
    assert plan.layout == find_layout(layout)
    room = gib * GIB - round(19.3 * GIB) - 156_893_184
    largest = int(room) // find_tier("27B").bytes_per_token(plan.layout)
    assert plan.context_tokens == largest * 95 // 100 // 256 * 256 == tokens


def test_a_layout_that_was_asked_for_is_the_only_one_tried() -> None:
    plan = plan_tier(find_tier("9B"), TierWish(memory=card(16), layout=find_layout("q8_0")))
    assert (plan.layout.name, plan.context_tokens) == ("q8_0", 131_072)


def test_turbo3_ends_at_8192_tokens() -> None:
    short = find_layout("turbo3")
    plan = plan_tier(find_tier("9B"), TierWish(memory=card(16), layout=short))
    assert (plan.holds, plan.context_tokens, plan.parallel) == (True, 8192, 4)
    with pytest.raises(UsageError, match="holds up to 8,192 tokens, but 8,193 were requested"):
        plan_tier(find_tier("9B"), TierWish(memory=card(16), layout=short, context_tokens=8193))


@pytest.mark.parametrize(
    ("engine", "layout", "tokens"),
    [
        ("llama.cpp", None, None),  # above 8K the rule is a layout that it lacks
        ("llama.cpp", find_layout("polar"), None),
        ("vllm", find_layout("q8_0"), None),
        ("llama.cpp", None, 131_072),  # 27B: neither f16 nor q8_0 hold it in 20 GiB
    ],
)
def test_a_layout_that_an_engine_lacks_is_an_error(
    engine: str, layout: Layout | None, tokens: int | None
) -> None:
    wish = TierWish(memory=card(21), engine=engine, layout=layout, context_tokens=tokens)
    with pytest.raises(RefusedError, match="does not have the cache layout"):
        plan_tier(find_tier("27B"), wish)


def test_an_engine_plans_with_a_layout_that_it_has() -> None:
    wish = TierWish(memory=card(24), engine="llama.cpp", layout=find_layout("q8_0"))
    plan = plan_tier(find_tier("27B"), wish)
    assert (plan.holds, plan.layout.name, plan.context_tokens) == (True, "q8_0", 131_072)


def test_no_window_is_longer_than_the_headers() -> None:
    for tokens in (131_073, 262_144):
        with pytest.raises(UsageError, match=r"longer than the 0\.8B supports: 131,072"):
            plan_tier(find_tier("0.8B"), TierWish(memory=card(80), context_tokens=tokens))
    with pytest.raises(UsageError, match="no tier has a context of 131,073 tokens"):
        recommend_tier(TierWish(memory=card(80), context_tokens=131_073))


def variant(window: int, header: int) -> TierPlan:
    long = replace(find_tier("2B"), name="2B-long", catalog_window=window, native_window=header)
    return recommend_tier(TierWish(memory=card(16)), among=(*tiers()[:2], long))


@pytest.mark.parametrize(
    ("window", "header", "taken", "tokens"),
    [
        (262_144, 262_144, "2B-long", 262_144),
        (262_144, 131_072, "2B", 131_072),  # listed with more than its header says
        (65_536, 262_144, "2B", 131_072),
        (1_048_576, 1_048_576, "2B-long", 601_344),  # what fits: 633,102 less 5 %
    ],
)
def test_variants_of_one_line(window: int, header: int, taken: str, tokens: int) -> None:
    plan = variant(window, header)
    assert (plan.tier.name, plan.context_tokens) == (taken, tokens)


def test_a_listed_window_past_the_headers_is_told() -> None:
    tier = replace(find_tier("2B"), catalog_window=262_144, native_window=65_536)
    plan = plan_tier(tier, TierWish(memory=card(16)))
    assert plan.context_tokens == 65_536
    assert "in its header, although it is listed with 262,144" in step(plan, Lever.CONTEXT)


def test_the_drafter_needs_the_same_vocabulary() -> None:
    other = replace(find_tier("0.8B"), vocabulary="another")
    plan = plan_tier(other, TierWish(memory=card(24)))
    assert plan.drafter is None
    assert "the 2B has a different vocabulary" in step(plan, Lever.DRAFTER)


def drafter_edge() -> int:
    """27B and, in front of it, the 9B: weights, working sets, caches, a state of each."""
    big = round(19.3 * GIB) + 131_072 * 13_568 + 156_893_184
    return big + round(5.4 * GIB) + round(1.5 * GIB) + 131_072 * 6_784 + 52_690_944


@pytest.mark.parametrize(("less", "drafter"), [(-8, "9B"), (8, None)])
def test_a_drafter_is_costed_with_its_own_cache(less: int, drafter: str | None) -> None:
    plan = plan_tier(find_tier("27B"), TierWish(memory=card_memory(drafter_edge() - less)))
    assert (plan.drafter.name if plan.drafter else None) == drafter
    assert plan.context_tokens == 131_072
    # where the drafter takes all there is, no second state fits
    assert plan.parallel == (1 if drafter else 8)


def test_no_drafter_where_none_is_wished_for() -> None:
    plan = recommend_tier(TierWish(memory=ram_memory(48 * GIB), with_drafter=False))
    assert (plan.drafter, plan.draft_max) == (None, 0)


@pytest.mark.parametrize(("tokens", "count"), [(131_072, 8), (131_071, 4), (4096, 4)])
def test_sequences(tokens: int, count: int) -> None:
    plan = plan_tier(find_tier("2B"), TierWish(memory=card(24), context_tokens=tokens))
    assert plan.parallel == count


@pytest.mark.parametrize(("states", "count"), [(8, 8), (7, 4), (4, 4), (3, 2), (2, 2), (1, 1)])
def test_every_sequence_of_a_hybrid_is_paid_for(states: int, count: int) -> None:
    tier = find_tier("27B")
    held = tier.weights_bytes + tier.working_bytes + 131_072 * 34_816
    memory = card_memory(held + states * tier.state_bytes)
    plan = plan_tier(tier, TierWish(memory=memory, context_tokens=131_072))
    assert (plan.layout.name, plan.parallel) == ("q8_0", count)


def test_users_have_a_window_each() -> None:
    """The memo: eight times ~0.9 GiB for the 0.8B at 40,960 tokens."""
    wish = TierWish(memory=card(9), context_tokens=40_960, users=8, with_drafter=False)
    plan = plan_tier(find_tier("0.8B"), wish)
    cache = plan.estimate.of(Component.KV_CACHE)
    assert (plan.holds, plan.layout, cache) == (True, find_layout("polar"), 8 * 40_960 * 23_744)
    assert f"{cache / 8 / GIB:.1f}" == "0.9"
    assert plan.parallel == 8


def test_a_chosen_window_is_divided_among_users() -> None:
    alone = plan_tier(find_tier("4B"), TierWish(memory=card(8)))
    shared = plan_tier(find_tier("4B"), TierWish(memory=card(8), users=4))
    assert alone.context_tokens == 131_072
    assert shared.context_tokens == 154_758 // 4 * 95 // 100 // 256 * 256
    assert shared.parallel == 4


# first run and ladders, on phones of so many GB


@pytest.mark.parametrize(
    ("gib", "first", "small", "large"),
    [(4, "0.8B", "0.8B", "0.8B"), (6, "2B", "0.8B", "2B"), (12, "2B", "0.8B", "2B")],
)
def test_ladders(gib: int, first: str, small: str, large: str) -> None:
    wish = TierWish(memory=ram_memory(gib * GIB))
    assert first_run_plan(wish).tier.name == first
    assert ladder_plan("small", wish).tier.name == small
    assert ladder_plan("large", wish).tier.name == large


def test_where_nothing_holds_the_smallest_and_what_to_add() -> None:
    """0.8B: 0.5 + 0.6 GiB, 16,384 tokens with the 5 % to spare, 1.5 GiB for the system; 2 GiB are there."""
    tokens = -(-16_384 * 100 // 95)
    needed = round(0.5 * GIB) + round(0.6 * GIB) + tokens * 23_744 + 3 * GIB // 2
    wish = TierWish(memory=ram_memory(2 * GIB))
    for plan in (first_run_plan(wish), ladder_plan("large", wish), recommend_tier(wish)):
        assert (plan.holds, plan.tier.name) == (False, "0.8B")
        assert plan.to_add_bytes == -(-(needed - 2 * GIB) // MIB) * MIB
    assert recommend_tier(TierWish(memory=ram_memory(2 * GIB + plan.to_add_bytes))).holds
    assert not recommend_tier(TierWish(memory=ram_memory(2 * GIB + plan.to_add_bytes - MIB))).holds


def test_an_unknown_ladder() -> None:
    with pytest.raises(UsageError, match="choose one of small, large"):
        ladder_plan("medium", TierWish(memory=card(8)))


# spill


def test_a_long_context_is_spilled_where_it_does_not_fit() -> None:
    memory = card_memory(6 * GIB, host_bytes=32 * GIB)
    plan = plan_tier(find_tier("4B"), TierWish(memory=memory, context_tokens=131_072))
    assert plan.spill is not None
    page = 256 * 30_528
    resident = (6 * GIB - round(3.6 * GIB)) // page
    assert plan.spill.resident_tokens == resident * 256
    assert plan.spill.spilled_pages == 512 - resident
    assert plan.estimate.total(lambda line: line.pool == HOST) == (512 - resident) * page
    assert plan.required_bytes <= 6 * GIB
    assert (plan.parallel, plan.drafter) == (2, None)  # the cache is the squeeze


def test_a_shorter_one_does_not_fit_and_is_not_cut() -> None:
    memory = card_memory(5 * GIB, host_bytes=32 * GIB)
    plan = plan_tier(find_tier("4B"), TierWish(memory=memory, context_tokens=65_536))
    assert (plan.holds, plan.context_tokens, plan.spill) == (False, 65_536, None)
    assert "needs 5.46 GiB, 5.00 GiB usable" in plan.reasons[0]


def test_a_host_without_room_is_an_error() -> None:
    memory = card_memory(6 * GIB, host_bytes=2 * GIB)  # 0.5 GiB beside the system
    with pytest.raises(KvSpillUnsupportedError, match=r"512\.00 MiB left in RAM"):
        plan_tier(find_tier("4B"), TierWish(memory=memory, context_tokens=131_072))


@pytest.mark.parametrize(("users", "purpose"), [(38, Purpose.VOICE), (39, Purpose.TEXT)])
def test_pages_of_many_users_are_in_time(users: int, purpose: Purpose) -> None:
    """A page of each is 256 x 30,528 B = 7.8 MB: 200 ms at 1.5 GB/s are 300 MB, the pages of 38."""
    wish = TierWish(memory=usable(8), context_tokens=65_537, users=users, purpose=purpose)
    spill = plan_tier(find_tier("4B"), wish).spill
    assert spill is not None
    assert spill.restore_ms == pytest.approx(users * 256 * 30_528 / 1.5e6)


def test_pages_of_one_more_are_too_late_for_voice() -> None:
    wish = TierWish(memory=usable(8), context_tokens=65_537, users=39, purpose=Purpose.VOICE)
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        plan_tier(find_tier("4B"), wish)
    assert recommend_tier(wish).tier.name == "2B"  # its pages are 6.1 MB: in time up to 49
    with pytest.raises(KvSpillUnsupportedError, match="the limit for voice is 200 ms"):
        recommend_tier(replace(wish, users=50))


def test_a_smaller_tier_that_holds_it_whole_comes_before_a_spill() -> None:
    """The 4B would need 7.33 GiB; the 2B with the same window needs 4.90."""
    memory = card_memory(6 * GIB, host_bytes=32 * GIB)
    plan = recommend_tier(TierWish(memory=memory, context_tokens=131_072))
    assert (plan.tier.name, plan.spill) == ("2B", None)


def test_a_spill_where_no_tier_holds_it_whole() -> None:
    memory = card_memory(int(3.5 * GIB), host_bytes=32 * GIB)
    plan = recommend_tier(TierWish(memory=memory, context_tokens=131_072))
    assert plan.spill is not None
    assert (plan.tier.name, plan.spill.store) == ("2B", Store.HOST_RAM)
    assert "no tier has the whole context in memory" in step(plan, Lever.WEIGHTS)


# machines


def test_a_card_has_no_reserve_and_ram_has() -> None:
    beside, ram = memories_of(cards(16, ram=64))
    assert (beside.usable_bytes, beside.store) == (16 * GIB, Store.HOST_RAM)
    assert ram.usable_bytes == 64 * GIB - 3 * GIB // 2
    assert (ram.store, beside.store_room_bytes) == (Store.NVME, ram.usable_bytes)


def test_of_a_mac_only_what_the_gpu_may_wire() -> None:
    (memory,) = memories_of(mac(48, limit_gib=36))
    assert memory.usable_bytes == 36 * GIB
    assert memories_of(mac(48))[0].usable_bytes == 48 * GIB - 3 * GIB // 2


def test_a_card_decides_where_it_holds_a_tier() -> None:
    assert recommend_tier_on(cards(16, ram=64)).tier.name == "9B"
    assert recommend_tier_on(cards(1, ram=64)).tier.name == "27B"  # the card holds none
    on_ram = plan_tier_on(cards(16, ram=64), find_tier("27B"))
    assert (on_ram.holds, on_ram.wish.memory.name) == (True, "cards")


def test_several_cards_are_not_added_up() -> None:
    plan = recommend_tier_on(cards(16, 8, ram=None))
    assert plan.tier.name == "9B"
    assert plan.wish.memory.notes == ("a tier runs on one GPU: the other 1 are not counted",)


def test_a_machine_without_memory_is_no_machine() -> None:
    with pytest.raises(HardwareError, match="is unknown"):
        recommend_tier_on(Machine(name="nothing", system=System.LINUX, host=None))


def test_what_is_free_decides_and_of_a_phone_what_an_app_may_hold() -> None:
    busy = HostMemory(total_bytes=16 * GIB, free_bytes=4 * GIB)
    desk = Machine(name="desk", system=System.LINUX, host=busy)
    assert memories_of(desk)[0].usable_bytes == 4 * GIB - 3 * GIB // 2
    (memory,) = memories_of(wished_machine(devices=["iPhone 15 Pro"]))
    assert memory.usable_bytes == 5722 * MIB  # 6 GB, less than 8 GiB without the system's 1.5
    assert memory.notes == ("the memory limit of iOS for one app: 5.59 GiB of it",)


@pytest.mark.parametrize(
    ("device", "tier", "tokens"),
    [("phone-4", "0.8B", 38_656), ("phone-8", "2B", 85_760), ("iPhone 15 Pro", "4B", 66_304)],
)
def test_devices_of_the_table(device: str, tier: str, tokens: int) -> None:
    plan = recommend_tier_on(wished_machine(devices=[device]))
    assert (plan.tier.name, plan.context_tokens) == (tier, tokens)


def test_a_processor_is_a_machine_of_ram() -> None:
    assert recommend_tier_on(cpu(12)).tier.name == "9B"


@pytest.mark.parametrize(
    "wrong", [{"context_tokens": 0}, {"min_context": 0}, {"users": 0}, {"users": 10**6}]
)
def test_wishes_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        TierWish(memory=card(8), **wrong)  # type: ignore[arg-type]
