"""Thresholds, the least context, the default window, the ways: the rules of the verdict to the letter."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.recorded import config_header, engine_models, rows
from tests.thoroughness import sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import any_mix, from_config, gguf, one_file

from edgekit.bill.types import (
    Component,
    Job,
    Load,
    MemoryEstimate,
    MemoryLine,
    Start,
    Status,
    Task,
    Usage,
    Verdict,
    cache_type,
)
from edgekit.cli import main
from edgekit.engines import engine_on
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, LlamaCppSetup, LlamaMode
from edgekit.engines.llamacpp.weights import has_experts_on_host
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import EdgekitError, HardwareError
from edgekit.machine.types import DEVICE, HOST, Budget, Machine, MemoryLimit
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


def recorded(name: str, quant: str = "Q4_K_M") -> Model:
    return engine_models()[name, quant]


def of_config(name: str) -> Model:
    row = next(row for row in rows("vllm.jsonl.gz") if row["model"] == name)
    header = config_header(row["config"])
    return Model(header=header, geometry=read_geometry(header))


def ask(model: Model, machine: Machine, engine: str = "llama.cpp", **more: Any) -> Task:
    return Task(model=model, engine=engine, machine=machine, **more)


def per_token(size_bytes: int, fixed_bytes: int = 0) -> Any:
    """A bill that is a straight line."""

    def bill(load: Load, _: Any) -> MemoryEstimate:
        lines = [(Component.KV_CACHE, (load.context_tokens or 0) * size_bytes), (Component.WEIGHTS, fixed_bytes)]  # fmt: skip
        return MemoryEstimate(
            engine="llama.cpp",
            backend="cpu",
            lines=tuple(
                MemoryLine(component=what, size_bytes=size, pool=HOST) for what, size in lines
            ),
        )

    return bill


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
def test_use_of_a_known_bill_fits_up_to_all_that_is_usable(percent: float, status: Status) -> None:
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
def test_use_of_an_assumed_bill_keeps_the_bands_of_an_estimate(
    percent: float, status: Status
) -> None:
    use = Usage(budget=RESERVED, required_bytes=round(percent * 100), assumed=True)
    assert use.status is status
    assert (use.fullness > 1) is (status is Status.FAILED)


def test_use_whose_bounds_go_beyond_the_free_memory_does_not_fit() -> None:
    """10,000 usable of 11,000 free: 9,800 and at most 1,200 more is just what is free."""
    assert Usage(budget=RESERVED, required_bytes=9_800, bound_bytes=1_200).status is Status.WARNING
    assert Usage(budget=RESERVED, required_bytes=9_800, bound_bytes=1_201).status is Status.FAILED
    given = replace(RESERVED, has_default_reserve=False)
    assert Usage(budget=given, required_bytes=9_800, bound_bytes=1_201).status is Status.WARNING


def test_use_above_max_use_does_not_fit() -> None:
    assert Usage(budget=RESERVED, required_bytes=5_000, max_use=0.5).status is Status.PASSED
    assert Usage(budget=RESERVED, required_bytes=5_001, max_use=0.5).status is Status.FAILED
    # it never loosens a verdict
    assumed = Usage(budget=RESERVED, required_bytes=8_600, assumed=True, max_use=1.0)
    assert assumed.status is Status.FAILED


def test_use_of_a_fixed_share_is_never_tight() -> None:
    share = replace(RESERVED, is_share=True, has_default_reserve=False)
    assert Usage(budget=share, required_bytes=10_000, bound_bytes=9_000).status is Status.PASSED
    assert Usage(budget=share, required_bytes=10_001).status is Status.FAILED


def test_use_of_no_memory() -> None:
    budget = Budget(name="memory", pools=frozenset({HOST}), total_bytes=0, free_bytes=GIB, reserve_bytes=2 * GIB, because="")  # fmt: skip
    assert budget.available_bytes == 0
    assert Usage(budget=budget, required_bytes=0).status is Status.PASSED
    assert Usage(budget=budget, required_bytes=1).status is Status.FAILED
    assert Usage(budget=budget, required_bytes=1).utilization == float("inf")


def test_max_context_is_the_last_that_is_usable() -> None:
    # 31 GiB may be used; 1 MiB for a token: 31 x 1024 = 31,744, in steps of 256
    result = judge(ask(recorded("llama-3.1-8b"), cpu(32), bill=per_token(MIB)))
    assert result.max_context == 31_744 // 256 * 256
    assert result.recommended_context == 31_744 * 80 // 100


def test_judge_unasked_needs_16k() -> None:
    result = judge(ask(recorded("llama-3.1-8b"), cpu(16), bill=per_token(MIB)))
    assert result.max_context == 15 * 1024 // 256 * 256 == 15_360
    assert result.failed
    assert (result.context_tokens, result.step) == (16_384, 0)
    assert "15,360" in result.reasons[1]


def test_judge_accepts_less_than_16k_with_min_context() -> None:
    result = judge(ask(recorded("llama-3.1-8b"), cpu(16), bill=per_token(MIB), min_context=8192))
    assert result.can_load
    assert result.context_tokens == 12_288  # 85 % of 15,360 is 13,056, less to a multiple of 4,096
    assert result.max_context == 15_360


def test_judge_of_a_min_context_beyond_the_native_one() -> None:
    result = judge(ask(recorded("qwen3-0.6b"), cpu(512), min_context=65_536))
    assert result.failed
    assert "the model has a context of 40,960 tokens" in result.reasons[0]


def test_judge_of_an_asked_context_needs_no_minimum() -> None:
    load = Load(context_tokens=4096)
    result = judge(ask(recorded("llama-3.1-8b"), cpu(16), bill=per_token(MIB), load=load))
    assert (result.status, result.context_tokens) == (Status.PASSED, 4096)


def test_judge_of_a_model_with_a_short_context() -> None:
    model = recorded("all-minilm-l6-v2", "F16")
    result = judge(ask(model, cpu(2)))
    assert (result.max_context, result.native_context) == (512, 512)
    assert result.passed


def test_judge_of_an_unknown_context() -> None:
    model = recorded("llama-3.1-8b")
    unknown = replace(model.geometry, native_context=None, trained_context=None)
    result = judge(ask(Model(header=model.header, geometry=unknown), cpu(64), bill=per_token(1)))
    assert result.max_context == 32_768
    assert result.native_context is None


def test_max_context_ends_at_the_native_one() -> None:
    assert judge(ask(recorded("qwen3-0.6b"), cpu(512))).max_context == 40_960


def test_window_budget_is_what_its_cache_holds() -> None:
    # 8 heads x 128 x 2 (K and V) x 2 bytes x 32 layers = 128 KiB for a token
    question = ask(recorded("llama-3.1-8b"), cpu(64), window_budget_bytes=3 * GIB)
    result = judge(question)
    assert result.context_tokens == 3 * GIB // (128 * 1024) == 24_576
    assert not result.asked
    assert result.max_context == 131_072


def test_judge_of_a_job() -> None:
    result = judge(
        ask(recorded("llama-3.1-8b"), cpu(64), job=Job(prompt_tokens=900, new_tokens=60))
    )
    assert result.context_tokens == 900 + 60 + 64
    assert dict(result.estimate.facts)["n_ctx"] == 1024


def test_judge_of_context_0() -> None:
    result = judge(ask(recorded("llama-3.1-8b"), cpu(64), load=Load(context_tokens=0)))
    assert result.context_tokens == 131_072


def test_judge_of_a_given_context_that_does_not_fit() -> None:
    result = judge(ask(recorded("llama-3.1-8b"), cpu(9), load=Load(context_tokens=131_072)))
    assert result.failed
    assert result.asked
    needed, longest = result.reasons
    assert "131,072 tokens need" in needed
    assert longest == f"the longest context that fits is {result.max_context:,} tokens"
    with pytest.raises(MemoryError, match="131,072 tokens need"):
        result.raise_if_failed()


def test_a_24b_model_on_macs() -> None:
    model = recorded("mistral-small-24b")
    wide = Model(
        header=model.header,
        geometry=replace(model.geometry, native_context=131_072, trained_context=131_072),
    )
    f16 = cache_type("f16")
    load = Load(context_tokens=131_072, cache_k=f16, cache_v=f16)
    asked = judge(ask(wide, mac(30, limit_gib=22), load=load))
    assert asked.failed
    assert asked.estimate.kv_cache_bytes == 21_474_836_480
    default = judge(ask(wide, mac(36, limit_gib=27)))
    assert default.passed
    assert (default.context_tokens, default.cache, default.step) == (57_344, "f16", 1)


def test_the_24b_model_on_a_36_gb_mac_with_mlx() -> None:
    model = of_config("mistral-small-24b")
    wide = Model(header=model.header, geometry=replace(model.geometry, native_context=131_072))
    machine = mac(36, limit_gib=27)
    assert judge(ask(wide, machine, "mlx", load=Load(context_tokens=131_072))).failed
    assert judge(ask(wide, machine, "mlx")).can_load


def test_the_verdict_follows_the_container_not_the_machine() -> None:
    model, machine = recorded("llama-3.1-8b"), cpu(64)
    assert machine.host is not None
    limit = MemoryLimit(name="memory.max", limit_bytes=4 * GIB, used_bytes=0)
    inside = replace(machine, host=replace(machine.host, limits=(limit,)))
    assert judge(ask(model, machine)).passed
    assert judge(ask(model, inside)).failed


def test_everything_on_the_card_where_it_fits() -> None:
    result = judge(ask(recorded("llama-3.1-8b"), cards(24)))
    assert LlamaCppSetup.of(result.way.setup).n_gpu_layers == ALL_LAYERS
    assert result.way.because == "fully on 24 GiB card"


def test_a_dense_model_leaves_as_few_layers_as_possible_to_the_host() -> None:
    f16 = cache_type("f16")
    load = Load(context_tokens=16_384, cache_k=f16, cache_v=f16)
    question = ask(recorded("llama-3.1-70b"), cards(24), load=load)
    result = judge(question)
    layers = LlamaCppSetup.of(result.way.setup).n_gpu_layers
    assert result.can_load
    assert 0 < layers < 81
    more = result.way.setup.changed(n_gpu_layers=layers + 1)
    settled = Start(setup=more, fixed_flags=frozenset({"n_gpu_layers"}))
    assert judge(replace(question, start=settled)).failed


def test_experts_leave_the_card_first() -> None:
    result = judge(ask(recorded("qwen3-30b-a3b"), cards(12)))
    assert result.can_load
    assert any(map(has_experts_on_host(LlamaCppSetup.of(result.way.setup)), range(48)))
    assert LlamaCppSetup.of(result.way.setup).n_gpu_layers == ALL_LAYERS


def test_what_no_card_holds_runs_on_the_processor() -> None:
    result = judge(ask(recorded("llama-3.1-70b"), cards(1, ram=64)))
    assert result.can_load
    assert LlamaCppSetup.of(result.way.setup).backend is Backend.CPU
    assert result.way.because == "fully on the CPU"


def test_the_host_is_held_as_hard_as_the_card() -> None:
    model = recorded("mistral-small-24b")
    assert judge(ask(model, cards(8, ram=24))).can_load
    result = judge(ask(model, cards(8, ram=8)))
    assert result.failed
    assert result.max_context == 0


def test_a_host_that_is_not_known_takes_no_layers() -> None:
    result = judge(ask(recorded("llama-3.1-70b"), cards(24, ram=None)))
    assert result.failed
    assert [use.budget.pools for use in result.uses] == [{DEVICE}]


def test_what_was_settled_is_not_changed() -> None:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, n_gpu_layers=ALL_LAYERS)
    start = Start(setup=setup, fixed_flags=frozenset({"n_gpu_layers"}))
    assert judge(ask(recorded("llama-3.1-70b"), cards(24), start=start)).failed


def test_vllm_shares_a_model_among_more_cards_where_one_is_too_small() -> None:
    model = of_config("llama-3.1-8b")
    one = judge(ask(model, cards(24), "vllm"))
    assert (one.can_load, VllmSetup.of(one.way.setup).tensor_parallel_size) == (True, 1)
    two = judge(ask(model, cards(16, 16), "vllm"))
    assert (two.can_load, VllmSetup.of(two.way.setup).tensor_parallel_size) == (True, 2)
    assert judge(ask(model, cards(16), "vllm")).failed


def test_vllm_in_two_stages() -> None:
    """Do weights and overhead fit? How many tokens does the rest hold?"""
    model = of_config("llama-3.1-8b")
    failed = judge(ask(model, cards(16), "vllm"))
    assert failed.max_context == 0
    assert "weights and overhead alone need" in failed.reasons[1]
    result = judge(ask(model, cards(24), "vllm"))
    overhead = result.estimate.total_bytes - result.estimate.kv_cache_bytes
    room = result.tightest.budget.available_bytes - overhead
    facts: dict[str, Any] = dict(result.estimate.facts)
    page = facts["bytes_per_block"]
    assert result.max_context == room // page * 16


def test_vllm_is_asked_for_more_cards_than_there_are() -> None:
    start = Start(
        setup=VllmSetup(tensor_parallel_size=4), fixed_flags=frozenset({"tensor_parallel_size"})
    )
    with pytest.raises(HardwareError, match="4 GPUs"):
        judge(ask(of_config("llama-3.1-8b"), cards(24, 24), "vllm", start=start))


def test_vllm_takes_less_of_a_card_in_use_unless_its_share_was_settled() -> None:
    machine = cards(80)
    busy = replace(machine, devices=(replace(machine.devices[0], free_bytes=60 * GIB),))
    question = ask(of_config("llama-3.1-8b"), busy, "vllm")
    result = judge(question)
    assert result.can_load
    assert VllmSetup.of(result.way.setup).gpu_memory_utilization == 0.74  # (60 - 0.6) / 80
    assert result.tightest.budget.available_bytes == math.ceil(80 * GIB * 0.74)
    settled = Start(setup=VllmSetup(), fixed_flags=frozenset({"gpu_memory_utilization"}))
    refused = judge(replace(question, start=settled))
    assert refused.failed
    assert "does not start" in refused.reasons[0]


def test_a_busy_card_is_not_in_the_way_of_a_free_one() -> None:
    machine = cards(24, 8, ram=None)
    busy = replace(machine.devices[1], free_bytes=GIB)
    both = replace(machine, devices=(machine.devices[0], busy))
    alone = judge(ask(recorded("llama-3.1-8b"), cards(24, ram=None)))
    result = judge(ask(recorded("llama-3.1-8b"), both))
    assert (result.status, result.max_context) == (alone.status, alone.max_context)


def test_vllm_takes_the_card_with_most_free() -> None:
    machine = cards(80, 24)
    busy = replace(machine.devices[0], free_bytes=4 * GIB)
    result = judge(
        ask(of_config("llama-3.1-8b"), replace(machine, devices=(busy, machine.devices[1])), "vllm")
    )
    assert result.can_load
    assert result.way.because.startswith("on 24 GiB card")


def test_a_pool_that_holds_no_request_does_not_start() -> None:
    start = Start(
        setup=VllmSetup(kv_cache_memory_bytes=GIB), fixed_flags=frozenset({"kv_cache_memory_bytes"})
    )
    load = Load(context_tokens=17_000)
    result = judge(ask(of_config("llama-3.1-8b"), cards(24), "vllm", start=start, load=load))
    assert result.failed
    assert "vLLM does not start" in result.reasons[0]


def test_vllm_refuses_cards_before_volta() -> None:
    machine = what_if_machine(devices=("Tesla P100 16GB",))
    with pytest.raises(HardwareError, match="needs a Volta GPU or newer"):
        judge(ask(of_config("llama-3.1-8b"), machine, "vllm"))


def test_sequences_that_do_not_share_have_a_window_each() -> None:
    load = Load(sequences=2, unified=False)
    result = judge(ask(recorded("qwen3-0.6b"), cpu(512), load=load))
    assert result.max_context == 2 * 40_960


@pytest.mark.parametrize(
    ("machine", "engine"),
    [(cards(24), "vllm"), (mac(64), "mlx"), (cpu(64), "llama.cpp")],
)
def test_the_engine_of_a_repository_on_a_machine(machine: Machine, engine: str) -> None:
    assert engine_on(of_config("llama-3.1-8b"), machine) == engine
    assert engine_on(recorded("llama-3.1-8b"), machine) == "llama.cpp"


def test_a_window_beyond_what_engines_count_is_judged_for_what_was_asked() -> None:
    known = recorded("llama-3.1-8b")
    model = Model(header=known.header, geometry=replace(known.geometry, native_context=2**32 - 1))
    result = judge(ask(model, cpu(32), load=Load(context_tokens=16_384)))
    assert result.status is Status.PASSED


def test_cards_that_share_the_memory_of_the_host_are_judged_together() -> None:
    whole = mac(24, 18)
    card = replace(whole.devices[0], limit_bytes=None)
    two = replace(whole, devices=(card, replace(card, index=1)))
    result = judge(ask(recorded("llama-3.1-8b"), two, load=Load(context_tokens=8192)))
    assert result.status is Status.PASSED


def test_vllm_without_compilation_needs_a_little_beyond_its_share() -> None:
    """80 GiB x 0.92 = 73.6, a CUDA context of 0.6, and 0.25 more with --enforce-eager."""
    machine = cards(80)
    card = replace(machine.devices[0], free_bytes=int(74.3 * GIB))
    question = ask(of_config("llama-3.1-8b"), replace(machine, devices=(card,)), "vllm")
    for eager, starts in ((False, True), (True, False)):
        setup = VllmSetup(enforce_eager=eager)
        start = Start(setup=setup, fixed_flags=frozenset({"gpu_memory_utilization"}))
        assert judge(replace(question, start=start)).passed is starts


def test_judge_is_not_comfortable_with_much_in_ram_of_unknown_size() -> None:
    """A 70B with no layer on the card: 1 GiB of VRAM, and 40 GiB in RAM that nobody stated."""
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, n_gpu_layers=0)
    start = Start(setup=setup, fixed_flags=frozenset({"n_gpu_layers"}))
    unknown = judge(ask(recorded("llama-3.1-70b"), cards(24, ram=None), start=start))
    assert unknown.status is Status.WARNING
    known = judge(ask(recorded("llama-3.1-70b"), cards(24, ram=128), start=start))
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


def keys_alone(model: Model) -> Model:
    """As if reading had stopped before the tensor directory."""
    header = replace(model.header, tensors=None, tensor_bytes=None, header_bytes=None)
    return Model(header=header, geometry=read_geometry(header))


def asked(model: Model, machine: Machine) -> tuple[Task, Verdict]:
    question = Task(model=model, engine="llama.cpp", machine=machine)
    return question, judge(question)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_decided_by_keys_alone_is_right(name: str) -> None:
    whole = engine_models()[name, "Q4_K_M"]
    light, decided = keys_alone(whole), 0
    for machine in sampled(MACHINES, each=2, turn=MODELS.index(name)):
        try:
            question, quick = asked(light, machine)
        except EdgekitError:
            continue  # then the directory is read
        _, exact = asked(whole, machine)
        if is_decided(question, quick, loads_only=True):
            assert quick.can_load == exact.can_load
        if is_decided(question, quick):
            decided += 1
            assert (quick.status, quick.context_tokens) == (exact.status, exact.context_tokens)
            assert (quick.max_context, quick.way.because) == (exact.max_context, exact.way.because)
            assert quick.required_bytes == pytest.approx(exact.required_bytes, rel=0.05)
    assert decided


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
def test_the_download_is_shown_for_names_and_not_for_files(
    command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = not model.startswith("sample:")
    main([command, model, "--device", "RTX 4090"])
    assert ("16.5 GB download" in capsys.readouterr().out) is known
    main([command, model, "--device", "RTX 4090", "--json"])
    size = json.loads(capsys.readouterr().out)["download_bytes"]
    assert (size is not None) is known
