"""Which caches an engine can be asked for, the most accurate first, and what the caller has settled."""

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


def question(engine: str = "llama.cpp", machine: Machine | None = None, **more: Any) -> Task:
    model = gguf(LLAMA) if engine == "llama.cpp" else of_config("qwen3-8b")
    return Task(model=model, engine=engine, machine=machine or MACHINES[engine], **more)


def names(asked: Task) -> list[str]:
    return [choice.name for choice in cache_choices(asked)]


# Keys first: of them a little more is needed. Pairs of two kinds compute on the processor alone.
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
def test_the_most_accurate_first(engine: str, machine: Machine, expected: list[str]) -> None:
    result = cache_choices(question(engine, machine))
    assert [item.name for item in result] == expected
    assert [item.place for item in result] == list(range(len(expected)))


def bytes_a_token(choice_of: Task) -> float:
    """Of one head of 128 keys and 128 values."""
    load = choice_of.load
    return sum(128 * (kind.bits if kind else 16) / 8 for kind in (load.cache_k, load.cache_v))


def test_every_next_one_takes_less() -> None:
    request = question()
    sizes = [bytes_a_token(with_cache(request, choice)) for choice in cache_choices(request)]
    # a block of 32: 34 bytes at q8_0, 24 at q5_1, 18 at q4_0
    assert sizes == [512, 4 * (34 + 34), 4 * (34 + 24), 4 * (34 + 18), 4 * (18 + 18)]


def test_the_engines_own_says_nothing() -> None:
    first = cache_choices(question())[0]
    assert (first.load, first.setup) == ({}, {})
    assert with_cache(question(), first) == question()


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
def test_what_the_caller_settled_stays(load: Load, expected: list[str]) -> None:
    request = question(load=load)
    assert names(request) == expected
    for choice in cache_choices(request):
        kept = with_cache(request, choice).load
        assert load.cache_k in {None, kept.cache_k}
        assert load.cache_v in {None, kept.cache_v}


@pytest.mark.parametrize("load", [Load(cache_k=Q8), Load(cache_v=Q8), Load(cache_k=Q8, cache_v=Q8)])
def test_on_a_card_the_other_side_is_kept_alike(load: Load) -> None:
    request = question(machine=cards(24), load=load)
    (only,) = cache_choices(request)
    assert (only.name, only.is_given) == ("q8_0", True)
    kept = with_cache(request, only).load
    assert (kept.cache_k, kept.cache_v) == (Q8, Q8)


@pytest.mark.parametrize("machine", [cards(24), cpu(16)])
def test_without_flash_attention_v_is_not_quantised(machine: Machine) -> None:
    off = Load(flash_attention=False)
    assert names(question(machine=machine, load=off)) == ["f16"]
    assert names(question(machine=machine, load=replace(off, cache_k=Q8))) == ["q8_0 + f16"]


def test_who_settles_the_processor_has_its_pairs() -> None:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=Backend.CPU)
    start = Start(setup=setup, fixed_flags=frozenset({"backend"}))
    assert len(names(question(machine=cards(24), start=start))) == 5


@pytest.mark.parametrize(
    ("engine", "setup", "field", "expected"),
    [
        ("vllm", VllmSetup(kv_cache_dtype="fp8"), "kv_cache_dtype", ["fp8"]),
        ("mlx", MlxSetup(kv_bits=4), "kv_bits", ["4 bit"]),
    ],
)
def test_a_settled_setup_stays(engine: str, setup: Any, field: str, expected: list[str]) -> None:
    start = Start(setup=setup, fixed_flags=frozenset({field}))
    assert names(question(engine, start=start)) == expected
    assert len(names(question(engine, start=Start(setup=setup)))) > 1


@pytest.mark.parametrize(
    ("engine", "name", "flags"),
    [
        ("llama.cpp", "q8_0", "-ctk q8_0 -ctv q8_0"),
        ("vllm", "fp8", "--kv-cache-dtype fp8"),
        ("mlx", "8 bit", "--kv-bits 8 --quantized-kv-start 0"),
    ],
)
def test_how_the_engine_is_told(engine: str, name: str, flags: str) -> None:
    result = cache_choices(question(engine))
    assert {item.name: item.flags for item in result}[name] == flags


def test_mlx_packs_from_the_first_token() -> None:
    request = with_cache(question("mlx"), cache_choices(question("mlx"))[1])
    setup = MlxSetup.of(request.start.setup)
    assert (setup.kv_bits, setup.quantized_kv_start) == (8, 0)


def test_other_fields_of_a_setup_stay() -> None:
    setup = LlamaCppSetup(mode=LlamaMode.SERVER, backend=Backend.CUDA, n_gpu_layers=7)
    request = with_setup(question(start=Start(setup=setup)), offload_kqv=False)
    assert request.start.setup == LlamaCppSetup(
        mode=LlamaMode.SERVER, backend=Backend.CUDA, n_gpu_layers=7, offload_kqv=False
    )


def test_an_engine_starts_plainly() -> None:
    assert engine_named("llama.cpp").default_setup() == default_setup()
    assert engine_named("vllm").default_setup() == VllmSetup()
    assert engine_named("mlx").default_setup() == MlxSetup()


def test_a_pair_of_one_kind_has_one_name() -> None:
    assert (pair_name("q8_0", "q8_0"), pair_name("q8_0", "q4_0")) == ("q8_0", "q8_0 + q4_0")
