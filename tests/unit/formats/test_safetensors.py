"""Safetensors: headers, indexes, shards and configs, and the error message of each broken one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors as official
from safetensors.numpy import save_file
from tests.header_files import BytesSource, GrowingSource, model_files, safetensors, tensor

from edgekit.errors import EdgekitError, HeaderError, HeaderLimitError, UnknownDtypeError
from edgekit.formats import limits, read_header
from edgekit.formats.bounded_json import read_config
from edgekit.formats.safetensors import Totals, read_safetensors, walk_index
from edgekit.formats.types import Depth, ModelHeader
from edgekit.sources.types import Container, Origin

_DESERIALIZE: Any = official.deserialize  # untyped
A = tensor("F32", [2, 3], 0, 24)


def read(data: bytes) -> Any:
    return read_safetensors(BytesSource(data))


def test_read_safetensors_agrees_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays: dict[str, Any] = {
        "b": np.zeros((3, 4), dtype=np.float16),
        "a": np.zeros((2,), dtype=np.int64),
        "none": np.zeros((0, 7), dtype=np.uint8),
        "scalar": np.zeros((), dtype=np.float32),
    }
    save_file(arrays, path, metadata={"format": "np", "note": "Grüße"})
    data = path.read_bytes()
    file = read(data)
    assert not file.mlx
    assert file.header_bytes + sum(t.size_bytes for t in file.tensors) == len(data)
    assert {t.name: (t.type.name, t.shape, t.size_bytes) for t in file.tensors} == {
        "b": ("F16", (3, 4), 3 * 4 * 2),
        "a": ("I64", (2,), 2 * 8),
        "none": ("U8", (0, 7), 0),
        "scalar": ("F32", (), 4),
    }


def test_tensors_are_in_the_order_of_their_bytes() -> None:
    header = {"z": tensor("U8", [4], 0, 4), "a": tensor("U8", [2], 4, 6)}
    file = read(safetensors(header, data_bytes=6))
    assert [(t.name, t.offset - file.header_bytes) for t in file.tensors] == [("z", 0), ("a", 4)]


def test_read_safetensors_reads_only_the_header() -> None:
    data = safetensors({"a": A}, data_bytes=24)
    source = BytesSource(data)
    read_safetensors(source)
    assert source.furthest == len(data) - 24


def test_header_longer_than_a_window_is_read_in_chunks() -> None:
    """Tensor names contain characters of two and four bytes, so that chunks end inside a character."""
    header = {
        f"ü.{index}.😀": tensor("F4", [2, 2], 2 * index, 2 * index + 2) for index in range(9_000)
    }
    raw = json.dumps(header, ensure_ascii=False).encode()
    assert len(raw) > 2 * 256 * 1024
    file = read(safetensors(raw, data_bytes=18_000))
    assert len(file.tensors) == 9_000
    assert file.tensors[8_999].name == "ü.8999.😀"


def test_padded_header_and_null_metadata_are_accepted() -> None:
    raw = b'{"__metadata__":null,"a":' + json.dumps(A).encode() + b"}   \n"
    assert len(read(safetensors(raw, data_bytes=24)).tensors) == 1


def test_remote_header_takes_at_most_two_requests() -> None:
    header = {f"t{index}": tensor("U8", [1], index, index + 1) for index in range(20_000)}
    data = safetensors(header, data_bytes=20_000)
    source = GrowingSource(data)
    read_safetensors(source)
    assert len(source.requests) == 2
    assert source.available_bytes < len(data)


# --- broken files


def one_tensor(**changes: Any) -> bytes:
    return safetensors({"a": A | changes}, data_bytes=24)


def raw(header: bytes, data_bytes: int = 0) -> bytes:
    return safetensors(header, data_bytes=data_bytes)


ENTRY = json.dumps(A).encode()
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "3 bytes": (b"\1\0\0", "truncated"),
    "length only": (struct.pack("<Q", 0), "must start with '{'"),
    "length beyond the file": (
        safetensors({}, length=99),
        "should end at byte 107, but the file has 10",
    ),
    "length of 2^63": (safetensors({}, length=2**63), "truncated"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + bytes(40), "it looks like a GGUF file"),
    "html": (b"<html><head><title>Sign in", "a web page"),
    "pytorch": (b"PK\x03\x04" + bytes(99), "a zip archive"),
    "not an object": (raw(b"[1,2]"), "must start with '{'"),
    "blank before the brace": (raw(b" {}"), "must start with '{'"),
    "not JSON": (raw(b'{"a" 1}'), "expected ':'"),
    "cut off": (raw(b'{"a":{"dtype":"F32"'), "is cut off"),
    "no last brace": (raw(b'{"a":' + ENTRY, 24), "expected '}'"),
    "text after the last brace": (
        raw(b'{"a":' + ENTRY + b"}x", 24),
        "after the header's last brace",
    ),
    "trailing comma": (raw(b'{"a":' + ENTRY + b",}", 24), "not a string"),
    "not UTF-8": (raw(b'{"\xff":' + ENTRY + b"}", 24), "not UTF-8"),
    "half a surrogate": (
        raw(b'{"\\ud800":' + ENTRY + b"}", 24),
        "is not valid Unicode|not valid JSON",
    ),
    "NaN": (raw(b'{"a":NaN}'), "not valid JSON"),
    "entry is a list": (safetensors({"a": [1]}), "no valid shape"),
    "no dtype": (
        safetensors({"a": {"shape": [], "data_offsets": [0, 4]}}, data_bytes=4),
        "no valid dtype",
    ),
    "no offsets": (safetensors({"a": {"dtype": "F32", "shape": []}}), "no valid data_offsets"),
    "shape is a number": (one_tensor(shape=6), "no valid shape"),
    "negative dimension": (one_tensor(shape=[-2, -3]), "shape contains -2"),
    "dimension is a float": (one_tensor(shape=[2.0, 3]), "shape contains 2.0"),
    "dimension is true": (one_tensor(shape=[True, 6]), "shape contains True"),
    "dimension of 2^63": (one_tensor(shape=[2**63]), "which is not a valid count"),
    "product overflows": (one_tensor(shape=[2**32, 2**32]), "overflow.* an int64"),
    "65 dimensions": (one_tensor(shape=[1] * 64 + [6]), "dimensions: 65 is over"),
    "three offsets": (one_tensor(data_offsets=[0, 8, 24]), "must be a start and an end"),
    "end before start": (one_tensor(data_offsets=[24, 0]), "must be a start and an end"),
    "wrong span": (
        one_tensor(data_offsets=[0, 23]),
        "takes 24 bytes, but its data_offsets span 23",
    ),
    "odd F4": (
        one_tensor(dtype="F4", shape=[3], data_offsets=[0, 1]),
        "3 elements are not a multiple",
    ),
    "hole": (
        safetensors({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 8, 12)}, data_bytes=12),
        "tensor 'b' leaves a gap before it",
    ),
    "hole at the start": (
        safetensors({"a": tensor("U8", [4], 4, 8)}, data_bytes=8),
        "leaves a gap",
    ),
    "overlap": (
        safetensors({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, data_bytes=6),
        "tensor 'b' overlaps the one before",
    ),
    "past the end": (safetensors({"a": A}, data_bytes=23), "tensor 'a' ends at byte"),
    "bytes left over": (safetensors({"a": A}, data_bytes=25), "1 bytes follow the last tensor"),
    "tensor twice": (
        raw(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}", 24),
        "tensor 'a' occurs twice",
    ),
    "field twice": (
        raw(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
        "a key occurs twice",
    ),
    "metadata of numbers": (safetensors({"__metadata__": {"a": 1}}), "is not a string"),
    "metadata is a list": (safetensors({"__metadata__": []}), "expected '{'"),
}
# safetensors itself accepts these: it keeps one of two tensors with the same name, and skips blanks
# although its specification says that the header begins with a brace.
STRICTER = ("tensor twice", "blank before the brace", "65 dimensions")


@pytest.mark.parametrize("name", BROKEN)
def test_read_safetensors_names_the_fault_of_a_broken_file(name: str) -> None:
    data, sentence = BROKEN[name]
    with pytest.raises(HeaderError, match=sentence) as caught:
        read_safetensors(BytesSource(data, name="file.safetensors"))
    message = str(caught.value)
    assert message.startswith("file.safetensors: ")
    assert "\n" not in message


@pytest.mark.parametrize("name", STRICTER)
def test_broken_files_that_the_library_accepts(name: str) -> None:
    """If this fails, safetensors has become stricter: remove the name from STRICTER."""
    _DESERIALIZE(BROKEN[name][0])


@pytest.mark.parametrize("name", sorted(set(BROKEN) - set(STRICTER)))
def test_broken_files_that_the_library_refuses_too(name: str) -> None:
    with pytest.raises(official.SafetensorError):
        _DESERIALIZE(BROKEN[name][0])


def test_unknown_dtype_error_names_the_tensor_and_the_table() -> None:
    with pytest.raises(UnknownDtypeError, match=r"tensor 'a': .*'F5'.* formats/dtype\.py"):
        read(one_tensor(dtype="F5"))


def test_read_safetensors_enforces_its_limits() -> None:
    long_name = "n" * (limits.NAME_BYTES + 1)
    with pytest.raises(HeaderLimitError, match="257 is over the limit of 256"):
        read(safetensors({long_name: A}, data_bytes=24))
    with pytest.raises(HeaderLimitError, match="tensor 'a': length"):
        read(one_tensor(note="x" * limits.ENTRY_BYTES))
    with pytest.raises(HeaderLimitError, match="length of __metadata__"):
        read(safetensors({"__metadata__": {str(n): "x" * 65_536 for n in range(65)}}))
    with pytest.raises(HeaderLimitError, match="header length: 100,000,001"):
        read_safetensors(BytesSource(struct.pack("<Q", 100_000_001) + b"{", size_bytes=200_000_000))


# --- models: config, index, shards

CONFIG = BytesSource(b'{"model_type": "llama"}', name="config.json")


def shard(name: str, *tensors: str) -> BytesSource:
    header = {key: tensor("F16", [8], 16 * n, 16 * n + 16) for n, key in enumerate(tensors)}
    return BytesSource(safetensors(header, data_bytes=16 * len(tensors)), name=name)


def index(weight_map: dict[str, str], **metadata: Any) -> BytesSource:
    content = {"metadata": metadata, "weight_map": weight_map}
    return BytesSource(json.dumps(content).encode(), name="model.safetensors.index.json")


def read_model(
    *shards: BytesSource, depth: Depth = Depth.TENSORS, config: BytesSource = CONFIG, **others: Any
) -> ModelHeader:
    files = model_files(*shards, container=Container.SAFETENSORS, config=config, **others)
    return read_header(files, depth=depth)


def test_shards_are_joined_to_one_header() -> None:
    first, second = shard("m-1.safetensors", "a", "b"), shard("m-2.safetensors", "c")
    listing = index({"a": first.name, "b": first.name, "c": second.name}, total_size=48)
    header = read_model(first, second, index=listing)
    assert header.tensors is not None
    assert [(t.name, t.shard) for t in header.tensors] == [("a", 0), ("b", 0), ("c", 1)]
    assert (header.tensor_count, header.tensor_bytes) == (3, 3 * 16)
    assert header.file_bytes == len(first.data) + len(second.data)
    assert header.header_bytes == header.file_bytes - 48
    assert header.config == {"model_type": "llama"}
    assert (first.closed, second.closed, listing.closed) == (True, True, True)


def test_architecture_needs_only_config_and_index() -> None:
    first = shard("m-1.safetensors", "a")
    header = read_model(
        first, index=index({"a": first.name}, total_size=16.0), depth=Depth.ARCHITECTURE
    )
    assert (header.tensors, header.tensor_bytes) == (None, 16)
    assert header.file_bytes == len(first.data)
    assert first.furthest == 0


def test_remote_shards_are_read_in_parallel() -> None:
    shards = [GrowingSource(shard("", f"t{n}").data, name=f"m-{n}.safetensors") for n in range(20)]
    files = model_files(*shards, container=Container.SAFETENSORS, origin=Origin.HUB, config=CONFIG)
    header = read_header(files)
    assert header.tensors is not None
    assert [t.name for t in header.tensors] == [f"t{n}" for n in range(20)]
    assert all(source.kept and source.closed for source in shards)


def test_file_not_listed_in_the_index_is_ignored() -> None:
    first, copy = shard("m-1.safetensors", "a"), shard("consolidated.safetensors", "a", "b")
    header = read_model(first, copy, index=index({"a": first.name}))
    assert (header.tensor_count, header.file_bytes) == (1, len(first.data))


def test_index_and_shards_that_disagree_are_an_error() -> None:
    first, second = shard("m-1.safetensors", "a"), shard("m-2.safetensors", "a")
    with pytest.raises(HeaderError, match=r"in 'm-9\.safetensors', which is missing"):
        read_model(first, index=index({"a": "m-9.safetensors"}))
    with pytest.raises(HeaderError, match=r"tensor 'b' is not in 'm-1\.safetensors'"):
        read_model(first, index=index({"b": first.name}))
    with pytest.raises(HeaderError, match=r"tensor 'a' is also in m-1\.safetensors"):
        read_model(first, second)
    with pytest.raises(HeaderError, match="lists no tensors"):
        read_model(first, index=BytesSource(b"{}", name="index"))
    with pytest.raises(HeaderError, match="no safetensors file"):
        read_model()


@pytest.mark.parametrize(
    ("text", "totals"),
    [
        ('{"metadata": {"total_size": 10}, "weight_map": {"a": "b"}}', Totals(tensor_bytes=10)),
        ('{"weight_map": {"a": "b"}, "metadata": {"total_size": 10}}', Totals(tensor_bytes=10)),
        ('{"metadata": {"total_size": 13731385408.0}}', Totals(tensor_bytes=13_731_385_408)),
        (
            '{"metadata": {"total_size": 4, "total_parameters": 7}}',
            Totals(tensor_bytes=4, parameters=7),
        ),
        ('{"metadata": {}}', Totals()),
        ('{"metadata": null, "weight_map": {}}', Totals()),
        ('{"metadata": {"total_size": "10"}}', Totals()),
        ('{"metadata": {"total_size": -1}}', Totals()),
        ('{"metadata": {"total_size": 1e999}}', Totals()),
        ('{"metadata": {"total_size": true}}', Totals()),
        ('{"weight_map": {}}', Totals()),
    ],
)
def test_walk_index_totals(text: str, totals: Totals) -> None:
    assert walk_index(BytesSource(text.encode())) == totals


def test_walk_index_reads_the_totals_of_a_large_index_in_one_request() -> None:
    names = {
        f"model.layers.{n}.self_attn.q_proj.weight": "model-00001.safetensors" for n in range(9_999)
    }
    source = GrowingSource(index(names, total_size=7).data)
    assert walk_index(source) == Totals(tensor_bytes=7)
    assert len(source.requests) == 1
    assert source.furthest == 65_536


def test_mlx_is_recognised_by_quantisation_or_files() -> None:
    packed = BytesSource(b'{"quantization": {"group_size": 64, "bits": 4}}', name="config.json")
    assert read_model(shard("m", "a"), config=packed).mlx
    assert read_model(shard("m", "a"), config=packed, depth=Depth.ARCHITECTURE).mlx
    plain = safetensors({"__metadata__": {"format": "mlx"}, "a": A}, data_bytes=24)
    assert read_model(BytesSource(plain)).mlx
    assert not read_model(shard("m", "a")).mlx


def test_quantiser_file_is_opened_only_if_the_config_has_no_settings() -> None:
    settings = BytesSource(b'{"bits": 4, "group_size": 128}', name="quantize_config.json")
    header = read_model(shard("m", "a"), quantization=settings)
    assert header.quantization is not None
    assert header.quantization.method == "gptq"
    unread = BytesSource(settings.data)
    packed = BytesSource(b'{"quantization": {"group_size": 64, "bits": 4}}', name="config.json")
    assert read_model(shard("m", "a"), config=packed, quantization=unread).mlx
    assert unread.furthest == 0


def test_config_without_weights_is_a_header() -> None:
    header = read_header(model_files(container=Container.CONFIG, config=CONFIG))
    assert (header.config, header.tensors) == ({"model_type": "llama"}, None)
    assert header.container is Container.CONFIG


# --- config.json


@pytest.mark.parametrize(
    "data",
    [b'{"a": 1}', b'\xef\xbb\xbf{"a": 1}', b'{"a": 0, "a": 1}', b'\n {"a": 1}\n'],
    ids=["plain", "byte order mark", "key twice", "blanks"],
)
def test_read_config_of_valid_files(data: bytes) -> None:
    assert read_config(BytesSource(data)) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"[1]", "holds a list, not an object"),
        (b'{"a": }', "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b"<!doctype html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b'{"a":' * 30_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b" " * (limits.CONFIG_BYTES + 1), "length: 4,194,305 is over"),
        (b"[" * (limits.CONFIG_CONTAINERS + 1), "lists and objects: 32,769"),
        (b"," * (limits.CONFIG_VALUES + 1), "values: 262,145"),
    ],
)
def test_read_config_of_invalid_files_is_an_error(data: bytes, sentence: str) -> None:
    with pytest.raises(EdgekitError, match=sentence):
        read_config(BytesSource(data, name="config.json"))
