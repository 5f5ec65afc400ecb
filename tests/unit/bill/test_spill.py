"""bill/spill.py: cold pages of the KV cache in RAM or on NVMe, in bytes and against the time limits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.bill.spill import PAGE_TOKENS, Purpose, Spill, Store, plan_spill
from edgekit.errors import KvSpillUnsupportedError, UsageError
from edgekit.index.tiers import find_layout, find_tier
from edgekit.units import GIB, MIB


def spill_half(
    per_token: int, store: Store, purpose: Purpose, store_free_bytes: int | None = None
) -> Spill:
    """The spill of 131,072 tokens, of which half fit."""
    return plan_spill(
        context_tokens=131_072,
        bytes_per_token=per_token,
        resident_budget_bytes=65_536 * per_token,
        store=store,
        purpose=purpose,
        store_free_bytes=store_free_bytes,
    )


# whole bytes per token with which a page of 256 tokens is restored just within the limit
EDGES = [
    (Store.NVME, Purpose.VOICE, 1_500_000_000 * 200 // 1000 // 256),  # 1,171,875
    (Store.NVME, Purpose.TEXT, 1_500_000_000 * 1500 // 1000 // 256),  # 8,789,062 (and a half)
    (Store.HOST_RAM, Purpose.VOICE, 12_000_000_000 * 200 // 1000 // 256),  # 9,375,000
    (Store.HOST_RAM, Purpose.TEXT, 12_000_000_000 * 1500 // 1000 // 256),  # 70,312,500
]


@pytest.mark.parametrize(("store", "purpose", "per_token"), EDGES)
def test_page_restored_exactly_at_the_limit_is_in_time(
    store: Store, purpose: Purpose, per_token: int
) -> None:
    spill = spill_half(per_token, store, purpose)
    assert spill.restore_ms <= purpose.limit_ms
    assert spill.restore_ms == pytest.approx(purpose.limit_ms, rel=1e-6)
    assert spill.resident_bytes == 65_536 * per_token
    assert spill.spilled_pages == 65_536 // 256
    assert spill.spilled_bytes == 65_536 * per_token


@pytest.mark.parametrize(("store", "purpose", "per_token"), EDGES)
def test_one_byte_per_token_over_the_limit_is_an_error(
    store: Store, purpose: Purpose, per_token: int
) -> None:
    with pytest.raises(KvSpillUnsupportedError, match="would take too long") as raised:
        spill_half(per_token + 1, store, purpose)
    output = str(raised.value)
    assert f"131,072 tokens x {per_token + 1:,} B" in output
    assert f"the limit for {purpose.value} is {purpose.limit_ms:,} ms" in output
    assert store.value in output
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("store", Store)
@pytest.mark.parametrize("name", ["0.8B", "2B", "4B", "9B", "27B"])
def test_every_tier_restores_a_page_within_6_ms(name: str, store: Store, purpose: Purpose) -> None:
    per_token = find_tier(name).bytes_per_token(find_layout("polar"))
    assert spill_half(per_token, store, purpose).restore_ms < 6


def test_page_of_the_smallest_tier_is_that_of_the_memo() -> None:
    """The memo states ~5 MB and ~3.4 ms from NVMe for the 0.8B: a page in the layout for short contexts."""
    per_token = find_tier("0.8B").bytes_per_token(find_layout("turbo3"))
    spill = spill_half(per_token, Store.NVME, Purpose.VOICE)
    assert spill.page_bytes == 256 * 20_160
    assert f"{spill.page_bytes / 1e6:.0f}" == "5"
    assert f"{spill.restore_ms:.1f}" == "3.4"


@pytest.mark.parametrize(("tokens", "is_spilled"), [(65_536, False), (65_537, True)])
def test_only_contexts_over_64k_spill(tokens: int, *, is_spilled: bool) -> None:
    arguments = {
        "context_tokens": tokens,
        "bytes_per_token": 1000,
        "resident_budget_bytes": 10 * MIB,
    }
    if is_spilled:
        spill = plan_spill(**arguments, store=Store.NVME, purpose=Purpose.TEXT)
        assert spill.resident_tokens == 10 * MIB // 256_000 * 256  # 40 pages
        assert spill.spilled_pages == 257 - 40  # the last has a single token
        assert spill.spilled_bytes == 217 * 256_000
    else:
        with pytest.raises(
            KvSpillUnsupportedError, match="only contexts over 65,536 tokens can spill"
        ):
            plan_spill(**arguments, store=Store.NVME, purpose=Purpose.TEXT)


def test_cache_that_fits_is_not_spilled() -> None:
    spill = plan_spill(
        context_tokens=100, bytes_per_token=10, resident_budget_bytes=1000, store=Store.NVME
    )
    assert (spill.resident_bytes, spill.spilled_bytes, spill.is_needed) == (1000, 0, False)


@pytest.mark.parametrize(("pages", "is_enough"), [(1, False), (2, True)])
def test_at_least_two_pages_must_stay_resident(pages: int, *, is_enough: bool) -> None:
    arguments = {"context_tokens": 70_000, "bytes_per_token": 1000}
    budget = pages * PAGE_TOKENS * 1000
    if is_enough:
        assert plan_spill(
            **arguments, resident_budget_bytes=budget, store=Store.NVME, purpose=Purpose.TEXT
        ).is_needed
    else:
        with pytest.raises(KvSpillUnsupportedError, match="at least 2 pages"):
            plan_spill(
                **arguments, resident_budget_bytes=budget, store=Store.NVME, purpose=Purpose.TEXT
            )


def test_store_that_is_too_small_is_an_error() -> None:
    needed = 65_536 * 1000
    assert spill_half(1000, Store.HOST_RAM, Purpose.TEXT, store_free_bytes=needed).is_needed
    with pytest.raises(KvSpillUnsupportedError, match=re.escape("62.50 MiB left in RAM")):
        spill_half(1000, Store.HOST_RAM, Purpose.TEXT, store_free_bytes=needed - 1)


@pytest.mark.parametrize(
    "invalid",
    [{"context_tokens": 0}, {"bytes_per_token": -1}, {"resident_budget_bytes": -1}, {"context_tokens": 2**70}],
)  # fmt: skip
def test_plan_spill_rejects_impossible_numbers(invalid: dict[str, int]) -> None:
    arguments = {
        "context_tokens": 70_000,
        "bytes_per_token": 1,
        "resident_budget_bytes": GIB,
        **invalid,
    }
    with pytest.raises(UsageError, match="must be"):
        plan_spill(**arguments, store=Store.NVME, purpose=Purpose.TEXT)


@given(
    tokens=st.integers(65_537, 2_000_000),
    per_token=st.integers(1, 200_000),
    budget=st.integers(0, 2**38),
    store=st.sampled_from(Store),
)
def test_resident_and_spilled_parts_add_up_and_the_resident_one_fits(
    tokens: int, per_token: int, budget: int, store: Store
) -> None:
    try:
        spill = plan_spill(
            context_tokens=tokens,
            bytes_per_token=per_token,
            resident_budget_bytes=budget,
            store=store,
        )
    except KvSpillUnsupportedError:
        # pages of this size are restored in time, so nothing else can fail
        assert budget < 2 * PAGE_TOKENS * per_token
        return
    assert spill.resident_bytes <= budget
    assert spill.resident_tokens + spill.spilled_tokens == tokens
    assert spill.resident_bytes + spill.spilled_bytes >= tokens * per_token
    assert spill.is_in_time
