"""The window: how many tokens, in which cache. llama-3.1-8b: 32 layers, K and V of 8 heads of 128."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.wishes import (
    LATENT,
    LLAMA,
    billed,
    from_config,
    gguf,
    is_within,
    one_file,
    rated,
)

from edgekit.catalog import find_entry, open_entry
from edgekit.engine.mlx.types import MlxSetup
from edgekit.errors import RefusedError, UsageError
from edgekit.memory.cache_types import cache_type
from edgekit.memory.types import Load
from edgekit.plan.candidates import open_window, question_of, reaches, with_margin
from edgekit.plan.fitting import Fitting
from edgekit.plan.making import make_plan
from edgekit.plan.placement import ways_of
from edgekit.plan.planned import Lever, Plan, Wish
from edgekit.plan.types import Start
from edgekit.plan.variants import as_it_is, at_mixes
from edgekit.units import GIB

NATIVE = 131_072
VALUES = 32 * 8 * 128  # keys of a token; values are as many
# A block of 32 values: 64 bytes at f16, 34 at q8_0, 24 at q5_1, 18 at q4_0.
BLOCK = {"f16": 64, "q8_0": 34, "q5_1": 24, "q4_0": 18}
ON_THE_CPU = (("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q5_1"), ("q8_0", "q4_0"), ("q4_0", "q4_0"))  # fmt: skip


def token_bytes(key: str, value: str) -> int:
    return VALUES * (BLOCK[key] + BLOCK[value]) // 32


def pair(plan: Plan) -> tuple[str, str]:
    key, value = plan.load.cache_k, plan.load.cache_v
    return key.name if key else "f16", value.name if value else "f16"


def load(tokens: int, kinds: tuple[str, str]) -> Load:
    key, value = (None if name == "f16" else cache_type(name) for name in kinds)
    return Load(context_tokens=tokens, cache_k=key, cache_v=value)


def holds(gib: int, tokens: int, kinds: tuple[str, str]) -> bool:
    """Asked of the bill alone: within 85 % of all but 1 GiB."""
    return billed(LLAMA, load(tokens, kinds)) * 100 <= (gib - 1) * GIB * 85


def longest(gib: int, kinds: tuple[str, str]) -> int:
    """In cells of 256, by halving."""
    low, high = 0, NATIVE // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(gib, middle * 256, kinds) else (low, middle - 1)
    return low * 256


# --- a context that was asked for


# 16 GiB: 15 x 0.85 = 12.75, less 4.58 of weights and about 0.3 of buffers: 7.9 are left for the cache.
@pytest.mark.parametrize(
    ("gib", "tokens", "kinds"),
    [
        (16, 32_768, ("f16", "f16")),  # 32,768 x 128 KiB = 4 GiB
        (16, 65_536, ("q8_0", "q8_0")),  # 8 GiB at f16, 4.25 at q8_0
        (16, NATIVE, ("q8_0", "q5_1")),  # 8.5 GiB at q8_0, 7.25 so
        (24, NATIVE, ("q8_0", "q8_0")),  # 16 GiB at f16, where 14.7 are left
        (13, NATIVE, ("q4_0", "q4_0")),  # 6.5 GiB at q8_0 + q4_0, where 5.3 are left; 4.5 so
        (15, NATIVE, ("q8_0", "q4_0")),  # 6.5 where 7 are left
        (64, NATIVE, ("f16", "f16")),
    ],
)
def test_an_asked_context_gets_the_most_accurate_cache(
    gib: int, tokens: int, kinds: tuple[str, str]
) -> None:
    plan = make_plan(one_file(LLAMA, cpu(gib), tokens))
    assert (plan.context_tokens, pair(plan)) == (tokens, kinds)
    assert plan.result.estimate.kv_cache_bytes == tokens * token_bytes(*kinds)
    assert plan.fits
    assert is_within(plan)


@settings(max_examples=25, deadline=None)
@given(st.integers(9, 40), st.integers(64, NATIVE // 256))
def test_no_cache_before_it_would_have_held_it(gib: int, cells: int) -> None:
    tokens = cells * 256
    plan = make_plan(one_file(LLAMA, cpu(gib), tokens), thorough=False)
    first = next((kinds for kinds in ON_THE_CPU if holds(gib, tokens, kinds)), None)
    assert plan.fits == (first is not None)
    if first is not None:
        assert pair(plan) == first
        assert plan.result.required_bytes == billed(LLAMA, load(tokens, first))


def test_less_than_is_useful_is_enough_where_it_is_asked_for() -> None:
    # 8 GiB hold 9,984 tokens at f16
    plan = make_plan(one_file(LLAMA, cpu(8), 4096))
    assert plan.fits
    assert (plan.context_tokens, pair(plan)) == (4096, ("f16", "f16"))
    assert longest(8, ("f16", "f16")) == 9984
    wanted = make_plan(one_file(LLAMA, cpu(8), 4096, min_context=16_384))
    assert pair(wanted) == ("q8_0", "q8_0")


def test_on_a_card_keys_and_values_are_kept_alike() -> None:
    # 16 GiB: 12.75 less 4.58, 0.6 of a CUDA context and 0.5 of buffers: 7.1 for 7.25 at q8_0 + q5_1, 4.5 at q4_0
    plan = make_plan(one_file(LLAMA, cards(16), NATIVE))
    assert pair(plan) == ("q4_0", "q4_0")
    tried = plan.decision(Lever.CACHE)
    assert tried is not None
    assert [one.value for one in tried.tried] == ["f16", "q8_0", "q4_0"]
    assert [one.taken for one in tried.tried] == [False, False, True]


def test_what_was_tried_is_told() -> None:
    decision = make_plan(one_file(LLAMA, cpu(16), 65_536)).decision(Lever.CACHE)
    assert decision is not None
    assert [(one.value, one.told, one.taken) for one in decision.tried] == [
        ("f16", "does not hold 65,536 tokens", False),
        ("q8_0", "holds 65,536 tokens", True),
    ]
    assert decision.because == "the most accurate that holds the context"


def test_a_cache_that_was_settled_stays() -> None:
    q4 = cache_type("q4_0")
    plan = make_plan(one_file(LLAMA, cpu(64), load=Load(context_tokens=16_384, cache_k=q4, cache_v=q4)))  # fmt: skip
    assert pair(plan) == ("q4_0", "q4_0")
    keys = make_plan(one_file(LLAMA, cpu(16), load=Load(context_tokens=NATIVE, cache_k=q4)))
    assert pair(keys) == ("q4_0", "q8_0")  # 4.5 + 8.5 halves: 2.25 + 4.25 GiB of the 7.9


def test_a_settled_cache_that_does_not_hold_it_is_not_changed() -> None:
    f16 = cache_type("f16")
    plan = make_plan(one_file(LLAMA, cpu(16), load=Load(context_tokens=65_536, cache_k=f16, cache_v=f16)))  # fmt: skip
    assert not plan.fits
    assert pair(plan) == ("f16", "f16")


# --- none asked for


@pytest.mark.parametrize("gib", [8, 10, 12, 16, 24, 64])
def test_the_longest_window_first_then_accuracy(gib: int) -> None:
    plan = make_plan(one_file(LLAMA, cpu(gib)))
    most = max(longest(gib, kinds) for kinds in ON_THE_CPU)
    tokens = NATIVE if most == NATIVE else most * 95 // 100 // 1024 * 1024
    assert plan.context_tokens == tokens
    assert pair(plan) == next(kinds for kinds in ON_THE_CPU if holds(gib, tokens, kinds))


@pytest.mark.parametrize("gib", [10, 16, 24, 64])
def test_accuracy_first_where_it_is_preferred(gib: int) -> None:
    plan = make_plan(one_file(LLAMA, cpu(gib), prefer_accurate_cache=True))
    most = longest(gib, ("f16", "f16"))
    assert pair(plan) == ("f16", "f16")
    assert plan.context_tokens == (NATIVE if most == NATIVE else most * 95 // 100 // 1024 * 1024)


def test_accuracy_gives_way_where_it_holds_too_little() -> None:
    # 8 GiB: 7 x 0.85 = 5.95 less 4.58 and 0.15: 1.2 GiB, 9,984 tokens at f16 and 19,200 at q8_0
    plan = make_plan(one_file(LLAMA, cpu(8), prefer_accurate_cache=True))
    assert longest(8, ("f16", "f16")) < 16_384 <= longest(8, ("q8_0", "q8_0"))
    assert pair(plan) == ("q8_0", "q8_0")


def test_accuracy_first_changes_nothing_about_an_asked_context() -> None:
    plan = make_plan(one_file(LLAMA, cpu(16), NATIVE, prefer_accurate_cache=True))
    assert (plan.context_tokens, pair(plan)) == (NATIVE, ("q8_0", "q5_1"))


def test_how_long_each_cache_would_hold_is_told() -> None:
    decision = make_plan(one_file(LLAMA, cpu(16))).decision(Lever.CACHE)
    assert decision is not None
    assert [(one.value, one.told) for one in decision.tried] == [
        (name, f"up to {longest(16, kinds):,} tokens")
        for name, kinds in zip(("f16", "q8_0", "q8_0 + q5_1"), ON_THE_CPU, strict=False)
    ]


# --- margin, granularity, native window


@pytest.mark.parametrize(
    ("fits", "tokens"),
    [
        (131_072, 131_072),  # all of it: nothing is kept free
        (200_000, 131_072),
        (131_071, 121 * 1024),  # 124,517 are 121.6 of them
        (35_840, 33_792),  # 34,048
        (20_000, 18_432),  # 19,000
        (17_000, 16_384),  # 16,150 is less than the least
        (16_384, 16_384),
    ],
)
def test_margin(fits: int, tokens: int) -> None:
    assert with_margin(fits, 16_384, windows())[0] == tokens


@settings(max_examples=200)
@given(st.integers(1, 300_000), st.sampled_from([1, 2, 8]))
def test_a_margin_never_lengthens_a_window(fits: int, users: int) -> None:
    top, least = windows(users), 256 * users
    assert (top.most, top.streams) == (NATIVE * users, users)
    tokens, _ = with_margin(fits, least, top)
    assert tokens <= max(fits, least)
    if tokens not in {top.most, least}:
        assert tokens % (1024 * users) == 0
        assert tokens * 100 <= fits * 95


@cache
def windows(users: int = 1) -> Fitting:
    wish = one_file(LLAMA, cpu(16), users=users)
    question = question_of(wish, wish.variants[0])
    return Fitting(question, ways_of(question)[0])


def test_a_window_of_a_few_tokens_less_is_not_opened_for_more_than_was_made() -> None:
    plan = make_plan(one_file("qwen3-0.6b", cpu(512)))
    assert plan.context_tokens == 40_960
    context = plan.decision(Lever.CONTEXT)
    assert context is not None
    assert context.because == "all the model was made for"


@pytest.mark.parametrize("users", [None, 1, 3])
def test_more_than_the_model_was_made_for_is_refused(users: int | None) -> None:
    with pytest.raises(UsageError, match=r"131,073 tokens .* made for 131,072: ask for -c 131072"):
        make_plan(one_file(LLAMA, cpu(512), NATIVE + 1, users=users))
    assert make_plan(one_file(LLAMA, cpu(512), NATIVE, users=users)).fits


def test_a_negative_context_is_refused() -> None:
    with pytest.raises(UsageError, match="context of -1"):
        make_plan(one_file(LLAMA, cpu(16), -1))


def test_zero_asks_for_the_whole_window() -> None:
    plan = make_plan(one_file(LLAMA, cpu(16), 0))
    assert (plan.context_tokens, pair(plan)) == (NATIVE, ("q8_0", "q5_1"))


# --- the least that is of use


def test_below_16k_nothing_is_planned_unless_it_is_accepted() -> None:
    # 7 GiB: 6 x 0.85 = 5.1, less 4.58 and buffers: less than 16,384 x 36 KiB = 0.56 GiB, more than 0.14
    assert not make_plan(one_file(LLAMA, cpu(7))).fits
    plan = make_plan(one_file(LLAMA, cpu(7), min_context=4096))
    assert plan.fits
    assert 4096 <= plan.context_tokens < 16_384
    assert plan.context_tokens == longest(7, ("q4_0", "q4_0")) * 95 // 100 // 1024 * 1024


def test_who_wants_more_gets_no_less() -> None:
    assert make_plan(one_file(LLAMA, cpu(8), min_context=32_768)).fits
    assert longest(8, ("q4_0", "q4_0")) < 40_000
    assert not make_plan(one_file(LLAMA, cpu(8), min_context=40_000)).fits


def test_the_least_is_never_cut_by_the_margin() -> None:
    least = longest(8, ("q4_0", "q4_0"))
    plan = make_plan(one_file(LLAMA, cpu(8), min_context=least))
    assert plan.fits
    assert plan.context_tokens == least


# --- users


@pytest.mark.parametrize("users", [1, 2, 4])
def test_every_user_has_a_window_of_their_own(users: int) -> None:
    plan = make_plan(one_file(LLAMA, cpu(64), 16_384, users=users))
    assert plan.load.sequences == users
    assert plan.load.context_tokens == plan.result.context_tokens == 16_384 * users
    assert plan.context_tokens == 16_384
    assert plan.result.estimate.kv_cache_bytes == users * 16_384 * token_bytes("f16", "f16")
    facts = dict(plan.result.estimate.facts)
    assert (facts["n_seq_max"], facts["n_ctx_seq"]) == (users, 16_384)


def test_users_share_what_there_is_of_memory() -> None:
    # 24 GiB: 19.55 - 4.58 - 0.4 = 14.5 GiB at 36 KiB a token: 424,000 tokens, 4 x 106,000 less 5 %
    plan = make_plan(one_file(LLAMA, cpu(24), users=4))
    assert 95_000 < plan.context_tokens < 106_000
    assert plan.context_tokens % 1024 == 0
    assert plan.result.context_tokens == 4 * plan.context_tokens
    assert pair(plan) == ("q4_0", "q4_0")


def test_the_least_is_for_every_user() -> None:
    # 8 GiB hold 35,840 tokens at q4_0: two windows of 16,384, and not three
    assert make_plan(one_file(LLAMA, cpu(8), users=2)).context_tokens == 16_384
    assert not make_plan(one_file(LLAMA, cpu(8), users=3)).fits


def test_other_engines_count_users_apart() -> None:
    wish = from_config("qwen3-8b", cards(48), "vllm", 8192, users=4)
    question = question_of(wish, wish.variants[0])
    assert (question.load.sequences, question.load.context_tokens) == (4, 8192)
    plan = make_plan(wish)
    # 36 layers, K and V of 8 heads of 128, 16 bit: 144 KiB a token
    assert plan.result.estimate.kv_cache_bytes >= 4 * 8192 * 36 * 2 * 8 * 128 * 2


# --- what an engine refuses


def test_a_cache_the_engine_refuses_is_passed_over_and_told() -> None:
    decision = make_plan(one_file(LATENT, cpu(14))).decision(Lever.CACHE)
    assert decision is not None
    told = {one.value: one.told for one in decision.tried}
    for name in ("q8_0 + q5_1", "q8_0 + q4_0"):
        assert told[name].startswith("refused: llama.cpp: the model does not support different K")
    assert decision.value == "q4_0"


def test_blocks_that_do_not_divide_a_head_are_passed_over() -> None:
    model = open_entry(find_entry("granite-3b-code-instruct-128k"), "llama.cpp")
    (usual,) = at_mixes(model, ("Q4_K_M",))
    wish = Wish(label="heads of 80", variants=(usual,), engine="llama.cpp", machine=cpu(16))
    plan = make_plan(wish)
    decision = plan.decision(Lever.CACHE)
    assert decision is not None
    assert decision.value == "f16"
    told = {one.value: one.told for one in decision.tried}
    assert "does not divide the head size 80" in told["q8_0"]
    # 32 layers, keys and values of 32 heads of 80, 16 bit: 320 KiB a token
    assert plan.result.estimate.kv_cache_bytes == plan.context_tokens * 32 * 2 * 32 * 80 * 2


def test_mlx_does_not_pack_a_cache_that_turns_over() -> None:
    decision = make_plan(from_config("gemma-3-27b-text", mac(32, 22), "mlx")).decision(Lever.CACHE)
    assert decision is not None
    assert decision.value == "16 bit"
    told = {one.value: one.told for one in decision.tried}
    assert told["8 bit"].startswith("refused: mlx-lm with kv_bits: NotImplementedError")


def test_a_refused_cache_that_was_settled_is_the_engines_refusal() -> None:
    setup = MlxSetup(kv_bits=8, quantized_kv_start=0)
    start = Start(setup=setup, settled=frozenset({"kv_bits"}))
    with pytest.raises(RefusedError, match="RotatingKVCache Quantization NYI"):
        make_plan(from_config("gemma-3-27b-text", mac(64, 48), "mlx", start=start))


def test_all_refused_is_the_engines_own_refusal() -> None:
    load = Load(context_tokens=16_384, cache_v=cache_type("q8_0"), flash_attention=False)
    with pytest.raises(RefusedError, match="quantised V cache requires flash attention"):
        make_plan(one_file(LLAMA, cpu(64), load=load))


# --- looking on


def test_what_is_reached_is_reached_in_a_near_cache_alone() -> None:
    wish = one_file(LLAMA, cpu(16))
    (variant,) = wish.variants
    assert reaches(wish, variant, longest(16, ("q8_0", "q8_0")))
    assert not reaches(wish, variant, longest(16, ("q8_0", "q8_0")) + 256)  # q4_0 would hold it


def test_nothing_that_fits_is_no_window() -> None:
    wish = one_file(LLAMA, cpu(4))
    assert open_window(wish, wish.variants[0]) is None


def test_a_brief_look_finds_the_same_window() -> None:
    wish = one_file(LLAMA, cpu(16))
    brief, whole = (open_window(wish, wish.variants[0], brief=brief) for brief in (True, False))
    assert brief is not None
    assert whole is not None
    assert (brief.tokens, brief.choice) == (whole.tokens, whole.choice)
    assert [one.told for one in whole.tried][-1] == "up to 131,072 tokens"


def test_the_same_wish_has_the_same_plan() -> None:
    wish = Wish(
        label="x", variants=as_it_is(gguf(LLAMA)), engine="llama.cpp", machine=rated(cards(16, 8))
    )
    assert make_plan(wish) == make_plan(wish)
