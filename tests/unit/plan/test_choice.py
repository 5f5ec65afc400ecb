"""plan/choice.py: the order in which weights, context, cache and placement are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import (
    GEMMA,
    LLAMA,
    MOE,
    any_mix,
    from_config,
    gguf,
    of_config,
    one_file,
    rated,
)

from edgekit.bill.types import Job, Load, Start, Status, Task, cache_type
from edgekit.engines import engine_named
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.llamacpp.types import ALL_LAYERS, LlamaCppSetup
from edgekit.engines.llamacpp.weights import has_experts_on_host
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import UsageError
from edgekit.machine.types import Machine
from edgekit.models import model_preflight
from edgekit.plan.choice import cache_choices, choose, judge
from edgekit.plan.plan import make_plan
from edgekit.report.check import headline
from edgekit.units import GIB


def chosen(task: Task) -> tuple[int, str, int, str]:
    """Step, weights, context, cache."""
    result = judge(task)
    return result.step, result.quantization, result.context_tokens, result.cache


# --- the steps, for a 27B model whose Q4_K_M is 16.5 GiB; 32K of cache are 2.8 GiB in f16, 1.5 in q8_0


@pytest.mark.parametrize(
    ("gib", "expected"),
    [
        (24, (1, "Q4_K_M", 32_768, "f16")),
        (21, (2, "Q4_K_M", 32_768, "q8_0")),
        (19, (4, "Q4_K_M", 16_384, "q8_0")),
        (18, (5, "IQ4_XS", 16_384, "q8_0")),
        (12, (6, "Q4_K_M", 32_768, "f16")),
    ],
)
def test_choose_stops_at_the_first_step_that_fits(
    gib: int, expected: tuple[int, str, int, str]
) -> None:
    assert chosen(any_mix(GEMMA, rated(cards(gib)))) == expected


def test_choose_never_changes_a_named_file() -> None:
    result = judge(one_file(GEMMA, rated(cards(18))))
    assert (result.step, result.quantization) == (6, "as stored")
    assert not result.way.whole


def test_choose_takes_a_smaller_cache_only_when_nothing_else_fits() -> None:
    """4.6 GiB of weights and buffers; 16K of cache are 1.06 GiB in q8_0, 0.56 in q4_0."""
    machine = cpu(7)
    assert machine.host is not None
    busy = replace(machine, host=replace(machine.host, free_bytes=(61 * GIB) // 10 + GIB // 2))
    step, _, tokens, cache = chosen(one_file(LLAMA, busy))
    assert (step, tokens, cache) == (7, 16_384, "q8_0 + q4_0")


def test_choose_tries_only_the_requested_context() -> None:
    """128K of an 8B: 16 GiB in f16, 8.5 in q8_0."""
    attempts = choose(one_file(LLAMA, cards(16, ram=None), 131_072)).attempts
    assert {attempt.tokens for attempt in attempts} == {131_072}
    assert [(attempt.cache.name, attempt.fits) for attempt in attempts] == [
        ("f16", False),
        ("q8_0", True),
    ]


def test_judge_keeps_a_given_cache_and_placement() -> None:
    f16 = cache_type("f16")
    load = Load(context_tokens=131_072, cache_k=f16, cache_v=f16)
    assert judge(one_file(LLAMA, cards(16, ram=None), load=load)).failed
    start = Start(
        setup=replace(default_setup(), n_gpu_layers=ALL_LAYERS),
        fixed_flags=frozenset({"n_gpu_layers"}),
    )
    assert judge(one_file("llama-3.1-70b", cards(24), start=start)).failed


@pytest.mark.parametrize("split", [(1.0, 1.0), (2.0, 1.0), (1.0, 0.0)])
def test_judge_keeps_a_given_split_and_moves_layers_to_ram(split: tuple[float, float]) -> None:
    """The number of layers on the GPUs is limited by the fuller one."""
    start = Start(
        setup=replace(default_setup(), tensor_split=split), fixed_flags=frozenset({"tensor_split"})
    )
    f16 = cache_type("f16")
    load = Load(context_tokens=16_384, cache_k=f16, cache_v=f16)
    task = replace(one_file(GEMMA, cards(10, 10, ram=64)), load=load, start=start)
    result = judge(task)
    setup = LlamaCppSetup.of(result.way.setup)
    assert (result.step, setup.tensor_split) == (6, split)
    assert setup.n_gpu_layers > 20
    flags = frozenset({"tensor_split", "n_gpu_layers"})
    more = Start(setup=replace(setup, n_gpu_layers=setup.n_gpu_layers + 1), fixed_flags=flags)
    assert judge(replace(task, start=more)).failed


def test_judge_does_not_extend_the_context_with_ram_of_unknown_size() -> None:
    start = Start(setup=replace(default_setup(), cpu_moe=True), fixed_flags=frozenset({"cpu_moe"}))
    task = replace(one_file(MOE, cards(12, ram=64)), start=start)
    assert (judge(task).status, judge(task).context_tokens) == (Status.PASSED, 40_960)
    unknown = replace(task, machine=replace(task.machine, host=None))
    assert (judge(unknown).status, judge(unknown).context_tokens) == (Status.WARNING, 32_768)


def test_choose_moves_experts_to_ram_before_layers() -> None:
    result = judge(one_file(MOE, rated(cards(12))))
    assert (result.step, result.context_tokens, result.cache) == (6, 32_768, "f16")
    assert LlamaCppSetup.of(result.way.setup).n_gpu_layers == ALL_LAYERS
    on_host = has_experts_on_host(LlamaCppSetup.of(result.way.setup))
    assert 0 < sum(map(on_host, range(48))) < 48


# --- spending spare memory


def test_choose_spends_memory_on_better_weights_then_on_context() -> None:
    step, weights, tokens, cache = chosen(any_mix(LLAMA, rated(cards(24))))
    assert (step, weights, cache) == (1, "Q6_K", "f16")
    assert tokens > 32_768
    assert judge(any_mix(LLAMA, rated(cards(24)))).passed


def test_choose_does_not_improve_a_model_slower_than_reading_speed() -> None:
    """4.6 GiB at 20 GB/s are about 4 tokens/s."""
    assert chosen(any_mix(LLAMA, rated(cpu(64), host=20))) == (1, "Q4_K_M", 32_768, "f16")


def test_choose_extends_the_context_while_it_stays_comfortable() -> None:
    result = judge(one_file(LLAMA, rated(cards(16))))
    assert result.status is Status.PASSED
    assert result.context_tokens % 4096 == 0
    longer = judge(one_file(LLAMA, rated(cards(16)), result.context_tokens + 4096))
    assert longer.status is Status.WARNING


def test_choose_takes_at_most_six_bits_by_default() -> None:
    assert chosen(any_mix(LLAMA, rated(cards(80), card=3000)))[1] == "Q6_K"


def test_choose_with_own_cache_only_takes_the_default_cache() -> None:
    task = any_mix(GEMMA, rated(cards(20)), own_cache_only=True)
    assert chosen(task)[3] == "f16"


# --- context lengths


def test_choose_reaches_step_1_with_a_short_native_context() -> None:
    assert chosen(one_file("gemma-2-9b", rated(cards(24))))[:3] == (1, "as stored", 8192)


def test_choose_with_min_context_never_goes_below_it() -> None:
    task = one_file(LLAMA, rated(cards(24)), min_context=65_536)
    assert judge(task).context_tokens >= 65_536
    assert judge(one_file(LLAMA, cards(8, ram=None), min_context=65_536)).failed


def test_choose_for_users_gives_each_a_context() -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(24)), 32_768, users=3))
    assert (plan.context_tokens, plan.load.context_tokens) == (32_768, 3 * 32_768)


def test_choose_for_embeddings_takes_8k_at_most_and_8_bits() -> None:
    task = any_mix(LLAMA, rated(cards(24)))
    start = engine_named("llama.cpp").embedding_start(Start())
    _, weights, tokens, _ = chosen(replace(task, start=start))
    assert (weights, tokens) == ("Q8_0", 8192)


def test_choose_for_embeddings_lowers_bits_before_leaving_the_gpu() -> None:
    start = engine_named("llama.cpp").embedding_start(Start())
    result = judge(replace(any_mix(LLAMA, rated(cards(12))), start=start))
    assert (result.step, result.quantization, result.context_tokens) == (5, "Q6_K", 8192)
    assert headline(result).startswith("Embeds on your 12 GiB card at Q6_K, just: ")


def test_judge_keeps_a_requested_context_beyond_the_native_one() -> None:
    assert judge(one_file("qwen3-0.6b", cpu(64), 65_536)).context_tokens == 65_536


# --- the other engines


def test_choose_for_mlx_starts_at_four_bits() -> None:
    assert chosen(from_config("llama-3.1-8b", rated(mac(13)), "mlx"))[:2] == (1, "4 bit")
    assert chosen(from_config("llama-3.1-8b", rated(mac(64, 48)), "mlx"))[1] == "6 bit"


def test_choose_for_vllm_takes_all_cards_and_the_longest_context() -> None:
    result = judge(from_config("qwen3-8b", cards(24, 24), "vllm"))
    assert VllmSetup.of(result.way.setup).tensor_parallel_size == 2
    assert (result.context_tokens, result.cache, result.status) == (40_960, "auto", Status.PASSED)


def test_choose_for_vllm_has_no_fp8_cache_before_ada() -> None:
    machine = cards(24)
    ampere = replace(machine, devices=(replace(machine.devices[0], capability=(8, 6)),))
    choices = {
        name: [choice.name for choice in cache_choices(vllm_task(gpus))]
        for name, gpus in (("ada", machine), ("ampere", ampere))
    }
    assert choices == {"ada": ["auto", "fp8"], "ampere": ["auto"]}


def vllm_task(machine: Machine) -> Task:
    return Task(model=of_config("qwen3-8b"), engine="vllm", machine=machine)


@pytest.mark.parametrize("limit", [{"max_use": 0.85}, {"reserve_bytes": 0}])
def test_judge_rejects_memory_limits_for_vllm(limit: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="gpu-memory-utilization"):
        judge(replace(vllm_task(cards(24)), **limit))


# --- limits that the user sets


def test_max_use_lowers_what_is_usable() -> None:
    task = one_file(GEMMA, cards(24, ram=None), 32_768)
    assert judge(task).warning  # 20.5 of 23
    assert judge(replace(task, max_use=0.85)).cache == "q8_0"
    assert judge(replace(task, max_use=0.5)).failed


def test_reserve_replaces_the_default_reserve() -> None:
    task = one_file(GEMMA, cards(20, ram=None), 16_384)
    default, none = judge(task), judge(replace(task, reserve_bytes=0))
    assert [use.budget.available_bytes for use in (*default.uses, *none.uses)] == [
        19 * GIB,
        20 * GIB,
    ]


def test_in_one_batch_is_true_only_for_mean_pooled_embeddings() -> None:
    setup = replace(default_setup(), embeddings=True)
    embedder = Task(
        model=gguf("all-minilm-l6-v2", "F16"),
        engine="llama.cpp",
        machine=cpu(8),
        start=Start(setup=setup),
    )
    assert embedder.in_one_batch
    chat = replace(embedder, model=gguf(LLAMA), start=Start(setup=default_setup()))
    assert not chat.in_one_batch


@pytest.mark.parametrize(
    ("device", "expected"),
    [("H100", (2, "as stored")), ("L40S", (5, "FP8")), ("RTX 5090", (5, "AWQ"))],
)
def test_choose_for_vllm_falls_back_to_a_known_repository(
    device: str, expected: tuple[int, str]
) -> None:
    """Qwen3-32B: 61 GiB in 16 bits, 32 in FP8, 18 in AWQ; 40K of cache are 10 GiB, 5 in fp8."""
    result = model_preflight("qwen3-32b", "vllm", device=device, context=40_960)
    assert (result.step, result.quantization) == expected


def test_choose_for_a_job_of_several_users_gives_each_its_context() -> None:
    job = Job(prompt_tokens=6000, new_tokens=800)
    task = one_file(LLAMA, rated(cards(24)), users=4)
    assert judge(replace(task, job=job)).context_tokens == 4 * (6000 + 800 + 64)


def test_choose_begins_at_q4_k_m_whatever_the_repository_has() -> None:
    """Q4_1 has more bits, and Q3_K_L more than IQ4_XS: neither is chosen by default."""
    mixes = ("Q8_0", "Q4_1", "Q4_K_M", "Q3_K_L", "IQ4_XS", "Q2_K")
    task = any_mix(GEMMA, rated(cards(18)))
    several = replace(task, variants=at_mixes(gguf(GEMMA, "F16"), mixes))
    attempts = choose(several).attempts
    assert list(dict.fromkeys(attempt.variant.name for attempt in attempts)) == ["Q4_K_M", "IQ4_XS"]


def test_judge_rejects_a_reserve_for_the_built_in_engine() -> None:
    task = Task(model=gguf("qwen3-0.6b"), engine="stream", machine=cpu(4), reserve_bytes=0)
    with pytest.raises(UsageError, match="built-in engine"):
        judge(task)
