"""LlamaCppEncoder with llama.cpp itself: the same vectors, clear errors, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.embed_models import FAMILIES, write_model
from tests.embed_oracle import cosines, llamacpp_vectors
from tests.thoroughness import LONG, costly, sampled

from edgekit.embed.llamacpp import ChildSettings, LlamaCppEncoder, needed_bytes
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import CancelledError, EngineError, HeaderError, MemoryPressureError
from edgekit.machine.monitor import Monitor

pytest.importorskip("xllamacpp")

TEXTS = [[2, *range(10, 10 + length), 3] for length in (1, 5, 30, 3, 70, 7)]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen2") / "model.gguf", "qwen2", pooling="last")


@contextmanager
def opened(
    path: Path,
    *,
    pooling: Pooling = Pooling.LAST,
    monitor: Monitor | None = None,
    pass_tokens: int = 256,
) -> Iterator[LlamaCppEncoder]:
    encoder = LlamaCppEncoder(
        path,
        header_of(path),
        ChildSettings(pooling=pooling, threads=2, pass_tokens=pass_tokens),
        monitor=monitor or Monitor(),
    )
    try:
        yield encoder
    finally:
        encoder.close()


def header_of(path: Path) -> FileHeader:
    file = WeightFile(path, Limits())
    try:
        return scan_header(file, selects=lambda _: False)
    finally:
        file.close()


def encode(
    encoder: LlamaCppEncoder,
    texts: list[list[int]],
    checkpoint: Callable[[float], None] = lambda _: None,
) -> Floats:
    into = np.zeros((len(texts), encoder.width), dtype=np.float32)
    encoder.encode(texts, into, checkpoint)
    return into


@costly
@pytest.mark.parametrize("architecture", sampled(tuple(FAMILIES), each=2))
def test_llamacpp_vectors_do_not_depend_on_the_batch(tmp_path: Path, architecture: str) -> None:
    path = write_model(tmp_path / "model.gguf", architecture)
    with opened(path, pooling=Pooling.MEAN) as encoder:
        together = encode(encoder, TEXTS)
        separately = np.concatenate([encode(encoder, [text]) for text in TEXTS])
    alone = llamacpp_vectors(path, TEXTS, "mean")
    assert cosines(together, alone).min() > 0.9999
    assert cosines(separately, alone).min() > 0.9999
    assert np.allclose(np.linalg.norm(together, axis=1), np.linalg.norm(alone, axis=1), rtol=0.01)


@costly
@pytest.mark.parametrize("pooling", Pooling)
def test_llamacpp_uses_the_requested_pooling(qwen: Path, pooling: Pooling) -> None:
    with opened(qwen, pooling=pooling) as encoder:
        result = encode(encoder, TEXTS)
    assert cosines(result, llamacpp_vectors(qwen, TEXTS, pooling.label)).min() > 0.9999


def test_llamacpp_reports_progress_over_several_batches(qwen: Path) -> None:
    shares: list[float] = []
    texts = [[number, 5, 6] for number in range(100)]
    with opened(qwen, pass_tokens=64) as encoder:
        result = encode(encoder, texts, shares.append)
        assert cosines(result, llamacpp_vectors(qwen, texts)).min() > 0.9999
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(set(shares)) >= 5  # 300 tokens, 64 at a time


def test_llamacpp_works_after_a_cancelled_pass(qwen: Path) -> None:
    calls = 0

    def stop(_: float) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise CancelledError("cancelled")

    with opened(qwen) as encoder:
        before = encode(encoder, TEXTS)
        with pytest.raises(CancelledError):
            encode(encoder, TEXTS * 50, stop)
        assert np.array_equal(encode(encoder, TEXTS), before)


def test_llamacpp_names_a_missing_tensor(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen2", leave_out=("blk.1.ffn_up.weight",))
    with pytest.raises(EngineError, match=r"blk\.1\.ffn_up\.weight"), opened(path):
        pass


def test_llamacpp_refuses_a_file_truncated_after_its_header_was_read(
    qwen: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(qwen.read_bytes())
    header = header_of(path)
    os.truncate(path, path.stat().st_size // 2)
    settings = ChildSettings(pooling=Pooling.LAST, threads=1, pass_tokens=64)
    with pytest.raises(EngineError, match="last output"):
        LlamaCppEncoder(path, header, settings, monitor=Monitor())


def test_llamacpp_refuses_a_text_longer_than_a_pass(qwen: Path) -> None:
    with opened(qwen, pooling=Pooling.MEAN, pass_tokens=64) as encoder:
        with pytest.raises(EngineError, match="too large"):
            encode(encoder, [list(range(65))])
        assert encode(encoder, [list(range(64))]).any()


@pytest.mark.parametrize("length", [0, -1, "many"])
def test_llamacpp_refuses_an_invalid_embedding_length(tmp_path: Path, length: object) -> None:
    keys = {"qwen2.embedding_length": length}
    path = write_model(tmp_path / "model.gguf", "qwen2", keys=keys)
    with pytest.raises(HeaderError, match="embedding_length"), opened(path):
        pass


def test_llamacpp_refuses_keys_that_need_too_much_memory(tmp_path: Path) -> None:
    keys = {"qwen2.feed_forward_length": 2**32 - 1}
    path = write_model(tmp_path / "model.gguf", "qwen2", keys=keys)
    with pytest.raises(MemoryPressureError), opened(path):
        pass


def test_llamacpp_refuses_an_invalid_token(qwen: Path) -> None:
    with opened(qwen) as encoder, pytest.raises(EngineError):
        encode(encoder, [[10**6]])


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_llamacpp_starts_again_after_a_crash(qwen: Path) -> None:
    with opened(qwen) as encoder:
        assert encoder._process is not None
        os.kill(encoder._process.pid, signal.SIGSEGV)
        with pytest.raises(EngineError, match="exited"):
            encode(encoder, TEXTS)
        assert encode(encoder, TEXTS).any()


def test_llamacpp_reserves_memory_before_it_starts(qwen: Path) -> None:
    monitor = Monitor(budget_bytes=50_000_000)
    with (
        pytest.raises(MemoryPressureError, match=r"model\.gguf in llama\.cpp"),
        opened(qwen, monitor=monitor),
    ):
        pass
    assert monitor.reserved_bytes == 0


def test_llamacpp_releases_its_memory(qwen: Path, tmp_path: Path) -> None:
    monitor = Monitor()
    with opened(qwen, monitor=monitor) as encoder:
        assert monitor.reserved_bytes > qwen.stat().st_size
        assert encoder._process is not None
        process = encoder._process
        encoder.close()
        assert monitor.reserved_bytes == 0
        assert process.exit_code is not None
    broken = write_model(tmp_path / "model.gguf", "qwen2", leave_out=("output_norm.weight",))
    with pytest.raises(EngineError), opened(broken, monitor=monitor):
        pass
    assert monitor.reserved_bytes == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured in /proc")
@pytest.mark.parametrize(
    ("architecture", "pass_tokens"), [("qwen2", 64), ("bert", 512)] if LONG else [("qwen2", 64)]
)
def test_llamacpp_stays_within_needed_bytes(
    tmp_path: Path, architecture: str, pass_tokens: int
) -> None:
    path = write_model(
        tmp_path / "model.gguf",
        architecture,
        layers=4,
        heads=16,
        kv_heads=16,
        width=1024,
        inner=4096,
    )
    settings = ChildSettings(pooling=Pooling.MEAN, threads=2, pass_tokens=pass_tokens)
    with opened(path, pooling=Pooling.MEAN, pass_tokens=pass_tokens) as encoder:
        encode(encoder, [list(range(2, 2 + pass_tokens // 4))] * 5)  # one full pass and another
        assert encoder._process is not None
        peak = _peak_bytes(encoder._process.pid)
    assert peak < needed_bytes(header_of(path), settings) < 3 * peak


def _peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
