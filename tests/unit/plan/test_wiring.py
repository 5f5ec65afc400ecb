"""A plan's decision on a higher limit for the GPU."""

from __future__ import annotations

import pytest
from tests.unit.plan.machines import mac
from tests.unit.plan.wishes import from_config, one_file

from edgekit.hardware.gpu_limit import raised_limit
from edgekit.hardware.types import Machine
from edgekit.plan.making import make_plan
from edgekit.plan.planned import Lever
from edgekit.plan.wiring import decide_limit
from edgekit.units import GIB


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
    longer = make_plan(one_file("llama-3.1-8b", raised.machine)).context_tokens
    assert longer > plan.context_tokens
    assert f"up to {longer:,} tokens" in decision.because


def test_what_was_asked_for_needs_no_higher_limit() -> None:
    assert make_plan(one_file("llama-3.1-8b", mac(16, 10), 16_384)).decision(Lever.LIMIT) is None
    whole = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert whole.context_tokens == 40_960
    assert whole.decision(Lever.LIMIT) is None
