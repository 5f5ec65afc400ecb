"""Which quantisation: whole before divided, four bits before three, more bits where they cost nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.wishes import LLAMA, MOE, any_mix, from_config, is_within, one_file, rated

from edgekit.engine.llamacpp.types import ALL_LAYERS, Backend, LlamaCppSetup, Mode
from edgekit.hardware.types import Machine
from edgekit.plan.making import make_plan
from edgekit.plan.planned import Lever, Plan, Wish
from edgekit.plan.types import Start
from edgekit.plan.weights import Taken, take_weights

QUICK_TOKENS_PER_S = 15.0

# llama-3.1-8b: 4.58 GiB at Q4_K_M, 5.33 at Q5_K_M, 6.14 at Q6_K, 7.95 at Q8_0, 3.74 at Q3_K_M.


def taken(wish: Wish) -> Taken:
    found = take_weights(wish)
    assert found is not None
    return found


def told(wish: Wish) -> dict[str, str]:
    return {one.value: one.told for one in taken(wish).tried if not one.taken}


# --- the stages


@pytest.mark.parametrize(
    ("machine", "name", "divided"),
    [
        (cards(8), "Q4_K_M", False),
        (cards(6), "Q4_K_M", True),  # 4.25 less 0.6: nothing of four bits is whole
        (cards(6, ram=None), "IQ3_XXS", False),  # and nobody knows of a host
        (cards(4, ram=4), "IQ3_XXS", True),  # 2 x 2.55 GiB: three bits, in two memories
        (cpu(8), "Q4_K_M", False),
        (cpu(6), "IQ3_XXS", False),  # 4.25 GiB, with 16,384 x 36 KiB = 0.56 of cache and 0.15 of buffers
    ],
)  # fmt: skip
def test_whole_then_divided_then_fewer_bits(machine: Machine, name: str, *, divided: bool) -> None:
    found = taken(any_mix(LLAMA, machine))
    assert (found.candidate.variant.name, found.divided) == (name, divided)
    assert found.tried[-1].taken
    assert [one.taken for one in found.tried[:-1]] == [False] * (len(found.tried) - 1)


def test_the_most_accurate_of_four_bits_that_is_whole() -> None:
    # 8 GiB: 5.95, less 0.6 of context: 5.73 GiB of glm-4-9b at Q4_K_M are too much, 5.0 at IQ4_XS are not
    assert taken(any_mix("glm-4-9b-0414", cards(8))).candidate.variant.name == "IQ4_XS"


def test_what_was_looked_at_before() -> None:
    assert told(any_mix(LLAMA, cards(6))) == {
        "Q4_K_M": "does not fit as a whole",
        "IQ4_XS": "does not fit as a whole",
    }
    tried = [(one.value, one.told) for one in taken(any_mix(LLAMA, cards(4, ram=4))).tried]
    assert tried[2] == ("Q4_K_M", "does not fit with a part on the host")


def test_nothing_at_all() -> None:
    assert take_weights(any_mix(LLAMA, cpu(4))) is None


def test_a_single_file_stays() -> None:
    wish = one_file(LLAMA, rated(cards(48)))
    assert taken(wish).candidate.variant is wish.variants[0]
    assert taken(wish).because == "the file there is"


# --- more bits


def test_more_bits_where_there_is_room_and_speed() -> None:
    # 48 GiB: 131,072 tokens at q8_0 are 8.5 GiB beside 7.95 of weights; 500 GB/s read them 58 times a second
    plan = make_plan(any_mix(LLAMA, rated(cards(48))))
    assert (plan.variant.name, plan.context_tokens) == ("Q8_0", 131_072)


@pytest.mark.parametrize("card", [500, 250, 160, 130, 110, 60])
def test_more_bits_only_as_long_as_they_are_quick(card: int) -> None:
    wish = any_mix(LLAMA, rated(cards(48), card=card), 16_384)
    alone = {one.name: make_plan(replace(wish, variants=(one,)), thorough=False) for one in wish.variants[:4]}  # fmt: skip
    quick = [name for name in ("Q8_0", "Q6_K", "Q5_K_M") if (alone[name].steady_tokens_per_s or 0) >= QUICK_TOKENS_PER_S]  # fmt: skip
    assert taken(wish).candidate.variant.name == [*quick, "Q4_K_M"][0]
    for value, why in told(wish).items():
        assert "tokens a second" in why, value


def test_the_cards_above_stand_on_both_sides() -> None:
    names = {taken(any_mix(LLAMA, rated(cards(48), card=card), 16_384)).candidate.variant.name for card in (60, 500)}  # fmt: skip
    assert names == {"Q4_K_M", "Q8_0"}


@settings(max_examples=12, deadline=None)
@given(st.integers(30, 600), st.integers(31, 620))
def test_a_quicker_card_never_gets_fewer_bits(slow: int, quick: int) -> None:
    slow, quick = sorted((slow, quick))
    plans = [make_plan(any_mix(LLAMA, rated(cards(48), card=rate)), thorough=False) for rate in (slow, quick)]  # fmt: skip
    assert plans[0].variant.accuracy <= plans[1].variant.accuracy


def test_unknown_speed_is_no_licence() -> None:
    wish = any_mix(LLAMA, cards(48))
    assert taken(wish).candidate.variant.name == "Q4_K_M"
    assert "not known" in told(wish)["Q8_0"]


def test_more_bits_leave_the_window_that_was_asked_for() -> None:
    # 11 GiB: 8.5, less 0.73 of context and buffers. Q8_0 takes 7.43 of it, and 16,384 tokens at q8_0 1.06
    wish = any_mix(LLAMA, rated(cards(11)), 16_384)
    plan = make_plan(wish)
    assert (plan.variant.name, plan.context_tokens) == ("Q6_K", 16_384)
    assert "no room" in told(wish)["Q8_0"]
    assert make_plan(any_mix(LLAMA, rated(cards(12)), 16_384)).variant.name == "Q8_0"  # 9.35


def test_more_bits_never_cost_a_token_of_the_window() -> None:
    for gib in (10, 12, 16, 20, 24, 32):
        plain = make_plan(one_file(LLAMA, rated(cards(gib))))
        assert make_plan(any_mix(LLAMA, rated(cards(gib)))).context_tokens >= plain.context_tokens


def test_a_squeezed_cache_comes_before_more_bits() -> None:
    # 10 GiB hold 131,072 tokens not even at q4_0: what is left lengthens the window
    plan = make_plan(any_mix(LLAMA, rated(cards(10))))
    assert plan.variant.name == "Q4_K_M"
    assert plan.load.cache_k is not None
    assert plan.load.cache_k.name == "q4_0"


def test_mlx_packs_with_more_bits_on_a_larger_mac() -> None:
    small, large = (make_plan(from_config("qwen3-8b", rated(mac(gib, gib * 3 // 4)), "mlx", 16_384)) for gib in (16, 36))  # fmt: skip
    assert (small.variant.name, large.variant.name) == ("6 bit", "8 bit")


# --- divided


def layers(plan: Plan) -> tuple[int, int, bool]:
    setup = plan.result.way.setup
    return setup.n_gpu_layers, setup.n_cpu_moe, setup.cpu_moe


def test_a_dense_model_gives_layers_to_the_host() -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(6))))
    on_card, experts, all_experts = layers(plan)
    assert 0 < on_card < 33
    assert (experts, all_experts) == (0, False)
    assert is_within(plan)
    one_more = replace(plan.result.way.setup, n_gpu_layers=on_card + 1)
    assert not fits(plan, one_more)


def fits(plan: Plan, setup: Any) -> bool:
    """The bill with another setup, held against the same budgets."""
    from edgekit.engine.llamacpp import estimate

    bill = estimate(plan.variant.model, plan.load, setup)
    return all(
        use.budget.required_bytes(bill) * 100 <= use.budget.available_bytes * 85
        for use in plan.result.uses
    )


def test_experts_leave_a_card_first() -> None:
    plan = make_plan(one_file(MOE, rated(cards(12))))
    on_card, experts, _ = layers(plan)
    assert on_card == ALL_LAYERS
    assert 0 < experts < 48
    assert is_within(plan)
    assert not fits(plan, replace(plan.result.way.setup, n_cpu_moe=experts - 1))


def test_then_layers_without_their_experts() -> None:
    plan = make_plan(one_file(MOE, rated(cards(5))))
    on_card, _, all_experts = layers(plan)
    assert all_experts
    assert 0 < on_card < 49
    assert not fits(plan, replace(plan.result.way.setup, n_gpu_layers=on_card + 1))


@pytest.mark.parametrize("ram", [2, 4, 8])
def test_the_host_is_checked_as_hard(ram: int) -> None:
    # 17.28 GiB of weights: 9.35 on the card at most, and the rest in 0.85 x 7 = 5.95
    assert not make_plan(one_file(MOE, rated(cards(12, ram=ram)))).fits


def test_a_host_that_is_large_enough() -> None:
    plan = make_plan(one_file(MOE, rated(cards(12, ram=16))))
    assert plan.fits
    assert len(plan.result.uses) == 2
    assert is_within(plan)


def test_a_divided_window_is_no_longer_than_usual() -> None:
    # 4 GiB of cache: 32,768 tokens of 128 KiB, though the host would hold all 131,072
    plan = make_plan(one_file(LLAMA, rated(cards(6))))
    assert plan.context_tokens == 32_768
    assert plan.load.cache_k is None


def test_a_cache_on_the_host_leaves_the_layers_on_the_card() -> None:
    # 8 GiB: 131,072 tokens are 16 GiB at f16, and go to the host; 4.3 of weights stay
    start = Start(
        setup=LlamaCppSetup(mode=Mode.SERVER, offload_kqv=False), settled=frozenset({"offload_kqv"})
    )
    plan = make_plan(one_file(LLAMA, rated(cards(8)), 131_072, start=start))
    assert plan.fits
    assert plan.load.cache_k is None
    host = next(use for use in plan.result.uses if use.budget.name == "host memory")
    assert host.required_bytes > 131_072 * 128 * 1024
    assert is_within(plan)


def test_no_cache_on_a_host_that_is_too_small_for_it() -> None:
    plan = make_plan(one_file(LLAMA, rated(cards(8, ram=12)), 131_072))
    assert plan.fits
    assert plan.result.way.setup.offload_kqv or plan.load.cache_k is not None
    assert is_within(plan)


@pytest.mark.parametrize(
    "settled",
    [
        {"n_gpu_layers": 20, "backend": Backend.CUDA},
        {"cpu_moe": True, "backend": Backend.CUDA},
        {"offload_kqv": False, "backend": Backend.CUDA},
    ],
)
def test_what_was_placed_by_the_caller_stays(settled: dict[str, Any]) -> None:
    start = Start(setup=LlamaCppSetup(mode=Mode.SERVER, **settled), settled=frozenset(settled))
    plan = make_plan(one_file(MOE, rated(cards(24)), 16_384, start=start))
    assert plan.fits
    for field, value in settled.items():
        assert getattr(plan.result.way.setup, field) == value
    decision = plan.decision(Lever.PLACEMENT)
    assert decision is not None
