"""A higher limit on the GPU's share of a unified memory: offered where it helps, never counted on."""

from __future__ import annotations

from tests.unit.plan.machines import mac
from tests.unit.plan.tasks import from_config, one_file

from edgekit.bill.verdict import Lever
from edgekit.machine.gpu_limit import raised_limit
from edgekit.plan.plan import make_plan


def test_a_plan_never_counts_on_it() -> None:
    plan = make_plan(one_file("llama-3.1-8b", mac(16, 10)))
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert plan.result.machine == mac(16, 10)
    raised = raised_limit(mac(16, 10))
    assert raised is not None
    longer = make_plan(one_file("llama-3.1-8b", raised.machine)).result.max_context
    assert longer > plan.result.max_context
    assert decision.value == "iogpu.wired_limit_mb=13312"
    assert decision.because == (
        "sudo sysctl iogpu.wired_limit_mb=13312 lets the GPU use 13.00 GiB instead of 10.00 GiB (until the next restart): "
        f"up to {longer:,} tokens"
    )


def test_what_was_asked_for_needs_no_higher_limit() -> None:
    assert make_plan(one_file("llama-3.1-8b", mac(16, 10), 16_384)).decision(Lever.LIMIT) is None
    whole = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert whole.context_tokens == 40_960
    assert whole.decision(Lever.LIMIT) is None


def test_a_model_on_the_cpu_of_a_mac_is_told_how_to_run_on_its_gpu() -> None:
    """All of it on the GPU or none: Metal maps the whole file for one layer."""
    plan = make_plan(one_file("qwen3-30b-a3b", mac(24, 16)))
    assert plan.result.way.setup.n_gpu_layers == 0
    assert plan.result.way.because == "fully on the CPU"
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert decision.because.endswith("runs on the GPU at 32,768 tokens")
