"""plan/choice.py with the built-in engine: reserved memory, weights kept in memory, context."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.recorded import engine_models
from tests.unit.plan.machines import cards, cpu, host, mac

from edgekit.bill.types import ChangeKind, Job, Load, Start, Status, Task, cache_type
from edgekit.engines import engine_named
from edgekit.engines.native.file import FileHeader
from edgekit.engines.native.rules import PROCESS_BYTES, THREAD_BYTES
from edgekit.engines.native.rules import budgets as stream_budgets
from edgekit.engines.native.stream_plan import StreamSetup
from edgekit.engines.native.tokenizer.kinds import tokenizer_cost_bytes, vocabulary_bytes
from edgekit.errors import HardwareError, UsageError
from edgekit.formats.types import ArrayFact, ModelHeader
from edgekit.machine.types import HOST, HostMemory, Machine, System
from edgekit.plan.changes import changes
from edgekit.plan.choice import judge
from edgekit.plan.fit import first_placement, placements_of
from edgekit.plan.plan import check_planned
from edgekit.sources.types import Container
from edgekit.units import GIB, MIB

SEVEN_B = "qwen2.5-7b"  # 28 layers of 4 x 128 keys and values: 57,344 bytes per token at f16


def small_machine(size_bytes: int, *, cores: int | None = 2) -> Machine:
    memory = HostMemory(total_bytes=size_bytes, free_bytes=size_bytes)
    return Machine(name="small", system=System.LINUX, host=memory, cores=cores, what_if=True)


def task_on(machine: Machine, name: str = SEVEN_B, **more: Any) -> Task:
    model = engine_models()[name, "Q4_K_M"]
    return Task(model=model, engine="stream", machine=machine, **more)


# --- reserved memory


def test_budgets_of_the_built_in_engine_reserve_its_process_in_ram() -> None:
    (budget,) = stream_budgets(cards(24, ram=8), vocabulary_bytes=100 * MIB, threads=4)
    assert budget.pools == {HOST}
    assert budget.reserve_bytes == PROCESS_BYTES + 4 * THREAD_BYTES + 100 * MIB
    stream = engine_named("stream")
    assert stream.devices(cards(24)) == stream.devices(mac(36)) == ()


def test_judge_rejects_ram_of_unknown_size() -> None:
    with pytest.raises(HardwareError, match="add --ram 32G"):
        judge(task_on(cards(24, ram=None)))


IMPORT_EVERYTHING = """
from pathlib import Path
import edgekit.cli, edgekit.app.check, edgekit.cli.launch, edgekit.engines.native.generator
import numpy, tokenizers, psutil
from edgekit.engines.native.kernels import choose_kernels
choose_kernels()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_process_bytes_cover_python_and_its_libraries() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert int(done.stdout) * 1024 < PROCESS_BYTES


def header_of(model: str | None, tokens: int, merges: int = 0) -> ModelHeader:
    """A header with a vocabulary of that many tokens."""
    return ModelHeader(
        name="m.gguf",
        container=Container.GGUF,
        keys={} if model is None else {"tokenizer.ggml.model": model},
        arrays={
            f"tokenizer.ggml.{name}": ArrayFact(element="string", count=count, end=16 * count)
            for name, count in (("tokens", tokens), ("merges", merges))
            if count
        },
    )


def test_vocabulary_bytes_are_the_peak_of_building_the_tokenizer() -> None:
    header = header_of("gpt2", 152_064, 151_387)
    assert (
        vocabulary_bytes(header, 152_064) == tokenizer_cost_bytes(FileHeader.of(header)).peak_bytes
    )


@pytest.mark.parametrize("model", [None, "none", "rwkv"])
def test_vocabulary_bytes_of_an_unread_vocabulary_are_those_of_the_largest_kind(
    model: str | None,
) -> None:
    largest = max(
        vocabulary_bytes(header_of(kind, 50_000, 50_000), 0) for kind in ("gpt2", "llama")
    )
    assert vocabulary_bytes(header_of(model, 0), 50_000) >= largest
    assert vocabulary_bytes(header_of(model, 0), 50_000) < vocabulary_bytes(
        header_of(model, 0), 100_000
    )


def test_vocabulary_bytes_of_an_array_of_unknown_size_are_not_less() -> None:
    header = header_of("gpt2", 152_064)
    expected = vocabulary_bytes(header, 0)
    endless = {name: replace(array, end=0) for name, array in header.arrays.items()}
    assert vocabulary_bytes(replace(header, arrays=endless), 0) >= expected


# --- weights kept in memory


def test_placements_keep_all_weights_then_none_that_may_be_filled() -> None:
    placements = tuple(placements_of(task_on(cpu(64))))
    assert [StreamSetup.of(placement.setup).keep_bytes for placement in placements] == [None, 0]
    assert [placement.whole for placement in placements] == [True, False]
    assert [placement.may_fill for placement in placements] == [False, True]
    assert len({placement.budgets for placement in placements}) == 1


def test_placements_of_a_given_keep_are_a_single_one() -> None:
    start = Start(setup=StreamSetup(keep_bytes=GIB), fixed_flags=frozenset({"keep"}))
    (placement,) = placements_of(task_on(cpu(64), start=start))
    assert StreamSetup.of(placement.setup).keep_bytes == GIB
    assert not placement.may_fill


def test_threads_follow_the_cores_unless_given() -> None:
    assert StreamSetup.of(first_placement(task_on(small_machine(GIB, cores=4))).setup).threads == 4
    assert StreamSetup.of(first_placement(task_on(small_machine(GIB, cores=64))).setup).threads == 8
    start = Start(setup=StreamSetup(threads=3), fixed_flags=frozenset({"threads"}))
    assert (
        StreamSetup.of(first_placement(task_on(small_machine(GIB), start=start)).setup).threads == 3
    )


@pytest.mark.parametrize("mebibytes", [512, 1024, 2048, 4096])
def test_judge_fills_the_memory_with_weights_as_long_as_it_is_comfortable(mebibytes: int) -> None:
    """A matrix of a 7B has at most 88 MiB, so less than the smallest, 1 MiB, and the rounding to a MiB are left."""
    result = judge(task_on(small_machine(mebibytes * MIB), load=Load(context_tokens=1024)))
    (use,) = result.uses
    comfortable_bytes = use.budget.available_bytes * 85 // 100
    assert result.status is Status.PASSED
    assert comfortable_bytes - 4 * MIB < use.required_bytes <= comfortable_bytes


def test_judge_keeps_all_weights_where_they_fit() -> None:
    result = judge(task_on(small_machine(16 * GIB), load=Load(context_tokens=4096)))
    assert StreamSetup.of(result.way.setup).keep_bytes is None
    assert result.way.whole


def test_judge_gives_a_limit_of_use_less_than_comfortable() -> None:
    load = Load(context_tokens=1024)
    result = judge(task_on(small_machine(1024 * MIB), load=load, max_use=0.5))
    (use,) = result.uses
    assert not result.failed
    assert 0.45 * use.budget.available_bytes < use.required_bytes
    assert use.required_bytes <= 0.5 * use.budget.available_bytes


def test_commands_state_the_weights_that_a_verdict_keeps() -> None:
    """--keep with the size of the verdict gives the same bill again."""
    result = judge(task_on(small_machine(GIB), load=Load(context_tokens=1024)))
    keep_bytes = StreamSetup.of(result.way.setup).keep_bytes
    assert keep_bytes is not None
    assert keep_bytes % MIB == 0
    start = Start(setup=StreamSetup(keep_bytes=keep_bytes), fixed_flags=frozenset({"keep"}))
    again = judge(task_on(small_machine(GIB), load=Load(context_tokens=1024), start=start))
    assert again.required_bytes == result.required_bytes


# --- context and cache


def test_judge_a_7b_on_512_mib() -> None:
    result = judge(task_on(small_machine(512 * MIB)))
    assert result.status is Status.PASSED
    assert result.context_tokens >= 1024
    assert result.required_bytes < 512 * MIB


def test_judge_a_7b_without_grouped_query_attention_on_512_mib() -> None:
    """Its cache takes 512 KiB per token; 512 tokens are enough to chat in a rolling context."""
    result = judge(task_on(small_machine(512 * MIB), "llama-2-7b"))
    assert result.can_load
    assert result.context_tokens >= 512


def test_judge_on_6_gib_keeps_all_weights_at_32k() -> None:
    result = judge(task_on(small_machine(6 * GIB)))
    assert (result.context_tokens, result.cache) == (32_768, "q8_0")
    assert StreamSetup.of(result.way.setup).keep_bytes is None


def test_judge_prefers_a_long_context_to_keeping_all_weights() -> None:
    """The weights alone take 4.4 GiB, which would leave a context of a few tokens."""
    result = judge(task_on(small_machine(9 * GIB // 2)))
    assert result.context_tokens == 32_768
    assert StreamSetup.of(result.way.setup).keep_bytes is not None


@pytest.mark.parametrize(
    ("mebibytes", "step", "tokens", "cache"),
    [
        (512, 7, range(512, 16_384), "f16"),
        (1024, 6, (16_384,), "q8_0"),
        (3072, 6, (32_768,), "f16"),
    ],
)
def test_judge_prefers_16k_with_an_8_bit_cache_to_a_shorter_context(
    mebibytes: int, step: int, tokens: Sequence[int], cache: str
) -> None:
    result = judge(task_on(small_machine(mebibytes * MIB)))
    assert (result.step, result.cache) == (step, cache)
    assert result.context_tokens in tokens
    assert result.speed is None  # a disk may have to be read


def test_judge_if_nothing_fits_reports_the_shortest_context_and_no_weights() -> None:
    result = judge(task_on(small_machine(256 * MIB)))
    assert (result.status, result.context_tokens) == (Status.FAILED, 512)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0
    assert result.required_bytes < 256 * MIB


def test_changes_do_not_offer_the_cache_type_in_use() -> None:
    task = task_on(small_machine(1024 * MIB))
    result = judge(task)
    assert result.cache == "q8_0"
    assert ChangeKind.CACHE not in {change.kind for change in changes(task, result)}


def test_judge_of_keep_0_keeps_no_weights() -> None:
    start = Start(setup=StreamSetup(keep_bytes=0), fixed_flags=frozenset({"keep"}))
    result = judge(task_on(small_machine(64 * GIB), start=start))
    assert (result.status, result.step) == (Status.PASSED, 1)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0


def test_judge_of_a_job_has_its_context() -> None:
    result = judge(task_on(small_machine(512 * MIB), job=Job(prompt_tokens=100, new_tokens=36)))
    assert (result.context_tokens, result.passed) == (200, True)


def test_changes_if_nothing_fits_offer_context_and_memory() -> None:
    task = task_on(small_machine(512 * MIB), load=Load(context_tokens=16_384))
    result = judge(task)
    assert result.failed
    offered = changes(task, result)
    kinds = [change.kind for change in offered]
    assert kinds[0] is ChangeKind.CONTEXT
    assert ChangeKind.MEMORY in kinds
    assert ChangeKind.DEVICE not in kinds
    assert ChangeKind.ENGINE not in kinds


def test_changes_offer_an_8_bit_cache_for_a_longer_context() -> None:
    task = task_on(small_machine(512 * MIB), load=Load(context_tokens=2048))
    result = judge(task)
    (change,) = changes(task, result)
    assert (change.kind, change.value) == (ChangeKind.CACHE, "q8_0")
    assert change.told.startswith("-ctk q8_0 -ctv q8_0 (8-bit cache): up to ")
    load = Load(context_tokens=1024, cache_k=cache_type("f32"), cache_v=cache_type("f32"))
    with_f32 = task_on(small_machine(512 * MIB), load=load)
    assert changes(with_f32, judge(with_f32)) == ()


def test_changes_for_llama_cpp_offer_the_built_in_engine() -> None:
    task = replace(task_on(cpu(4)), engine="llama.cpp")
    result = judge(task)
    assert result.failed
    messages = {change.value: change.told for change in changes(task, result)}
    assert messages["stream"].startswith("--engine stream: ")


def test_changes_do_not_offer_the_built_in_engine_to_other_families() -> None:
    task = replace(task_on(cpu(4), "gemma-2-9b"), engine="llama.cpp")
    assert "stream" not in {change.value for change in changes(task, judge(task))}


def test_check_planned_rejects_the_built_in_engine() -> None:
    with pytest.raises(UsageError, match=r"edgekit check .*edgekit run MODEL --engine stream"):
        check_planned("stream")
    check_planned("llama.cpp")


@settings(max_examples=8, deadline=None)
@given(first_mib=st.integers(300, 30_000), second_mib=st.integers(300, 30_000))
def test_max_context_never_falls_with_more_memory(first_mib: int, second_mib: int) -> None:
    less_mib, more_mib = sorted((first_mib, second_mib))
    results = [
        judge(task_on(small_machine(size * MIB), "qwen3-0.6b")) for size in (less_mib, more_mib)
    ]
    assert results[0].max_context <= results[1].max_context
    for result in results:
        used = result.required_bytes + result.tightest.budget.reserve_bytes
        assert result.failed or used < result.tightest.budget.total_bytes


def test_unified_memory_is_ram_for_the_built_in_engine() -> None:
    result = judge(task_on(replace(mac(36), host=host(36))))
    assert {pool for use in result.uses for pool in use.budget.pools} == {HOST}
