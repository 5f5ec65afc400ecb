"""Results cached with a model: made once, bounded, and freed with it."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest
from tests.recorded import engine_models

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.estimate import estimate
from edgekit.engines.llamacpp.graph.plan import PreparedGraphs
from edgekit.engines.llamacpp.prepared import LlamaCppPrepared, prepare
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.mlx.prepared import MlxPrepared
from edgekit.engines.vllm.prepared import VllmPrepared
from edgekit.model.types import MOST_RESULTS, Cached, CachedBy, Model


def new_model() -> Model:
    result = engine_models()["qwen3-0.6b", "Q8_0"]
    return Model(header=result.header, geometry=result.geometry)


def fail() -> int:
    raise ValueError


def test_cached_makes_its_result_once_even_if_it_is_none() -> None:
    cached: Cached[int | None] = Cached()
    assert cached.get(lambda: None) is None
    assert cached.get(lambda: 1) is None


def test_cached_by_makes_one_result_per_key() -> None:
    cached: CachedBy[str, int | None] = CachedBy()
    assert cached.get("a", lambda: None) is None
    assert cached.get("a", lambda: 1) is None
    assert cached.get("b", lambda: 2) == 2
    assert len(cached) == 2


def test_cached_does_not_store_a_failure() -> None:
    cached: Cached[int] = Cached()
    cached_by: CachedBy[str, int] = CachedBy()
    with pytest.raises(ValueError):
        cached.get(fail)
    with pytest.raises(ValueError):
        cached_by.get("a", fail)
    assert (cached.get(lambda: 1), cached_by.get("a", lambda: 1)) == (1, 1)


def test_cached_by_is_bounded_and_drops_the_oldest() -> None:
    cached: CachedBy[int, int] = CachedBy()
    for key in range(MOST_RESULTS + 1):
        cached.get(key, partial(int, key))
    assert len(cached) == MOST_RESULTS
    assert cached.get(1, lambda: -1) == 1
    assert cached.get(0, lambda: -1) == -1


def test_cached_by_is_safe_with_several_threads() -> None:
    cached: CachedBy[int, int] = CachedBy()
    start = threading.Barrier(4)
    wrong: list[int] = []

    def read_keys() -> None:
        start.wait()
        for turn in range(4 * MOST_RESULTS):
            key = turn * 7 % (2 * MOST_RESULTS)
            if cached.get(key, partial(int, key)) != key:
                wrong.append(key)

    threads = [threading.Thread(target=read_keys) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cached) <= MOST_RESULTS + len(threads)


def test_model_has_one_prepared_object_per_class() -> None:
    first, second = new_model(), new_model()
    kinds = (LlamaCppPrepared, MlxPrepared, VllmPrepared)
    prepared = [first.prepared(kind) for kind in kinds]
    assert [type(result) for result in prepared] == list(kinds)
    assert [first.prepared(kind) for kind in kinds] == prepared
    assert all(second.prepared(kind) not in prepared for kind in kinds)


def test_forget_frees_prepared_objects() -> None:
    model = new_model()
    bill = estimate(model, Load(context_tokens=4096), LlamaCppSetup())
    freed = weakref.ref(prepare(model))
    assert len(model.prepared(PreparedGraphs).plans) == 1
    model.forget()
    gc.collect()
    assert freed() is None
    assert len(model.prepared(PreparedGraphs).plans) == 0
    assert estimate(model, Load(context_tokens=4096), LlamaCppSetup()) == bill


def test_prepared_objects_are_freed_with_the_model() -> None:
    model = new_model()
    estimate(model, Load(context_tokens=4096), LlamaCppSetup())
    freed = weakref.ref(model.prepared(LlamaCppPrepared))
    del model
    gc.collect()
    assert freed() is None
