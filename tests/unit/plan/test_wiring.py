"""What macOS lets the GPU wire, and what a higher limit would give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.wishes import from_config, one_file

from edgekit.hardware.types import Machine
from edgekit.plan.making import make_plan
from edgekit.plan.planned import Lever
from edgekit.plan.wiring import decide_limit, raised_limit
from edgekit.units import GIB, MIB


def limit_mib(machine: Machine | None) -> int | None:
    return None if machine is None else (machine.devices[0].limit_bytes or 0) // MIB


@pytest.mark.parametrize(
    ("gib", "limit_gib", "mib"),
    [
        (8, 5, None),  # 8 - 3 = 5: no more than now
        (16, 10, 13 * 1024),  # up to 16 GiB macOS keeps 3
        (32, 21, 32 * 1024 * 80 // 100),  # above, a fifth
        (64, 48, 64 * 1024 * 80 // 100),
        (64, 60, None),  # higher already
    ],
)
def test_all_but_what_macos_needs(gib: int, limit_gib: int, mib: int | None) -> None:
    assert limit_mib(raised_limit(mac(gib, limit_gib))) == mib


@pytest.mark.parametrize("machine", [mac(64), cpu(64), cards(24), replace(mac(64, 48), host=None)])
def test_no_limit_to_raise(machine: Machine) -> None:
    assert raised_limit(machine) is None


def test_nothing_else_is_changed() -> None:
    raised = raised_limit(mac(64, 48))
    assert raised is not None
    assert raised.host == mac(64, 48).host
    (before,), (after,) = mac(64, 48).devices, raised.devices
    assert replace(after, limit_bytes=before.limit_bytes) == before


def test_told_where_it_lengthens_the_window() -> None:
    seen: list[int] = []

    def longest(machine: Machine) -> int:
        seen.append((machine.devices[0].limit_bytes or 0) // GIB)
        return 40_000

    decision = decide_limit(mac(16, 10), 30_000, longest)
    assert decision is not None
    assert seen == [13]
    assert (decision.lever, decision.value) == (Lever.LIMIT, "iogpu.wired_limit_mb=13312")
    assert "sudo sysctl iogpu.wired_limit_mb=13312" in decision.because
    assert "40,000 tokens" in decision.because


@pytest.mark.parametrize("longer", [0, 29_999, 30_000])
def test_not_told_where_it_gives_nothing(longer: int) -> None:
    assert decide_limit(mac(16, 10), 30_000, lambda _: longer) is None
    assert decide_limit(mac(16), 30_000, lambda _: 10**6) is None


def test_a_plan_never_counts_on_it() -> None:
    plan = make_plan(one_file("llama-3.1-8b", mac(16, 10)))
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert plan.result.machine == mac(16, 10)
    raised = raised_limit(mac(16, 10))
    assert raised is not None
    longer = make_plan(one_file("llama-3.1-8b", raised)).context_tokens
    assert longer > plan.context_tokens
    assert f"up to {longer:,} tokens" in decision.because


def test_what_was_asked_for_needs_no_higher_limit() -> None:
    assert make_plan(one_file("llama-3.1-8b", mac(16, 10), 16_384)).decision(Lever.LIMIT) is None
    whole = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert whole.context_tokens == 40_960
    assert whole.decision(Lever.LIMIT) is None
