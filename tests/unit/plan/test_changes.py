"""plan/changes.py: what would change a verdict. Suggestions are followed to see that they do what they say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import any_mix, from_config, gguf, of_config, one_file, rated, task_for

from edgekit.bill.types import Change, ChangeKind, Lever, Load, Start, Task, Verdict, cache_type
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.index.names import find_entry
from edgekit.machine.devices import DeviceKind, raised_limit, usual_devices
from edgekit.machine.types import HostMemory
from edgekit.machine.what_if import what_if_machine
from edgekit.plan.changes import changes
from edgekit.plan.choice import judge
from edgekit.plan.plan import make_plan
from edgekit.units import parse_size

FAILING: dict[str, Task] = {
    "dense on a card": task_for(gguf("gemma-3-27b"), cards(12, ram=None)),
    "dense on the CPU": task_for(gguf("llama-3.1-70b"), cpu(40)),
    "too long a context": task_for(gguf("llama-3.1-8b"), cpu(9), load=Load(context_tokens=131_072)),
    "experts": task_for(gguf("qwen3-30b-a3b"), cards(8, ram=12)),
    "a Mac": task_for(gguf("llama-3.1-70b"), mac(36, limit_gib=27)),
    "vLLM": task_for(of_config("llama-3.1-8b"), cards(16), "vllm"),
    "MLX": task_for(of_config("llama-3.1-70b"), mac(48, limit_gib=36), "mlx"),
}


@cache
def judged(name: str) -> tuple[Verdict, tuple[Change, ...]]:
    """A failing task and its changes, computed once for all tests."""
    result = judge(FAILING[name])
    return result, changes(FAILING[name], result)


def offered(task: Task | str) -> dict[ChangeKind, Change]:
    if isinstance(task, str):
        result, suggestions = judged(task)
    else:
        result = judge(task)
        suggestions = changes(task, result)
    assert result.failed
    return {change.kind: change for change in reversed(suggestions)}


@pytest.mark.parametrize("name", sampled(tuple(FAILING), each=2))
def test_changes_always_offer_a_device_or_memory(name: str) -> None:
    assert offered(name).keys() & {ChangeKind.DEVICE, ChangeKind.MEMORY}


def test_offered_context_fits() -> None:
    task = FAILING["too long a context"]
    change = offered("too long a context")[ChangeKind.CONTEXT]
    tokens = int(change.value)
    assert judge(replace(task, load=Load(context_tokens=tokens))).can_load
    assert f"-c {tokens}" in change.told


def test_offered_context_below_the_default_minimum_fits() -> None:
    task = task_for(gguf("llama-3.1-8b"), cpu(6))
    change = offered(task)[ChangeKind.CONTEXT]
    assert judge(replace(task, load=Load(context_tokens=int(change.value)))).can_load


def test_given_cache_is_not_changed() -> None:
    load = Load(context_tokens=131_072, cache_k=cache_type("f16"), cache_v=cache_type("f16"))
    task = task_for(gguf("llama-3.1-8b"), cpu(19), load=load)
    assert ChangeKind.CACHE not in offered(task)


def test_offered_weights_are_the_most_accurate_that_fit() -> None:
    task = FAILING["dense on the CPU"]
    change = offered("dense on the CPU")[ChangeKind.WEIGHTS]
    mixes = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K")
    better = mixes[: mixes.index(change.value)]
    assert change.value in {"IQ4_XS", "Q3_K_M"}
    for mix in better:
        assert not fits_at_mix(task, mix)
    assert fits_at_mix(task, change.value)


def fits_at_mix(task: Task, mix: str) -> bool:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, mix=mix)
    return judge(replace(task, start=Start(setup=setup))).can_load


def test_offered_quantisation_that_the_repository_has_says_so() -> None:
    task = FAILING["dense on the CPU"]
    value = offered("dense on the CPU")[ChangeKind.WEIGHTS].value
    change = offered(replace(task, alternatives=(value,)))[ChangeKind.WEIGHTS]
    assert "which the repository has" in change.told


def test_offered_ram_next_to_a_card() -> None:
    task = FAILING["dense on a card"]
    change = offered("dense on a card")[ChangeKind.PLACEMENT]
    needed = parse_size(change.flags["ram"])
    for size, fits in ((needed, True), (needed // 2, False)):
        host = HostMemory(total_bytes=size, free_bytes=size)
        with_ram = replace(task, machine=replace(task.machine, host=host))
        assert judge(with_ram).can_load is fits


@pytest.mark.parametrize("name", ["dense on a card", "a Mac", "vLLM"])
def test_offered_device_is_the_smallest_that_holds_it(name: str) -> None:
    task = FAILING[name]
    result, suggestions = judged(name)
    names = [change.value for change in suggestions if change.kind is ChangeKind.DEVICE]
    assert names
    for kind in (DeviceKind.GPU, DeviceKind.MAC):
        devices = [item for item in usual_devices() if item.kind is kind]
        for device in (item for item in devices if item.name in names):
            assert holds(task, device.name, result.context_tokens)
            smaller = [item for item in devices if item.usable_bytes < device.usable_bytes and item.vendor is device.vendor]  # fmt: skip
            assert not any(holds(task, item.name, result.context_tokens) for item in smaller)


def holds(task: Task, device: str, tokens: int) -> bool:
    start = replace(task.start, fixed_flags=task.start.fixed_flags | {"n_gpu_layers"})
    machine = what_if_machine(devices=(device,))
    load = replace(task.load, context_tokens=tokens)
    return judge(replace(task, machine=machine, start=start, load=load)).can_load


def test_offered_cards_of_the_same_kind() -> None:
    _, suggestions = judged("vLLM")
    assert "2x 16 GiB card" in [change.value for change in suggestions]
    assert judge(replace(FAILING["vLLM"], machine=cards(16, 16))).can_load


def test_offered_engine_if_this_one_does_not_fit() -> None:
    change = offered("vLLM")[ChangeKind.ENGINE]
    assert change.value == "llama.cpp"
    assert "Q4_K_M" in change.told


def test_changes_of_a_load_that_fits_offer_a_longer_context() -> None:
    task = task_for(gguf("gemma-3-27b"), cpu(24))
    result = judge(task)
    (change,) = changes(task, result)
    assert result.can_load
    assert change.kind is ChangeKind.CACHE
    assert change.max_context is not None
    assert change.max_context > result.max_context


def test_changes_of_a_load_with_the_native_context_are_empty() -> None:
    task = task_for(gguf("qwen3-0.6b"), cpu(64))
    assert changes(task, judge(task)) == ()


def test_offered_context_below_16k_keeps_the_model_on_the_gpu() -> None:
    task = task_for(gguf("llama-3.1-8b"), cards(6.5, ram=32))
    result = judge(task)
    assert result.can_load
    assert not result.way.whole
    (change,) = (item for item in changes(task, result) if item.kind is ChangeKind.CONTEXT)
    assert change.told.startswith(f"-c {change.value}: runs on the GPU at 8,192 tokens")
    followed = judge(replace(task, load=Load(context_tokens=int(change.value))))
    assert followed.can_load
    assert followed.way.whole


def test_offered_devices_name_the_context_of_each_user() -> None:
    load = Load(context_tokens=8 * 32_768, sequences=8, unified=False)
    task = task_for(gguf("llama-3.1-8b"), cards(12, ram=None), load=load)
    result = judge(task)
    assert result.reasons[0].startswith("32,768 tokens for each of 8 users need")
    messages = [change.told for change in changes(task, result) if change.kind is ChangeKind.DEVICE]
    assert messages
    assert all(
        message.endswith(" the whole model at 32,768 tokens for each of 8 users")
        for message in messages
    )


def test_offered_weights_for_a_slow_model() -> None:
    task = any_mix("llama-3.1-8b", rated(cards(6), host=20))
    result = judge(task)
    assert result.step == 6
    (change,) = (item for item in changes(task, result) if item.kind is ChangeKind.WEIGHTS)
    assert change.told.startswith(f"--quant {change.value} (less accurate): runs on the GPU at ")
    assert change.result is not None
    assert change.result.way.whole


def test_offered_cache_keeps_the_chosen_weights() -> None:
    task = any_mix("llama-3.1-8b", rated(cards(14)))
    result = judge(task)
    (change,) = (item for item in changes(task, result) if item.kind is ChangeKind.CACHE)
    assert change.result is not None
    assert change.result.quantization == result.quantization
    assert change.result.max_context > 1.25 * result.max_context


def test_offered_short_context_with_other_weights() -> None:
    """16 bits never fit 8 GiB; 4 bits do, with 4K."""
    model = open_entry(find_entry("qwen3-8b"), "vllm").model
    variants = engine_named("vllm").variants(model, "qwen3-8b")
    task = task_for(model, cards(8, ram=None), "vllm", variants=variants)
    (change,) = (item for item in changes(task, judge(task)) if item.kind is ChangeKind.CONTEXT)
    assert change.told == "-c 4096: fits at AWQ with an 8-bit cache"
    load = Load(context_tokens=int(change.value))
    assert judge(replace(task, load=load)).can_load


def test_higher_limit_is_offered_and_not_assumed() -> None:
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


def test_higher_limit_is_not_offered_without_a_gain() -> None:
    assert make_plan(one_file("llama-3.1-8b", mac(16, 10), 16_384)).decision(Lever.LIMIT) is None
    plan = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert plan.context_tokens == 40_960
    assert plan.decision(Lever.LIMIT) is None


def test_higher_limit_moves_a_model_to_the_gpu_of_a_mac() -> None:
    """Fully on the GPU or not at all: Metal maps the whole file even for one layer."""
    plan = make_plan(one_file("qwen3-30b-a3b", mac(24, 16)))
    assert LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers == 0
    assert plan.result.way.because == "fully on the CPU"
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert decision.because.endswith("runs on the GPU at 32,768 tokens")
