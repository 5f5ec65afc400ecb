"""Budgets: how much of a machine's memory each engine may use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, host, mac

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine, covered_bytes, for_bill
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.placements import budgets_with as llamacpp_budgets
from edgekit.engines.mlx.placements import budgets as mlx_budgets
from edgekit.engines.vllm.placements import budgets_at as vllm_budgets
from edgekit.errors import HardwareError
from edgekit.machine.types import (
    DEVICE,
    HOST,
    Machine,
    MemoryLimit,
    Pool,
    PoolKind,
    System,
    Vendor,
    gpu_budgets,
)
from edgekit.machine.what_if import what_if_machine
from edgekit.units import GIB, MIB


@pytest.mark.parametrize(
    ("system", "reserve_gib"), [(System.LINUX, 1), (System.MACOS, 1), (System.WINDOWS, 2)]
)
def test_llamacpp_reserves_one_gib_and_two_on_windows(system: System, reserve_gib: int) -> None:
    (budget,) = llamacpp_budgets(cpu(32, system), ())
    assert budget.available_bytes == (32 - reserve_gib) * GIB
    assert budget.pools == {HOST}


def test_llamacpp_budgets_of_every_card_and_the_host() -> None:
    machine = cards(24, 12, ram=64)
    budgets = llamacpp_budgets(machine, machine.devices)
    assert [(budget.available_bytes // GIB, set(budget.pools)) for budget in budgets] == [
        (23, {Pool(PoolKind.DEVICE, 0)}),
        (11, {Pool(PoolKind.DEVICE, 1)}),
        (63, {HOST}),
    ]


def test_llamacpp_budgets_omit_an_unknown_host() -> None:
    machine = cards(24, ram=None)
    assert [budget.pools for budget in llamacpp_budgets(machine, machine.devices)] == [{DEVICE}]


def test_unified_memory_is_one_budget_up_to_the_gpu_limit() -> None:
    machine = mac(36, limit_gib=27)
    (budget,) = llamacpp_budgets(machine, machine.devices)
    assert (budget.name, set(budget.pools)) == ("unified memory", {DEVICE, HOST})
    assert (budget.available_bytes, budget.is_limited) == (27 * GIB, True)
    assert budget.unreserved_bytes == 35 * GIB


def test_gpu_budgets_are_cards_and_limited_shares() -> None:
    machine = mac(36, limit_gib=27)
    (share,) = gpu_budgets(llamacpp_budgets(machine, machine.devices))
    assert (set(share.pools), share.available_bytes) == ({DEVICE}, 27 * GIB)
    budgets = llamacpp_budgets(cards(24, 12), cards(24, 12).devices)
    assert gpu_budgets(budgets) == budgets[:2]
    board = what_if_machine(devices=["DGX Spark"])
    assert gpu_budgets(llamacpp_budgets(board, board.devices)) == ()


def test_unified_memory_with_less_free_than_the_limit() -> None:
    """36 GiB, of which 20 are free: 20 - 1, not 27."""
    machine = mac(36, limit_gib=27)
    busy = replace(machine, host=replace(host(36), free_bytes=20 * GIB))
    (budget,) = llamacpp_budgets(busy, busy.devices)
    assert (budget.available_bytes, budget.is_limited) == (19 * GIB, False)


def test_gpu_limit_does_not_apply_to_a_budget_without_the_gpu() -> None:
    (budget,) = llamacpp_budgets(mac(36, limit_gib=27), ())
    assert (budget.name, budget.available_bytes, budget.limit_bytes) == (
        "RAM",
        35 * GIB,
        None,
    )


def bill(*lines: tuple[Component, Pool, int]) -> MemoryEstimate:
    return MemoryEstimate(
        engine="llama.cpp",
        backend="vulkan",
        lines=tuple(
            MemoryLine(component=component, pool=pool, size_bytes=gib * GIB)
            for component, pool, gib in lines
        ),
    )


SPLIT_BILL = bill(
    (Component.WEIGHTS, DEVICE, 20),
    (Component.WEIGHTS, HOST, 6),
    (Component.KV_CACHE, HOST, 2),
    (Component.COMPUTE, HOST, 1),
)


@pytest.mark.parametrize(
    ("limit_gib", "mapped", "available_gib"),
    [
        (27, True, 35),  # 27 + 6 + 2 is all there is
        (22, True, 22 + 6 + 2),  # the compute buffer is pinned by the driver
        (22, False, 22 + 2),  # and weights that are not mapped are too
    ],
)
def test_for_bill_does_not_count_cpu_memory_against_the_gpu_limit(
    limit_gib: int, available_gib: int, *, mapped: bool
) -> None:
    machine = mac(36, limit_gib=limit_gib)
    (budget,) = llamacpp_budgets(machine, machine.devices)
    adjusted = for_bill(budget, SPLIT_BILL, mapped_weights=mapped)
    assert SPLIT_BILL.in_pools(adjusted.pools) == 29 * GIB
    assert adjusted.available_bytes == available_gib * GIB
    assert for_bill(adjusted, SPLIT_BILL, mapped_weights=mapped) == adjusted


def test_for_bill_on_metal_pins_no_cpu_memory() -> None:
    machine = mac(36, limit_gib=22)
    (budget,) = llamacpp_budgets(machine, machine.devices)
    adjusted = for_bill(budget, replace(SPLIT_BILL, backend="metal"), mapped_weights=False)
    assert adjusted.available_bytes == (22 + 6 + 2 + 1) * GIB


def apu(carve_out_gib: int, limit_gib: int) -> Machine:
    machine = mac(48, limit_gib)
    gpu = replace(machine.devices[0], vendor=Vendor.AMD, own_bytes=carve_out_gib * GIB)
    return replace(machine, system=System.LINUX, devices=(gpu,))


def test_carve_out_adds_to_the_unified_memory() -> None:
    """48 GiB of RAM less 1, plus 16 GiB carved out by the BIOS; amdgpu maps another 24 GiB."""
    machine = apu(16, 16 + 24)
    (budget,) = llamacpp_budgets(machine, machine.devices)
    assert budget.available_bytes == 40 * GIB
    raised = apu(16, 16 + 44)
    (budget,) = llamacpp_budgets(raised, raised.devices)
    assert budget.available_bytes == 60 * GIB
    assert budget.unreserved_bytes == (48 + 16 - 1) * GIB


def test_for_bill_does_not_let_the_cpu_use_the_carve_out() -> None:
    """The GPU uses 4 GiB of its 16 GiB. What the CPU uses must fit into the 47 GiB of RAM."""
    on_cpu = bill((Component.WEIGHTS, DEVICE, 4), (Component.WEIGHTS, HOST, 50))
    machine = apu(16, 16 + 24)
    (budget,) = llamacpp_budgets(machine, machine.devices)
    assert for_bill(budget, on_cpu).available_bytes == (47 + 4) * GIB


def test_nvidia_board_has_no_gpu_limit() -> None:
    machine = what_if_machine(devices=["DGX Spark"])
    (budget,) = llamacpp_budgets(machine, machine.devices)
    assert budget.available_bytes == 122_035 * MIB - GIB
    assert (budget.limit_bytes, for_bill(budget, SPLIT_BILL)) == (None, budget)


@pytest.mark.parametrize(
    ("missing_mib", "covered_mib"),
    [
        (-1, 0),
        (0, 0),
        (80, 80),  # the first request takes it from the reserve
        (100, 100),
        (101, 0),  # more than the first request takes: does not fit
    ],
)
def test_covered_bytes_of_the_first_request_come_from_the_default_reserve(
    missing_mib: int, covered_mib: int
) -> None:
    first = replace(bill((Component.RUNTIME, DEVICE, 0)).lines[0], first_request=True)
    weights = replace(first, component=Component.WEIGHTS, first_request=False)
    estimate = replace(
        SPLIT_BILL,
        lines=(
            replace(weights, size_bytes=23 * GIB + (missing_mib - 100) * MIB),
            replace(first, size_bytes=100 * MIB),
        ),
    )
    budget, _ = llamacpp_budgets(cards(24), cards(24).devices)
    assert covered_bytes(budget, estimate) == covered_mib * MIB
    explicit = replace(budget, has_default_reserve=False)  # --reserve 1G stays free
    assert covered_bytes(explicit, estimate) == 0


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
def test_mlx_reserves_three_gib_up_to_16_gib_and_a_fifth_beyond(
    gib: int, reserve_bytes: int
) -> None:
    machine = mac(gib)
    (budget,) = mlx_budgets(machine)
    assert budget.reserve_bytes == reserve_bytes
    assert budget.available_bytes == gib * GIB - reserve_bytes


def test_mlx_reserve_is_a_share_of_total_memory() -> None:
    machine = mac(64)
    assert machine.host is not None
    busy = replace(machine, host=replace(machine.host, free_bytes=40 * GIB))
    (budget,) = mlx_budgets(busy)
    assert budget.available_bytes == 40 * GIB - 64 * GIB * 20 // 100


def test_llamacpp_budget_respects_a_container_limit() -> None:
    limit = MemoryLimit(name="memory.max", limit_bytes=8 * GIB, used_bytes=2 * GIB)
    machine = replace(cpu(64), host=host(64, limits=(limit,)))
    (budget,) = llamacpp_budgets(machine, ())
    assert (budget.free_bytes, budget.available_bytes) == (6 * GIB, 5 * GIB)


def test_vllm_budget_is_its_share_of_the_card() -> None:
    (budget,) = vllm_budgets(cards(100).devices, 0.92)
    assert budget.available_bytes == 92 * GIB
    assert not budget.blocked


def test_vllm_budget_is_blocked_if_too_little_is_free() -> None:
    (card,) = cards(100).devices
    (budget,) = vllm_budgets((replace(card, free_bytes=80 * GIB),), 0.92)
    assert "reserves 92.00 GiB" in budget.blocked
    assert "only 79.40 GiB is free once it runs" in budget.blocked  # its CUDA context takes 0.6 GiB
    assert "or use 0.79" in budget.blocked
    assert budget.available_bytes == 80 * GIB


@pytest.mark.parametrize(("gib", "starts"), [(4, False), (7, False), (8, True), (24, True)])
def test_vllm_budget_of_a_small_card_is_blocked_by_the_cuda_context(
    gib: int, *, starts: bool
) -> None:
    (budget,) = vllm_budgets(cards(gib).devices, 0.92)  # 8 % of 7 GiB is less than 0.6 GiB
    assert (not budget.blocked) is starts


def test_vllm_budget_of_several_cards_needs_room_for_nccl() -> None:
    """8 % of 24 GiB is 1.92 GiB. The CUDA context takes 0.6 GiB of it, NCCL another 1.5."""
    (single,) = vllm_budgets(cards(24).devices, 0.92)
    (pair,) = vllm_budgets(cards(24, 24).devices, 0.92)
    assert not single.blocked
    assert "or use 0.91" in pair.blocked


def test_vllm_budget_of_unequal_cards_is_the_smallest() -> None:
    (budget,) = vllm_budgets(cards(24, 16).devices, 0.9)
    assert budget.name == "16 GiB card"


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_check_runs_without_the_engines_hardware_is_an_error(engine: str) -> None:
    with pytest.raises(HardwareError, match="--device"):
        engine_named(engine).check_runs(cpu(64))
    engine_named("llama.cpp").check_runs(cpu(64))


def test_llamacpp_uses_the_cards_of_one_vendor_only() -> None:
    machine = cards(24, 12)
    amd = replace(machine.devices[1], vendor=Vendor.AMD)
    mixed = replace(machine, devices=(amd, machine.devices[0]))
    assert engine_named("llama.cpp").devices(mixed) == (machine.devices[0],)
