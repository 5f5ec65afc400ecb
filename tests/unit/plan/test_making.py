"""Where a plan lies, over how many cards, and what it says where nothing fits."""

from __future__ import annotations

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
    from_config,
    is_within,
    one_file,
    rated,
)

from edgekit.bill.types import Load, Start
from edgekit.bill.verdict import ChangeKind, Lever
from edgekit.engines.llamacpp.types import ALL_LAYERS
from edgekit.engines.vllm.types import VllmSetup
from edgekit.errors import HardwareError, RefusedError, UsageError
from edgekit.machine.types import PoolKind
from edgekit.plan.changes import changes
from edgekit.plan.plan import Plan, find_plan, make_plan
from edgekit.plan.verdict import judge

LAYERS = 62 + 1  # gemma-3-27b, and the output behind them


def on_each_card(plan: Plan) -> list[int]:
    """Layers with anything on each device, the output with the last."""
    found: Counter[int] = Counter()
    lines = [line for line in plan.result.estimate.lines if line.pool.kind is PoolKind.DEVICE]
    for layer, card in {(line.layer, line.pool.index) for line in lines if line.layer is not None}:
        found[card] += layer >= 0
    return [found[place] for place in range(len(plan.result.way.cards))]


# --- unequal cards


@pytest.mark.parametrize("gib", sampled([(8, 16), (16, 8), (16, 6, 6), (12, 10)], each=2))
def test_layers_are_divided_as_the_cards_have_room(gib: tuple[int, ...]) -> None:
    plan = make_plan(one_file(GEMMA, cards(*gib), 16_384), thorough=False)
    split = plan.result.way.setup.tensor_split
    assert plan.fits
    assert is_within(plan)
    if plan.result.way.setup.n_gpu_layers > LAYERS and split:
        assert sum(split) == LAYERS
    if split:
        counts = on_each_card(plan)
        assert [*counts[:-1], counts[-1] + 1] == list(split) or counts == list(split)


def test_a_division_by_hand() -> None:
    # 16.48 GiB of weights in 62 layers of 0.25 and an output of 0.9; rooms of 12.75 and 5.95, 0.7 of each gone
    plan = make_plan(one_file(GEMMA, cards(16, 8), 16_384))
    first, second = plan.result.way.setup.tensor_split
    assert first + second == LAYERS
    assert 2.5 < first / second < 3.5
    assert "divided" in plan.result.way.because


@settings(max_examples=5 if LONG else 3, deadline=None)
@given(st.lists(st.integers(4, 24), min_size=2, max_size=3), st.sampled_from([16_384, 32_768]))
def test_no_card_is_filled_above_its_limit(gib: list[int], context: int) -> None:
    plan = find_plan(one_file(GEMMA, cards(*gib), context))
    if plan is not None:
        assert is_within(plan)
        split = plan.result.way.setup.tensor_split
        assert sum(split) in {0, min(plan.result.way.setup.n_gpu_layers, LAYERS)}


def test_all_cards_are_used_from_the_start() -> None:
    plan = make_plan(one_file(GEMMA, cards(24, 24), 16_384), thorough=False)
    assert len(plan.result.way.cards) == 2
    assert sum(plan.result.way.setup.tensor_split) == LAYERS


@pytest.mark.parametrize(
    ("large", "small"), sampled(tuple(product((8, 16, 24), (2, 4, 8))), each=4)
)
def test_a_small_card_more_is_never_worse(large: int, small: int) -> None:
    alone, both = (
        make_plan(one_file(GEMMA, cards(*gib), 16_384), thorough=False)
        for gib in ((large,), (large, small))
    )
    assert worth(both) >= worth(alone)
    assert is_within(both)


def worth(plan: Plan) -> tuple[bool, bool, float]:
    """It fits, as a whole, in an accurate cache."""
    setup = plan.result.way.setup
    is_whole = setup.n_gpu_layers == ALL_LAYERS and setup.offload_kqv
    return plan.fits, is_whole, bits(plan)


def bits(plan: Plan) -> float:
    return plan.load.cache_k.bits if plan.load.cache_k else 16.0


def test_a_card_without_a_known_host() -> None:
    assert find_plan(one_file(GEMMA, cards(24, ram=None), 16_384)) is not None
    assert find_plan(one_file(GEMMA, cards(12, ram=None), 16_384)) is None


# --- vLLM


def shape(plan: Plan) -> tuple[int, int]:
    setup = plan.result.way.setup
    return setup.tensor_parallel_size, setup.pipeline_parallel_size


@pytest.mark.parametrize(
    ("gib", "nodes", "expected"),
    [
        ([24], 1, (1, 1)),  # 15.3 GiB of weights in 24 x 0.92 = 22.1
        ([24] * 4, 1, (4, 1)),  # one would be enough: all are used
        ([16, 16], 1, (2, 1)),
        ([12] * 4, 1, (4, 1)),
        ([12] * 3, 1, (1, 3)),  # three do not divide 32 heads: they share the layers
        ([16], 2, (1, 2)),  # heads inside of a machine, layers between machines
    ],
)
def test_ranks_and_stages(gib: list[int], nodes: int, expected: tuple[int, int]) -> None:
    plan = make_plan(from_config("qwen3-8b", cards(*gib), "vllm", 8192, nodes=nodes))
    assert plan.fits
    assert shape(plan) == expected
    assert len(plan.result.way.cards) == expected[0] * expected[1]
    assert is_within(plan)


def test_two_machines_of_eight_cards() -> None:
    # 141 GB of 16-bit weights: 8 x 16 GiB hold 8 x 16 x 0.8 = 102 GiB of them, 16 cards 204
    task = from_config("llama-3.1-70b", cards(*[16] * 8), "vllm", 16_384)
    assert not make_plan(task).fits
    plan = make_plan(replace(task, nodes=2))
    assert plan.fits
    assert shape(plan) == (8, 2)
    assert plan.result.estimate.weights_bytes < 141 * 10**9 / 16 * 1.1


def test_a_number_of_cards_that_does_not_divide_the_heads() -> None:
    start = Start(setup=VllmSetup(tensor_parallel_size=3), settled=frozenset({"tensor_parallel_size"}))  # fmt: skip
    with pytest.raises(RefusedError, match="3"):
        make_plan(from_config("qwen3-8b", cards(24, 24, 24), "vllm", 16_384, start=start))


def test_more_cards_than_there_are() -> None:
    start = Start(setup=VllmSetup(tensor_parallel_size=4), settled=frozenset({"tensor_parallel_size"}))  # fmt: skip
    with pytest.raises(HardwareError, match="should use 4 GPUs, but cards has 2"):
        make_plan(from_config("qwen3-8b", cards(24, 24), "vllm", 16_384, start=start))


def test_vllm_keeps_its_own_cache_where_it_holds_the_context() -> None:
    kept = {tokens: make_plan(from_config("qwen3-8b", cards(24), "vllm", tokens)) for tokens in (16_000, 40_960)}  # fmt: skip
    assert [one.decision(Lever.CACHE).value for one in kept.values()] == ["auto", "fp8"]  # type: ignore[union-attr]


# --- engines and machines that do not go together


@pytest.mark.parametrize(
    ("engine", "machine", "told"),
    [("vllm", cpu(64), "NVIDIA"), ("mlx", cards(24), "Apple"), ("vllm", mac(64), "NVIDIA")],
)
def test_no_hardware_for_the_engine(engine: str, machine: Any, told: str) -> None:
    with pytest.raises(HardwareError, match=told):
        make_plan(from_config("qwen3-8b", machine, engine))


@pytest.mark.parametrize(
    ("task", "told"),
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
def test_wishes_that_contradict_each_other(task: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make_plan(task)


# --- nothing fits


def test_nothing_fits_has_the_figures_of_16k_with_an_8_bit_cache() -> None:
    task = any_mix(LLAMA, cpu(3))
    assert find_plan(task) is None
    plan = make_plan(task)
    assert not plan.fits
    assert (plan.variant.name, plan.result.cache, plan.context_tokens) == ("Q4_K_M", "q8_0", 16_384)
    (decision,) = plan.decisions
    assert {one.value.partition(",")[0] for one in decision.tried} == {"Q4_K_M", "IQ4_XS"}
    kinds = {change.kind for change in plan.to_fit}
    assert {ChangeKind.MEMORY, ChangeKind.DEVICE} <= kinds
    # 4.58 GiB at Q4_K_M, 16,384 x 68 KiB of cache and some buffers, and 1 GiB beside them
    (memory,) = (change for change in plan.to_fit if change.kind is ChangeKind.MEMORY)
    assert 6.6 < float(memory.value.split()[0]) < 7.2


def test_what_would_help_does_help() -> None:
    plan = make_plan(any_mix(LLAMA, cpu(3)))
    (memory,) = (change for change in plan.to_fit if change.kind is ChangeKind.MEMORY)
    more = float(memory.value.split()[0])
    machine = cpu(3)
    host = replace(machine.host, total_bytes=int(more * 2**30), free_bytes=int(more * 2**30))  # type: ignore[type-var]
    assert make_plan(any_mix(LLAMA, replace(machine, host=host))).fits


def test_a_plan_that_does_not_fit_has_no_speed() -> None:
    plan = make_plan(any_mix(LLAMA, rated(cpu(3))))
    assert (plan.speed, plan.steady_tokens_per_s, plan.drafter) == (None, None, None)


# --- the whole


@pytest.mark.parametrize(
    ("name", "machine"),
    sampled([(LLAMA, cpu(16)), (LLAMA, cards(8)), (GEMMA, cards(16, 8)), (MOE, cards(12)), (MOE, mac(24, 18))], each=2),
)  # fmt: skip
def test_every_lever_has_its_because(name: str, machine: Any) -> None:
    plan = make_plan(any_mix(name, rated(machine)))
    assert [one.lever for one in plan.decisions][:4] == [
        Lever.WEIGHTS, Lever.PLACEMENT, Lever.CONTEXT, Lever.CACHE
    ]  # fmt: skip
    assert all(one.value and one.because for one in plan.decisions)
    for one in plan.decisions:
        assert sum(tried.taken for tried in one.tried) <= 1


def test_the_plan_is_its_own_bill() -> None:
    plan = make_plan(any_mix(LLAMA, rated(cards(12)), 16_384))
    from edgekit.engines.llamacpp.estimate import estimate

    again = estimate(plan.variant.model, plan.load, plan.result.way.setup)
    assert again.lines == plan.result.estimate.lines


@pytest.mark.parametrize("thorough", [True, False])
def test_a_thorough_plan_says_more_of_the_same(thorough: bool) -> None:  # noqa: FBT001 - a table
    plan = make_plan(any_mix(LLAMA, rated(cards(12))), thorough=thorough)
    assert (plan.decision(Lever.SEQUENCES) is not None) is thorough
    other = make_plan(any_mix(LLAMA, rated(cards(12))), thorough=not thorough)
    assert (plan.variant.name, plan.load, plan.result.way) == (other.variant.name, other.load, other.result.way)  # fmt: skip


def test_a_plan_and_a_check_say_the_same_of_a_higher_limit() -> None:
    """A plan never counts on it, and of a context that was asked for it is not said."""
    task = one_file("llama-3.1-8b", mac(16, 10))
    plan = make_plan(task)
    assert plan.result.machine == mac(16, 10)
    found = changes(task, judge(task))
    (change,) = (one for one in found if one.kind is ChangeKind.MEMORY)
    decision = plan.decision(Lever.LIMIT)
    assert decision is not None
    assert (decision.value, decision.because) == ("iogpu.wired_limit_mb=13312", change.told)
    assert change.result is not None
    assert f"up to {change.result.max_context:,} tokens" in change.told
    assert make_plan(replace(task, load=Load(context_tokens=16_384))).decision(Lever.LIMIT) is None


def test_no_plan_asks_for_a_higher_limit_that_gives_nothing() -> None:
    plan = make_plan(from_config("qwen3-0.6b", mac(64, 48), "mlx"))
    assert (plan.context_tokens, plan.decision(Lever.LIMIT)) == (40_960, None)
