"""WeightFile: buffers filled from a file, or an error that names what was being read."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.embed_tables import write_later

from edgekit.engines.native import file as file_module
from edgekit.engines.native.file import Limits, WeightFile
from edgekit.errors import HeaderLimitError, NotFoundError, SourceError

CONTENT = bytes(range(256)) * 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "model.gguf"
    result.write_bytes(CONTENT)
    return result


@pytest.fixture(params=["preadv", "seek"])
def file(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WeightFile]:
    """A WeightFile that reads with preadv, and one that seeks, as on Windows."""
    if request.param == "seek":
        monkeypatch.setattr(file_module, "_READ", file_module._read_by_seeking)
    elif not hasattr(os, "preadv"):
        pytest.skip("this system has no preadv")
    opened = WeightFile(path, Limits())
    yield opened
    opened.close()


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (3, 1_000), (255_000, 1_000), (7, 0)])
def test_weight_file_read_into_fills_the_buffer(file: WeightFile, offset: int, length: int) -> None:
    array = np.full(length, 99, np.uint8)
    file.read_into(offset, array, what="a tensor")
    assert array.tobytes() == CONTENT[offset : offset + length]
    view = memoryview(bytearray(length))
    file.read_into(offset, view, what="a tensor")
    assert view == CONTENT[offset : offset + length]


def test_weight_file_is_a_byte_source(file: WeightFile, path: Path) -> None:
    assert (file.name, file.size_bytes) == (str(path), len(CONTENT))
    assert file.read(1, 2) == b"\1\2"
    assert file.read(len(CONTENT) - 1, 50, ahead=9) == b"\xff"
    assert file.read(len(CONTENT), 1) == b""
    with pytest.raises(ValueError, match="-1"):
        file.read(-1, 1)


def test_weight_file_can_be_read_by_several_threads(file: WeightFile) -> None:
    wrong: list[int] = []

    def read(seed: int) -> None:
        buffer = np.empty(512, np.uint8)
        for offset in np.random.default_rng(seed).integers(0, len(CONTENT) - 512, 300).tolist():
            file.read_into(offset, buffer, what="a tensor")
            if buffer.tobytes() != CONTENT[offset : offset + 512]:
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weight_file_continues_a_short_read(
    file: WeightFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_read = file_module._READ
    monkeypatch.setattr(
        file_module,
        "_READ",
        lambda file, offset, buffer: real_read(file, offset, memoryview(buffer)[:100]),
    )
    buffer = np.zeros(1_234, np.uint8)
    file.read_into(5, buffer, what="a tensor")
    assert buffer.tobytes() == CONTENT[5:1_239]


def test_weight_file_read_beyond_the_end_names_the_tensor(file: WeightFile) -> None:
    with pytest.raises(
        SourceError, match=r"ends before byte 256,010, inside blk\.0\.ffn_up\.weight"
    ):
        file.read_into(255_990, np.empty(20, np.uint8), what="blk.0.ffn_up.weight")


def test_weight_file_notices_truncation_on_read_and_on_check(file: WeightFile, path: Path) -> None:
    os.truncate(path, 1_000)
    with pytest.raises(SourceError, match=r"ends before byte 1,100.* truncated while in use"):
        file.read_into(900, np.empty(200, np.uint8), what="a tensor")
    with pytest.raises(SourceError, match="truncated from 256,000 to 1,000 bytes"):
        file.check_unchanged()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CONTENT)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def _grow(path: Path) -> None:
    with path.open("ab") as out:
        out.write(b"more")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "written": (lambda path: write_later(path, b"x", 77), "written to"),
    "grown": (_grow, "written to"),
    "replaced": (_replace, "replaced by another file"),
    "removed": (Path.unlink, "no such file"),
}


@pytest.mark.skipif(
    sys.platform == "win32", reason="an open file can be neither replaced nor removed"
)
@pytest.mark.parametrize("name", CHANGES)
def test_weight_file_notices_a_change_while_open(path: Path, name: str) -> None:
    change, message = CHANGES[name]
    with WeightFile(path, Limits()) as file:
        file.check_unchanged()
        change(path)
        with pytest.raises(SourceError, match=message):
            file.check_unchanged()


def test_weight_file_is_unchanged_after_a_read(file: WeightFile) -> None:
    file.read_into(0, np.empty(100, np.uint8), what="a tensor")
    file.check_unchanged()


def test_weight_file_read_ahead_never_fails(file: WeightFile) -> None:
    file.read_ahead(0, 10**6)
    file.read_ahead(2**62, 5)
    file.close()
    file.read_ahead(0, 1)


def test_weight_file_refuses_reads_after_close(path: Path) -> None:
    with WeightFile(path, Limits()) as file:
        pass
    file.close()
    for call in (
        file.check_unchanged,
        lambda: file.read(0, 1),
        lambda: file.read_into(0, np.empty(1, np.uint8), what="a tensor"),
    ):
        with pytest.raises(SourceError, match="is closed"):
            call()


def test_weight_file_names_tensor_and_offset_of_an_io_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with WeightFile(path, Limits()) as file:
        monkeypatch.setattr(file_module, "_READ", fail)
        with pytest.raises(
            SourceError, match=r"Input/output error \(output\.weight, at byte 4,096\)"
        ):
            file.read_into(4_096, np.empty(1, np.uint8), what="output.weight")


def test_weight_file_size_limit_and_raised_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as out:
        out.truncate(5_000_000_001)
    with pytest.raises(HeaderLimitError, match=r"5,000,000,001 is over the limit of 5,000,000,000"):
        WeightFile(path, Limits())
    with WeightFile(path, Limits(file_bytes=6_000_000_000)) as file:
        buffer = np.ones(3, np.uint8)
        file.read_into(4_999_999_998, buffer, what="the last bytes")  # beyond 4 GiB
        assert not buffer.any()


def test_weight_file_refuses_other_than_regular_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="a folder"):
        WeightFile(tmp_path, Limits())
    with pytest.raises(NotFoundError, match="no such file"):
        WeightFile(tmp_path / "missing.gguf", Limits())
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceError, match="a pipe"):
            WeightFile(tmp_path / "pipe", Limits())
        with pytest.raises(SourceError, match="a device"):
            WeightFile(Path("/dev/zero"), Limits())


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no POSIX permissions")
def test_weight_file_without_permission(path: Path) -> None:
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)  # the user nobody: root may read every file
    try:
        with pytest.raises(SourceError, match="permissions"):
            WeightFile(path, Limits())
    finally:
        os.seteuid(before)


@pytest.mark.skipif(sys.platform != "linux", reason="counted in /proc")
def test_weight_file_that_is_refused_is_not_left_open(path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        with pytest.raises(HeaderLimitError):
            WeightFile(path, Limits(file_bytes=1))
    assert descriptors() == before
