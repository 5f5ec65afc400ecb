"""read_ahead.py: what is asked for before it is read, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stream_sessions import FAMILIES, session, some_tokens, tiny

import edgekit.engines.native.read_ahead as module
from edgekit.engines.native.file import ANY_SIZE, WeightFile
from edgekit.engines.native.read_ahead import ReadAhead, streamed
from edgekit.formats.dtype import by_name
from edgekit.formats.types import Tensor

AHEAD_BYTES = 100


class RecordingFile(WeightFile):
    """A file that records what is read ahead of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, ANY_SIZE)
        self.hints: list[tuple[int, int]] = []

    def read_ahead(self, offset: int, length: int) -> None:
        self.hints.append((offset, length))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingFile:
    monkeypatch.setattr(module, "AHEAD_BYTES", AHEAD_BYTES)
    path = tmp_path / "weights"
    path.write_bytes(bytes(10_000))
    return RecordingFile(path)


def tensor(offset: int, size_bytes: int) -> Tensor:
    return Tensor(
        name=f"at {offset}",
        type=by_name("F32"),
        shape=(size_bytes // 4, 1),
        size_bytes=size_bytes,
        offset=offset,
    )


def test_follow_asks_for_the_part_that_is_ahead_in_the_same_tensor(file: RecordingFile) -> None:
    ReadAhead(file, [tensor(4000, 400)]).follow(4100, 40)
    assert file.hints == [(4200, 40)]


def test_follow_goes_on_in_the_tensor_that_is_read_next(file: RecordingFile) -> None:
    """The next one is before it in the file."""
    ReadAhead(file, [tensor(4000, 400), tensor(1000, 200)]).follow(4280, 40)
    assert file.hints == [(4380, 20), (1000, 20)]


def test_follow_goes_on_with_the_first_tensor_after_the_last(file: RecordingFile) -> None:
    ReadAhead(file, [tensor(4000, 400), tensor(1000, 200)]).follow(1160, 40)
    assert file.hints == [(4060, 40)]


def test_follow_asks_for_no_byte_twice_where_a_pass_reads_little(file: RecordingFile) -> None:
    ReadAhead(file, [tensor(4000, 40)]).follow(4000, 40)
    assert sorted(file.hints) == [(4000, 20), (4020, 20)]


def test_follow_without_tensors_asks_for_nothing(file: RecordingFile) -> None:
    ReadAhead(file, []).follow(0, 40)
    assert file.hints == []


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_is_the_order_in_which_a_pass_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With one thread; the tiles of gate and up take turns."""
    reads: list[int] = []
    read_into = WeightFile.read_into
    path = tiny(tmp_path, name, tied=False)
    with session(path, setup={"threads": 1, "keep_bytes": 30_000}) as engine:
        expected = [tensor.offset for tensor in streamed(engine.plan)]

        def record(self: WeightFile, offset: int, buffer: object, *, what: str) -> None:
            reads.append(offset)
            read_into(self, offset, buffer, what=what)  # type: ignore[arg-type] # passed on

        monkeypatch.setattr(WeightFile, "read_into", record)
        engine.feed(some_tokens(1))
    assert [offset for offset in reads if offset in expected] == expected


def test_streamed_leaves_out_what_is_in_memory(tmp_path: Path) -> None:
    with session(tiny(tmp_path, "llama"), setup={"keep_bytes": None}) as engine:
        assert list(streamed(engine.plan)) == []
