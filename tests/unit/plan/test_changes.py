"""What would change a verdict: every suggestion, followed, holds what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import any_mix, from_config, one_file, rated
from tests.unit.plan.test_verdict import ask, of_config, recorded

from edgekit.bill.types import Change, ChangeKind, Lever, Load, Start, Task, Verdict, cache_type
from edgekit.catalog.names import find_entry
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.machine.devices import raised_limit
from edgekit.machine.types import HostMemory
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.changes import changes
from edgekit.plan.choice import judge
from edgekit.plan.plan import make_plan
from edgekit.units import parse_size

FAILING: dict[str, Task] = {
    "dense on a card": ask(recorded("gemma-3-27b"), cards(12, ram=None)),
    "dense on the processor": ask(recorded("llama-3.1-70b"), cpu(40)),
    "too long a context": ask(recorded("llama-3.1-8b"), cpu(9), load=Load(context_tokens=131_072)),
    "experts": ask(recorded("qwen3-30b-a3b"), cards(8, ram=12)),
    "a Mac": ask(recorded("llama-3.1-70b"), mac(36, limit_gib=27)),
    "vLLM": ask(of_config("llama-3.1-8b"), cards(16), "vllm"),
    "MLX": ask(of_config("llama-3.1-70b"), mac(48, limit_gib=36), "mlx"),
}


@cache
def answered(name: str) -> tuple[Verdict, tuple[Change, ...]]:
    """One of those that fail, once for all tests that look at it."""
    result = judge(FAILING[name])
    return result, changes(FAILING[name], result)


def told(question: Task | str) -> dict[ChangeKind, Change]:
    if isinstance(question, str):
        result, answer = answered(question)
    else:
        result = judge(question)
        answer = changes(question, result)
    assert result.failed
    return {change.kind: change for change in reversed(answer)}


@pytest.mark.parametrize("name", sampled(tuple(FAILING), each=2))
def test_changes_always_offer_something(name: str) -> None:
    assert told(name).keys() & {ChangeKind.DEVICE, ChangeKind.MEMORY}


def test_offered_context_fits() -> None:
    question = FAILING["too long a context"]
    change = told("too long a context")[ChangeKind.CONTEXT]
    tokens = int(change.value)
    assert judge(replace(question, load=Load(context_tokens=tokens))).can_load
    assert f"-c {tokens}" in change.told


def test_offered_context_below_the_minimum_fits() -> None:
    question = ask(recorded("llama-3.1-8b"), cpu(6))
    change = told(question)[ChangeKind.CONTEXT]
    assert judge(replace(question, load=Load(context_tokens=int(change.value)))).can_load


def test_given_cache_is_not_changed() -> None:
    load = Load(context_tokens=131_072, cache_k=cache_type("f16"), cache_v=cache_type("f16"))
    question = ask(recorded("llama-3.1-8b"), cpu(19), load=load)
    assert ChangeKind.CACHE not in told(question)


def test_offered_weights_are_the_most_accurate_that_fit() -> None:
    question = FAILING["dense on the processor"]
    change = told("dense on the processor")[ChangeKind.WEIGHTS]
    mixes = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K")
    better = mixes[: mixes.index(change.value)]
    assert change.value in {"IQ4_XS", "Q3_K_M"}
    for mix in better:
        assert not fits_at(question, mix)
    assert fits_at(question, change.value)


def fits_at(question: Task, mix: str) -> bool:
    from edgekit.engines.llamacpp.types import LlamaMode

    setup = LlamaCppSetup(mode=LlamaMode.SERVER, mix=mix)
    return judge(replace(question, start=Start(setup=setup))).can_load


def test_offered_quantisation_of_the_repository() -> None:
    question = FAILING["dense on the processor"]
    value = told("dense on the processor")[ChangeKind.WEIGHTS].value
    there = told(replace(question, alternatives=(value,)))[ChangeKind.WEIGHTS]
    assert "which the repository has" in there.told


def test_offered_ram_next_to_a_card() -> None:
    question = FAILING["dense on a card"]
    change = told("dense on a card")[ChangeKind.PLACEMENT]
    needed = parse_size(change.flags["ram"])
    for size, fits in ((needed, True), (needed // 2, False)):
        host = HostMemory(total_bytes=size, free_bytes=size)
        request = replace(question, machine=replace(question.machine, host=host))
        assert judge(request).can_load is fits


@pytest.mark.parametrize("name", ["dense on a card", "a Mac", "vLLM"])
def test_offered_device_is_the_smallest_that_holds_it(name: str) -> None:
    from edgekit.machine.devices import DeviceKind, usual_devices

    question = FAILING[name]
    result, answer = answered(name)
    named = [item.value for item in answer if item.kind is ChangeKind.DEVICE]
    assert named
    for kind in (DeviceKind.GPU, DeviceKind.MAC):
        known = [item for item in usual_devices() if item.kind is kind]
        held = [item for item in known if item.name in named]
        for device in held:
            assert holds(question, device.name, result.context_tokens)
            smaller = [item for item in known if item.usable_bytes < device.usable_bytes and item.vendor is device.vendor]  # fmt: skip
            assert not any(holds(question, item.name, result.context_tokens) for item in smaller)


def holds(question: Task, device: str, tokens: int) -> bool:
    settled = replace(question.start, fixed_flags=question.start.fixed_flags | {"n_gpu_layers"})
    machine = what_if_machine(devices=(device,))
    load = replace(question.load, context_tokens=tokens)
    return judge(replace(question, machine=machine, start=settled, load=load)).can_load


def test_offered_cards_of_the_same_kind() -> None:
    _, result = answered("vLLM")
    assert "2x 16 GiB card" in [change.value for change in result]
    assert judge(replace(FAILING["vLLM"], machine=cards(16, 16))).can_load


def test_offered_engine_if_this_one_does_not_fit() -> None:
    change = told("vLLM")[ChangeKind.ENGINE]
    assert change.value == "llama.cpp"
    assert "Q4_K_M" in change.told


def test_changes_of_a_load_that_fits() -> None:
    question = ask(recorded("gemma-3-27b"), cpu(24))
    result = judge(question)
    (change,) = changes(question, result)
    assert result.can_load
    assert change.kind is ChangeKind.CACHE
    assert change.max_context is not None
    assert change.max_context > result.max_context


def test_changes_of_a_load_with_the_whole_context() -> None:
    question = ask(recorded("qwen3-0.6b"), cpu(64))
    assert changes(question, judge(question)) == ()


def test_offered_context_below_16k_keeps_the_model_on_the_gpu() -> None:
    question = ask(recorded("llama-3.1-8b"), cards(6.5, ram=32))
    result = judge(question)
    assert result.can_load
    assert not result.way.whole
    (change,) = (item for item in changes(question, result) if item.kind is ChangeKind.CONTEXT)
    assert change.told.startswith(f"-c {change.value}: runs on the GPU at 8,192 tokens")
    request = judge(replace(question, load=Load(context_tokens=int(change.value))))
    assert request.can_load
    assert request.way.whole


def test_offered_contexts_are_of_one_user() -> None:
    users = Load(context_tokens=8 * 32_768, sequences=8, unified=False)
    question = ask(recorded("llama-3.1-8b"), cards(12, ram=None), load=users)
    result = judge(question)
    assert result.reasons[0].startswith("32,768 tokens for each of 8 users need")
    results = [
        change.told for change in changes(question, result) if change.kind is ChangeKind.DEVICE
    ]
    assert results
    assert all(
        told.endswith(" the whole model at 32,768 tokens for each of 8 users") for told in results
    )


def test_offered_weights_for_a_slow_model() -> None:
    question = any_mix("llama-3.1-8b", rated(cards(6), host=20))
    result = judge(question)
    assert result.step == 6
    (change,) = (item for item in changes(question, result) if item.kind is ChangeKind.WEIGHTS)
    assert change.told.startswith(f"--quant {change.value} (less accurate): runs on the GPU at ")
    assert change.result is not None
    assert change.result.way.whole


def test_offered_cache_keeps_the_chosen_weights() -> None:
    question = any_mix("llama-3.1-8b", rated(cards(14)))
    result = judge(question)
    (change,) = (item for item in changes(question, result) if item.kind is ChangeKind.CACHE)
    assert change.result is not None
    assert change.result.quantization == result.quantization
    assert change.result.max_context > 1.25 * result.max_context


def test_offered_short_context_with_other_weights() -> None:
    """16 bits never fit 8 GiB; 4 bits do, with 4K."""
    model = open_entry(find_entry("qwen3-8b"), "vllm").model
    variants = engine_named("vllm").variants(model, "qwen3-8b")
    question = ask(model, cards(8, ram=None), "vllm", variants=variants)
    (change,) = (
        item for item in changes(question, judge(question)) if item.kind is ChangeKind.CONTEXT
    )
    assert change.told == "-c 4096: fits at AWQ with an 8-bit cache"
    load = Load(context_tokens=int(change.value))
    assert judge(replace(question, load=load)).can_load


def test_higher_limit_is_never_assumed() -> None:
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


def test_higher_limit_is_not_offered_if_a_given_context_fits() -> None:
    assert make_plan(one_file("llama-3.1-8b", mac(16, 10), 16_384)).decision(Lever.LIMIT) is None
    whole = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert whole.context_tokens == 40_960
    assert whole.decision(Lever.LIMIT) is None


def test_higher_limit_moves_a_model_to_the_gpu_of_a_mac() -> None:
    """All of it on the GPU or none: Metal maps the whole file for one layer."""
    plan = make_plan(one_file("qwen3-30b-a3b", mac(24, 16)))
    assert LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers == 0
    assert plan.result.way.because == "fully on the CPU"
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert decision.because.endswith("runs on the GPU at 32,768 tokens")
