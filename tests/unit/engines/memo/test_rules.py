"""The rules of tiers: their longest contexts, the memory they may use, and the guard on its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.engines.memo.tier_tasks import card, planned, ram, task_for
from tests.unit.plan.machines import cards, mac

import edgekit.index
from edgekit.bill.spill import Store
from edgekit.engines.memo.rules import (
    MANIFEST_BYTES,
    OS_RESERVE_BYTES,
    RamLevel,
    RamNeed,
    assess,
    budgets,
    largest_context,
    memory_notes,
    placements,
    read_manifest,
    store_of,
)
from edgekit.errors import NotFoundError, UsageError
from edgekit.index.tiers import find_layout, find_tier
from edgekit.machine.types import Budget, HostMemory, Machine, System
from edgekit.machine.what_if import what_if_machine
from edgekit.units import GIB, MIB


def card_budget(total_bytes: int) -> Budget:
    return budgets(card(total_bytes))[0]


def ram_budget(total_bytes: int) -> Budget:
    return budgets(ram(total_bytes))[0]


# A tier that has nothing but its download.
BARE = replace(
    find_tier("27B"), weights_bytes=52 * 1000, working_bytes=0, min_ram_bytes=0, catalog_window=0
)


@pytest.mark.parametrize(
    ("total", "level"),
    [
        (80_001, RamLevel.FITS),
        (80_000, RamLevel.FITS),  # 52 / 80 = 0.65, not above
        (79_999, RamLevel.TIGHT),
        (65_000, RamLevel.TIGHT),  # 52 / 65 = 0.8, not above
        (64_999, RamLevel.WONT_FIT),
        (0, RamLevel.WONT_FIT),
    ],
)
def test_assess_compares_the_download_with_65_and_80_percent(total: int, level: RamLevel) -> None:
    assert assess(BARE, card_budget(total)).level is level
    assert assess(BARE, ram_budget(total + OS_RESERVE_BYTES)).level is level


def test_assess_takes_the_reserve_from_ram_only() -> None:
    assert OS_RESERVE_BYTES == 1536 * MIB
    assert assess(BARE, ram_budget(80_000)).level is RamLevel.WONT_FIT


@pytest.mark.parametrize(
    ("name", "gib"), [("2B", 6), ("4B", 8), ("9B", 12)]
)  # GiB of all RAM, the system's share included
def test_assess_fails_below_the_minimum_ram(name: str, gib: int) -> None:
    tier = find_tier(name)
    assert assess(tier, ram_budget(gib * GIB)).level is not RamLevel.WONT_FIT
    below = assess(tier, ram_budget(gib * GIB - 1))
    assert below.level is RamLevel.WONT_FIT
    assert f"{gib}.00 GiB is needed" in below.because


def test_assess_recommends_the_minimum_and_a_compressed_context() -> None:
    tier = find_tier("9B")
    need = assess(tier, ram_budget(16 * GIB)).need
    assert need.min_bytes == 12 * GIB
    assert need.recommended_bytes == 12 * GIB + 6_784 * 131_072
    assert assess(tier, ram_budget(need.recommended_bytes)).level is RamLevel.FITS
    assert assess(tier, ram_budget(need.recommended_bytes - 1)).level is RamLevel.TIGHT


def test_assess_without_a_stated_minimum_needs_weights_and_working_set() -> None:
    tier, needed_bytes = find_tier("27B"), round(19.3 * GIB)
    assert assess(tier, card_budget(24 * GIB)).need.min_bytes == needed_bytes
    in_ram = assess(tier, ram_budget(24 * GIB)).need
    assert in_ram.min_bytes == needed_bytes + OS_RESERVE_BYTES
    on_card = assess(find_tier("9B"), card_budget(GIB)).need
    assert on_card.min_bytes == round(5.4 * GIB) + round(1.5 * GIB)


def test_plan_tier_fails_if_the_guard_does_although_the_bill_fits() -> None:
    """The 9B with 16,384 tokens needs 7.1 GiB; a phone of 10 GiB has 8.5 GiB of it left."""
    plan = planned(ram(10 * GIB), "9B")
    assert (plan.verdict.can_load, plan.to_add_bytes) == (False, 2 * GIB)
    assert plan.required_bytes < plan.budget.available_bytes
    assert plan.verdict.reasons == ("12.00 GiB is needed, the machine has 10.00 GiB",)


def test_plan_tier_prefers_the_manifest_to_the_minimum_of_the_tier() -> None:
    manifest = RamNeed(min_bytes=9 * GIB, recommended_bytes=11 * GIB, source="manifest")
    plan = planned(ram(10 * GIB), "9B", manifest=manifest)
    assert (plan.verdict.can_load, plan.ram.level, plan.ram.need) == (
        True,
        RamLevel.TIGHT,
        manifest,
    )


def test_read_manifest_of_a_bundle() -> None:
    file = Path(edgekit.index.__path__[0], "tier_data", "manifest.json")
    assert read_manifest(file) == RamNeed(
        min_bytes=4096 * MIB, recommended_bytes=7168 * MIB, source="manifest"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("\x00\xff", "not JSON"),
        ("[]", "ramBudgetMb with min and recommended is missing"),
        ("{}", "ramBudgetMb with min and recommended is missing"),
        ('{"ramBudgetMb": 4096}', "ramBudgetMb with min and recommended is missing"),
        ('{"ramBudgetMb": {"min": 1}}', "recommended is None"),
        ('{"ramBudgetMb": {"min": true, "recommended": 2}}', "min is True"),
        ('{"ramBudgetMb": {"min": 0, "recommended": 2}}', "min is 0"),
        ('{"ramBudgetMb": {"min": 1.5, "recommended": 2}}', "min is 1.5"),
        ('{"ramBudgetMb": {"min": "4 GB", "recommended": 2}}', "min is 4 GB"),
        ('{"ramBudgetMb": {"min": 1, "recommended": 9999999999}}', "recommended is 9999999999"),
        ('{"ramBudgetMb": {"min": 3, "recommended": 2}}', "less than its min 3"),
    ],
)
def test_read_manifest_rejects_invalid_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "eliza-1.manifest.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=message):
        read_manifest(file)


def test_read_manifest_rejects_a_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "eliza-1.manifest.json"
    file.write_bytes(b" " * (MANIFEST_BYTES + 1))
    with pytest.raises(UsageError, match=r"larger than 1\.00 MiB"):
        read_manifest(file)


def test_read_manifest_of_a_missing_file_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such manifest"):
        read_manifest(tmp_path / "none")
    with pytest.raises(NotFoundError):
        read_manifest(tmp_path)


# the longest contexts, and the memory of machines

# (tier, layout): memory of the device in GiB -> longest context in the memo; "" for a dash.
CONTEXTS = {
    ("0.8B", "f16"): {4: "27k", 8: "65k", 16: "139k", 24: "214k"},
    ("0.8B", "q8_0"): {16: "263k", 24: "404k"},
    ("0.8B", "polar"): {4: "131k", 8: "312k", 16: "674k", 24: "1.0M"},
    ("2B", "f16"): {4: "19k", 8: "56k", 16: "131k", 24: "206k"},
    ("2B", "polar"): {4: "90k", 8: "271k", 16: "633k", 24: "995k"},
    ("4B", "f16"): {4: "", 8: "32k", 16: "90k", 24: "149k"},
    ("4B", "polar"): {4: "14k", 8: "155k", 16: "436k", 24: "718k"},
    ("9B", "f16"): {16: "298k", 24: "560k"},
    ("9B", "polar"): {4: "", 8: "174k", 16: "1.4M", 24: "2.7M"},
    ("27B", "f16"): {16: "", 24: "77k"},
    ("27B", "q8_0"): {16: "", 24: "145k"},
    ("27B", "polar"): {16: "", 24: "372k"},
}


def shown(tokens: int) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 10**6 else f"{tokens / 1000:.0f}k"


@pytest.mark.parametrize(
    ("name", "layout", "gib", "cell"),
    [(*key, gib, cell) for key, row in CONTEXTS.items() for gib, cell in row.items() if cell],
)
def test_largest_context_is_that_of_the_memo(name: str, layout: str, gib: int, cell: str) -> None:
    assert shown(largest_context(find_tier(name), find_layout(layout), gib * GIB)) == cell


@pytest.mark.parametrize(
    ("name", "layout", "gib"),
    [(*key, gib) for key, row in CONTEXTS.items() for gib, cell in row.items() if not cell],
)
def test_largest_context_where_the_memo_has_a_dash(name: str, layout: str, gib: int) -> None:
    """The weights alone do not fit, except those of the 4B: it holds 2,912 tokens of f16 in 4 GiB."""
    expected = 2912 if (name, layout) == ("4B", "f16") else 0
    assert largest_context(find_tier(name), find_layout(layout), gib * GIB) == expected


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


def test_budgets_count_only_free_ram() -> None:
    host = HostMemory(total_bytes=16 * GIB, free_bytes=4 * GIB)
    desk = Machine(name="desk", system=System.LINUX, host=host)
    assert budgets(desk)[0].available_bytes == 4 * GIB - 3 * GIB // 2


def test_budgets_of_a_phone_end_at_the_limit_for_one_app() -> None:
    phone = what_if_machine(devices=["iPhone 15 Pro"])
    (memory,) = budgets(phone)
    assert memory.available_bytes == 5722 * MIB  # less than 8 - 1.5 GiB
    (note,) = memory_notes(phone, memory)
    assert note == "the memory limit of iOS for one app: 5.59 GiB of it"
