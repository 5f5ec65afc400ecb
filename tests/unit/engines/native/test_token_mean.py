"""TokenMean: equal to the mean of rows unpacked by gguf-py, for every type and width."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.embed_tables import (
    TABLE,
    Bytes,
    nan_half,
    random_row,
    unpacked,
    write_later,
    write_table,
)
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    F32,
    STRING,
    UINT32,
    entry,
    gguf,
    key,
)

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import KERNELS, choose_kernels
from edgekit.engines.native.token_mean import TokenMean, token_mean_bytes
from edgekit.errors import (
    CancelledError,
    EdgekitError,
    HeaderLimitError,
    MemoryPressureError,
    SourceError,
    TextError,
    UnknownDtypeError,
    WeightsError,
)
from edgekit.formats.dtype import TensorType, by_name
from edgekit.machine.monitor import Monitor

Floats = NDArray[np.float32]


@pytest.fixture(params=KERNELS, autouse=True)
def _both_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        pytest.importorskip("edgekit.engines.native.kernels._native")
    monkeypatch.setenv("EDGEKIT_KERNELS", request.param)


def no_checkpoint(_: float) -> None:
    """A checkpoint that never raises."""


def large_monitor() -> Monitor:
    return Monitor(critical_bytes=0)


def opened(path: Path, monitor: Monitor | None = None) -> tuple[WeightFile, TokenMean]:
    file = WeightFile(path, Limits())
    result = scan_header(file, selects=lambda name: name == TABLE)
    return file, TokenMean(
        file, result, kernels=choose_kernels(), monitor=monitor or large_monitor()
    )


def means(path: Path, texts: list[list[int]]) -> Floats:
    file, mean = opened(path)
    with file:
        into = np.full((len(texts), mean.width), np.nan, np.float32)
        mean.encode(texts, into, no_checkpoint)
        mean.close()
    return into


def table(
    path: Path, kind: str, width: int, tokens: list[int], rows: int = 152_064
) -> dict[int, Bytes]:
    random = np.random.default_rng(width)
    written = {token: random_row(by_name(kind), width, random) for token in tokens}
    write_table(path, kind, (rows, width), written)
    return written


def mean_of(kind: str, rows: list[Bytes]) -> Floats:
    total = np.zeros_like(unpacked(by_name(kind), rows[0]))
    for row in rows:
        total += unpacked(by_name(kind), row)
    return total / np.float32(len(rows))


WIDTHS = {  # (type, width) -> number of reads of 32 KiB, and of dequantize calls of 16 KiB, per row
    ("Q4_K", 3_584): (1, 1),
    ("Q4_K", 8_192): (1, 2),
    ("Q6_K", 18_944 - 18_944 % 256): (1, 5),
    ("Q8_0", 384): (1, 1),
    ("Q8_0", 32_768): (2, 9),  # 963 blocks of 34 bytes in a read: 8 decodes of 128, then 61 blocks
    ("Q4_0", 4_128): (1, 2),
    ("F16", 20_000): (2, 5),
    ("BF16", 1_000): (1, 1),
    ("F32", 8_192): (1, 2),
    ("F32", 16_385): (3, 5),
}


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_token_mean_equals_the_mean_of_rows(kind: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rows = table(path, kind, width, [0, 7, 499], rows=500)
    result = means(path, [[7], [0, 7, 499, 7], [499]])
    assert (result[0] == mean_of(kind, [rows[7]])).all()
    assert (result[1] == mean_of(kind, [rows[n] for n in (0, 7, 499, 7)])).all()
    assert (result[2] == mean_of(kind, [rows[499]])).all()


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_token_mean_reads_a_row_through_two_small_buffers(
    kind: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    table(path, kind, width, [1], rows=3)
    monitor = large_monitor()
    file, mean = opened(path, monitor)
    read_bytes: list[int] = []
    floats: list[int] = []
    read, unpack = WeightFile.read_into, mean._kernels.dequantize

    def counted_read(self: WeightFile, offset: int, buffer: Any, *, what: str) -> None:
        read_bytes.append(buffer.nbytes)
        read(self, offset, buffer, what=what)

    def counted_unpack(kind: TensorType, packed: Any, into: Any) -> None:
        floats.append(into.size)
        unpack(kind, packed, into)

    monkeypatch.setattr(WeightFile, "read_into", counted_read)
    monkeypatch.setattr(mean._kernels, "dequantize", counted_unpack)
    with file:
        mean.encode([[1]], np.empty((1, width), np.float32), no_checkpoint)
        assert (len(read_bytes), len(floats)) == WIDTHS[kind, width]
        assert max(read_bytes) <= 32 * 1024
        assert max(floats) * 4 <= 16 * 1024
        assert sum(floats) == width
        held = scan_header(file, selects=lambda name: name == TABLE)
        assert monitor.reserved_bytes == token_mean_bytes(held) <= 48 * 1024
        mean.close()
        mean.close()
    assert monitor.reserved_bytes == 0


def test_token_mean_reads_a_sparse_7b_table_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rows = table(path, "Q4_K", 3_584, [0, 76_000, 152_063])
    assert path.stat().st_size > 152_064 * 2_016
    result = means(path, [[0, 76_000, 152_063], [5]])
    assert (result[0] == mean_of("Q4_K", list(rows.values()))).all()
    assert not result[1].any()  # a hole in the sparse file is a row of zeros


def test_token_mean_accepts_numpy_integers(tmp_path: Path) -> None:
    """The offset of row 1,200,000, of 2,016 bytes each, does not fit in an int32."""
    path = tmp_path / "model.gguf"
    rows = table(path, "Q4_K", 3_584, [1_199_999], rows=1_200_000)
    file, mean = opened(path)
    with file:
        into = np.empty((1, 3_584), np.float32)
        mean.encode([np.array([1_199_999], np.int32)], into, no_checkpoint)  # type: ignore[list-item] # callers pass arrays
    assert (into[0] == mean_of("Q4_K", [rows[1_199_999]])).all()


def test_token_mean_checkpoint_every_megabyte(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 1_024, [3], rows=10)
    file, mean = opened(path)
    shares: list[float] = []
    with file:
        mean.encode([[3] * 1_000, [3] * 1_000], np.empty((2, 1_024), np.float32), shares.append)
        # 244 rows of 4,096 bytes are a megabyte: at least 8 calls in 2,000 rows, more if reading is slow
        assert len(shares) >= 2_000 // (1_000_000 // 4_096)
        assert shares == sorted(shares)
        assert 0 < shares[0] <= 244 / 2_000
        assert shares[-1] <= 1

        def stop(_: float) -> None:
            raise CancelledError("cancelled")

        with pytest.raises(CancelledError):
            mean.encode([[3] * 1_000], np.empty((1, 1_024), np.float32), stop)


def test_token_mean_checkpoints_on_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 32, [3], rows=10)
    file, mean = opened(path)
    read = WeightFile.read_into

    def slow(*args: object, **more: object) -> None:
        time.sleep(0.015)
        read(*args, **more)  # type: ignore[arg-type] # passed on

    monkeypatch.setattr(WeightFile, "read_into", slow)
    shares: list[float] = []
    with file:
        mean.encode([[3] * 20], np.empty((1, 32), np.float32), shares.append)
    assert len(shares) >= 8


@pytest.mark.parametrize("token", [10, 10**6, -1])
def test_token_mean_refuses_a_token_without_a_row(token: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 32, [], rows=10)
    with pytest.raises(WeightsError, match=rf"{TABLE}: token {token:,} has no row .10 rows"):
        means(path, [[token]])


def test_token_mean_refuses_a_text_without_tokens(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 32, [], rows=10)
    with pytest.raises(TextError, match="text 1: has no tokens"):
        means(path, [[1], []])


@pytest.mark.parametrize("shape", [(2, 32), (1, 31), (32,)])
def test_token_mean_refuses_arrays_of_another_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 32, [], rows=10)
    file, mean = opened(path)
    with file, pytest.raises(ValueError, match="output must be float32"):
        mean.encode([[1]], np.empty(shape, np.float32), no_checkpoint)


@pytest.mark.parametrize(
    ("kind", "width", "block", "at"), [("Q8_0", 8_192, 200, 0), ("Q4_K", 8_192, 17, 2)]
)
def test_token_mean_names_tensor_row_and_byte_of_a_bad_scale(
    kind: str, width: int, block: int, at: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    rows = table(path, kind, width, [4], rows=10)
    block_bytes = by_name(kind).block_bytes
    row = rows[4].copy()
    row[block * block_bytes + at : block * block_bytes + at + 2] = np.frombuffer(
        nan_half(), np.uint8
    )
    tensor = write_table(path, kind, (10, width), {4: row})
    offset = tensor.offset + 4 * row.nbytes + block * block_bytes
    with pytest.raises(
        WeightsError,
        match=rf"{TABLE}: row 4 contains numbers that are not finite at byte {offset:,}",
    ):
        means(path, [[3, 4]])


def test_token_mean_notices_a_file_that_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 1_024, [3], rows=10)
    file, mean = opened(path)
    into = np.empty((1, 1_024), np.float32)
    with file:
        with pytest.raises(SourceError, match="written to while in use"):
            mean.encode([[3] * 1_000], into, lambda _: write_later(path, b"GGUF"))
        with pytest.raises(SourceError, match="written to while in use"):
            mean.encode([[3]], into, no_checkpoint)


def test_token_mean_notices_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "Q8_0", 1_024, [3], rows=10)
    file, mean = opened(path)
    with file, pytest.raises(SourceError, match=rf"inside {TABLE}.* truncated while in use"):
        mean.encode(
            [[3] * 1_000], np.empty((1, 1_024), np.float32), lambda _: os.truncate(path, 500)
        )


def test_token_mean_refuses_a_small_budget_before_it_allocates(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    table(path, "F32", 8_192, [], rows=3)
    with pytest.raises(MemoryPressureError, match=r"reading the token table needs 48\.00 KiB"):
        opened(path, Monitor(budget_bytes=50_000, critical_bytes=0))


def _keys(width: int = 32, *more: bytes) -> list[bytes]:
    return [*ARCHITECTURE, key("llama.embedding_length", UINT32, width), *more]


_THREE_TOKENS = key("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "c"]))
UNUSABLE: dict[str, tuple[bytes, type[EdgekitError], str]] = {
    "no table": (
        gguf(_keys(), [entry("v.patch_embd.weight", [32], F32, 0)], data_bytes=128),
        WeightsError,
        rf"tensor {TABLE} is missing \(it has 1: 'v\.patch_embd\.weight'",
    ),
    "no tensors": (gguf(_keys()), WeightsError, "is missing .it has none"),
    "one dimension": (
        gguf(_keys(), [entry(TABLE, [32], F32, 0)], data_bytes=128),
        WeightsError,
        r"has the shape \[32\]",
    ),
    "three dimensions": (
        gguf(_keys(), [entry(TABLE, [32, 2, 2], F32, 0)], data_bytes=512),
        WeightsError,
        r"has the shape \[2, 2, 32\]",
    ),
    "no rows": (
        gguf(_keys(), [entry(TABLE, [32, 0], F32, 0)], data_bytes=128),
        WeightsError,
        r"has the shape \[0, 32\]",
    ),
    "another width": (
        gguf(_keys(64), [entry(TABLE, [32, 2], F32, 0)], data_bytes=256),
        WeightsError,
        "has rows of 32, but embedding_length is 64",
    ),
    "more tokens than rows": (
        gguf(_keys(32, _THREE_TOKENS), [entry(TABLE, [32, 2], F32, 0)], data_bytes=256),
        WeightsError,
        "has 2 rows, but the vocabulary has 3 tokens",
    ),
    "a row over the limit": (
        gguf(_keys(65_537), [entry(TABLE, [65_537, 1], F32, 0)], data_bytes=4 * 65_537),
        HeaderLimitError,
        "65,537 is over the limit of 65,536",
    ),
    "a type that is not a number": (
        gguf(_keys(), [entry(TABLE, [32, 2], 26, 0)], data_bytes=256),
        UnknownDtypeError,
        rf"tensor {TABLE}: .*I32",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_token_mean_refuses_unusable_tables(name: str, tmp_path: Path) -> None:
    content, error, message = UNUSABLE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        opened(path)


def test_token_mean_overflow_is_infinite(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    huge = np.full(32, 3e38, np.float32).view(np.uint8)
    write_table(path, "F32", (2, 32), {1: huge})
    assert np.isinf(means(path, [[1, 1]])).all()
