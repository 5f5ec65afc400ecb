"""StreamEngine: its logits, what it refuses, and how it is interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.embed_models import write_model
from tests.reference_model import ReferenceSession
from tests.stream_sessions import FAMILIES, session, some_tokens, steps, tiny
from tests.threads import running, started_since

from edgekit.engines.native.generator import StreamEngine, deferred_interrupts
from edgekit.engines.native.kernels import KERNELS, choose_kernels
from edgekit.errors import (
    CancelledError,
    ContextTooLargeError,
    SourceError,
    TextError,
    UnknownArchitectureError,
    UsageError,
    WeightsError,
)

TOKENS = some_tokens(40)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: tiny(folder, name, tied=name != "qwen2") for name in FAMILIES}


# --- logits


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", FAMILIES)
def test_engine_logits_equal_the_reference_model(
    models: dict[str, Path], name: str, kernels: str
) -> None:
    """gemma3's first layers have a window of 8 tokens, which ends inside the prompt and after it."""
    with session(models[name], kernels=choose_kernels(kernels)) as engine:
        actual = steps(engine, TOKENS, prompt=20)
    expected = ReferenceSession(models[name], window=64).logits(TOKENS)[19:]
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("name", FAMILIES)
def test_engine_logits_do_not_depend_on_the_chunk_size(
    models: dict[str, Path], name: str, cache: str
) -> None:
    """Also with a packed cache: tokens of one chunk see each other's keys and values packed.

    Sums in another order may round to the neighbouring code, so a third of the packing error is allowed.
    """
    results = []
    for kind, chunk in (("f32", 1), ("f32", 3), ("f32", 64), (cache, 1), (cache, 3), (cache, 64)):
        with session(models[name], cache=kind, chunk=chunk) as engine:
            results.append(engine.feed(TOKENS).copy())
    exact, *chunked, packed, packed_by_3, packed_by_64 = results
    for logits in chunked:
        np.testing.assert_allclose(logits, exact, atol=2e-5)
    packing_error = np.abs(packed - exact).mean()
    assert np.abs(packed_by_3 - packed).mean() < packing_error / 3
    assert np.abs(packed_by_64 - packed).mean() < packing_error / 3


@pytest.mark.parametrize(("cache", "tolerance"), [("f16", 0.01), ("q8_0", 0.1)])
def test_engine_logits_with_a_packed_cache_are_close(
    models: dict[str, Path], cache: str, tolerance: float
) -> None:
    with session(models["llama"]) as engine:
        exact = engine.feed(TOKENS).copy()
    with session(models["llama"], cache=cache) as engine:
        packed = engine.feed(TOKENS)
    assert 0 < np.abs(packed - exact).max() < tolerance


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("keep_bytes", [0, 100_000, None])
def test_engine_logits_do_not_depend_on_threads_or_kept_weights(
    models: dict[str, Path], threads: int, keep_bytes: int | None
) -> None:
    with session(models["qwen3"]) as engine:
        expected = engine.feed(TOKENS).copy()
    setup = {"threads": threads, "keep_bytes": keep_bytes}
    with session(models["qwen3"], setup=setup) as engine:
        np.testing.assert_allclose(engine.feed(TOKENS), expected, atol=1e-5)


def test_engine_sliding_layers_with_spare_cells_see_only_their_window(
    models: dict[str, Path],
) -> None:
    with session(models["gemma3"]) as engine:
        expected = engine.feed(TOKENS).copy()
    with session(models["gemma3"], full=True) as engine:
        np.testing.assert_allclose(engine.feed(TOKENS), expected, atol=1e-5)


def test_engine_reset_forgets_everything(models: dict[str, Path]) -> None:
    with session(models["llama"]) as engine:
        first = engine.feed(TOKENS[:9]).copy()
        engine.feed(TOKENS)
        engine.reset()
        assert engine.position == 0
        assert np.array_equal(engine.feed(TOKENS[:9]), first)
        assert engine.position == 9


# --- refusals


def test_feed_refuses_more_tokens_than_the_window(models: dict[str, Path]) -> None:
    with session(models["llama"], window=16) as engine:
        with pytest.raises(ContextTooLargeError, match=r"17 tokens .* context of 16: .* of 17"):
            engine.feed(TOKENS[:17])
        assert engine.position == 0
        engine.feed(TOKENS[:10])
        with pytest.raises(ContextTooLargeError, match=r"16 \(10 are in use"):
            engine.feed(TOKENS[:7])
        assert engine.room_tokens == 6
        engine.feed(TOKENS[:6])
        assert engine.room_tokens == 0


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**70, "5", 1.5, None])
def test_feed_refuses_invalid_tokens(models: dict[str, Path], wrong: object) -> None:
    with session(models["llama"]) as engine:
        with pytest.raises(TextError, match="is not one of the model's"):
            engine.feed([5, wrong])  # type: ignore[list-item] # wrong on purpose
        with pytest.raises(TextError, match="no tokens"):
            engine.feed([])
        assert engine.position == 0


def test_open_stream_refuses_an_embedding_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert.gguf", "bert")
    with pytest.raises(
        UnknownArchitectureError, match="generates with qwen2, qwen3, llama, gemma3"
    ):
        session(path)


def test_feed_refuses_a_second_thread(models: dict[str, Path]) -> None:
    inside, resume = threading.Event(), threading.Event()

    def wait(_share: float) -> None:
        inside.set()
        resume.wait(10)

    with session(models["llama"]) as engine:
        thread = threading.Thread(target=engine.feed, args=(TOKENS, wait))
        thread.start()
        assert inside.wait(10)
        with pytest.raises(UsageError, match="one text at a time"):
            engine.feed(TOKENS)
        resume.set()
        thread.join(10)
        assert engine.position == len(TOKENS)


@pytest.mark.parametrize("call", [StreamEngine.reset, StreamEngine.close])
def test_checkpoint_cannot_call_its_own_engine(
    models: dict[str, Path], call: Callable[[StreamEngine], None]
) -> None:
    with (
        session(models["llama"]) as engine,
        pytest.raises(UsageError, match="from inside its own callback"),
    ):
        engine.feed(TOKENS, lambda _: call(engine))


def test_engine_refuses_calls_after_close(models: dict[str, Path]) -> None:
    before = running()
    engine = session(models["llama"], setup={"threads": 4})
    assert started_since(before) == 3
    engine.close()
    engine.close()
    assert started_since(before) == 0
    with pytest.raises(UsageError, match="closed"):
        engine.feed(TOKENS)
    with pytest.raises(UsageError, match="closed"):
        engine.reset()


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _replace(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [(Path.unlink, "no such file"), (_truncate, "truncated"), (_replace, "replaced by another")],
)
def test_engine_notices_a_changed_file(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    path = tiny(tmp_path, "llama")
    with session(path) as engine:
        engine.feed(TOKENS[:5])
        change(path)
        with pytest.raises(SourceError, match=message):
            engine.feed(TOKENS[:5])


def test_engine_with_all_weights_in_memory_outlives_its_file(tmp_path: Path) -> None:
    path = tiny(tmp_path, "llama")
    with session(path, setup={"keep_bytes": None}) as engine:
        path.unlink()
        assert np.isfinite(engine.feed(TOKENS)).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("output_norm.weight", "the logits are not finite"),
        ("blk.1.attn_norm.weight", "keys or values of layer 1 are not finite"),
    ],
)
def test_engine_names_the_layer_of_an_overflow(tmp_path: Path, name: str, message: str) -> None:
    """The weights are finite, but their products are not."""
    path = tiny(tmp_path, "llama")
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name == name:
            tensor.data[:] = 3e38
    with session(path) as engine, pytest.raises(WeightsError, match=message):
        engine.feed(TOKENS)


# --- interrupts


class Stop:
    """A checkpoint that raises when it has been called `count` times."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, _share: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise CancelledError("enough")


@pytest.fixture
def _checkpoint_after_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is called between all tiles, not only every few milliseconds."""
    monkeypatch.setattr("edgekit.engines.native.crew.REPORT_EVERY_S", 0.0)


@pytest.mark.usefixtures("_checkpoint_after_every_tile")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_engine_continues_after_an_interrupt_at_any_tile(
    models: dict[str, Path], name: str
) -> None:
    """The next call finds the cache as it was before the interrupted one."""
    shares: list[float] = []
    setup = {"rolling": True, "sinks": 2, "threads": 1}
    with session(models[name], window=16, setup=setup) as engine:
        expected = steps(engine, TOKENS)
        engine.feed([7], shares.append)
        engine.reset()
        results = []
        for place, token in enumerate(TOKENS):
            with pytest.raises(CancelledError):
                engine.feed([7], Stop(place * 5 % len(shares)))
            assert engine.position == place
            assert not engine.needs_reset
            results.append(engine.feed([token]).copy())
    np.testing.assert_allclose(np.stack(results), expected, atol=1e-6)


@pytest.mark.usefixtures("_checkpoint_after_every_tile")
def test_engine_after_an_interrupted_prompt(models: dict[str, Path]) -> None:
    """Until the window is full, the prompt can be continued; after that, tokens are overwritten and a reset is needed."""
    # One thread: with several, the number of checkpoints depends on how the tasks are shared out.
    setup = {"rolling": True, "sinks": 2, "threads": 1}
    with session(models["llama"], window=16, chunk=8, setup=setup) as engine:
        expected = engine.feed(TOKENS[:12]).copy()
        engine.reset()
        with pytest.raises(CancelledError):
            engine.feed(TOKENS[:12], Stop(50))
        assert engine.position == 8
        assert not engine.needs_reset
        np.testing.assert_allclose(engine.feed(TOKENS[8:12]), expected, atol=1e-5)
        with pytest.raises(CancelledError):
            engine.feed(TOKENS[12:], Stop(10))
        assert engine.needs_reset
        with pytest.raises(UsageError, match="reset the engine"):
            engine.feed(TOKENS[:1])
        engine.reset()
        np.testing.assert_allclose(engine.feed(TOKENS[:12]), expected, atol=1e-5)


@pytest.mark.usefixtures("_checkpoint_after_every_tile")
def test_feed_calls_the_checkpoint_after_every_tile(models: dict[str, Path]) -> None:
    shares: list[float] = []
    with session(models["llama"], window=512) as engine:
        engine.feed(some_tokens(500), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 100


@pytest.mark.parametrize("error", [KeyboardInterrupt, CancelledError, MemoryError])
def test_engine_leaves_no_thread_after_an_error_in_feed(
    models: dict[str, Path], error: type[BaseException]
) -> None:
    before = running()

    def stop(_share: float) -> None:
        raise error

    with pytest.raises(error), session(models["llama"]) as engine:
        engine.feed(TOKENS, stop)
    assert started_since(before) == 0


def _feed_until_signal(timer: threading.Timer, engine: StreamEngine, tokens: list[int]) -> None:
    timer.start()
    while True:
        engine.reset()
        engine.feed(tokens)


def test_ctrl_c_during_feed_leaves_whole_chunks(models: dict[str, Path]) -> None:
    """A real signal at ten different times: the session can be continued from the last whole chunk."""
    before, handler = running(), signal.getsignal(signal.SIGINT)
    tokens = some_tokens(32)
    with session(models["llama"], chunk=4, setup={"threads": 3}) as engine:
        expected = engine.feed(tokens).copy()
        for attempt in range(10):
            engine.reset()
            timer = threading.Timer(0.003 * attempt, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                _feed_until_signal(timer, engine, tokens[:8])
            timer.join()
            assert signal.getsignal(signal.SIGINT) is handler
            assert engine.position in {0, 4, 8}
            result = engine.feed(tokens[engine.position :])
            np.testing.assert_allclose(result, expected, atol=1e-5)
    assert started_since(before) == 0


def test_deferred_interrupts_do_not_defer_a_second_signal() -> None:
    with deferred_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)  # deferred
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
