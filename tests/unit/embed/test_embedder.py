"""One embedder: its answers, its refusals, and many callers at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
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
    """Its passes take long enough to be called off."""
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
def slow(slow_model: Path) -> Iterator[Embedder]:
    with open_embedder(slow_model, memory_budget="96M", batch_tokens=256) as opened:
        yield opened


LONG = ["word " * 150] * 5


def test_vectors_have_length_one(embedder: Embedder) -> None:
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
    assert np.allclose(
        together, alone, atol=2e-6
    )  # few tokens and many are added up in another order


def test_embed_tokens_equals_embed(embedder: Embedder) -> None:
    tokens = embedder.tokens(TEXTS[0])
    assert np.array_equal(embedder.embed_tokens([tokens]), embedder.embed(TEXTS[:1]))
    assert embedder.count_tokens(TEXTS[0]) == len(tokens)


def test_embed_with_a_prefix(embedder: Embedder) -> None:
    assert np.array_equal(embedder.embed(["cat"], prefix="the "), embedder.embed(["the cat"]))


def test_fewer_dimensions_are_the_first_of_all_and_scaled_again(
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


def test_mean_of_token_rows(model: Path) -> None:
    with open_embedder(model, mode="tokens", memory_budget="32M") as opened:
        tokens = opened.tokens("a dog")
        assert opened.plan.mode is Mode.TOKENS
        rows = np.concatenate([opened.embed_tokens([[token]]) for token in tokens])
        assert opened.embed(["a dog"]).shape == rows[:1].shape


def test_pooling_may_be_chosen(model: Path, embedder: Embedder) -> None:
    with open_embedder(model, pooling=Pooling.CLS) as opened:
        assert opened.plan.pooling is Pooling.CLS
        assert not np.allclose(opened.embed(TEXTS), embedder.embed(TEXTS), atol=1e-3)


# --- what is refused


@pytest.mark.parametrize(
    ("text", "why"),
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
def test_embed_names_the_bad_text(embedder: Embedder, text: str, why: str) -> None:
    with pytest.raises(TextError, match=why) as caught:
        embedder.embed(["fine", text, "fine too"])
    assert caught.value.index == 1
    assert embedder.embed(["fine"]).shape == (1, 256)


def test_truncate_cuts_and_keeps_the_end_token(model: Path) -> None:
    with open_embedder(model, truncate=True, limits=Limits(tokens=16)) as opened:
        tokens = opened.tokens("word " * 600)
        whole = opened.tokens("word")
        assert len(tokens) == 16
        assert (tokens[0], tokens[-1]) == (whole[0], whole[-1])
        assert opened.embed(["x" * 5_000_000 + " end"]).shape == (1, 256)


@pytest.mark.parametrize(
    ("choices", "why"),
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
    model: Path, choices: dict[str, object], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        open_embedder(model, **choices)  # type: ignore[arg-type] # that is the point


def test_a_budget_below_the_floor_names_the_floor(model: Path) -> None:
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
    """All answers together are more than the budget holds at once."""
    with open_embedder(model, memory_budget="41M") as opened:
        most = (opened.monitor.usable_bytes or 0) // (256 * 4)
        count = most // 3
        assert 1 < count < 1000  # little room is left beside the model: few texts fill it

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
    result = embedder.embed_tokens([tokens])  # type: ignore[list-item] # works all the same
    assert np.allclose(result, embedder.embed(TEXTS[:1]), atol=2e-6)


def test_prefixes_of_an_unknown_model(embedder: Embedder) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        embedder.prefix("query")


def test_prefixes_of_a_known_model(tmp_path: Path) -> None:
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
def test_prefixes_by_names_from_converters(
    names: tuple[str, str], query: str, document: str
) -> None:
    keys = dict(zip(("general.name", "general.basename"), names, strict=True))
    assert prefixes_of(keys) == (query, document)


OPENED_AT_ITS_FLOOR = """
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


def test_open_embedder_with_the_least_budget_of_the_message(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENED_AT_ITS_FLOOR, str(model)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(1, 256)\n"), done.stderr


def test_the_plan_is_what_is_reserved(model: Path) -> None:
    plan = plan_embedder(model, memory_budget="64M")
    with open_embedder(model, memory_budget="64M") as opened:
        assert opened.plan == plan
        opened.embed(TEXTS)
        assert opened.monitor.peak_reserved_bytes <= max(
            plan.total_bytes, plan.budget_bytes * 85 // 100
        )
    assert opened.monitor.reserved_bytes == 0


# --- many callers


def test_callers_share_passes_and_get_their_own(embedder: Embedder) -> None:
    texts = [f"text number {number} of the lot" for number in range(40)]
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


def test_progress_goes_up_to_one(embedder: Embedder) -> None:
    messages: list[float] = []
    embedder.embed(TEXTS * 50, progress=messages.append)
    assert messages == sorted(messages)
    assert messages[-1] == 1.0


def test_progress_that_fails_ends_the_call(embedder: Embedder) -> None:
    def fail(share: float) -> None:
        raise RuntimeError(f"at {share >= 0}")

    with pytest.raises(RuntimeError, match="at True"):
        embedder.embed(TEXTS, progress=fail)
    assert embedder.embed(["fine"]).shape == (1, 256)


def test_a_cancelled_call_ends_between_tiles(slow: Embedder) -> None:
    cancel, begun = threading.Event(), threading.Event()
    ended: list[bool] = []

    def call() -> None:
        with pytest.raises(CancelledError):
            slow.embed(LONG, cancel=cancel, progress=lambda _: begun.set())
        ended.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(PATIENCE_S)
    cancel.set()
    thread.join()
    assert ended
    assert slow.embed(["still here"]).shape == (1, 1024)


def test_a_deadline_ends_the_call(slow: Embedder) -> None:
    with pytest.raises(DeadlineError):
        slow.embed(LONG, deadline_s=0.05)


def test_a_deadline_counts_while_waiting_in_line(slow: Embedder) -> None:
    begun, cancel = threading.Event(), threading.Event()

    def call() -> None:
        with pytest.raises(CancelledError):
            slow.embed(LONG, cancel=cancel, progress=lambda _: begun.set())

    first = threading.Thread(target=call)
    first.start()
    assert begun.wait(PATIENCE_S)
    with pytest.raises(DeadlineError):
        slow.embed(["short"], deadline_s=0.05)
    cancel.set()
    first.join()


def test_close_ends_running_calls(slow_model: Path) -> None:
    opened = open_embedder(slow_model, memory_budget="96M", batch_tokens=256)
    begun = threading.Event()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            opened.embed(LONG, progress=lambda _: begun.set())
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


def test_aembed_cancelled_stops_the_work(slow: Embedder) -> None:
    async def run() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(slow.aembed(LONG, progress=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await slow.aembed(["next"])  # the pass that nobody waits for has made room

    asyncio.run(run())


def test_aembed_errors_and_deadlines(embedder: Embedder, slow: Embedder) -> None:
    async def run() -> None:
        with pytest.raises(TextError):
            await embedder.aembed(["", "a"])
        with pytest.raises(DeadlineError):
            await slow.aembed(LONG, deadline_s=0.05)
        async with slow:
            pass

    asyncio.run(run())


def test_aembed_does_not_block_the_loop(slow: Embedder) -> None:
    """It goes round while texts are embedded; p99 below 50 ms is a figure of benchmarks/."""

    async def run() -> int:
        ticks = 0
        task = asyncio.create_task(slow.aembed(LONG[:1]))
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await task
        return ticks

    assert asyncio.run(run()) > 3


# --- callers that make it hard


def test_aembed_bad_input_does_not_affect_other_callers(slow: Embedder) -> None:
    """All wait for the same pass: the first call holds it up until the others are in line."""
    cancel, begun = threading.Event(), threading.Event()

    def hold() -> None:
        with pytest.raises(CancelledError):
            slow.embed(LONG, cancel=cancel, progress=lambda _: begun.set())

    def bad(tokens: object) -> str:
        with pytest.raises(TextError) as caught:
            slow.embed_tokens([[1, 2], tokens])  # type: ignore[list-item] # that is the point
        return str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        pool.submit(hold)
        assert begun.wait(PATIENCE_S)
        good = pool.submit(slow.embed, ["a good one"])
        broken = [pool.submit(bad, tokens) for tokens in ([10**9], ["a"])]
        time.sleep(0.1)
        cancel.set()
        assert good.result().shape == (1, 1024)
        assert all(item.result().startswith("text 1: ") for item in broken)


def test_a_small_call_does_not_wait_for_a_large_one(slow: Embedder) -> None:
    begun, cancel = threading.Event(), threading.Event()

    def large() -> None:
        with pytest.raises(CancelledError):
            slow.embed(LONG * 4, cancel=cancel, progress=lambda _: begun.set())

    thread = threading.Thread(target=large)
    thread.start()
    assert begun.wait(PATIENCE_S)
    assert slow.embed(["short"]).shape == (1, 1024)
    assert thread.is_alive()
    cancel.set()
    thread.join()


def test_embed_accepts_any_iterable(embedder: Embedder) -> None:
    assert np.allclose(embedder.embed(text for text in TEXTS), embedder.embed(TEXTS), atol=2e-6)


def test_progress_may_close_but_not_embed(model: Path) -> None:
    opened = open_embedder(model, memory_budget="64M")
    with pytest.raises(UsageError, match="cannot embed anything itself"):
        opened.embed(TEXTS, progress=lambda _: opened.embed("x"))  # type: ignore[arg-type] # rude
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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(model)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stdout == "1 (1, 256)\n", done.stderr


def test_embed_when_no_thread_can_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with open_embedder(model, memory_budget="64M", threads=1) as opened:
        held = opened.monitor.reserved_bytes
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(MemoryPressureError, match="cannot start another thread"):
                opened.embed(["a"])
        assert opened.monitor.reserved_bytes == held
        assert opened.embed(["a"]).shape == (1, 256)


def test_aembed_many_small_calls_do_not_block_the_loop(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the machine, which takes long to ask for, is not measured for each of them."""
    measured: list[int] = []
    real = psutil.virtual_memory

    def counted() -> Any:
        measured.append(threading.get_ident())
        return real()

    monkeypatch.setattr(psutil, "virtual_memory", counted)
    clock = time.monotonic()
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: clock))

    async def run() -> None:
        tasks = [asyncio.create_task(embedder.aembed(["a"])) for _ in range(100)]
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert measured.count(threading.get_ident()) <= 1
