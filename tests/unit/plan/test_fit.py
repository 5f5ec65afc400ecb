"""Windows: the longest that fits, the default, the one for a known job; the seeds' own numbers."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.recorded import engine_models
from tests.unit.plan.machines import cards

from edgekit.bill.types import Component, Job, MemoryEstimate, MemoryLine, Placement, Task
from edgekit.engines.llamacpp.placements import pinned, rebalance
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.errors import UsageError
from edgekit.machine.types import HOST, Budget, pool_of
from edgekit.model.types import ModelGeometry
from edgekit.plan.fit import (
    LOOK_AHEAD,
    Fitting,
    first_placement,
    job_window,
    longest_fitting,
    recommended_context,
)
from edgekit.units import GIB, MIB


def geometry(name: str) -> ModelGeometry:
    return engine_models()[name, "Q4_K_M"].geometry


@given(
    edge=st.integers(0, 300_000),
    step=st.sampled_from([1, 16, 256, 1024]),
    most=st.integers(0, 262_144),
)
def test_longest_is_the_last_that_fits(edge: int, step: int, most: int) -> None:
    result = longest_fitting(lambda tokens: tokens <= edge, step=step, max_tokens=most)
    assert result <= max(edge, 0)
    assert result in {0, most} or result % step == 0
    next_one = min(result - result % step + step, most)
    assert result == most or next_one > edge


@given(st.integers(1, 500), st.sets(st.integers(1, LOOK_AHEAD)))
def test_longest_finds_a_dip_past_the_edge(edge: int, dips: set[int]) -> None:
    fitting = {*range(1, edge + 1), *(edge + 1 + dip for dip in dips)} - {edge + 1}
    result = longest_fitting(lambda tokens: tokens in fitting, step=1, max_tokens=1000)
    assert result >= edge
    assert result in fitting


@pytest.mark.parametrize(("longest_tokens", "recommended"), [(0, 0), (16_384, 13_107), (100, 80)])
def test_recommended_context_is_four_fifths(longest_tokens: int, recommended: int) -> None:
    assert recommended_context(longest_tokens) == recommended


def test_job_window_of_6_prompt_and_20_new_tokens() -> None:
    native = geometry("gemma-3-1b").native_context or 0
    assert job_window(Job(prompt_tokens=6, new_tokens=20), native)[0] == 6 + 20 + 64 == 90


def test_longest_cache_of_a_24b_model() -> None:
    per_token = 2 * 40 * 8 * 128 * 2  # keys and values x layers x heads x width x f16
    tokens = longest_fitting(
        lambda tokens: tokens * per_token <= 4 * GIB, step=1, max_tokens=131_072
    )
    assert tokens == 4 * GIB // per_token == 26_214


def test_longest_cheap_cache() -> None:
    assert (
        longest_fitting(lambda tokens: tokens * 1024 <= 4 * GIB, step=256, max_tokens=262_144)
        == 262_144
    )


def test_job_window_of_a_job_longer_than_the_context() -> None:
    tokens, because = job_window(Job(prompt_tokens=2000, new_tokens=500), 2048)
    assert tokens == 2048
    assert "cut to the model's context length" in because


@pytest.mark.parametrize(
    ("budget", "tokens"), [(0, 0), (MIB, 256), (100 * MIB, 25_600), (4 * GIB, 131_072)]
)
def test_longest_cache_of_a_budget(budget: int, tokens: int) -> None:
    assert (
        longest_fitting(lambda count: count * 4096 <= budget, step=256, max_tokens=131_072)
        == tokens
    )


@pytest.mark.parametrize("job", [Job(prompt_tokens=-1, new_tokens=5), Job(prompt_tokens=1, new_tokens=-5)])  # fmt: skip
def test_job_window_rejects_negative_numbers(job: Job) -> None:
    with pytest.raises(UsageError):
        job_window(job, 2048)


MODEL = engine_models()["llama-3.1-8b", "Q4_K_M"]  # has no layers that predict further tokens


def way(*rooms: int, split: tuple[float, ...] = ()) -> Placement:
    """Cards with so much room each."""
    budgets = tuple(
        Budget(name=f"card {place}", pools=frozenset({pool_of(place)}), total_bytes=room, free_bytes=room, reserve_bytes=0, because="")
        for place, room in enumerate(rooms)
    )  # fmt: skip
    numbers: tuple[object, ...] = tuple(range(len(rooms)))
    return Placement(
        setup=LlamaCppSetup(backend=Backend.CUDA, tensor_split=split),
        budgets=budgets,
        because="all of it",
        cards=numbers,  # type: ignore[arg-type]  # only how many they are counts
    )


def bill(layers: list[int], *, head: int = 0, fixed: tuple[int, ...] = ()) -> MemoryEstimate:
    """Layers, a head behind the last, and what every card holds besides; all layers lie on the first as yet."""
    lines = [
        MemoryLine(component=Component.WEIGHTS, size_bytes=size, pool=pool_of(0), layer=layer)
        for layer, size in enumerate(layers)
    ]
    lines.append(MemoryLine(component=Component.WEIGHTS, size_bytes=head, pool=pool_of(0)))
    lines += [
        MemoryLine(component=Component.COMPUTE, size_bytes=size, pool=pool_of(place))
        for place, size in enumerate(fixed)
    ]
    lines.append(MemoryLine(component=Component.WEIGHTS, size_bytes=10**9, pool=HOST))
    return MemoryEstimate(engine="llama.cpp", backend="cuda", lines=tuple(lines))


def counts(found: Placement | None) -> tuple[float, ...] | None:
    return None if found is None else LlamaCppSetup.of(found.setup).tensor_split


@pytest.mark.parametrize(
    ("rooms", "layers", "head", "fixed", "expected"),
    [
        ((200, 100), [10] * 8, 10, (), (6, 3)),  # nine pieces of 10, two thirds on the first
        ((100, 200), [10] * 8, 10, (), (3, 6)),
        ((100, 100), [10] * 8, 10, (), (5, 4)),  # as full as can be: 50 and 40
        ((100, 100), [10] * 8, 10, (40, 0), (3, 6)),  # what it holds anyway counts: 70 and 60
        ((100, 100), [10] * 7, 50, (), (6, 2)),  # the head of 50 lies with the last: 60 and 60
        ((300, 200, 100), [10] * 11, 10, (), (6, 4, 2)),
    ],
)
def test_rebalance_evens_out_the_cards(
    rooms: tuple[int, ...], layers: list[int], head: int, fixed: tuple[int, ...], expected: tuple[float, ...]
) -> None:  # fmt: skip
    assert counts(rebalance(MODEL, way(*rooms), bill(layers, head=head, fixed=fixed))) == expected


def test_rebalance_says_the_split() -> None:
    result = rebalance(MODEL, way(200, 100), bill([10] * 8, head=10))
    assert result is not None
    assert result.because == "all of it, divided 6:3"


def test_rebalance_of_the_best_split() -> None:
    assert rebalance(MODEL, way(200, 100, split=(6.0, 3.0)), bill([10] * 8, head=10)) is None


def test_rebalance_of_fewer_layers_than_cards() -> None:
    assert rebalance(MODEL, way(10, 10, 10), bill([1])) is None


def test_rebalance_if_no_split_fits() -> None:
    assert rebalance(MODEL, way(10, 10), bill([10_000] * 4)) is None


def test_rebalance_of_unified_memory() -> None:
    several = way(10, 10)
    both = frozenset({pool_of(0), pool_of(1)})
    one = Budget(name="unified", pools=both, total_bytes=1, free_bytes=1, reserve_bytes=0, because="")  # fmt: skip
    apart = Placement(setup=several.setup, budgets=(one,), because="", cards=several.cards)
    assert rebalance(MODEL, apart, bill([1] * 4)) is None


def fullest(layers: list[int], ends: tuple[int, ...], rooms: list[int], fixed: list[int]) -> float:
    """The share of the fullest card, where each card's layers end there."""
    parts = [sum(layers[a:b]) for a, b in pairwise((0, *ends))]
    return max((part + base) / room for part, base, room in zip(parts, fixed, rooms, strict=True))


@given(st.data())
def test_rebalance_is_the_best_split(data: st.DataObject) -> None:
    cards = data.draw(st.integers(2, 3))
    layers = data.draw(st.lists(st.integers(1, 50), min_size=cards, max_size=7))
    head = data.draw(st.integers(0, 50))
    rooms = data.draw(st.lists(st.integers(50, 400), min_size=cards, max_size=cards))
    fixed = data.draw(st.lists(st.integers(0, 20), min_size=cards, max_size=cards))
    result = counts(rebalance(MODEL, way(*rooms), bill(layers, head=head, fixed=tuple(fixed))))
    assume(result is not None)
    assert result is not None
    pieces = [*layers, head]
    assert sum(result) == len(pieces)
    ends = tuple(int(sum(result[: place + 1])) for place in range(cards))
    choices = combinations_with_replacement(range(len(pieces) + 1), cards - 1)
    best = min(fullest(pieces, (*cut, len(pieces)), rooms, fixed) for cut in choices)
    assert fullest(pieces, ends, rooms, fixed) <= best + 1e-4


def test_pinned_placement_has_the_same_bill() -> None:
    """Blocks for further tokens count in a division although they are not loaded."""
    for name in ("qwen3.5-9b", "llama-3.1-8b", "qwen3-30b-a3b"):
        model = engine_models()[name, "Q4_K_M"]
        question = Task(model=model, engine="llama.cpp", machine=cards(24, 16))
        result = Fitting(question, first_placement(question))
        text = pinned(model, result.placement)
        assert (
            sum(LlamaCppSetup.of(text.setup).tensor_split)
            == len(model.geometry.layers) + model.geometry.mtp_layers + 1
        )
        alike = Fitting(question, text).price(16_384).estimate.lines
        assert alike == result.price(16_384).estimate.lines
