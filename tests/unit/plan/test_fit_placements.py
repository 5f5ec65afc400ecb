"""plan/fit.py: the placements that an engine offers, and whether a model can be divided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import LLAMA, gguf, of_config

from edgekit.bill.types import Start, Task
from edgekit.engines import default_engine, engine_named, engine_on, every_engine
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.machine.types import Machine, together_bytes
from edgekit.plan.fit import (
    can_divide,
    first_placement,
    placements_of,
    whole_placements,
)
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
def test_placements_of_puts_undivided_models_first(engine: str) -> None:
    task = task_on(MACHINES[engine], engine)
    placements, undivided = tuple(placements_of(task)), whole_placements(task)
    assert undivided
    assert undivided == placements[: len(undivided)]
    assert not any(placement.whole for placement in placements[len(undivided) :])
    assert first_placement(task) == placements[0]
    assert can_divide(task) is (len(undivided) < len(placements))


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_placements_of_vllm_and_mlx_divide_no_model(engine: str) -> None:
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
def test_can_divide_unless_ram_is_missing_or_the_user_has_decided(
    machine: Machine, engine: str, start: Start, *, expected: bool
) -> None:
    assert can_divide(task_on(machine, engine, start)) is expected


def test_placements_of_use_a_given_reserve() -> None:
    task = replace(task_on(cards(24, ram=64), "llama.cpp"), reserve_bytes=7)
    budgets = [budget for placement in placements_of(task) for budget in placement.budgets]
    assert {budget.reserve_bytes for budget in budgets} == {7}
    assert {budget.because for budget in budgets} == {"set with --reserve"}


@pytest.mark.parametrize(
    ("machine", "engine"), [(cards(24), "vllm"), (mac(36), "mlx"), (cpu(16), "llama.cpp")]
)
def test_engine_on_takes_the_first_that_loads_the_files_and_runs(
    machine: Machine, engine: str
) -> None:
    assert engine_on(of_config("qwen3-8b"), machine) == engine
    assert engine_on(gguf(LLAMA), machine) == default_engine().name


def test_capacity_bytes_of_an_engine() -> None:
    machine = cards(24, ram=64)
    assert engine_named("llama.cpp").capacity_bytes(machine) == (23 + 63) * GIB
    assert engine_named("vllm").capacity_bytes(machine) == 24 * GIB
    assert together_bytes(()) == 0
