"""plan/choice.py: the cache types of each engine, most accurate first, within what the user has set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.machines import cards, cpu, mac
from tests.unit.plan.tasks import LLAMA, gguf, of_config

from edgekit.bill.types import Load, Start, Task, cache_type
from edgekit.engines import engine_named
from edgekit.engines.choices import pair_name
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.llamacpp.types import Backend, LlamaCppSetup, LlamaMode
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.engines.vllm.types import VllmSetup
from edgekit.machine.types import Machine
from edgekit.plan.choice import cache_choices, with_cache, with_setup

Q8, Q4 = cache_type("q8_0"), cache_type("q4_0")
MACHINES = {"llama.cpp": cpu(16), "vllm": cards(24), "mlx": mac(16)}


def task_on(engine: str = "llama.cpp", machine: Machine | None = None, **more: Any) -> Task:
    model = gguf(LLAMA) if engine == "llama.cpp" else of_config("qwen3-8b")
    return Task(model=model, engine=engine, machine=machine or MACHINES[engine], **more)


def cache_names(task: Task) -> list[str]:
    return [choice.name for choice in cache_choices(task)]


# Keys need more precision than values. Pairs of two types run on the CPU only.
@pytest.mark.parametrize(
    ("engine", "machine", "expected"),
    [
        ("llama.cpp", cards(24), ["f16", "q8_0", "q4_0"]),
        ("llama.cpp", mac(16), ["f16", "q8_0", "q4_0"]),
        ("llama.cpp", cpu(16), ["f16", "q8_0", "q8_0 + q5_1", "q8_0 + q4_0", "q4_0"]),
        ("vllm", cards(24), ["auto", "fp8"]),
        ("mlx", mac(16), ["16 bit", "8 bit", "4 bit"]),
    ],
)
def test_cache_choices_come_most_accurate_first(
    engine: str, machine: Machine, expected: list[str]
) -> None:
    choices = cache_choices(task_on(engine, machine))
    assert [choice.name for choice in choices] == expected
    assert [choice.place for choice in choices] == list(range(len(expected)))


def bytes_per_token(task: Task) -> float:
    """Of a head of 128 keys and 128 values."""
    load = task.load
    return sum(128 * (kind.bits if kind else 16) / 8 for kind in (load.cache_k, load.cache_v))


def test_cache_choices_get_smaller() -> None:
    task = task_on()
    sizes = [bytes_per_token(with_cache(task, choice)) for choice in cache_choices(task)]
    # a block of 32: 34 bytes at q8_0, 24 at q5_1, 18 at q4_0
    assert sizes == [512, 4 * (34 + 34), 4 * (34 + 24), 4 * (34 + 18), 4 * (18 + 18)]


def test_first_cache_choice_is_the_default_of_the_engine() -> None:
    first = cache_choices(task_on())[0]
    assert (first.load, first.setup) == ({}, {})
    assert with_cache(task_on(), first) == task_on()


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(cache_k=Q8, cache_v=Q8), ["q8_0"]),
        (Load(cache_k=Q8, cache_v=Q4), ["q8_0 + q4_0"]),
        (Load(cache_k=Q4), ["q4_0 + f16", "q4_0 + q8_0", "q4_0 + q5_1", "q4_0"]),
        (Load(cache_k=Q8), ["q8_0 + f16", "q8_0", "q8_0 + q5_1", "q8_0 + q4_0"]),
        (Load(cache_v=Q8), ["f16 + q8_0", "q8_0", "q4_0 + q8_0"]),
    ],
)
def test_cache_choices_keep_a_given_cache_type(load: Load, expected: list[str]) -> None:
    task = task_on(load=load)
    assert cache_names(task) == expected
    for choice in cache_choices(task):
        chosen = with_cache(task, choice).load
        assert load.cache_k in {None, chosen.cache_k}
        assert load.cache_v in {None, chosen.cache_v}


@pytest.mark.parametrize("load", [Load(cache_k=Q8), Load(cache_v=Q8), Load(cache_k=Q8, cache_v=Q8)])
def test_cache_choices_on_a_gpu_use_a_given_type_for_keys_and_values(load: Load) -> None:
    task = task_on(machine=cards(24), load=load)
    (only,) = cache_choices(task)
    assert (only.name, only.is_given) == ("q8_0", True)
    chosen = with_cache(task, only).load
    assert (chosen.cache_k, chosen.cache_v) == (Q8, Q8)


@pytest.mark.parametrize("machine", [cards(24), cpu(16)])
def test_cache_choices_without_flash_attention_keep_values_at_f16(machine: Machine) -> None:
    off = Load(flash_attention=False)
    assert cache_names(task_on(machine=machine, load=off)) == ["f16"]
    assert cache_names(task_on(machine=machine, load=replace(off, cache_k=Q8))) == ["q8_0 + f16"]


def test_cache_choices_of_a_given_cpu_backend_include_mixed_pairs() -> None:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=Backend.CPU)
    start = Start(setup=setup, fixed_flags=frozenset({"backend"}))
    assert len(cache_names(task_on(machine=cards(24), start=start))) == 5


@pytest.mark.parametrize(
    ("engine", "setup", "field", "expected"),
    [
        ("vllm", VllmSetup(kv_cache_dtype="fp8"), "kv_cache_dtype", ["fp8"]),
        ("mlx", MlxSetup(kv_bits=4), "kv_bits", ["4 bit"]),
    ],
)
def test_cache_choices_keep_a_given_setup_field(
    engine: str, setup: Any, field: str, expected: list[str]
) -> None:
    start = Start(setup=setup, fixed_flags=frozenset({field}))
    assert cache_names(task_on(engine, start=start)) == expected
    assert len(cache_names(task_on(engine, start=Start(setup=setup)))) > 1


@pytest.mark.parametrize(
    ("engine", "name", "flags"),
    [
        ("llama.cpp", "q8_0", "-ctk q8_0 -ctv q8_0"),
        ("vllm", "fp8", "--kv-cache-dtype fp8"),
        ("mlx", "8 bit", "--kv-bits 8 --quantized-kv-start 0"),
    ],
)
def test_cache_choices_have_the_flags_of_the_engine(engine: str, name: str, flags: str) -> None:
    choices = cache_choices(task_on(engine))
    assert {choice.name: choice.flags for choice in choices}[name] == flags


def test_with_cache_for_mlx_quantises_from_the_first_token() -> None:
    task = with_cache(task_on("mlx"), cache_choices(task_on("mlx"))[1])
    setup = MlxSetup.of(task.start.setup)
    assert (setup.kv_bits, setup.quantized_kv_start) == (8, 0)


def test_with_setup_keeps_the_other_fields() -> None:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=Backend.CUDA, n_gpu_layers=7)
    task = with_setup(task_on(start=Start(setup=setup)), offload_kqv=False)
    assert task.start.setup == LlamaCppSetup(
        mode=LlamaMode.SERVER, backend=Backend.CUDA, n_gpu_layers=7, offload_kqv=False
    )


def test_default_setup_of_each_engine() -> None:
    assert engine_named("llama.cpp").default_setup() == default_setup()
    assert engine_named("vllm").default_setup() == VllmSetup()
    assert engine_named("mlx").default_setup() == MlxSetup()


def test_pair_name_of_equal_types_is_a_single_name() -> None:
    assert (pair_name("q8_0", "q8_0"), pair_name("q8_0", "q4_0")) == ("q8_0", "q8_0 + q4_0")
