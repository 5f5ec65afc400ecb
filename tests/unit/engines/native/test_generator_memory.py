"""Every array of the StreamEngine is a line of its memory breakdown, to the byte."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.stream_sessions import FAMILIES, allocated_by, session, some_tokens, tiny
from tests.thoroughness import sampled
from tests.threads import running, started_since

from edgekit.bill.types import Component
from edgekit.engines.native.generator import StreamEngine, line_key
from edgekit.engines.native.stream_plan import StreamPlan, sampler_bytes
from edgekit.errors import MemoryPressureError
from edgekit.machine.monitor import Monitor
from edgekit.units import KIB


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny(folder, name, tied=name != "qwen3") for name in FAMILIES}


def billed_bytes(plan: StreamPlan) -> Counter[str]:
    """All lines except that of the sampler, which allocates for itself."""
    result: Counter[str] = Counter()
    for line in plan.lines:
        if line_key(line) != "sampler":
            result[line_key(line)] += line.size_bytes
    return +result


WINDOW_KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "rolling": {"rolling": True},
    "rolling with sinks": {"rolling": True, "sinks": 4},
}


@pytest.mark.parametrize(
    ("name", "cache", "window_kind", "chunk"),
    sampled(tuple(product(FAMILIES, ("f32", "f16", "q8_0"), WINDOW_KINDS, (1, 7, 64))), each=5),
)
def test_engine_arrays_equal_the_lines_of_the_plan(
    models: dict[str, Path], name: str, cache: str, window_kind: str, chunk: int
) -> None:
    with session(models[name], cache=cache, chunk=chunk, setup=WINDOW_KINDS[window_kind]) as engine:
        assert allocated_by(engine) == billed_bytes(engine.plan)
        assert engine.cache_bytes == sum(
            line.size_bytes
            for line in engine.plan.lines
            if line.component in {Component.KV_CACHE, Component.SLIDING_KV_CACHE}
        )
        engine.feed(some_tokens(20))
        assert _reachable_array_bytes(engine) == sum(allocated_by(engine).values())


def _reachable_array_bytes(engine: StreamEngine) -> int:
    """The size of all arrays that own their memory and are reachable from the engine."""
    import numpy as np

    result: dict[int, int] = {}
    seen: set[int] = set()
    todo: list[Any] = [engine]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            while item.base is not None and isinstance(item.base, np.ndarray):
                item = item.base
            result[id(item)] = item.nbytes
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
        elif type(item).__module__.startswith("edgekit"):
            slots = (name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()))
            todo += [getattr(item, name, None) for name in slots]
            todo += getattr(item, "__dict__", {}).values()
        elif type(item).__name__ == "Thread":  # holds the buffers of its worker
            todo.append(getattr(item, "_args", None))
    return sum(result.values())


@pytest.mark.parametrize("keep_bytes", [0, 30_000, None])
def test_engine_kept_weights_equal_the_lines_of_the_plan(
    models: dict[str, Path], keep_bytes: int | None
) -> None:
    for name in FAMILIES:
        with session(models[name], setup={"keep_bytes": keep_bytes}) as engine:
            assert allocated_by(engine) == billed_bytes(engine.plan)
            kept_bytes = allocated_by(engine).get("weights kept, layer 0", 0)
            assert (kept_bytes > 0) is (keep_bytes != 0)


def test_engine_sliding_layers_with_a_full_cache_equal_the_plan(models: dict[str, Path]) -> None:
    with session(models["gemma3"], full=True) as engine:
        assert engine.plan.cells == (64, 64, 64)
        assert allocated_by(engine) == billed_bytes(engine.plan)


def test_engine_cache_bytes_with_different_types_for_keys_and_values(
    models: dict[str, Path],
) -> None:
    with session(models["llama"], cache="q8_0", values="f16") as engine:
        # 2 key heads of 32 numbers: 2 blocks of 34 bytes, and 64 halves.
        assert allocated_by(engine)["cache, layer 1"] == 64 * (2 * 34 + 64 * 2)


def test_engine_reserves_and_releases_all_its_memory(models: dict[str, Path]) -> None:
    monitor = Monitor()
    with session(models["gemma3"], setup={"rolling": True, "sinks": 2}, monitor=monitor) as engine:
        assert monitor.reserved_bytes == engine.plan.total_bytes
        assert engine.plan.total_bytes - sum(allocated_by(engine).values()) == sampler_bytes(
            engine.vocabulary
        )
    assert monitor.reserved_bytes == 0


def test_engine_refuses_a_small_budget_before_it_allocates(
    models: dict[str, Path],
) -> None:
    with session(models["llama"]) as engine:
        total = engine.plan.total_bytes
    monitor = Monitor(budget_bytes=total)  # only 85 % of it may be used
    with pytest.raises(MemoryPressureError, match="tiles needs"):
        session(models["llama"], monitor=monitor)
    assert monitor.reserved_bytes == 0


def test_engine_allocation_that_fails_releases_everything(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = running()
    monitor = Monitor()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("edgekit.engines.native.generator.make_caches", fail)
    with pytest.raises(MemoryPressureError, match=r"could not allocate the planned"):
        session(models["llama"], monitor=monitor)
    assert (monitor.reserved_bytes, started_since(before)) == (0, 0)


def test_engine_step_allocates_almost_nothing(models: dict[str, Path]) -> None:
    """Fifty tokens in a rolling window: only views and small numbers.

    Up to twelve rounds: another test's thread or the interpreter's caches may allocate in some
    of them, but what a step itself keeps would show in all.
    """
    setup = {"rolling": True, "sinks": 2, "keep_bytes": 30_000}
    with session(models["gemma3"], window=32, setup=setup) as engine:
        engine.feed(some_tokens(40))
        _feed(engine, 10)  # allocate what is created on first use
        gc.collect()
        tracemalloc.start()
        try:
            rounds = [_round(engine)]
            while len(rounds) < 12 and not _is_small(*rounds[-1]):
                rounds.append(_round(engine))
        finally:
            tracemalloc.stop()
    assert _is_small(*rounds[-1]), rounds


def _is_small(median: int, largest: int, still_held: int) -> bool:
    """The largest step is one in which the monitor queries the system."""
    return median < 10 * KIB and largest < 64 * KIB and still_held < KIB


def _round(engine: StreamEngine) -> tuple[int, int, int]:
    """Of fifty steps: the median and the largest peak of a step, and what is still held after all of them."""
    tokens = some_tokens(50)
    peaks = array("q", bytes(8 * len(tokens)))
    before, _ = tracemalloc.get_traced_memory()
    for place, token in enumerate(tokens):
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        engine.feed((token,))
        peaks[place] = tracemalloc.get_traced_memory()[1] - held
    gc.collect()
    still_held = tracemalloc.get_traced_memory()[0] - before
    return sorted(peaks)[len(peaks) // 2], max(peaks), still_held


def _feed(engine: StreamEngine, count: int) -> None:
    for token in some_tokens(count):
        engine.feed((token,))
