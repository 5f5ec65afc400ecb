"""Files without their weights: what is read, what is written, what is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from tests import tiny_llama
from tests.header_files import UINT16, BytesSource, GrowingSource, key, model_files

from edgekit.engines.llamacpp.run import generated
from edgekit.engines.llamacpp.run.generated import HollowFile, files_of, hollow_out, on_disk
from edgekit.errors import EngineError, HeaderError, UsageError
from edgekit.formats import read_header
from edgekit.sources.types import Container, Origin
from edgekit.units import MIB

WHOLE = tiny_llama.model_bytes()
HEADER = len(WHOLE) - sum(map(tiny_llama.tensor_bytes, tiny_llama.shapes().values()))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_only_the_header_is_read() -> None:
    source = BytesSource(WHOLE)
    (result,) = hollow_out(model_files(source))
    assert source.furthest == HEADER
    assert result == HollowFile(name="model", header=WHOLE[:HEADER], size_bytes=len(WHOLE))
    assert source.closed


def test_a_remote_header_is_fetched_once() -> None:
    source = GrowingSource(WHOLE[:HEADER], size_bytes=10**9)
    files = model_files(source, origin=Origin.URL)
    (result,) = hollow_out(files)
    assert source.requests == [(0, 524_288)]
    again = read_header(files_of(files, [result]))
    assert source.requests == [(0, 524_288)]
    assert again.header_bytes == HEADER
    assert again.file_bytes == 10**9


def test_the_hole_reads_as_zeros() -> None:
    file = HollowFile(name="model", header=b"head", size_bytes=10)
    assert file.read(2, 4) == b"ad\0\0"
    assert file.read(8, 100) == b"\0\0"
    assert file.read(20, 1) == b""


def test_the_copy_has_the_length_and_takes_no_room(temporary: Path) -> None:
    with on_disk([HollowFile(name="model", header=WHOLE[:HEADER], size_bytes=400 * 10**9)]) as path:
        assert path.name == "model.gguf"
        assert path.stat().st_size == 400 * 10**9
        assert path.stat().st_blocks * 512 < MIB
        with path.open("rb") as file:
            assert file.read(HEADER) == WHOLE[:HEADER]
    assert list(temporary.iterdir()) == []


def test_shards_have_the_names_that_llama_cpp_looks_for(temporary: Path) -> None:
    three = [HollowFile(name=str(i), header=b"GGUF", size_bytes=100 + i) for i in range(3)]
    with on_disk(three) as path:
        assert path.name == "model-00001-of-00003.gguf"
        sizes = {item.name: item.stat().st_size for item in path.parent.iterdir()}
    assert sizes == {f"model-0000{i + 1}-of-00003.gguf": 100 + i for i in range(3)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, EngineError, SystemExit])
def test_nothing_is_left_behind(temporary: Path, error: type[BaseException]) -> None:
    def stumble() -> None:
        with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=10**9)]):
            assert list(temporary.iterdir())
            raise error

    with pytest.raises(error):
        stumble()
    assert list(temporary.iterdir()) == []


def test_a_file_system_without_holes_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "_keeps_holes", lambda folder: False)
    with (
        pytest.raises(EngineError, match=r"without sparse files, so the copy would take 4.00 GiB"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=4 * 1024**3)]),
    ):
        pass
    with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=MIB)]) as path:
        assert path.stat().st_size == MIB  # small enough to be written out
    assert list(temporary.iterdir()) == []


def test_a_length_that_no_file_has(temporary: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"cannot write the header to .*; set TMPDIR"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=2**63 - 1)]),
    ):
        pass
    assert list(temporary.iterdir()) == []


def test_a_temporary_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(EngineError, match=r"gone: No such file or directory; set TMPDIR"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=100)]),
    ):
        pass


def test_errors_of_the_work_itself_are_not_ours(temporary: Path) -> None:
    def stumble() -> None:
        with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=100)]):
            raise FileNotFoundError("something else")

    with pytest.raises(FileNotFoundError, match="something else"):
        stumble()


def test_holes_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generated._keeps_holes(tmp_path)
    monkeypatch.setattr(generated, "_blocks", lambda descriptor: generated._PROBE_BYTES // 512)
    assert not generated._keeps_holes(tmp_path)
    monkeypatch.setattr(generated, "_blocks", lambda descriptor: None)  # Windows does not say
    assert not generated._keeps_holes(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_formats_are_refused() -> None:
    files = model_files(BytesSource(b""), container=Container.SAFETENSORS)
    with pytest.raises(
        UsageError, match=r"safetensors, but verify runs llama.cpp, which only reads GGUF"
    ):
        hollow_out(files)
    with pytest.raises(HeaderError, match="no GGUF file"):
        hollow_out(model_files())


def test_every_shard_has_its_own_header() -> None:
    names = list(tiny_llama.shapes())
    split = [key("split.count", UINT16, 2)]
    shards = [
        tiny_llama.model_bytes(part, key("split.no", UINT16, i), *split)
        for i, part in enumerate((names[:5], names[5:]))
    ]
    result = hollow_out(model_files(*map(BytesSource, shards)))
    assert [file.size_bytes for file in result] == [len(shard) for shard in shards]
    assert all(
        shard.startswith(file.header) and not any(shard[len(file.header) :])
        for file, shard in zip(result, shards, strict=True)
    )
