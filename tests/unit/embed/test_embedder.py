"""Embedder: vectors, errors, options, concurrent callers and event loops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from tests.embed_models import write_model
from tests.patience import PATIENCE_S, wait_until

from edgekit.embed import (
    Embedder,
    Limits,
    Mode,
    Pooling,
    open_embedder,
    plan_embedder,
)
from edgekit.embed.types import prefixes_of
from edgekit.errors import (
    CancelledError,
    DeadlineError,
    MemoryPressureError,
    TextError,
    UsageError,
)
from edgekit.machine import monitor

TEXTS = ["the cat sat on the mat", "a dog", "numbers 1 2 3 and more of them", "the cat sat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("m") / "nomic.gguf", "nomic-bert", pooling="mean")


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose passes take long enough to be cancelled."""
    return write_model(
        tmp_path_factory.mktemp("m") / "slow.gguf",
        "qwen2",
        pooling="last",
        kind="Q4_K",
        layers=2,
        width=1024,
        inner=2048,
        heads=16,
        kv_heads=16,
        context_tokens=512,
    )


@pytest.fixture(scope="module")
def embedder(model: Path) -> Iterator[Embedder]:
    with open_embedder(model, memory_budget="64M") as opened:
        yield opened


@pytest.fixture
def slow_embedder(slow_model: Path) -> Iterator[Embedder]:
    with open_embedder(slow_model, memory_budget="96M", batch_tokens=256) as opened:
        yield opened


LONG_TEXTS = ["word " * 150] * 5


@contextmanager
def running_call(
    embedder: Embedder, texts: Sequence[str] = LONG_TEXTS
) -> Iterator[Future[NDArray[np.float32]]]:
    """A call in another thread, which has begun to embed; at the end it is cancelled."""
    cancel, begun = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(embedder.embed, texts, cancel=cancel, progress=lambda _: begun.set())
        try:
            assert begun.wait(PATIENCE_S)
            yield call
        finally:
            cancel.set()
        with pytest.raises(CancelledError):
            call.result()


def test_embed_vectors_have_length_one(embedder: Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (4, 256) == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_embed_of_a_single_text(embedder: Embedder) -> None:
    assert np.array_equal(embedder.embed(TEXTS[0])[0], embedder.embed(TEXTS[:1])[0])


def test_embed_without_texts(embedder: Embedder) -> None:
    assert embedder.embed([]).shape == (0, 256)


def test_embed_is_independent_of_other_texts(embedder: Embedder) -> None:
    together = embedder.embed(TEXTS)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    # Sums over few and many tokens are added in another order.
    assert np.allclose(together, alone, atol=2e-6)


def test_embed_tokens_equals_embed(embedder: Embedder) -> None:
    tokens = embedder.tokens(TEXTS[0])
    assert np.array_equal(embedder.embed_tokens([tokens]), embedder.embed(TEXTS[:1]))
    assert embedder.count_tokens(TEXTS[0]) == len(tokens)


def test_embed_with_a_prefix(embedder: Embedder) -> None:
    assert np.array_equal(embedder.embed(["cat"], prefix="the "), embedder.embed(["the cat"]))


def test_embed_with_fewer_dimensions_keeps_the_first_and_normalizes(
    model: Path, embedder: Embedder
) -> None:
    with open_embedder(model, dimensions=64) as short:
        vectors = short.embed(TEXTS)
    first = embedder.embed(TEXTS)[:, :64]
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    assert np.allclose(vectors, first, atol=1e-6)


def test_embed_without_normalize(model: Path, embedder: Embedder) -> None:
    with open_embedder(model, normalize=False) as raw:
        vectors = raw.embed(TEXTS)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert not np.allclose(lengths, 1, atol=0.01)
    assert np.allclose(vectors / lengths, embedder.embed(TEXTS), atol=1e-6)


def test_open_embedder_in_token_mode(model: Path) -> None:
    with open_embedder(model, mode="tokens", memory_budget="32M") as opened:
        tokens = opened.tokens("a dog")
        assert opened.plan.mode is Mode.TOKENS
        rows = np.concatenate([opened.embed_tokens([[token]]) for token in tokens])
        assert opened.embed(["a dog"]).shape == rows[:1].shape


def test_open_embedder_with_another_pooling(model: Path, embedder: Embedder) -> None:
    with open_embedder(model, pooling=Pooling.CLS) as opened:
        assert opened.plan.pooling is Pooling.CLS
        assert not np.allclose(opened.embed(TEXTS), embedder.embed(TEXTS), atol=1e-3)


# --- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text 1: it is empty"),
        (" \n\t", "text 1: it is empty"),
        ("word " * 600, "text 1: .*more than 512 tokens"),
        ("x" * 10_000_000, "text 1: 10,000,000 characters; the limit is 4,000,000"),
        ("half \ud800 a character", "text 1: .*half"),
        (7, "text 1: it is of type int, not a string"),
        (None, "text 1: it is of type NoneType, not a string"),
    ],
    ids=["empty", "blank", "long", "huge", "surrogate", "number", "none"],
)
def test_embed_names_the_bad_text(embedder: Embedder, text: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        embedder.embed(["fine", text, "fine too"])
    assert caught.value.index == 1
    assert embedder.embed(["fine"]).shape == (1, 256)


def test_truncate_keeps_the_end_token(model: Path) -> None:
    with open_embedder(model, truncate=True, limits=Limits(tokens=16)) as opened:
        tokens = opened.tokens("word " * 600)
        one_word = opened.tokens("word")
        assert len(tokens) == 16
        assert (tokens[0], tokens[-1]) == (one_word[0], one_word[-1])
        assert opened.embed(["x" * 5_000_000 + " end"]).shape == (1, 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 257}, "for this model .got 257"),
        ({"dimensions": -1}, "for this model .got"),
        ({"mode": "magic"}, "unknown mode 'magic': choose tokens or encoder"),
        ({"pooling": "max"}, "unknown pooling 'max': choose mean or cls or last"),
        ({"engine": "torch"}, "unknown engine 'torch'"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"dimensions": 0}, "for this model .got 0"),
        ({"dimensions": 2.5}, "dimensions must be int"),
        ({"memory_budget": True}, "memory_budget must be int or str .got 'True'"),
        ({"memory_budget": 6.4e7}, "memory_budget must be int or str"),
        ({"memory_buget": "64M"}, "unknown option 'memory_buget': did you mean memory_budget"),
        ({"normalize": "no"}, "normalize must be bool"),
        ({"batch_tokens": -1}, "batch_tokens must be at least 1"),
        ({"mode": "tokens", "pooling": "mean"}, "does not take an engine or a pooling"),
    ],
)
def test_open_embedder_refuses_invalid_options(
    model: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_embedder(model, **options)  # type: ignore[arg-type] # wrong on purpose


def test_open_embedder_names_the_least_budget_that_works(model: Path) -> None:
    with pytest.raises(MemoryPressureError, match="at least") as caught:
        open_embedder(model, memory_budget="1M", tokenizer=False)
    floor = str(caught.value).partition("at least ")[2].split(" with")[0].replace(" ", "")
    with open_embedder(model, memory_budget=floor, tokenizer=False) as opened:
        assert opened.embed_tokens([[1, 2, 3]]).shape == (1, 256)


def test_embed_refuses_more_vectors_than_the_budget(embedder: Embedder) -> None:
    with pytest.raises(MemoryPressureError, match="100,000 vectors"):
        embedder.embed(["a"] * 100_000)
    assert embedder.embed(["a"]).shape == (1, 256)


def test_embed_calls_wait_for_memory(model: Path) -> None:
    """The vectors of all calls together are larger than the budget."""
    with open_embedder(model, memory_budget="41M") as opened:
        largest_count = (opened.monitor.usable_bytes or 0) // (256 * 4)
        count = largest_count // 3
        assert 1 < count < 1000  # few vectors fit, because the model takes most of the budget

        async def run() -> list[np.ndarray]:
            return await asyncio.gather(*(opened.aembed(["a"] * count) for _ in range(4)))

        assert [item.shape for item in asyncio.run(run())] == [(count, 256)] * 4


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf"), "1", True])
def test_embed_refuses_a_deadline_that_is_not_a_number(
    embedder: Embedder, deadline_s: float
) -> None:
    with pytest.raises(UsageError, match="must be a number of seconds"):
        embedder.embed(["a"], deadline_s=deadline_s)


def test_embed_tokens_accepts_arrays(embedder: Embedder) -> None:
    tokens = np.array(embedder.tokens(TEXTS[0]))
    result = embedder.embed_tokens([tokens])  # type: ignore[list-item] # arrays work too
    assert np.allclose(result, embedder.embed(TEXTS[:1]), atol=2e-6)


def test_prefix_of_an_unknown_model_is_an_error(embedder: Embedder) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        embedder.prefix("query")


def test_prefix_of_a_known_model(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "n.gguf",
        "nomic-bert",
        pooling="mean",
        keys={"general.name": "nomic-embed-text-v1.5"},
    )
    with open_embedder(path) as opened:
        assert opened.prefix("query") == "search_query: "
        assert opened.prefix("document") == "search_document: "


@pytest.mark.parametrize(
    ("names", "query", "document"),
    [
        (("Nomic Embed Text v1.5", "nomic-embed-text"), "search_query: ", "search_document: "),
        (("Snowflake Arctic Embed L v2.0", "snowflake-arctic-embed-l"), "query: ", ""),
        (
            ("Snowflake Arctic Embed M", "snowflake-arctic-embed"),
            "Represent this sentence for searching relevant passages: ",
            "",
        ),
        (
            ("Multilingual E5 Large Instruct", "multilingual-e5"),
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",
            "",
        ),
        (("E5 Base v2", "e5"), "query: ", "passage: "),
        (("All MiniLM L6 v2", "all-MiniLM"), "", ""),
    ],
)
def test_prefixes_of_names_that_converters_write(
    names: tuple[str, str], query: str, document: str
) -> None:
    keys = dict(zip(("general.name", "general.basename"), names, strict=True))
    assert prefixes_of(keys) == (query, document)


OPEN_AT_LEAST_BUDGET = """
import re, sys
from edgekit.embed import open_embedder
from edgekit.errors import MemoryPressureError
try:
    open_embedder(sys.argv[1], memory_budget="1M", own_process=True)
except MemoryPressureError as error:
    floor = re.search("at least ([0-9.]+) MiB", str(error))[1] + "M"
with open_embedder(sys.argv[1], memory_budget=floor, own_process=True) as embedder:
    print(embedder.embed(["a text"]).shape)
"""


def test_open_embedder_in_its_own_process_with_the_least_budget(model: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", OPEN_AT_LEAST_BUDGET, str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, "(1, 256)\n"), process.stderr


def test_embedder_has_the_plan_of_plan_embedder_and_stays_within_it(model: Path) -> None:
    plan = plan_embedder(model, memory_budget="64M")
    with open_embedder(model, memory_budget="64M") as opened:
        assert opened.plan == plan
        opened.embed(TEXTS)
        assert opened.monitor.peak_reserved_bytes <= max(
            plan.total_bytes, plan.budget_bytes * 85 // 100
        )
    assert opened.monitor.reserved_bytes == 0


# --- concurrent callers


def test_embed_from_several_threads_returns_each_callers_vectors(embedder: Embedder) -> None:
    texts = [f"text number {number} of forty" for number in range(40)]
    expected = embedder.embed(texts)
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda text: embedder.embed([text])[0], texts))
    assert np.allclose(np.stack(result), expected, atol=2e-6)


def test_embed_error_does_not_affect_other_calls(embedder: Embedder) -> None:
    expected = embedder.embed(["good"])

    def call(number: int) -> bool:
        if number % 3:
            return np.allclose(embedder.embed(["good"]), expected, atol=2e-6)
        with pytest.raises(TextError):
            embedder.embed(["good", ""])
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(30)))


def test_embed_progress_rises_to_one(embedder: Embedder) -> None:
    shares: list[float] = []
    embedder.embed(TEXTS * 50, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_embed_error_in_progress_ends_the_call(embedder: Embedder) -> None:
    def fail(share: float) -> None:
        raise RuntimeError(f"at {share >= 0}")

    with pytest.raises(RuntimeError, match="at True"):
        embedder.embed(TEXTS, progress=fail)
    assert embedder.embed(["fine"]).shape == (1, 256)


def test_embed_cancel_ends_the_call(slow_embedder: Embedder) -> None:
    with running_call(slow_embedder):
        pass
    assert slow_embedder.embed(["still here"]).shape == (1, 1024)


def test_embed_deadline_ends_the_call(slow_embedder: Embedder) -> None:
    with pytest.raises(DeadlineError):
        slow_embedder.embed(LONG_TEXTS, deadline_s=0.05)


def test_embed_deadline_ends_a_call_that_waits_for_another(slow_embedder: Embedder) -> None:
    with running_call(slow_embedder), pytest.raises(DeadlineError):
        slow_embedder.embed(["short"], deadline_s=0.05)


def test_embedder_close_ends_running_calls(slow_model: Path) -> None:
    opened = open_embedder(slow_model, memory_budget="96M", batch_tokens=256)
    begun = threading.Event()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            opened.embed(LONG_TEXTS, progress=lambda _: begun.set())
        except CancelledError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(PATIENCE_S)
    opened.close()
    thread.join(PATIENCE_S)
    assert failed
    opened.close()
    with pytest.raises(CancelledError, match="closed"):
        opened.embed(["more"])


# --- event loops


def test_aembed_equals_embed(embedder: Embedder) -> None:
    async def both() -> list[np.ndarray]:
        return await asyncio.gather(*(embedder.aembed([text]) for text in TEXTS))

    result = asyncio.run(both())
    assert np.allclose(np.concatenate(result), embedder.embed(TEXTS), atol=2e-6)


def test_aembed_cancelled_stops_the_work(slow_embedder: Embedder) -> None:
    async def run() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(slow_embedder.aembed(LONG_TEXTS, progress=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await slow_embedder.aembed(["next"])  # the cancelled pass has released its memory

    asyncio.run(run())


def test_aembed_errors_and_deadlines(embedder: Embedder, slow_embedder: Embedder) -> None:
    async def run() -> None:
        with pytest.raises(TextError):
            await embedder.aembed(["", "a"])
        with pytest.raises(DeadlineError):
            await slow_embedder.aembed(LONG_TEXTS, deadline_s=0.05)
        async with slow_embedder:
            pass

    asyncio.run(run())


def test_aembed_does_not_block_the_event_loop(slow_embedder: Embedder) -> None:
    """The loop runs while texts are embedded; how promptly is measured in benchmarks/."""

    async def run() -> int:
        ticks = 0
        task = asyncio.create_task(slow_embedder.aembed(LONG_TEXTS[:1]))
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await task
        return ticks

    assert asyncio.run(run()) > 3


# --- difficult callers


def test_embed_bad_tokens_do_not_affect_other_callers(slow_embedder: Embedder) -> None:
    """All calls wait for the same pass: a long call holds it up until the others are in the queue."""

    def bad_call(tokens: object) -> str:
        with pytest.raises(TextError) as caught:
            slow_embedder.embed_tokens([[1, 2], tokens])  # type: ignore[list-item] # wrong on purpose
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        with running_call(slow_embedder):
            good = pool.submit(slow_embedder.embed, ["a good text"])
            broken = [pool.submit(bad_call, tokens) for tokens in ([10**9], ["a"])]
            time.sleep(0.1)
        assert good.result().shape == (1, 1024)
        assert all(item.result().startswith("text 1: ") for item in broken)


def test_embed_small_call_does_not_wait_for_a_large_one(slow_embedder: Embedder) -> None:
    with running_call(slow_embedder, LONG_TEXTS * 4) as large_call:
        assert slow_embedder.embed(["short"]).shape == (1, 1024)
        assert not large_call.done()


def test_embed_accepts_any_iterable(embedder: Embedder) -> None:
    assert np.allclose(embedder.embed(text for text in TEXTS), embedder.embed(TEXTS), atol=2e-6)


def test_embed_progress_may_close_but_not_embed(model: Path) -> None:
    opened = open_embedder(model, memory_budget="64M")
    with pytest.raises(UsageError, match="cannot embed anything itself"):
        opened.embed(TEXTS, progress=lambda _: opened.embed("x"))  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(CancelledError):
        opened.embed(TEXTS, progress=lambda _: opened.close())
    wait_until(lambda: opened.monitor.reserved_bytes == 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_embed_in_a_forked_child_is_refused(model: Path) -> None:
    code = """
import os, sys
from edgekit.embed import open_embedder
from edgekit.errors import UsageError
with open_embedder(sys.argv[1], memory_budget="64M") as embedder:
    embedder.embed("warm")
    child = os.fork()
    if not child:
        try:
            embedder.embed("a")
        except UsageError as error:
            os._exit("forked" in str(error))
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), embedder.embed("b").shape)
"""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert process.stdout == "1 (1, 256)\n", process.stderr


def test_embed_is_an_error_if_no_thread_can_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_embedder(model, memory_budget="64M", threads=1) as opened:
        reserved_bytes = opened.monitor.reserved_bytes
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(MemoryPressureError, match="cannot start another thread"):
                opened.embed(["a"])
        assert opened.monitor.reserved_bytes == reserved_bytes
        assert opened.embed(["a"]).shape == (1, 256)


def test_aembed_small_calls_rarely_query_the_system_memory(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is slow, so the event loop's thread makes it at most once for a hundred calls."""
    query_threads: list[int] = []
    real = psutil.virtual_memory

    def counted() -> Any:
        query_threads.append(threading.get_ident())
        return real()

    monkeypatch.setattr(psutil, "virtual_memory", counted)
    clock = time.monotonic()
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: clock))

    async def run() -> None:
        tasks = [asyncio.create_task(embedder.aembed(["a"])) for _ in range(100)]
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert query_threads.count(threading.get_ident()) <= 1
