"""The RAM guard of the tiers: both sides of both ratios, the least RAM, the manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.engines.tier_tasks import card, planned, ram

import edgekit.catalog
from edgekit.catalog.tiers import find_tier
from edgekit.engines.memo.rules import (
    MANIFEST_BYTES,
    OS_RESERVE_BYTES,
    RamLevel,
    RamNeed,
    assess,
    budgets,
    read_manifest,
)
from edgekit.errors import NotFoundError, UsageError
from edgekit.machine.types import Budget
from edgekit.units import GIB, MIB


def card_budget(total_bytes: int) -> Budget:
    return budgets(card(total_bytes))[0]


def ram_budget(total_bytes: int) -> Budget:
    return budgets(ram(total_bytes))[0]


# a tier of which nothing but the download counts
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
def test_assess_at_the_two_ratios(total: int, level: RamLevel) -> None:
    assert assess(BARE, card_budget(total)).level is level
    assert assess(BARE, ram_budget(total + OS_RESERVE_BYTES)).level is level


def test_assess_takes_the_reserve_from_ram_only() -> None:
    assert OS_RESERVE_BYTES == 1536 * MIB
    assert assess(BARE, ram_budget(80_000)).level is RamLevel.WONT_FIT


@pytest.mark.parametrize(
    ("name", "gib"), [("2B", 6), ("4B", 8), ("9B", 12)]
)  # of the whole phone, not of what its system leaves
def test_assess_below_the_minimum_ram(name: str, gib: int) -> None:
    tier = find_tier(name)
    assert assess(tier, ram_budget(gib * GIB)).level is not RamLevel.WONT_FIT
    below = assess(tier, ram_budget(gib * GIB - 1))
    assert below.level is RamLevel.WONT_FIT
    assert f"{gib}.00 GiB is needed" in below.because


def test_assess_recommends_the_minimum_and_a_compressed_context() -> None:
    tier = find_tier("9B")
    budget = assess(tier, ram_budget(16 * GIB)).need
    assert budget.min_bytes == 12 * GIB
    assert budget.recommended_bytes == 12 * GIB + 6_784 * 131_072
    at, below = ram_budget(budget.recommended_bytes), ram_budget(budget.recommended_bytes - 1)
    assert (assess(tier, at).level, assess(tier, below).level) == (RamLevel.FITS, RamLevel.TIGHT)


def test_assess_without_a_stated_minimum() -> None:
    tier = find_tier("27B")
    assert assess(tier, card_budget(24 * GIB)).need.min_bytes == round(19.3 * GIB)
    with_reserve = round(19.3 * GIB) + OS_RESERVE_BYTES
    assert assess(tier, ram_budget(24 * GIB)).need.min_bytes == with_reserve
    assert assess(find_tier("9B"), card_budget(GIB)).need.min_bytes == round(5.4 * GIB) + round(
        1.5 * GIB
    )


def test_plan_tier_fails_where_the_guard_does_even_if_the_bill_fits() -> None:
    """The 9B with 16,384 tokens is 7.1 GiB; a phone of 10 GB has 8.5 of them."""
    plan = planned(ram(10 * GIB), "9B")
    assert (plan.verdict.can_load, plan.to_add_bytes) == (False, 2 * GIB)
    assert plan.required_bytes < plan.budget.available_bytes
    assert plan.verdict.reasons == ("12.00 GiB is needed, the machine has 10.00 GiB",)


def test_plan_tier_prefers_the_manifest() -> None:
    manifest = RamNeed(min_bytes=9 * GIB, recommended_bytes=11 * GIB, source="manifest")
    plan = planned(ram(10 * GIB), "9B", manifest=manifest)
    assert (plan.verdict.can_load, plan.ram.level, plan.ram.need) == (
        True,
        RamLevel.TIGHT,
        manifest,
    )


def test_read_manifest_of_a_bundle() -> None:
    file = Path(edgekit.catalog.__path__[0], "tier_data", "manifest.json")
    assert read_manifest(file) == RamNeed(
        min_bytes=4096 * MIB, recommended_bytes=7168 * MIB, source="manifest"
    )


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_read_manifest_rejects_other_files(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "eliza-1.manifest.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=told):
        read_manifest(file)


def test_read_manifest_rejects_a_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "eliza-1.manifest.json"
    file.write_bytes(b" " * (MANIFEST_BYTES + 1))
    with pytest.raises(UsageError, match=r"larger than 1\.00 MiB"):
        read_manifest(file)


def test_read_manifest_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such manifest"):
        read_manifest(tmp_path / "none")
    with pytest.raises(NotFoundError):
        read_manifest(tmp_path)
