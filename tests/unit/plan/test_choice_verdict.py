"""plan/choice.py: thresholds, the minimum context, the default context and placements of a verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import (
    any_mix,
    from_config,
    gguf,
    linear_bill,
    of_config,
    one_file,
    task_for,
)

from edgekit.bill.types import (
    Job,
    Load,
    Start,
    Status,
    Usage,
    cache_type,
)
from edgekit.cli import main
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, LlamaCppSetup, LlamaMode
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError, HardwareError
from edgekit.machine.types import DEVICE, HOST, Budget, MemoryLimit
from edgekit.machine.what_if import what_if_machine
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.plan.choice import download_bytes, is_decided, judge
from edgekit.plan.plan import make_plan
from edgekit.units import GIB, MIB

RESERVED = Budget(
    name="memory",
    pools=frozenset({HOST}),
    total_bytes=11_000,
    free_bytes=11_000,
    reserve_bytes=1_000,
    because="",
)


@pytest.mark.parametrize(
    ("percent", "status"),
    [
        (0, Status.PASSED),
        (85, Status.PASSED),
        (85.01, Status.WARNING),
        (100, Status.WARNING),
        (100.01, Status.FAILED),
        (1000, Status.FAILED),
    ],
)
def test_usage_of_a_known_bill_fits_up_to_100_percent(percent: float, status: Status) -> None:
    assert Usage(budget=RESERVED, required_bytes=round(percent * 100)).status is status


@pytest.mark.parametrize(
    ("percent", "status"),
    [
        (69.99, Status.PASSED),
        (70, Status.WARNING),
        (85, Status.WARNING),
        (85.01, Status.FAILED),
    ],
)
def test_usage_of_an_assumed_bill_is_tight_from_70_and_fails_over_85_percent(
    percent: float, status: Status
) -> None:
    use = Usage(budget=RESERVED, required_bytes=round(percent * 100), assumed=True)
    assert use.status is status
    assert (use.fullness > 1) is (status is Status.FAILED)


def test_usage_does_not_fit_if_its_bound_exceeds_free_memory() -> None:
    """11,000 free: 9,800 required with a bound of 1,200 is exactly all of it."""
    assert Usage(budget=RESERVED, required_bytes=9_800, bound_bytes=1_200).status is Status.WARNING
    assert Usage(budget=RESERVED, required_bytes=9_800, bound_bytes=1_201).status is Status.FAILED
    given = replace(RESERVED, has_default_reserve=False)
    assert Usage(budget=given, required_bytes=9_800, bound_bytes=1_201).status is Status.WARNING


def test_usage_above_max_use_does_not_fit() -> None:
    assert Usage(budget=RESERVED, required_bytes=5_000, max_use=0.5).status is Status.PASSED
    assert Usage(budget=RESERVED, required_bytes=5_001, max_use=0.5).status is Status.FAILED
    # max_use does not loosen the limit of an assumed bill
    assumed = Usage(budget=RESERVED, required_bytes=8_600, assumed=True, max_use=1.0)
    assert assumed.status is Status.FAILED


def test_usage_of_a_fixed_share_is_never_tight() -> None:
    share = replace(RESERVED, is_share=True, has_default_reserve=False)
    assert Usage(budget=share, required_bytes=10_000, bound_bytes=9_000).status is Status.PASSED
    assert Usage(budget=share, required_bytes=10_001).status is Status.FAILED


def test_usage_of_a_budget_without_memory() -> None:
    budget = Budget(name="memory", pools=frozenset({HOST}), total_bytes=0, free_bytes=GIB, reserve_bytes=2 * GIB, because="")  # fmt: skip
    assert budget.available_bytes == 0
    assert Usage(budget=budget, required_bytes=0).status is Status.PASSED
    assert Usage(budget=budget, required_bytes=1).status is Status.FAILED
    assert Usage(budget=budget, required_bytes=1).utilization == float("inf")


def test_max_context_of_a_linear_bill() -> None:
    # 31 GiB may be used; 1 MiB for a token: 31 x 1024 = 31,744, in steps of 256
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(32), bill=linear_bill(MIB)))
    assert result.max_context == 31_744 // 256 * 256
    assert result.recommended_context == 31_744 * 80 // 100


def test_judge_needs_16k_by_default() -> None:
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(16), bill=linear_bill(MIB)))
    assert result.max_context == 15 * 1024 // 256 * 256 == 15_360
    assert result.failed
    assert (result.context_tokens, result.step) == (16_384, 0)
    assert "15,360" in result.reasons[1]


def test_judge_accepts_less_than_16k_with_min_context() -> None:
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(16), bill=linear_bill(MIB), min_context=8192))
    assert result.can_load
    assert result.context_tokens == 12_288  # 85 % of 15,360 is 13,056, less to a multiple of 4,096
    assert result.max_context == 15_360


def test_judge_fails_a_min_context_beyond_the_native_one() -> None:
    result = judge(task_for(gguf("qwen3-0.6b"), cpu(512), min_context=65_536))
    assert result.failed
    assert "the model has a context of 40,960 tokens" in result.reasons[0]


def test_judge_of_a_requested_context_needs_no_minimum() -> None:
    load = Load(context_tokens=4096)
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(16), bill=linear_bill(MIB), load=load))
    assert (result.status, result.context_tokens) == (Status.PASSED, 4096)


def test_judge_of_a_model_with_a_short_context() -> None:
    model = gguf("all-minilm-l6-v2", "F16")
    result = judge(task_for(model, cpu(2)))
    assert (result.max_context, result.native_context) == (512, 512)
    assert result.passed


def test_judge_of_an_unknown_native_context() -> None:
    model = gguf("llama-3.1-8b")
    unknown = replace(model.geometry, native_context=None, trained_context=None)
    result = judge(
        task_for(Model(header=model.header, geometry=unknown), cpu(64), bill=linear_bill(1))
    )
    assert result.max_context == 32_768
    assert result.native_context is None


def test_max_context_ends_at_the_native_one() -> None:
    assert judge(task_for(gguf("qwen3-0.6b"), cpu(512))).max_context == 40_960


def test_window_budget_sets_the_context_by_the_size_of_its_cache() -> None:
    # 8 heads x 128 x 2 (K and V) x 2 bytes x 32 layers = 128 KiB for a token
    task = task_for(gguf("llama-3.1-8b"), cpu(64), window_budget_bytes=3 * GIB)
    result = judge(task)
    assert result.context_tokens == 3 * GIB // (128 * 1024) == 24_576
    assert not result.asked
    assert result.max_context == 131_072


def test_judge_of_a_job() -> None:
    result = judge(
        task_for(gguf("llama-3.1-8b"), cpu(64), job=Job(prompt_tokens=900, new_tokens=60))
    )
    assert result.context_tokens == 900 + 60 + 64
    assert dict(result.estimate.facts)["n_ctx"] == 1024


def test_judge_of_context_0_takes_the_native_context() -> None:
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(64), load=Load(context_tokens=0)))
    assert result.context_tokens == 131_072


def test_judge_of_a_given_context_that_does_not_fit() -> None:
    result = judge(task_for(gguf("llama-3.1-8b"), cpu(9), load=Load(context_tokens=131_072)))
    assert result.failed
    assert result.asked
    needed, longest = result.reasons
    assert "131,072 tokens need" in needed
    assert longest == f"the longest context that fits is {result.max_context:,} tokens"
    with pytest.raises(MemoryError, match="131,072 tokens need"):
        result.raise_if_failed()


def test_judge_a_24b_model_on_macs_with_llama_cpp() -> None:
    model = gguf("mistral-small-24b")
    wide = Model(
        header=model.header,
        geometry=replace(model.geometry, native_context=131_072, trained_context=131_072),
    )
    f16 = cache_type("f16")
    load = Load(context_tokens=131_072, cache_k=f16, cache_v=f16)
    requested = judge(task_for(wide, mac(30, limit_gib=22), load=load))
    assert requested.failed
    assert requested.estimate.kv_cache_bytes == 21_474_836_480
    default = judge(task_for(wide, mac(36, limit_gib=27)))
    assert default.passed
    assert (default.context_tokens, default.cache, default.step) == (57_344, "f16", 1)


def test_judge_a_24b_model_on_a_36_gb_mac_with_mlx() -> None:
    model = of_config("mistral-small-24b")
    wide = Model(header=model.header, geometry=replace(model.geometry, native_context=131_072))
    machine = mac(36, limit_gib=27)
    assert judge(task_for(wide, machine, "mlx", load=Load(context_tokens=131_072))).failed
    assert judge(task_for(wide, machine, "mlx")).can_load


def test_judge_uses_the_memory_limit_of_the_container() -> None:
    model, machine = gguf("llama-3.1-8b"), cpu(64)
    assert machine.host is not None
    limit = MemoryLimit(name="memory.max", limit_bytes=4 * GIB, used_bytes=0)
    inside = replace(machine, host=replace(machine.host, limits=(limit,)))
    assert judge(task_for(model, machine)).passed
    assert judge(task_for(model, inside)).failed


def test_judge_puts_the_whole_model_on_the_gpu_if_it_fits() -> None:
    result = judge(task_for(gguf("llama-3.1-8b"), cards(24)))
    assert LlamaCppSetup.of(result.way.setup).n_gpu_layers == ALL_LAYERS
    assert result.way.because == "fully on 24 GiB card"


def test_judge_of_a_dense_model_puts_as_few_layers_as_possible_in_ram() -> None:
    f16 = cache_type("f16")
    load = Load(context_tokens=16_384, cache_k=f16, cache_v=f16)
    task = task_for(gguf("llama-3.1-70b"), cards(24), load=load)
    result = judge(task)
    layers = LlamaCppSetup.of(result.way.setup).n_gpu_layers
    assert result.can_load
    assert 0 < layers < 81
    more = result.way.setup.changed(n_gpu_layers=layers + 1)
    start = Start(setup=more, fixed_flags=frozenset({"n_gpu_layers"}))
    assert judge(replace(task, start=start)).failed


def test_judge_falls_back_to_the_cpu_if_the_gpu_is_too_small() -> None:
    result = judge(task_for(gguf("llama-3.1-70b"), cards(1, ram=64)))
    assert result.can_load
    assert LlamaCppSetup.of(result.way.setup).backend is Backend.CPU
    assert result.way.because == "fully on the CPU"


def test_judge_fails_if_ram_is_too_small_for_the_rest() -> None:
    model = gguf("mistral-small-24b")
    assert judge(task_for(model, cards(8, ram=24))).can_load
    result = judge(task_for(model, cards(8, ram=8)))
    assert result.failed
    assert result.max_context == 0


def test_judge_puts_no_layers_in_ram_of_unknown_size() -> None:
    result = judge(task_for(gguf("llama-3.1-70b"), cards(24, ram=None)))
    assert result.failed
    assert [use.budget.pools for use in result.uses] == [{DEVICE}]


def test_vllm_splits_a_model_that_one_card_cannot_hold() -> None:
    model = of_config("llama-3.1-8b")
    on_one_card = judge(task_for(model, cards(24), "vllm"))
    assert (on_one_card.can_load, VllmSetup.of(on_one_card.way.setup).tensor_parallel_size) == (
        True,
        1,
    )
    on_two_cards = judge(task_for(model, cards(16, 16), "vllm"))
    assert (on_two_cards.can_load, VllmSetup.of(on_two_cards.way.setup).tensor_parallel_size) == (
        True,
        2,
    )
    assert judge(task_for(model, cards(16), "vllm")).failed


def test_vllm_max_context_is_what_fits_next_to_weights_and_overhead() -> None:
    model = of_config("llama-3.1-8b")
    failed = judge(task_for(model, cards(16), "vllm"))
    assert failed.max_context == 0
    assert "weights and overhead alone need" in failed.reasons[1]
    result = judge(task_for(model, cards(24), "vllm"))
    overhead = result.estimate.total_bytes - result.estimate.kv_cache_bytes
    free_bytes = result.tightest.budget.available_bytes - overhead
    facts: dict[str, Any] = dict(result.estimate.facts)
    page = facts["bytes_per_block"]
    assert result.max_context == free_bytes // page * 16


def test_vllm_lowers_its_share_of_a_busy_card_unless_it_was_given() -> None:
    machine = cards(80)
    busy = replace(machine, devices=(replace(machine.devices[0], free_bytes=60 * GIB),))
    task = task_for(of_config("llama-3.1-8b"), busy, "vllm")
    result = judge(task)
    assert result.can_load
    assert VllmSetup.of(result.way.setup).gpu_memory_utilization == 0.74  # (60 - 0.6) / 80
    assert result.tightest.budget.available_bytes == math.ceil(80 * GIB * 0.74)
    start = Start(setup=VllmSetup(), fixed_flags=frozenset({"gpu_memory_utilization"}))
    refused = judge(replace(task, start=start))
    assert refused.failed
    assert "does not start" in refused.reasons[0]


def test_busy_second_card_does_not_change_the_verdict() -> None:
    machine = cards(24, 8, ram=None)
    busy = replace(machine.devices[1], free_bytes=GIB)
    both = replace(machine, devices=(machine.devices[0], busy))
    alone = judge(task_for(gguf("llama-3.1-8b"), cards(24, ram=None)))
    result = judge(task_for(gguf("llama-3.1-8b"), both))
    assert (result.status, result.max_context) == (alone.status, alone.max_context)


def test_vllm_takes_the_card_with_the_most_free_memory() -> None:
    machine = cards(80, 24)
    busy = replace(machine.devices[0], free_bytes=4 * GIB)
    result = judge(
        task_for(
            of_config("llama-3.1-8b"), replace(machine, devices=(busy, machine.devices[1])), "vllm"
        )
    )
    assert result.can_load
    assert result.way.because.startswith("on 24 GiB card")


def test_vllm_fails_if_its_kv_cache_holds_no_request() -> None:
    start = Start(
        setup=VllmSetup(kv_cache_memory_bytes=GIB), fixed_flags=frozenset({"kv_cache_memory_bytes"})
    )
    load = Load(context_tokens=17_000)
    result = judge(task_for(of_config("llama-3.1-8b"), cards(24), "vllm", start=start, load=load))
    assert result.failed
    assert "vLLM does not start" in result.reasons[0]


def test_vllm_refuses_cards_before_volta() -> None:
    machine = what_if_machine(devices=("Tesla P100 16GB",))
    with pytest.raises(HardwareError, match="needs a Volta GPU or newer"):
        judge(task_for(of_config("llama-3.1-8b"), machine, "vllm"))


def test_sequences_without_a_unified_cache_have_a_context_each() -> None:
    load = Load(sequences=2, unified=False)
    result = judge(task_for(gguf("qwen3-0.6b"), cpu(512), load=load))
    assert result.max_context == 2 * 40_960


def test_judge_of_an_impossible_native_context_uses_the_requested_one() -> None:
    base = gguf("llama-3.1-8b")
    model = Model(header=base.header, geometry=replace(base.geometry, native_context=2**32 - 1))
    result = judge(task_for(model, cpu(32), load=Load(context_tokens=16_384)))
    assert result.status is Status.PASSED


def test_unified_gpus_are_judged_as_one_memory() -> None:
    one_gpu = mac(24, 18)
    card = replace(one_gpu.devices[0], limit_bytes=None)
    two_gpus = replace(one_gpu, devices=(card, replace(card, index=1)))
    result = judge(task_for(gguf("llama-3.1-8b"), two_gpus, load=Load(context_tokens=8192)))
    assert result.status is Status.PASSED


def test_vllm_with_enforce_eager_needs_more_beyond_its_share() -> None:
    """80 GiB x 0.92 = 73.6, a CUDA context of 0.6, and 0.25 more with --enforce-eager."""
    machine = cards(80)
    card = replace(machine.devices[0], free_bytes=int(74.3 * GIB))
    task = task_for(of_config("llama-3.1-8b"), replace(machine, devices=(card,)), "vllm")
    for eager, starts in ((False, True), (True, False)):
        setup = VllmSetup(enforce_eager=eager)
        start = Start(setup=setup, fixed_flags=frozenset({"gpu_memory_utilization"}))
        assert judge(replace(task, start=start)).passed is starts


def test_judge_warns_of_much_in_ram_of_unknown_size() -> None:
    """A 70B model with no layer on the GPU: 1 GiB of VRAM, and 40 GiB in RAM of unknown size."""
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, n_gpu_layers=0)
    start = Start(setup=setup, fixed_flags=frozenset({"n_gpu_layers"}))
    unknown = judge(task_for(gguf("llama-3.1-70b"), cards(24, ram=None), start=start))
    assert unknown.status is Status.WARNING
    known = judge(task_for(gguf("llama-3.1-70b"), cards(24, ram=128), start=start))
    assert known.status is Status.PASSED


MODELS = [
    "llama-3.1-8b",
    "gemma-3-4b",
    "qwen3-30b-a3b",
    "phi-3-mini-4k",
    "qwen2.5-0.5b",
    "lfm2-1.2b",
]
MACHINES = [cpu(4), cpu(8), cpu(16), cpu(64), cards(8), cards(24), cards(80)]


def keys_only(model: Model) -> Model:
    """The model with its keys read, but not its tensor directory."""
    header = replace(model.header, tensors=None, tensor_bytes=None, header_bytes=None)
    return Model(header=header, geometry=read_geometry(header))


@pytest.mark.parametrize("name", MODELS)
def test_is_decided_by_keys_only_agrees_with_the_full_header(name: str) -> None:
    model = gguf(name)
    without_tensors, decisions = keys_only(model), 0
    for machine in sampled(MACHINES, each=2, turn=MODELS.index(name)):
        try:
            task = task_for(without_tensors, machine)
            quick = judge(task)
        except EdgekitError:
            continue  # the tensor directory is needed
        exact = judge(task_for(model, machine))
        if is_decided(task, quick, loads_only=True):
            assert quick.can_load == exact.can_load
        if is_decided(task, quick):
            decisions += 1
            assert (quick.status, quick.context_tokens) == (exact.status, exact.context_tokens)
            assert (quick.max_context, quick.way.because) == (exact.max_context, exact.way.because)
            assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.05)
    assert decisions


def test_download_bytes_of_a_quantisation_are_those_of_its_file() -> None:
    plan = make_plan(any_mix("llama-3.1-8b", cards(8)))
    assert plan.variant.name == "Q4_K_M"
    size = download_bytes(plan.result)
    stored = gguf("llama-3.1-8b").header
    assert size == pytest.approx(stored.tensor_bytes, rel=0.001)
    assert download_bytes(make_plan(one_file("llama-3.1-8b", cards(24))).result) == (
        stored.file_bytes or stored.tensor_bytes
    )


def test_download_bytes_do_not_depend_on_the_number_of_cards() -> None:
    sizes = {
        download_bytes(make_plan(from_config("llama-3.1-8b", cards(*gib), "vllm")).result)
        for gib in ((80,), (24, 24), (24, 24, 24, 24))
    }
    assert sizes == {2 * 8_030_261_248}  # 16 bits each


def test_download_bytes_for_mlx_are_those_of_the_packed_weights() -> None:
    plan = make_plan(from_config("llama-3.1-8b", mac(13), "mlx"))
    assert plan.variant.name == "4 bit"
    assert download_bytes(plan.result) == plan.result.estimate.weights_bytes


@pytest.mark.parametrize("model", ["gemma-3-27b", "sample:gemma-3-27b"])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_download_is_shown_for_names_and_not_for_files(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    is_name = not model.startswith("sample:")
    main([command, model, "--device", "RTX 4090"])
    assert ("17.4 GB download" in capsys.readouterr().out) is is_name
    main([command, model, "--device", "RTX 4090", "--json"])
    size = json.loads(capsys.readouterr().out)["download_bytes"]
    assert (size is not None) is is_name
