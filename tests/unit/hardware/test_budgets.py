"""Reserves, to the letter: what an engine may use of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, host, mac

from edgekit.errors import HardwareError
from edgekit.hardware.budgets import (
    check_runs,
    devices_for,
    llamacpp_budgets,
    mlx_budgets,
    vllm_budgets,
)
from edgekit.hardware.types import MemoryLimit, System, Vendor
from edgekit.memory.types import DEVICE, HOST, Pool, PoolKind
from edgekit.units import GIB


@pytest.mark.parametrize(
    ("system", "reserve_gib"), [(System.LINUX, 1), (System.MACOS, 1), (System.WINDOWS, 2)]
)
def test_llama_cpp_leaves_one_gib_and_two_on_windows(system: System, reserve_gib: int) -> None:
    (budget,) = llamacpp_budgets(cpu(32, system), ())
    assert budget.available_bytes == (32 - reserve_gib) * GIB
    assert budget.pools == {HOST}


def test_every_card_and_the_host_have_a_budget() -> None:
    machine = cards(24, 12, ram=64)
    found = llamacpp_budgets(machine, machine.devices)
    assert [(one.available_bytes // GIB, set(one.pools)) for one in found] == [
        (23, {Pool(PoolKind.DEVICE, 0)}),
        (11, {Pool(PoolKind.DEVICE, 1)}),
        (63, {HOST}),
    ]


def test_a_host_that_is_not_known_is_not_judged() -> None:
    machine = cards(24, ram=None)
    assert [one.pools for one in llamacpp_budgets(machine, machine.devices)] == [{DEVICE}]


def test_unified_memory_is_one_budget_for_both_pools_and_the_gpu_has_its_limit() -> None:
    machine = mac(36, limit_gib=27)
    whole, share = llamacpp_budgets(machine, machine.devices)
    assert (set(whole.pools), whole.available_bytes) == ({DEVICE, HOST}, 35 * GIB)
    assert (set(share.pools), share.available_bytes) == ({DEVICE}, 27 * GIB)


@pytest.mark.parametrize(
    ("gib", "reserve_bytes"),
    [
        (8, 3 * GIB),
        (16, 3 * GIB),
        (18, 18 * GIB * 20 // 100),
        (36, 36 * GIB * 20 // 100),
        (128, 128 * GIB * 20 // 100),
    ],
)
def test_mlx_leaves_three_gib_up_to_sixteen_and_a_fifth_beyond(
    gib: int, reserve_bytes: int
) -> None:
    machine = mac(gib)
    (budget,) = mlx_budgets(machine, machine.devices)
    assert budget.reserve_bytes == reserve_bytes
    assert budget.available_bytes == gib * GIB - reserve_bytes


def test_the_reserve_of_mlx_is_of_all_memory_not_of_what_is_free() -> None:
    machine = mac(64)
    assert machine.host is not None
    busy = replace(machine, host=replace(machine.host, free_bytes=40 * GIB))
    (budget,) = mlx_budgets(busy, busy.devices)
    assert budget.available_bytes == 40 * GIB - 64 * GIB * 20 // 100


def test_a_container_holds_all_engines_to_its_limit() -> None:
    limit = MemoryLimit(name="memory.max", limit_bytes=8 * GIB, used_bytes=2 * GIB)
    machine = replace(cpu(64), host=host(64, limits=(limit,)))
    (budget,) = llamacpp_budgets(machine, ())
    assert (budget.free_bytes, budget.available_bytes) == (6 * GIB, 5 * GIB)


def test_vllm_has_its_share_of_the_whole_card() -> None:
    (budget,) = vllm_budgets(cards(100).devices, 0.92)
    assert budget.available_bytes == 92 * GIB
    assert not budget.blocked


def test_vllm_does_not_start_where_less_is_free_than_it_asks_for() -> None:
    (card,) = cards(100).devices
    (budget,) = vllm_budgets((replace(card, free_bytes=80 * GIB),), 0.92)
    assert "asks for 92.00 GiB" in budget.blocked
    assert "79.40 GiB are free once it runs" in budget.blocked  # its own context takes 0.6 GiB
    assert "ask for 0.79" in budget.blocked
    assert budget.available_bytes == 80 * GIB


@pytest.mark.parametrize(("gib", "starts"), [(4, False), (7, False), (8, True), (24, True)])
def test_on_a_small_card_its_own_context_is_in_the_way(gib: int, *, starts: bool) -> None:
    (budget,) = vllm_budgets(cards(gib).devices, 0.92)  # 8 % of 7 GiB is less than 0.6 GiB
    assert (not budget.blocked) is starts


def test_among_several_cards_nccl_is_in_the_way_too() -> None:
    (one,) = vllm_budgets(cards(24).devices, 0.92)
    (two,) = vllm_budgets(
        cards(24, 24).devices, 0.92
    )  # 8 % of 24 GiB is 1.92, wanted are 0.6 + 1.5
    assert not one.blocked
    assert "ask for 0.91" in two.blocked


def test_of_unequal_cards_the_tightest_decides_for_vllm() -> None:
    (budget,) = vllm_budgets(cards(24, 16).devices, 0.9)
    assert budget.name == "16 GiB card"


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_an_engine_without_its_hardware_says_so(engine: str) -> None:
    with pytest.raises(HardwareError, match="--device"):
        check_runs(cpu(64), engine)
    check_runs(cpu(64), "llama.cpp")


def test_cards_of_two_makers_are_not_used_together() -> None:
    machine = cards(24, 12)
    amd = replace(machine.devices[1], vendor=Vendor.AMD)
    mixed = replace(machine, devices=(amd, machine.devices[0]))
    assert devices_for(mixed, "llama.cpp") == (machine.devices[0],)
