"""Copies of model files without their weights: what is read, written and cleaned up."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from gguf import GGUFReader
from tests import tiny_llama
from tests.header_files import UINT16, BytesSource, GrowingSource, key, model_files

from edgekit.app.open import open_named
from edgekit.engines.llamacpp.run import generated
from edgekit.engines.llamacpp.run.generated import (
    HollowFile,
    Shape,
    file_bytes,
    files_of,
    generated_files,
    generated_model,
    hollow_out,
    on_disk,
    read_shape,
    shape_name,
    write_test_model,
)
from edgekit.engines.llamacpp.speed import LEAST_READ_BYTES
from edgekit.errors import EngineError, HeaderError, UsageError
from edgekit.formats import read_header
from edgekit.model import open_model
from edgekit.sources.types import Container, Origin
from edgekit.units import MIB

MODEL = tiny_llama.model_bytes()
HEADER_BYTES = len(MODEL) - sum(map(tiny_llama.tensor_bytes, tiny_llama.shapes().values()))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_hollow_out_reads_only_the_header() -> None:
    source = BytesSource(MODEL)
    (result,) = hollow_out(model_files(source))
    assert source.furthest == HEADER_BYTES
    assert result == HollowFile(name="model", header=MODEL[:HEADER_BYTES], size_bytes=len(MODEL))
    assert source.closed


def test_hollow_out_fetches_a_remote_header_once() -> None:
    source = GrowingSource(MODEL[:HEADER_BYTES], size_bytes=10**9)
    files = model_files(source, origin=Origin.URL)
    (result,) = hollow_out(files)
    assert source.requests == [(0, 524_288)]
    header = read_header(files_of(files, [result]))
    assert source.requests == [(0, 524_288)]
    assert header.header_bytes == HEADER_BYTES
    assert header.file_bytes == 10**9


def test_hollow_file_reads_zeros_for_its_weights() -> None:
    file = HollowFile(name="model", header=b"head", size_bytes=10)
    assert file.read(2, 4) == b"ad\0\0"
    assert file.read(8, 100) == b"\0\0"
    assert file.read(20, 1) == b""


def test_on_disk_has_the_full_length_and_takes_no_space(temporary: Path) -> None:
    with on_disk(
        [HollowFile(name="model", header=MODEL[:HEADER_BYTES], size_bytes=400 * 10**9)]
    ) as path:
        assert path.name == "model.gguf"
        assert path.stat().st_size == 400 * 10**9
        assert path.stat().st_blocks * 512 < MIB
        with path.open("rb") as file:
            assert file.read(HEADER_BYTES) == MODEL[:HEADER_BYTES]
    assert list(temporary.iterdir()) == []


def test_on_disk_names_shards_as_llama_cpp_expects(temporary: Path) -> None:
    shards = [HollowFile(name=str(i), header=b"GGUF", size_bytes=100 + i) for i in range(3)]
    with on_disk(shards) as path:
        assert path.name == "model-00001-of-00003.gguf"
        sizes = {item.name: item.stat().st_size for item in path.parent.iterdir()}
    assert sizes == {f"model-0000{i + 1}-of-00003.gguf": 100 + i for i in range(3)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, EngineError, SystemExit])
def test_on_disk_leaves_no_file_after_an_error(temporary: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=10**9)]):
            assert list(temporary.iterdir())
            raise error("the disk is full")

    with pytest.raises(error):
        fail()
    assert list(temporary.iterdir()) == []


def test_on_disk_needs_sparse_files_for_large_models(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "_keeps_holes", lambda folder: False)
    with (
        pytest.raises(EngineError, match=r"without sparse files, so the copy would take 4.00 GiB"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=4 * 1024**3)]),
    ):
        pass
    with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=MIB)]) as path:
        assert path.stat().st_size == MIB  # small enough to be written in full
    assert list(temporary.iterdir()) == []


def test_on_disk_with_an_impossible_length(temporary: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"cannot write the header to .*; set TMPDIR"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=2**63 - 1)]),
    ):
        pass
    assert list(temporary.iterdir()) == []


def test_on_disk_with_a_missing_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(EngineError, match=r"gone: No such file or directory; set TMPDIR"),
        on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=100)]),
    ):
        pass


def test_on_disk_does_not_change_errors_of_its_caller(temporary: Path) -> None:
    def fail() -> None:
        with on_disk([HollowFile(name="m", header=b"GGUF", size_bytes=100)]):
            raise FileNotFoundError("something else")

    with pytest.raises(FileNotFoundError, match="something else"):
        fail()


def test_sparse_files_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generated._keeps_holes(tmp_path)
    monkeypatch.setattr(generated, "_blocks", lambda descriptor: generated._PROBE_BYTES // 512)
    assert not generated._keeps_holes(tmp_path)
    monkeypatch.setattr(
        generated, "_blocks", lambda descriptor: None
    )  # as on Windows, where it is unknown
    assert not generated._keeps_holes(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_hollow_out_reads_only_gguf() -> None:
    files = model_files(BytesSource(b""), container=Container.SAFETENSORS)
    with pytest.raises(
        UsageError, match=r"safetensors, but verify runs llama.cpp, which only reads GGUF"
    ):
        hollow_out(files)
    with pytest.raises(HeaderError, match="no GGUF file"):
        hollow_out(model_files())


def test_hollow_out_of_two_shards() -> None:
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


# --- headers generated from the catalog


def test_generated_files_have_the_tensors_and_keys_of_the_model() -> None:
    model = open_named("gemma-3-1b").as_file("llama.cpp").model
    files = generated_files(model.header, label="gemma-3-1b")
    read = read_header(files)
    assert files.origin is Origin.CATALOG
    assert [(item.name, item.shape, item.type) for item in read.tensors or ()] == [
        (item.name, item.shape, item.type) for item in model.header.tensors or ()
    ]
    assert read.tensor_bytes == model.header.tensor_bytes
    for name, value in model.header.keys.items():
        single = (
            struct.unpack("<f", struct.pack("<f", value))[0] if isinstance(value, float) else value
        )
        assert read.keys[name] == single
    assert read.keys["tokenizer.ggml.model"] == "none"


def test_generated_files_need_the_keys_of_a_gguf() -> None:
    opened = open_named("gpt-oss-120b").as_file("llama.cpp")
    with pytest.raises(UsageError, match=r"the index has only the config\.json"):
        generated_files(opened.model.header, label="gpt-oss-120b")


# --- the test model of `edgekit calibrate`


def test_write_test_model_has_the_size_vocabulary_and_shape(tmp_path: Path) -> None:
    shape = Shape(layers=2, width=256, inner=512, heads=4, kv_heads=2, vocabulary=2048, context=256)
    path = tmp_path / "generated.gguf"
    write_test_model(path, shape)
    assert path.stat().st_size == file_bytes(shape)
    result = GGUFReader(path)
    names = [tensor.name for tensor in result.tensors]
    assert len(names) == 2 + 9 * 2
    assert names[:2] == ["token_embd.weight", "output_norm.weight"]
    tokens = [str(bytes(result.fields["tokenizer.ggml.tokens"].parts[index]), "utf-8") for index in result.fields["tokenizer.ggml.tokens"].data]  # fmt: skip
    assert len(set(tokens)) == 2048
    assert tokens[0] == "<|end|>"
    # GPT-2 writes unprintable bytes as U+0100 and following; the space is the 33rd of them
    assert (tokens[1 + ord("A")], tokens[1 + ord(" ")]) == ("A", "\u0120")
    merges = result.fields["tokenizer.ggml.merges"].data
    assert len(merges) == 2048 - 1 - 256
    geometry = open_model(path).model.geometry
    assert (geometry.vocabulary, geometry.native_context, len(geometry.layers)) == (2048, 256, 2)


def test_default_test_model_is_larger_than_a_cache() -> None:
    assert file_bytes(Shape()) == 428_612_000 > LEAST_READ_BYTES


def test_shape_is_read_back_from_its_name(tmp_path: Path) -> None:
    shape = Shape(layers=2, width=256, inner=512, heads=4, kv_heads=2, vocabulary=2048, context=256)
    name = "generated:layers=2,width=256,inner=512,heads=4,kv_heads=2,vocabulary=2048,context=256"
    assert shape_name(shape) == name
    assert read_shape(name, "Q4_K") == shape
    path = tmp_path / "generated.gguf"
    write_test_model(path, shape)
    model, read = generated_model(shape), open_model(path).model
    assert model.geometry == read.geometry
    assert model.header.tensors == read.header.tensors


@pytest.mark.parametrize(
    ("name", "matrices"),
    [
        ("generated:", "Q4_K"),
        (shape_name(Shape()) + ",layers=9", "Q4_K"),
        (shape_name(Shape()) + ",moons=1", "Q4_K"),
        (shape_name(Shape(layers=0)), "Q4_K"),
        (shape_name(Shape(layers=-1)), "Q4_K"),
        (shape_name(Shape(layers=257)), "Q4_K"),
        (shape_name(Shape(vocabulary=10**8)), "Q4_K"),
        (shape_name(Shape(heads=3)), "Q4_K"),
        (shape_name(Shape(heads=4, kv_heads=3)), "Q4_K"),
        (shape_name(Shape(width=2049, heads=1, kv_heads=1)), "Q4_K"),
        (shape_name(Shape()), "Q4_Z"),
    ],
)
def test_read_shape_refuses_other_names(name: str, matrices: str) -> None:
    with pytest.raises(UsageError, match="generated"):
        read_shape(name, matrices)
