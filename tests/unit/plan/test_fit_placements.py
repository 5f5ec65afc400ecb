"""Placements as the engines offer them: whole ones first, and whether a model may be divided."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import LLAMA, MOE, gguf, of_config, one_file, rated

from edgekit.bill.types import Component, Placement, Start, Task
from edgekit.engines import default_engine, engine_named, engine_on, every_engine
from edgekit.engines.llamacpp.placements import finer_placements
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.llamacpp.speed import reads_per_token
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.llamacpp.weights import has_experts_on_host
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.machine.types import DEVICE, HOST, Machine, together_bytes
from edgekit.plan.commands import ready_commands
from edgekit.plan.fit import (
    Fitting,
    can_divide,
    first_placement,
    placements_of,
    whole_placements,
)
from edgekit.plan.plan import Plan, make_plan
from edgekit.report.check import headline
from edgekit.units import GIB

MACHINES = {
    "llama.cpp": cards(24, ram=64),
    "vllm": cards(24, 24, ram=64),
    "mlx": mac(36),
    "stream": cpu(16),
}


def task_on(machine: Machine, engine: str, start: Start | None = None) -> Task:
    model = gguf(LLAMA) if engine_named(engine).loads_gguf else of_config("qwen3-8b")
    return Task(model=model, engine=engine, machine=machine, start=start or Start())


@pytest.mark.parametrize("engine", [engine.name for engine in every_engine()])
def test_placements_of_begin_with_the_whole_ones(engine: str) -> None:
    task = task_on(MACHINES[engine], engine)
    every, whole = tuple(placements_of(task)), whole_placements(task)
    assert whole
    assert whole == every[: len(whole)]
    assert not any(item.whole for item in every[len(whole) :])
    assert first_placement(task) == every[0]
    assert can_divide(task) is (len(whole) < len(every))


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_placements_of_vllm_and_mlx_are_all_whole(engine: str) -> None:
    assert all(placement.whole for placement in placements_of(task_on(MACHINES[engine], engine)))


@pytest.mark.parametrize(
    ("machine", "engine", "start", "expected"),
    [
        (cards(24, ram=64), "llama.cpp", Start(), True),
        (cards(24, ram=None), "llama.cpp", Start(), False),  # nowhere to put the rest
        (cpu(64), "llama.cpp", Start(), False),
        (
            cards(24, ram=64),
            "llama.cpp",
            Start(setup=default_setup(), fixed_flags=frozenset({"n_cpu_moe"})),
            False,
        ),
        (cpu(64), "stream", Start(), True),
        (
            cpu(64),
            "stream",
            Start(setup=StreamSetup(keep_bytes=0), fixed_flags=frozenset({"keep"})),
            False,
        ),
    ],
)
def test_can_divide_where_the_user_left_it_open(
    machine: Machine, engine: str, start: Start, *, expected: bool
) -> None:
    assert can_divide(task_on(machine, engine, start)) is expected


def test_placements_of_take_the_reserve_that_was_set() -> None:
    task = replace(task_on(cards(24, ram=64), "llama.cpp"), reserve_bytes=7)
    budgets = [budget for placement in placements_of(task) for budget in placement.budgets]
    assert {budget.reserve_bytes for budget in budgets} == {7}
    assert {budget.because for budget in budgets} == {"set with --reserve"}


@pytest.mark.parametrize(
    ("machine", "engine"), [(cards(24), "vllm"), (mac(36), "mlx"), (cpu(16), "llama.cpp")]
)
def test_engine_on_takes_the_first_that_loads_the_files_and_runs_there(
    machine: Machine, engine: str
) -> None:
    assert engine_on(of_config("qwen3-8b"), machine) == engine
    assert engine_on(gguf(LLAMA), machine) == default_engine().name


def test_capacity_bytes_of_all_memories() -> None:
    machine = cards(24, ram=64)
    assert engine_named("llama.cpp").capacity_bytes(machine) == (23 + 63) * GIB
    assert engine_named("vllm").capacity_bytes(machine) == 24 * GIB
    assert together_bytes(()) == 0


TOKENS = 32_768
QUESTION = one_file(MOE, cards(12), TOKENS)
WAYS = tuple(placements_of(QUESTION))


def with_experts_of(count: int) -> Placement:
    """On the host: of the first so many layers."""
    return next(
        placement for placement in WAYS if LlamaCppSetup.of(placement.setup).n_cpu_moe == count
    )


def patterns(way: Placement) -> str:
    return ",".join(override.pattern for override in LlamaCppSetup.of(way.setup).overrides)


def test_finer_placements_leave_parts_of_one_layer_and_whole_others_on_the_host() -> None:
    result = {
        patterns(placement): placement
        for placement in finer_placements(QUESTION.model, with_experts_of(20))
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
        patterns(placement) for placement in finer_placements(QUESTION.model, with_experts_of(1))
    ]
    assert first == [
        "blk.47.ffn_down_exps",
        "blk.0.ffn_down_exps",
        "blk.47.ffn_gate_exps,blk.47.ffn_down_exps",
        "blk.0.ffn_gate_exps,blk.0.ffn_down_exps",
    ]
    none = next(placement for placement in WAYS if LlamaCppSetup.of(placement.setup).cpu_moe)
    every = list(finer_placements(QUESTION.model, none))
    assert {LlamaCppSetup.of(placement.setup).n_cpu_moe for placement in every} == {0, 47}
    assert not any(LlamaCppSetup.of(placement.setup).cpu_moe for placement in every)
    assert list(finer_placements(QUESTION.model, WAYS[0])) == []


def test_finer_placements_take_more_of_the_device_than_their_placement_and_less_than_the_one_before() -> (
    None
):
    """Experts of the first layers alone: other layers may be larger."""
    before, after = (Fitting(QUESTION, with_experts_of(count)) for count in (19, 20))
    finer = [
        Fitting(QUESTION, placement)
        for placement in finer_placements(QUESTION.model, after.placement)
        if LlamaCppSetup.of(placement.setup).n_cpu_moe
    ]
    shares = [item.floor_share(TOKENS) for item in (before, *finer, after)]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 4


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(one_file(MOE, rated(cards(10)), TOKENS))


def test_plan_divides_a_layer_where_that_puts_more_on_the_card(plan: Plan) -> None:
    placement = plan.result.way
    assert placement.by_tensor
    assert plan.fits
    on_host = sum(map(has_experts_on_host(LlamaCppSetup.of(placement.setup)), range(48)))
    question = replace(plan.task, load=plan.load)
    whole = Fitting(question, with_experts_of(on_host))
    assert Fitting(question, placement).floor_share(TOKENS) > whole.floor_share(TOKENS)
    assert f"with the experts of {on_host} layers in RAM" in headline(plan.result)


def test_plan_with_a_divided_layer_says_so_to_every_program(plan: Plan) -> None:
    texts = {command.name: command.text for command in ready_commands(plan)}
    words = shlex.split(texts["llama-server"])
    text = ",".join(
        f"{override.pattern}={override.buffer}"
        for override in LlamaCppSetup.of(plan.result.way.setup).overrides
    )
    assert words[words.index("-ot") + 1] == text
    assert "LM Studio settings" in texts  # which has a number of layers for it
    assert any("ollama" in name.lower() for name in texts)


def test_a_token_reads_only_the_experts_it_uses_of_a_divided_layer() -> None:
    """Eight of 128, wherever they are."""
    reads = []
    for placement in (
        with_experts_of(20),
        list(finer_placements(QUESTION.model, with_experts_of(20)))[2],
    ):
        assert isinstance(placement.setup, LlamaCppSetup)
        bill = Fitting(QUESTION, placement).price(TOKENS).estimate
        work = reads_per_token(QUESTION.model, QUESTION.load, placement.setup, bill)
        reads.append(sum(pool.weights_bytes for pool in work.pools if pool.pool in {DEVICE, HOST}))
        assert bill.of(Component.WEIGHTS) > reads[-1]
    assert reads[1] == pytest.approx(reads[0], rel=0.001)
