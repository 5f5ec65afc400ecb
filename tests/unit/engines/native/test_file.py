"""The weights' file: filled buffers, or an error that names what was being read."""

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


@pytest.fixture(params=["by offset", "by seeking"])
def file(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WeightFile]:
    """Both ways of reading: Windows has no reads by offset."""
    if request.param == "by seeking":
        monkeypatch.setattr(file_module, "_READ", file_module._read_by_seeking)
    elif not hasattr(os, "preadv"):
        pytest.skip("this system cannot read by offset")
    opened = WeightFile(path, Limits())
    yield opened
    opened.close()


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (3, 1_000), (255_000, 1_000), (7, 0)])
def test_a_buffer_is_filled(file: WeightFile, offset: int, length: int) -> None:
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


def test_threads_do_not_disturb_each_other(file: WeightFile) -> None:
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


def test_a_read_that_a_signal_cuts_short_goes_on(
    file: WeightFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = file_module._READ
    monkeypatch.setattr(
        file_module,
        "_READ",
        lambda file, offset, buffer: whole(file, offset, memoryview(buffer)[:100]),
    )
    buffer = np.zeros(1_234, np.uint8)
    file.read_into(5, buffer, what="a tensor")
    assert buffer.tobytes() == CONTENT[5:1_239]


def test_a_read_beyond_the_end_names_what_was_read(file: WeightFile) -> None:
    with pytest.raises(
        SourceError, match=r"ends before byte 256,010, inside blk\.0\.ffn_up\.weight"
    ):
        file.read_into(255_990, np.empty(20, np.uint8), what="blk.0.ffn_up.weight")


def test_a_truncated_file_is_found_by_the_read_and_by_the_check(
    file: WeightFile, path: Path
) -> None:
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
@pytest.mark.parametrize("how", CHANGES)
def test_a_change_while_open_is_an_error(path: Path, how: str) -> None:
    change, message = CHANGES[how]
    with WeightFile(path, Limits()) as file:
        file.check_unchanged()
        change(path)
        with pytest.raises(SourceError, match=message):
            file.check_unchanged()


def test_weight_file_is_unchanged_by_reading(file: WeightFile) -> None:
    file.read_into(0, np.empty(100, np.uint8), what="a tensor")
    file.check_unchanged()


def test_a_hint_is_never_an_error(file: WeightFile) -> None:
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


def test_a_disk_that_fails_is_named_with_the_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one failure that no ordinary file can be made to have."""

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with WeightFile(path, Limits()) as file:
        monkeypatch.setattr(file_module, "_READ", fail)
        with pytest.raises(
            SourceError, match=r"Input/output error \(output\.weight, at byte 4,096\)"
        ):
            file.read_into(4_096, np.empty(1, np.uint8), what="output.weight")


def test_a_file_over_the_limit_is_refused_and_a_limit_can_be_raised(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as out:
        out.truncate(5_000_000_001)
    with pytest.raises(HeaderLimitError, match=r"5,000,000,001 is over the limit of 5,000,000,000"):
        WeightFile(path, Limits())
    with WeightFile(path, Limits(file_bytes=6_000_000_000)) as file:
        buffer = np.ones(3, np.uint8)
        file.read_into(4_999_999_998, buffer, what="the last bytes")  # past four GiB
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


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="permissions of another kind")
def test_weight_file_without_permission(path: Path) -> None:
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)  # nobody: root may read all
    try:
        with pytest.raises(SourceError, match="permissions"):
            WeightFile(path, Limits())
    finally:
        os.seteuid(before)


@pytest.mark.skipif(sys.platform != "linux", reason="counted in /proc")
def test_a_refused_file_is_not_left_open(path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        with pytest.raises(HeaderLimitError):
            WeightFile(path, Limits(file_bytes=1))
    assert descriptors() == before
