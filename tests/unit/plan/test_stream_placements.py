"""The built-in engine on a machine: what is set aside, which weights stay, which window is opened."""

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
from edgekit.engines.native.rules import PROCESS_BYTES, THREAD_BYTES, matrix_bytes
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

SEVEN_B = "qwen2.5-7b"  # 28 layers of 4 x 128 keys and values: 57,344 bytes a token at f16


def small(size_bytes: int, *, cores: int | None = 2) -> Machine:
    memory = HostMemory(total_bytes=size_bytes, free_bytes=size_bytes)
    return Machine(name="small", system=System.LINUX, host=memory, cores=cores, what_if=True)


def question(machine: Machine, name: str = SEVEN_B, **more: Any) -> Task:
    model = engine_models()[name, "Q4_K_M"]
    return Task(model=model, engine="stream", machine=machine, **more)


# --- what is set aside


def test_the_host_alone_and_only_what_the_process_is() -> None:
    (budget,) = stream_budgets(cards(24, ram=8), vocabulary_bytes=100 * MIB, threads=4)
    assert budget.pools == {HOST}
    assert budget.reserve_bytes == PROCESS_BYTES + 4 * THREAD_BYTES + 100 * MIB
    stream = engine_named("stream")
    assert stream.devices(cards(24)) == stream.devices(mac(36)) == ()


def test_a_host_that_is_not_known() -> None:
    with pytest.raises(HardwareError, match="add --ram 32G"):
        judge(question(cards(24, ram=None)))


LOADED = """
from pathlib import Path
import edgekit.cli, edgekit.app.check, edgekit.cli.launch, edgekit.engines.native.generator
import numpy, tokenizers, psutil
from edgekit.engines.native.kernels import choose_kernels
choose_kernels()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_python_and_its_libraries_are_within_what_is_set_aside() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, check=True, timeout=PATIENCE_S
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


def test_a_vocabulary_counts_while_it_is_built() -> None:
    header = header_of("gpt2", 152_064, 151_387)
    assert (
        vocabulary_bytes(header, 152_064) == tokenizer_cost_bytes(FileHeader.of(header)).peak_bytes
    )


@pytest.mark.parametrize("model", [None, "none", "rwkv"])
def test_a_vocabulary_that_was_not_read_counts_as_the_dearest(model: str | None) -> None:
    known = max(vocabulary_bytes(header_of(kind, 50_000, 50_000), 0) for kind in ("gpt2", "llama"))
    assert vocabulary_bytes(header_of(model, 0), 50_000) >= known
    assert vocabulary_bytes(header_of(model, 0), 50_000) < vocabulary_bytes(
        header_of(model, 0), 100_000
    )


def test_a_list_whose_end_was_not_seen_is_not_free() -> None:
    header = header_of("gpt2", 152_064)
    whole = vocabulary_bytes(header, 0)
    endless = {name: replace(array, end=0) for name, array in header.arrays.items()}
    assert vocabulary_bytes(replace(header, arrays=endless), 0) >= whole


# --- which weights stay


def test_all_weights_first_then_fewer_then_none() -> None:
    ways = tuple(placements_of(question(cpu(64))))
    whole = matrix_bytes(engine_models()[SEVEN_B, "Q4_K_M"])
    kept = [StreamSetup.of(placement.setup).keep_bytes for placement in ways]
    assert kept[0] is None
    assert kept[1:] == [whole * share // 4 // MIB * MIB for share in (3, 2, 1, 0)]
    assert [placement.whole for placement in ways] == [True, False, False, False, False]
    assert len({placement.budgets for placement in ways}) == 1


def test_who_says_what_is_kept_is_asked_about_nothing_else() -> None:
    start = Start(setup=StreamSetup(keep_bytes=GIB), fixed_flags=frozenset({"keep"}))
    (placement,) = placements_of(question(cpu(64), start=start))
    assert StreamSetup.of(placement.setup).keep_bytes == GIB


def test_threads_are_settled_with_the_way() -> None:
    assert StreamSetup.of(first_placement(question(small(GIB, cores=4))).setup).threads == 4
    assert StreamSetup.of(first_placement(question(small(GIB, cores=64))).setup).threads == 8
    start = Start(setup=StreamSetup(threads=3), fixed_flags=frozenset({"threads"}))
    assert StreamSetup.of(first_placement(question(small(GIB), start=start)).setup).threads == 3


@pytest.mark.parametrize(("memory", "quarters"), [(16 * GIB, 4), (9 * GIB // 2, 3), (GIB, 0)])
def test_as_many_weights_stay_as_there_is_room_for(memory: int, quarters: int) -> None:
    result = judge(question(small(memory), load=Load(context_tokens=4096)))
    assert result.can_load
    assert result.way == tuple(placements_of(question(small(memory))))[4 - quarters]


# --- the window


def test_a_7b_on_a_machine_of_512_megabytes() -> None:
    result = judge(question(small(512 * MIB)))
    assert result.status is Status.PASSED
    assert result.context_tokens >= 1024
    assert StreamSetup.of(result.way.setup).keep_bytes == 0
    assert result.required_bytes < 512 * MIB


def test_keys_and_values_for_every_head_take_more() -> None:
    """Llama 2 keeps half a megabyte a token: 512 of them are enough to talk in a window that rolls."""
    result = judge(question(small(512 * MIB), "llama-2-7b"))
    assert result.can_load
    assert result.context_tokens >= 512


def test_with_room_for_a_usual_window_all_weights_stay() -> None:
    result = judge(question(small(6 * GIB)))
    assert (result.context_tokens, result.cache) == (32_768, "q8_0")
    assert StreamSetup.of(result.way.setup).keep_bytes is None


def test_a_long_window_goes_before_weights_where_both_are_too_much() -> None:
    """The weights alone take 4.4 GiB: a window of a few tokens beside them is of little use."""
    result = judge(question(small(9 * GIB // 2)))
    assert result.context_tokens == 32_768
    assert StreamSetup.of(result.way.setup).keep_bytes is not None


@pytest.mark.parametrize(
    ("mebibytes", "step", "tokens", "cache"),
    [
        (512, 7, range(512, 16_384), "f16"),
        (1024, 6, (20_480,), "q8_0"),
        (3072, 6, (32_768,), "f16"),
    ],
)
def test_16k_with_an_8_bit_cache_goes_before_a_shorter_context(
    mebibytes: int, step: int, tokens: Sequence[int], cache: str
) -> None:
    result = judge(question(small(mebibytes * MIB)))
    assert (result.step, result.cache) == (step, cache)
    assert result.context_tokens in tokens
    assert result.speed is None  # a disk may have to be read


def test_nothing_fits_is_reported_for_the_shortest_context_without_weights_in_memory() -> None:
    result = judge(question(small(256 * MIB)))
    assert (result.status, result.context_tokens) == (Status.FAILED, 512)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0
    assert result.required_bytes < 256 * MIB


def test_a_cache_that_is_used_already_is_not_offered() -> None:
    request = question(small(1024 * MIB))
    result = judge(request)
    assert result.cache == "q8_0"
    assert ChangeKind.CACHE not in {change.kind for change in changes(request, result)}


def test_weights_that_the_user_keeps_elsewhere_are_judged_so() -> None:
    start = Start(setup=StreamSetup(keep_bytes=0), fixed_flags=frozenset({"keep"}))
    result = judge(question(small(64 * GIB), start=start))
    assert (result.status, result.step) == (Status.PASSED, 1)
    assert StreamSetup.of(result.way.setup).keep_bytes == 0


def test_a_job_is_given_what_it_needs() -> None:
    result = judge(question(small(512 * MIB), job=Job(prompt_tokens=100, new_tokens=36)))
    assert (result.context_tokens, result.passed) == (200, True)


def test_where_nothing_fits_it_is_told_how_much_would_do() -> None:
    request = question(small(512 * MIB), load=Load(context_tokens=16_384))
    result = judge(request)
    assert result.failed
    answer = changes(request, result)
    kinds = [change.kind for change in answer]
    assert kinds[0] is ChangeKind.CONTEXT
    assert ChangeKind.MEMORY in kinds
    assert ChangeKind.DEVICE not in kinds
    assert ChangeKind.ENGINE not in kinds


def test_eight_bits_are_a_way_to_a_longer_window() -> None:
    request = question(small(512 * MIB), load=Load(context_tokens=2048))
    result = judge(request)
    (change,) = changes(request, result)
    assert (change.kind, change.value) == (ChangeKind.CACHE, "q8_0")
    assert change.told.startswith("-ctk q8_0 -ctv q8_0 (8-bit cache): up to ")
    kept = Load(context_tokens=1024, cache_k=cache_type("f32"), cache_v=cache_type("f32"))
    settled = question(small(512 * MIB), load=kept)
    assert changes(settled, judge(settled)) == ()


def test_what_llama_cpp_cannot_hold_is_read_from_the_file() -> None:
    request = replace(question(cpu(4)), engine="llama.cpp")
    result = judge(request)
    assert result.failed
    answer = {change.value: change.told for change in changes(request, result)}
    assert answer["stream"].startswith("--engine stream: ")


def test_a_model_of_another_family_is_not_offered_it() -> None:
    request = replace(question(cpu(4), "gemma-2-9b"), engine="llama.cpp")
    assert "stream" not in {change.value for change in changes(request, judge(request))}


def test_a_plan_has_nothing_to_choose() -> None:
    with pytest.raises(UsageError, match=r"edgekit check .*edgekit run MODEL --engine stream"):
        check_planned("stream")
    check_planned("llama.cpp")


@settings(max_examples=8, deadline=None)
@given(one=st.integers(300, 30_000), other=st.integers(300, 30_000))
def test_more_memory_never_means_a_shorter_longest_context(one: int, other: int) -> None:
    less, more = sorted((one, other))
    results = [judge(question(small(size * MIB), "qwen3-0.6b")) for size in (less, more)]
    assert results[0].max_context <= results[1].max_context
    for result in results:
        held = result.required_bytes + result.tightest.budget.reserve_bytes
        assert result.failed or held < result.tightest.budget.total_bytes


def test_unified_memory_is_the_hosts_to_it() -> None:
    result = judge(question(replace(mac(36), host=host(36))))
    assert {pool for use in result.uses for pool in use.budget.pools} == {HOST}
