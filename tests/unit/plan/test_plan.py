"""plan/plan.py: plans on one and several cards, users that fit, draft models, changes if nothing fits."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG, sampled
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import (
    GEMMA,
    LLAMA,
    MOE,
    any_mix,
    billed,
    from_config,
    gguf,
    is_within,
    one_file,
    rated,
)

from edgekit.bill.types import CACHES, OWN_LAYERS, ChangeKind, Drafter, Lever, Load, Start, Task
from edgekit.engines import engine_named
from edgekit.engines.entries import open_entry
from edgekit.engines.llamacpp.choices import at_mixes
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.types import ALL_LAYERS, LlamaCppSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import HardwareError, RefusedError, UsageError
from edgekit.index.names import find_entry
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import Machine, PoolKind
from edgekit.plan.changes import changes
from edgekit.plan.choice import judge, with_weights
from edgekit.plan.fit import placements_of
from edgekit.plan.plan import (
    MOST_USERS,
    Plan,
    find_plan,
    index_drafters,
    make_plan,
    own_drafter,
    users_that_fit,
)
from edgekit.units import GIB

LAYERS = 62 + 1  # of gemma-3-27b, with the output


def layers_on_each_card(plan: Plan) -> list[int]:
    """The number of layers with any bytes on each GPU."""
    result: Counter[int] = Counter()
    lines = [line for line in plan.result.estimate.lines if line.pool.kind is PoolKind.DEVICE]
    for layer, card in {(line.layer, line.pool.index) for line in lines if line.layer is not None}:
        result[card] += layer >= 0
    return [result[place] for place in range(len(plan.result.way.cards))]


# --- unequal cards


@pytest.mark.parametrize("gib", sampled([(8, 16), (16, 8), (16, 6, 6), (12, 10)], each=2))
def test_make_plan_splits_layers_by_free_memory(gib: tuple[int, ...]) -> None:
    plan = make_plan(one_file(GEMMA, cards(*gib), 16_384), thorough=False)
    split = LlamaCppSetup.of(plan.result.way.setup).tensor_split
    assert plan.fits
    assert is_within(plan)
    if LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers > LAYERS and split:
        assert sum(split) == LAYERS
    if split:
        counts = layers_on_each_card(plan)
        assert [*counts[:-1], counts[-1] + 1] == list(split) or counts == list(split)


def test_make_plan_splits_layers_of_two_unequal_cards() -> None:
    # 16.48 GiB of weights in 62 layers of 0.25 and an output of 0.9; 12.75 and 5.95 usable, 0.7 of each gone
    plan = make_plan(one_file(GEMMA, cards(16, 8), 16_384))
    first, second = LlamaCppSetup.of(plan.result.way.setup).tensor_split
    assert first + second == LAYERS
    assert 2.5 < first / second < 3.5
    assert "divided" in plan.result.way.because


@settings(max_examples=5 if LONG else 3, deadline=None)
@given(st.lists(st.integers(4, 24), min_size=2, max_size=3), st.sampled_from([16_384, 32_768]))
def test_find_plan_fills_no_card_above_its_limit(gib: list[int], context: int) -> None:
    plan = find_plan(one_file(GEMMA, cards(*gib), context))
    if plan is not None:
        assert is_within(plan)
        split = LlamaCppSetup.of(plan.result.way.setup).tensor_split
        assert sum(split) in {0, min(LlamaCppSetup.of(plan.result.way.setup).n_gpu_layers, LAYERS)}


def test_make_plan_uses_all_cards() -> None:
    plan = make_plan(one_file(GEMMA, cards(24, 24), 16_384), thorough=False)
    assert len(plan.result.way.cards) == 2
    assert sum(LlamaCppSetup.of(plan.result.way.setup).tensor_split) == LAYERS


@pytest.mark.parametrize(
    ("large", "small"), sampled(tuple(product((8, 16, 24), (2, 4, 8))), each=4)
)
def test_make_plan_with_one_more_small_card_is_not_worse(large: int, small: int) -> None:
    alone, both = (
        make_plan(one_file(GEMMA, cards(*gib), 16_384), thorough=False)
        for gib in ((large,), (large, small))
    )
    assert worth(both) >= worth(alone)
    assert is_within(both)


def worth(plan: Plan) -> tuple[bool, bool, float]:
    """Whether it fits, whether fully on the GPUs, and the bits of the cache."""
    setup = LlamaCppSetup.of(plan.result.way.setup)
    is_whole = setup.n_gpu_layers == ALL_LAYERS and setup.offload_kqv
    return plan.fits, is_whole, bits(plan)


def bits(plan: Plan) -> float:
    return plan.load.cache_k.bits if plan.load.cache_k else 16.0


def test_make_plan_for_a_card_with_unknown_ram() -> None:
    assert find_plan(one_file(GEMMA, cards(24, ram=None), 16_384)) is not None
    assert find_plan(one_file(GEMMA, cards(12, ram=None), 16_384)) is None


# --- vLLM


def shape(plan: Plan) -> tuple[int, int]:
    setup = VllmSetup.of(plan.result.way.setup)
    return setup.tensor_parallel_size, setup.pipeline_parallel_size


@pytest.mark.parametrize(
    ("gib", "nodes", "expected"),
    [
        ([24], 1, (1, 1)),  # 15.3 GiB of weights in 24 x 0.92 = 22.1
        ([24] * 4, 1, (4, 1)),  # one would be enough, but all are used
        ([16, 16], 1, (2, 1)),
        ([12] * 4, 1, (4, 1)),
        ([12] * 3, 1, (1, 3)),  # 32 heads are not a multiple of 3: each card has some layers
        ([16], 2, (1, 2)),  # heads are split within a machine, layers between machines
    ],
)
def test_vllm_ranks_and_stages(gib: list[int], nodes: int, expected: tuple[int, int]) -> None:
    plan = make_plan(from_config("qwen3-8b", cards(*gib), "vllm", 8192, nodes=nodes))
    assert plan.fits
    assert shape(plan) == expected
    assert len(plan.result.way.cards) == expected[0] * expected[1]
    assert is_within(plan)


def test_vllm_on_two_machines_of_eight_cards() -> None:
    # 141 GB of 16-bit weights: 8 x 16 GiB hold 8 x 16 x 0.8 = 102 GiB of them, 16 cards 204
    task = from_config("llama-3.1-70b", cards(*[16] * 8), "vllm", 16_384)
    assert not make_plan(task).fits
    plan = make_plan(replace(task, nodes=2))
    assert plan.fits
    assert shape(plan) == (8, 2)
    assert plan.result.estimate.weights_bytes < 141 * 10**9 / 16 * 1.1


def test_vllm_refuses_a_number_of_cards_that_does_not_divide_the_heads() -> None:
    start = Start(setup=VllmSetup(tensor_parallel_size=3), fixed_flags=frozenset({"tensor_parallel_size"}))  # fmt: skip
    with pytest.raises(RefusedError, match="3"):
        make_plan(from_config("qwen3-8b", cards(24, 24, 24), "vllm", 16_384, start=start))


def test_make_plan_rejects_more_cards_than_the_machine_has() -> None:
    start = Start(setup=VllmSetup(tensor_parallel_size=4), fixed_flags=frozenset({"tensor_parallel_size"}))  # fmt: skip
    with pytest.raises(HardwareError, match="should use 4 GPUs, but cards has 2"):
        make_plan(from_config("qwen3-8b", cards(24, 24), "vllm", 16_384, start=start))


def test_vllm_keeps_its_default_cache_if_the_context_fits() -> None:
    plans = {tokens: make_plan(from_config("qwen3-8b", cards(24), "vllm", tokens)) for tokens in (16_000, 40_960)}  # fmt: skip
    assert [item.decision(Lever.CACHE).value for item in plans.values()] == ["auto", "fp8"]  # type: ignore[union-attr]


# --- requests that are rejected


@pytest.mark.parametrize(
    ("engine", "machine", "message"),
    [("vllm", cpu(64), "NVIDIA"), ("mlx", cards(24), "Apple"), ("vllm", mac(64), "NVIDIA")],
)
def test_make_plan_rejects_a_machine_without_hardware_for_the_engine(
    engine: str, machine: Any, message: str
) -> None:
    with pytest.raises(HardwareError, match=message):
        make_plan(from_config("qwen3-8b", machine, engine))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (replace(one_file(LLAMA, cpu(16)), variants=()), "no quantisation to choose from"),
        (replace(one_file(LLAMA, cpu(16)), users=0), "--users must be 1 to 256"),
        (one_file(LLAMA, cpu(16), nodes=0), "--nodes must be 1 to 64"),
        (one_file(LLAMA, cpu(16), nodes=2), "only works with vLLM, not with llama.cpp"),
        (
            one_file(LLAMA, cpu(16), min_context=-1),
            r"--min-context must not be negative \(got -1\)",
        ),
    ],
)
def test_make_plan_rejects_contradicting_flags(task: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(task)


# --- nothing fits


def test_make_plan_if_nothing_fits_reports_16k_with_an_8_bit_cache() -> None:
    task = any_mix(LLAMA, cpu(3))
    assert find_plan(task) is None
    plan = make_plan(task)
    assert not plan.fits
    assert (plan.variant.name, plan.result.cache, plan.context_tokens) == ("Q4_K_M", "q8_0", 16_384)
    (decision,) = plan.decisions
    assert {item.value.partition(",")[0] for item in decision.tried} == {"Q4_K_M", "IQ4_XS"}
    kinds = {change.kind for change in plan.to_fit}
    assert {ChangeKind.MEMORY, ChangeKind.DEVICE} <= kinds
    # 4.58 GiB at Q4_K_M, 16,384 x 68 KiB of cache, some buffers, and a reserve of 1 GiB
    (memory,) = (change for change in plan.to_fit if change.kind is ChangeKind.MEMORY)
    assert 6.6 < float(memory.value.split()[0]) < 7.2


def test_memory_in_to_fit_makes_the_plan_fit() -> None:
    plan = make_plan(any_mix(LLAMA, cpu(3)))
    (memory,) = (change for change in plan.to_fit if change.kind is ChangeKind.MEMORY)
    more = float(memory.value.split()[0])
    machine = cpu(3)
    host = replace(machine.host, total_bytes=int(more * 2**30), free_bytes=int(more * 2**30))  # type: ignore[type-var]
    assert make_plan(any_mix(LLAMA, replace(machine, host=host))).fits


def test_plan_that_does_not_fit_has_no_speed() -> None:
    plan = make_plan(any_mix(LLAMA, rated(cpu(3))))
    assert (plan.speed, plan.steady_tokens_per_s, plan.drafter) == (None, None, None)


# --- whole plans


@pytest.mark.parametrize(
    ("name", "machine"),
    sampled([(LLAMA, cpu(16)), (LLAMA, cards(8)), (GEMMA, cards(16, 8)), (MOE, cards(12)), (MOE, mac(24, 18))], each=2),
)  # fmt: skip
def test_every_decision_has_a_reason(name: str, machine: Any) -> None:
    plan = make_plan(any_mix(name, rated(machine)))
    assert [decision.lever for decision in plan.decisions][:4] == [
        Lever.WEIGHTS, Lever.PLACEMENT, Lever.CONTEXT, Lever.CACHE
    ]  # fmt: skip
    assert all(decision.value and decision.because for decision in plan.decisions)
    for decision in plan.decisions:
        assert sum(tried.taken for tried in decision.tried) <= 1


def test_estimate_of_the_load_and_setup_of_a_plan_is_its_bill() -> None:
    plan = make_plan(any_mix(LLAMA, rated(cards(12)), 16_384))
    estimated = estimate(plan.variant.model, plan.load, LlamaCppSetup.of(plan.result.way.setup))
    assert estimated.lines == plan.result.estimate.lines


@pytest.mark.parametrize("thorough", [True, False])
def test_thorough_plan_has_the_same_settings(thorough: bool) -> None:  # noqa: FBT001 - a table
    plan = make_plan(any_mix(LLAMA, rated(cards(12))), thorough=thorough)
    assert (plan.decision(Lever.SEQUENCES) is not None) is thorough
    other = make_plan(any_mix(LLAMA, rated(cards(12))), thorough=not thorough)
    assert (plan.variant.name, plan.load, plan.result.way) == (other.variant.name, other.load, other.result.way)  # fmt: skip


def test_plan_and_changes_offer_the_same_higher_limit() -> None:
    task = one_file("llama-3.1-8b", mac(16, 10))
    plan = make_plan(task)
    assert plan.result.machine == mac(16, 10)
    result = changes(task, judge(task))
    (change,) = (item for item in result if item.kind is ChangeKind.MEMORY)
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert (decision.value, decision.because) == ("iogpu.wired_limit_mb=13312", change.told)
    assert change.result is not None
    assert f"up to {change.result.max_context:,} tokens" in change.told


def most_users(task: Task) -> tuple[int, str]:
    decision = make_plan(task).decision(Lever.SEQUENCES)
    assert decision is not None
    result = re.fullmatch(r"(?:up to )?([0-9]+)", decision.value)
    assert result is not None, decision.value
    return int(result[1]), decision.because


def holds(gib: int, users: int, tokens: int) -> bool:
    """Whether the bill of that many users, each with its own f16 cache, fits."""
    load = Load(context_tokens=users * tokens, sequences=users, unified=False)
    return billed(LLAMA, load) <= (gib - 1) * GIB


@pytest.mark.parametrize(
    ("gib", "tokens", "count"),
    [
        # 4.58 of weights and about 0.3 of buffers; 2 GiB for 16,384 tokens, 4 for 32,768
        (16, 16_384, 5),  # 15: 5 x 2 + 4.9
        (16, 32_768, 2),
        (32, 16_384, 12),  # 31
        (64, 131_072, 3),  # 63: 16 each
    ],
)
def test_users_that_fit_and_one_more(gib: int, tokens: int, count: int) -> None:
    result, _ = most_users(one_file(LLAMA, cpu(gib), tokens))
    assert holds(gib, result, tokens)
    assert not holds(gib, result + 1, tokens)
    assert result in {count, count + 1}  # the arithmetic above is rounded to GiB


@settings(max_examples=15, deadline=None)
@given(st.integers(12, 80), st.integers(2, 64))
def test_users_that_fit_agrees_with_the_bill(gib: int, blocks: int) -> None:
    tokens = blocks * 512
    task = one_file(LLAMA, cpu(gib), tokens)
    count = users_that_fit(task, tokens, tuple(placements_of(task)))
    assert count == 1 or holds(gib, count, tokens)
    assert count == MOST_USERS or not holds(gib, count + 1, tokens)


def test_users_that_fit_ends_at_the_engines_maximum() -> None:
    task = one_file("qwen3-0.6b", cpu(4096), 512)
    assert users_that_fit(task, 512, tuple(placements_of(task))) == MOST_USERS == 256


def test_decide_sequences_of_given_users() -> None:
    plan = make_plan(one_file(LLAMA, cpu(64), 16_384, users=4))
    decision = plan.decision(Lever.SEQUENCES)
    assert decision is not None
    assert decision.value == "4"
    assert "16,384 tokens" in decision.because
    assert plan.fits


def test_decide_sequences_without_memory_for_a_second() -> None:
    count, because = most_users(one_file(LLAMA, cpu(8)))
    assert count == 1
    assert "a second full context does not fit" in because


@pytest.mark.parametrize("machine", [cpu(32), cards(24)])
def test_decide_sequences_that_fit_can_be_planned(machine: Machine) -> None:
    task = one_file(LLAMA, machine, 16_384)
    count, because = most_users(task)
    assert count > 1
    assert f"--users {count}" in because
    assert make_plan(one_file(LLAMA, machine, 16_384, users=count)).fits


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cards(48)), ("mlx", mac(64, 48))])
def test_decide_sequences_of_vllm_and_mlx(engine: str, machine: Machine) -> None:
    task = from_config("qwen3-8b", machine, engine, 8192)
    count, _ = most_users(task)
    assert count > 1
    question = with_weights(task, make_plan(task).variant)
    assert users_that_fit(question, 8192, tuple(placements_of(question))) == count


SMALL = Drafter(name="small", model=gguf("llama-3.2-1b"), because="the same vocabulary")
OWN = "qwen3.6-27b"  # in the catalog, with one multi-token prediction layer


def task_with_own_layers(machine: Machine, context: int | None = None, **more: Any) -> Task:
    model = open_entry(find_entry(OWN), "llama.cpp").model
    (usual,) = at_mixes(model, ("Q4_K_M",))
    task = one_file(LLAMA, machine, context, **more)
    return replace(
        task, label=OWN, model=usual.model, variants=(usual,), drafters=own_drafter(model)
    )


def drafting_bytes(plan: Plan) -> int:
    lines = plan.result.estimate.lines
    return sum(line.size_bytes for line in lines if line.part in {"drafter", "prediction"})


def chosen(plan: Plan) -> str:
    decision = plan.decision(Lever.DRAFTER)
    return "" if decision is None else decision.value


# --- multi-token prediction layers of the model itself


def test_own_drafter_of_prediction_layers() -> None:
    (own,) = own_drafter(open_entry(find_entry(OWN), "llama.cpp").model)
    assert (own.name, own.model) == (OWN_LAYERS, None)
    assert own_drafter(gguf(LLAMA)) == ()


def test_own_drafter_is_proposed_and_not_billed() -> None:
    task = task_with_own_layers(rated(cards(32)), 32_768)
    plan, plain = make_plan(task), make_plan(replace(task, drafters=()))
    assert chosen(plan) == OWN_LAYERS
    assert plan.result == plain.result
    assert drafting_bytes(plan) == 0


def test_own_drafter_that_shortens_the_context_is_not_proposed() -> None:
    plan = make_plan(task_with_own_layers(rated(cards(24))))
    assert chosen(plan) == "none"
    assert plan.drafter is None
    assert not LlamaCppSetup.of(plan.result.way.setup).load_mtp
    assert drafting_bytes(plan) == 0


# --- a smaller model as draft model


def test_drafter_is_billed_with_its_own_cache() -> None:
    task = one_file(LLAMA, rated(cards(24)), 32_768, drafters=(SMALL,))
    plain = make_plan(replace(task, drafters=()))
    assert make_plan(task).drafter is SMALL
    with_drafter = engine_named(task.engine).with_drafter(task, SMALL.model, SMALL.mix)
    assert with_drafter.bill is not None
    bill = with_drafter.bill(plain.load, plain.result.way.setup.changed(draft_max=3))
    caches = sum(line.size_bytes for line in bill.lines if line.part and line.component in CACHES)
    assert caches == 32_768 * 16 * 2 * 8 * 64 * 2  # 16 layers, K and V of 8 heads of 64, 16 bit
    weights = bill.weights_bytes - plain.result.estimate.weights_bytes
    # llama-3.2-1b at Q4_K_M, and its embedding again on the card as the output: Q6_K, 210 bytes for 256
    assert weights == 799_862_912 + 128_256 * 2048 * 210 // 256


@pytest.mark.parametrize("gib", [9, 10, 11, 12, 16])
def test_drafter_is_proposed_only_if_the_context_stays(gib: int) -> None:
    task = one_file(LLAMA, rated(cards(gib)), 16_384, drafters=(SMALL,))
    plan, plain = make_plan(task), make_plan(replace(task, drafters=()))
    assert (plan.context_tokens, plan.load) == (plain.context_tokens, plain.load)
    usable_bytes = plain.result.uses[0].budget.available_bytes
    if plain.result.passed:  # a comfortable plan must stay so
        usable_bytes = usable_bytes * 85 // 100
    # 0.74 GiB of weights, 16,384 x 32 KiB of cache at f16, and 0.2 of buffers at most
    cache = 16_384 * 32 * 1024 * (plain.load.cache_k.bits if plain.load.cache_k else 16) / 16
    least_bytes = plain.result.uses[0].required_bytes + 799_862_912 * 0.7 + cache
    if plan.drafter is None:
        assert least_bytes + 0.4 * 2**30 > usable_bytes
    else:
        assert least_bytes <= usable_bytes


def test_drafter_is_proposed_on_16_gib_and_not_on_9() -> None:
    drafters = {gib: make_plan(one_file(LLAMA, rated(cards(gib)), 16_384, drafters=(SMALL,))).drafter for gib in (9, 16)}  # fmt: skip
    assert (drafters[9], drafters[16]) == (None, SMALL)


def test_propose_drafter_takes_the_first_that_fits() -> None:
    large = Drafter(name="large", model=gguf("gemma-3-27b"), because="the same vocabulary")
    plan = make_plan(one_file(LLAMA, rated(cards(24)), 32_768, drafters=(large, SMALL)))
    decision = plan.decision(Lever.DRAFTER)
    assert decision is not None
    assert [(item.value, item.taken) for item in decision.tried] == [
        ("large", False),
        ("small", True),
    ]
    assert "does not fit at 32,768 tokens" in decision.tried[0].told


def test_propose_drafter_skips_one_that_cannot_be_estimated() -> None:
    strange = Drafter(name="strange", model=gguf(LLAMA), mix="Q9_Z", because="")
    plan = make_plan(one_file(LLAMA, rated(cards(24)), 16_384, drafters=(strange, SMALL)))
    assert plan.drafter is SMALL


# --- where none is proposed


@pytest.mark.parametrize("users", [1, 4])
def test_drafter_is_not_proposed_with_given_users(users: int) -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(48)), 8192, users=users, drafters=(SMALL,)))
    assert plan.drafter is None
    assert plan.decision(Lever.DRAFTER) is None


def test_drafter_is_not_proposed_if_part_of_the_model_is_in_ram() -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(6)), drafters=(SMALL,)))
    assert plan.drafter is None
    assert chosen(plan) == "none"


@pytest.mark.parametrize(("engine", "machine"), [("vllm", cards(48)), ("mlx", mac(64, 48))])
def test_drafter_is_not_proposed_for_vllm_and_mlx(engine: str, machine: Machine) -> None:
    plan = make_plan(from_config("qwen3-8b", machine, engine, 8192, drafters=(SMALL,)))
    assert plan.drafter is None
    assert plan.decision(Lever.DRAFTER) is None


def test_drafter_is_proposed_on_a_cpu() -> None:
    assert make_plan(one_file(LLAMA, rated(cpu(32)), 16_384, drafters=(SMALL,))).drafter is SMALL


# --- draft models from the catalog


def entry(name: str, parameters: int, **more: Any) -> Entry:
    """qwen3-0.6b under another name and size."""
    return replace(find_entry("qwen3-0.6b"), id=name, parameters=parameters, active_parameters=None, **more)  # fmt: skip


BIG = entry("big", 32_000)
CASES = {
    "same": entry("same", 4000),  # an eighth
    "smaller": entry("smaller", 1000),
    "too large": entry("too large", 4001),
    "other family": entry("other family", 1000, family="llama"),
    "slightly larger vocabulary": entry(
        "slightly larger vocabulary", 1000, vocabulary=151_936 + 128
    ),
    "larger vocabulary": entry("larger vocabulary", 1000, vocabulary=151_936 + 129),
    "smaller vocabulary": entry("smaller vocabulary", 1000, vocabulary=151_936 - 129),
    "unknown vocabulary": entry("unknown vocabulary", 1000, vocabulary=None),
    "unknown size": replace(entry("unknown size", 1), parameters=None),
    "embedding": entry("embedding", 1000, kinds=(ModelPurpose.EMBEDDING,)),
}


@pytest.mark.parametrize(
    ("name", "drafts"),
    [(name, name in {"same", "smaller", "slightly larger vocabulary"}) for name in CASES],
)
def test_index_drafters_have_the_same_family_and_vocabulary(name: str, *, drafts: bool) -> None:
    result = index_drafters(BIG, (BIG, CASES[name]))
    assert [item.name for item in result] == ([f"{name} at Q4_K_M"] if drafts else [])


def test_index_drafters_come_largest_first() -> None:
    result = index_drafters(BIG, CASES.values())
    assert [item.name.partition(" at ")[0] for item in result] == ["same", "smaller", "slightly larger vocabulary"]  # fmt: skip
    assert all(item.mix == "Q4_K_M" and item.model is not None for item in result)


def test_index_drafters_are_sized_by_active_parameters() -> None:
    sparse = replace(BIG, active_parameters=3000)  # 3,000 of 32,000 are active for a token
    assert index_drafters(sparse, (CASES["same"], CASES["smaller"])) == ()
    assert len(index_drafters(sparse, (entry("tiny", 375),))) == 1


def test_index_drafters_of_an_unknown_vocabulary_are_none() -> None:
    assert index_drafters(replace(BIG, vocabulary=None), CASES.values()) == ()
