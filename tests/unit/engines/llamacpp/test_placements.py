"""engines/llamacpp/placements.py: layers split between cards, and parts of a layer in RAM."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.recorded import engine_models
from tests.unit.plan.machines import cards
from tests.unit.plan.tasks import MOE, one_file, rated

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine, Placement, Task
from edgekit.engines.llamacpp.placements import finer_placements, pinned, rebalance
from edgekit.engines.llamacpp.speed import reads_per_token
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup
from edgekit.engines.llamacpp.weights import has_experts_on_host
from edgekit.machine.types import DEVICE, HOST, Budget, pool_of
from edgekit.plan.commands import ready_commands
from edgekit.plan.fit import (
    Fitting,
    first_placement,
    placements_of,
)
from edgekit.plan.plan import Plan, make_plan
from edgekit.report.check import headline

MODEL = engine_models()["llama-3.1-8b", "Q4_K_M"]  # without multi-token prediction layers


def placement_on(*sizes: int, split: tuple[float, ...] = ()) -> Placement:
    """Cards with this many usable bytes each."""
    budgets = tuple(
        Budget(name=f"card {place}", pools=frozenset({pool_of(place)}), total_bytes=size, free_bytes=size, reserve_bytes=0, because="")
        for place, size in enumerate(sizes)
    )  # fmt: skip
    indices: tuple[object, ...] = tuple(range(len(sizes)))
    return Placement(
        setup=LlamaCppSetup(backend=Backend.CUDA, tensor_split=split),
        budgets=budgets,
        because="all of it",
        cards=indices,  # type: ignore[arg-type]  # only their number counts
    )


def bill(layers: list[int], *, head: int = 0, fixed: tuple[int, ...] = ()) -> MemoryEstimate:
    """Layers and an output head, all on the first card as yet; and bytes that are fixed on each card."""
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


def split_of(placement: Placement | None) -> tuple[float, ...] | None:
    return None if placement is None else LlamaCppSetup.of(placement.setup).tensor_split


@pytest.mark.parametrize(
    ("sizes", "layers", "head", "fixed", "expected"),
    [
        ((200, 100), [10] * 8, 10, (), (6, 3)),  # nine pieces of 10, two thirds on the first
        ((100, 200), [10] * 8, 10, (), (3, 6)),
        ((100, 100), [10] * 8, 10, (), (5, 4)),  # the best that is possible: 50 and 40
        ((100, 100), [10] * 8, 10, (40, 0), (3, 6)),  # fixed bytes count: 70 and 60
        ((100, 100), [10] * 7, 50, (), (6, 2)),  # the head of 50 is on the last card: 60 and 60
        ((300, 200, 100), [10] * 11, 10, (), (6, 4, 2)),
    ],
)
def test_rebalance_evens_out_the_cards(
    sizes: tuple[int, ...], layers: list[int], head: int, fixed: tuple[int, ...], expected: tuple[float, ...]
) -> None:  # fmt: skip
    assert (
        split_of(rebalance(MODEL, placement_on(*sizes), bill(layers, head=head, fixed=fixed)))
        == expected
    )


def test_rebalance_names_the_split_in_its_reason() -> None:
    result = rebalance(MODEL, placement_on(200, 100), bill([10] * 8, head=10))
    assert result is not None
    assert result.because == "all of it, divided 6:3"


def test_rebalance_of_the_best_split_is_none() -> None:
    assert (
        rebalance(MODEL, placement_on(200, 100, split=(6.0, 3.0)), bill([10] * 8, head=10)) is None
    )


def test_rebalance_of_fewer_layers_than_cards_is_none() -> None:
    assert rebalance(MODEL, placement_on(10, 10, 10), bill([1])) is None


def test_rebalance_is_none_if_no_split_fits() -> None:
    assert rebalance(MODEL, placement_on(10, 10), bill([10_000] * 4)) is None


def test_rebalance_of_unified_memory_is_none() -> None:
    placement = placement_on(10, 10)
    both = frozenset({pool_of(0), pool_of(1)})
    unified = Budget(name="unified", pools=both, total_bytes=1, free_bytes=1, reserve_bytes=0, because="")  # fmt: skip
    on_unified = Placement(
        setup=placement.setup, budgets=(unified,), because="", cards=placement.cards
    )
    assert rebalance(MODEL, on_unified, bill([1] * 4)) is None


def fullest(layers: list[int], ends: tuple[int, ...], sizes: list[int], fixed: list[int]) -> float:
    """The share that is used of the fullest card; `ends` are the layers at which each card ends."""
    parts = [sum(layers[a:b]) for a, b in pairwise((0, *ends))]
    return max((part + base) / size for part, base, size in zip(parts, fixed, sizes, strict=True))


@given(st.data())
def test_rebalance_finds_the_best_split(data: st.DataObject) -> None:
    cards = data.draw(st.integers(2, 3))
    layers = data.draw(st.lists(st.integers(1, 50), min_size=cards, max_size=7))
    head = data.draw(st.integers(0, 50))
    sizes = data.draw(st.lists(st.integers(50, 400), min_size=cards, max_size=cards))
    fixed = data.draw(st.lists(st.integers(0, 20), min_size=cards, max_size=cards))
    result = split_of(
        rebalance(MODEL, placement_on(*sizes), bill(layers, head=head, fixed=tuple(fixed)))
    )
    assume(result is not None)
    assert result is not None
    pieces = [*layers, head]
    assert sum(result) == len(pieces)
    ends = tuple(int(sum(result[: place + 1])) for place in range(cards))
    choices = combinations_with_replacement(range(len(pieces) + 1), cards - 1)
    best = min(fullest(pieces, (*cut, len(pieces)), sizes, fixed) for cut in choices)
    assert fullest(pieces, ends, sizes, fixed) <= best + 1e-4


def test_placement_without_layers_on_the_cards_has_no_split() -> None:
    """llama.cpp refuses a split of 0:0."""
    task = Task(model=MODEL, engine="llama.cpp", machine=cards(24, 16))
    placement = first_placement(task)
    setup = replace(LlamaCppSetup.of(placement.setup), n_gpu_layers=0)
    on_cpu = replace(placement, setup=setup)
    assert pinned(MODEL, on_cpu) is on_cpu


def test_pinned_placement_has_the_same_bill() -> None:
    """Multi-token prediction layers count in a split although they are not loaded."""
    for name in ("qwen3.5-9b", "llama-3.1-8b", "qwen3-30b-a3b"):
        model = engine_models()[name, "Q4_K_M"]
        task = Task(model=model, engine="llama.cpp", machine=cards(24, 16))
        fitting = Fitting(task, first_placement(task))
        result = pinned(model, fitting.placement)
        assert (
            sum(LlamaCppSetup.of(result.setup).tensor_split)
            == len(model.geometry.layers) + model.geometry.mtp_layers + 1
        )
        alike = Fitting(task, result).price(16_384).estimate.lines
        assert alike == fitting.price(16_384).estimate.lines


TOKENS = 32_768
TASK = one_file(MOE, cards(12), TOKENS)
PLACEMENTS = tuple(placements_of(TASK))


def with_experts_in_ram(count: int) -> Placement:
    """The placement with the experts of the first `count` layers in RAM."""
    return next(
        placement
        for placement in PLACEMENTS
        if LlamaCppSetup.of(placement.setup).n_cpu_moe == count
    )


def patterns(placement: Placement) -> str:
    return ",".join(override.pattern for override in LlamaCppSetup.of(placement.setup).overrides)


def test_finer_placements_put_parts_of_one_layer_in_ram() -> None:
    result = {
        patterns(placement): placement
        for placement in finer_placements(TASK.model, with_experts_in_ram(20))
    }
    last = "blk.(29|3[0-9]|4[0-7]).ffn_(gate|up|gate_up|down)_exps"
    assert list(result) == [
        last,
        f"blk.28.ffn_down_exps,{last}",
        "blk.19.ffn_down_exps",
        f"blk.28.ffn_gate_exps,blk.28.ffn_down_exps,{last}",
        "blk.19.ffn_gate_exps,blk.19.ffn_down_exps",
    ]
    first = result["blk.19.ffn_down_exps"]
    assert (LlamaCppSetup.of(first.setup).n_cpu_moe, first.by_tensor) == (19, True)
    assert first.because == (
        "all but the experts of 19 of 48 layers and a third of the experts of one more on 12 GiB card"
    )
    assert [sum(map(has_experts_on_host(LlamaCppSetup.of(placement.setup)), range(48))) for placement in result.values()] == [
        19, 20, 20, 20, 20
    ]  # fmt: skip


def test_finer_placements_of_one_layer_and_of_all_experts() -> None:
    first = [
        patterns(placement) for placement in finer_placements(TASK.model, with_experts_in_ram(1))
    ]
    assert first == [
        "blk.47.ffn_down_exps",
        "blk.0.ffn_down_exps",
        "blk.47.ffn_gate_exps,blk.47.ffn_down_exps",
        "blk.0.ffn_gate_exps,blk.0.ffn_down_exps",
    ]
    all_experts = next(
        placement for placement in PLACEMENTS if LlamaCppSetup.of(placement.setup).cpu_moe
    )
    finer = list(finer_placements(TASK.model, all_experts))
    assert {LlamaCppSetup.of(placement.setup).n_cpu_moe for placement in finer} == {0, 47}
    assert not any(LlamaCppSetup.of(placement.setup).cpu_moe for placement in finer)
    assert list(finer_placements(TASK.model, PLACEMENTS[0])) == []


def test_finer_placements_use_gpu_memory_between_those_of_their_neighbours() -> None:
    """Compared for the first layers only: other layers may be larger."""
    before, after = (Fitting(TASK, with_experts_in_ram(count)) for count in (19, 20))
    finer = [
        Fitting(TASK, placement)
        for placement in finer_placements(TASK.model, after.placement)
        if LlamaCppSetup.of(placement.setup).n_cpu_moe
    ]
    shares = [item.floor_share(TOKENS) for item in (before, *finer, after)]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 4


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(one_file(MOE, rated(cards(10)), TOKENS))


def test_plan_divides_a_layer_if_that_puts_more_on_the_gpu(plan: Plan) -> None:
    placement = plan.result.way
    assert placement.by_tensor
    assert plan.fits
    on_host = sum(map(has_experts_on_host(LlamaCppSetup.of(placement.setup)), range(48)))
    task = replace(plan.task, load=plan.load)
    whole = Fitting(task, with_experts_in_ram(on_host))
    assert Fitting(task, placement).floor_share(TOKENS) > whole.floor_share(TOKENS)
    assert f"with the experts of {on_host} layers in RAM" in headline(plan.result)


def test_divided_layer_is_in_the_commands_of_every_program(plan: Plan) -> None:
    texts = {command.name: command.text for command in ready_commands(plan)}
    words = shlex.split(texts["llama-server"])
    text = ",".join(
        f"{override.pattern}={override.buffer}"
        for override in LlamaCppSetup.of(plan.result.way.setup).overrides
    )
    assert words[words.index("-ot") + 1] == text
    assert "LM Studio settings" in texts  # which set a number of layers
    assert any("ollama" in name.lower() for name in texts)


def test_token_reads_only_its_active_experts_of_a_divided_layer() -> None:
    """8 of 128 experts, in VRAM or RAM."""
    reads = []
    for placement in (
        with_experts_in_ram(20),
        list(finer_placements(TASK.model, with_experts_in_ram(20)))[2],
    ):
        assert isinstance(placement.setup, LlamaCppSetup)
        bill = Fitting(TASK, placement).price(TOKENS).estimate
        work = reads_per_token(TASK.model, TASK.load, placement.setup, bill)
        reads.append(sum(pool.weights_bytes for pool in work.pools if pool.pool in {DEVICE, HOST}))
        assert bill.of(Component.WEIGHTS) > reads[-1]
    assert reads[1] == pytest.approx(reads[0], rel=0.001)
