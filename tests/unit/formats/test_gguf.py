"""GGUF headers: valid, split and remote files, and the error message of each broken file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F16,
    F32,
    FLOAT32,
    INT32,
    Q4_K,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    BytesSource,
    GrowingSource,
    entry,
    gguf,
    key,
    model_files,
    text,
)
from tests.recorded import TRUTH, header_bytes, models, padded

from edgekit.errors import EdgekitError, HeaderError, HeaderLimitError, UnknownDtypeError
from edgekit.formats import limits, read_header
from edgekit.formats.gguf import read_gguf
from edgekit.formats.types import ArrayFact, Depth, ModelHeader
from edgekit.sources.types import Origin


def read(data: bytes, *, size_bytes: int | None = None) -> ModelHeader:
    return read_gguf(BytesSource(data, size_bytes=size_bytes))


# --- valid files

VALUES: tuple[tuple[str, int, Any], ...] = (
    ("k.uint8", 0, 255),
    ("k.int8", 1, -128),
    ("k.uint16", 2, 65_535),
    ("k.int16", 3, -32_768),
    ("k.uint32", 4, 2**32 - 1),
    ("k.int32", 5, -(2**31)),
    ("k.float32", 6, 0.5),
    ("k.bool", 7, True),
    ("k.string", 8, "Grüße"),
    ("k.uint64", 10, 2**64 - 1),
    ("k.int64", 11, -(2**63)),
    ("k.float64", 12, 0.1),
)


@pytest.mark.parametrize("order", ["<", ">"])
def test_read_gguf_reads_every_value_type_in_both_byte_orders(order: str) -> None:
    keys = [key(name, kind, value, order) for name, kind, value in VALUES]
    lists = [key(f"{name}s", ARRAY, (kind, [value, value]), order) for name, kind, value in VALUES]
    file = read(gguf(keys + lists, order=order))
    assert file.big_endian == (order == ">")
    for name, _, value in VALUES:
        assert file.keys[name] == value
        assert type(file.keys[name]) is type(value)
        assert file.keys[f"{name}s"] == (value, value)


@pytest.mark.parametrize("order", [oracle.GGUFEndian.LITTLE, oracle.GGUFEndian.BIG])
def test_read_gguf_agrees_with_gguf_py(tmp_path: Path, order: oracle.GGUFEndian) -> None:
    path = tmp_path / "model.gguf"
    writer = oracle.GGUFWriter(path, "llama", endianess=order)
    writer.add_block_count(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tensor("token_embd.weight", np.zeros((6, 32), dtype=np.float32))
    writer.add_tensor("blk.0.ffn.weight", np.zeros((3, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read(path.read_bytes())
    assert file.keys["llama.block_count"] == 2
    assert file.keys["llama.rope.freq_base"] == 10_000.0
    assert file.tensors is not None
    assert [(t.name, t.shape, t.type.name, t.size_bytes) for t in file.tensors] == [
        ("token_embd.weight", (6, 32), "F32", 6 * 32 * 4),
        ("blk.0.ffn.weight", (3, 64), "F16", 3 * 64 * 2),
    ]
    assert file.tensors[0].offset == file.header_bytes
    assert file.tensors[1].offset == file.tensors[0].offset + 6 * 32 * 4


@pytest.mark.parametrize("version", [2, 3])
def test_read_gguf_reads_versions_2_and_3(version: int) -> None:
    assert read(gguf(ARCHITECTURE, version=version)).version == version


def test_read_gguf_reads_a_vocabulary_without_tensors() -> None:
    file = read(gguf(ARCHITECTURE))
    assert (file.tensors, file.tensor_count, file.complete) == ((), 0, True)


def test_tensor_sizes_of_quantised_rows_and_zero_dimensions() -> None:
    tensors = [
        entry("q", [512, 3], Q4_K, 0),
        entry("none", [32, 0], F32, 512 // 256 * 144 * 3),
        entry("scalar", [], F32, 864),
    ]
    file = read(gguf(ARCHITECTURE, tensors, data_bytes=868))
    assert file.tensors is not None
    assert [(t.name, t.shape, t.size_bytes) for t in file.tensors] == [
        ("q", (3, 512), 3 * 2 * 144),
        ("none", (0, 32), 0),
        ("scalar", (), 4),
    ]


def test_general_alignment_moves_the_tensor_data() -> None:
    head = gguf([*ARCHITECTURE, key("general.alignment", UINT32, 4096)], [entry("t", [8], F32, 0)])
    file = read(head, size_bytes=4096 + 32)
    assert file.tensors is not None
    assert (file.header_bytes, file.tensors[0].offset) == (4096, 4096)


@pytest.mark.parametrize("file", [models()[0], models()[-1]], ids=lambda model: str(model["model"]))
def test_read_gguf_never_reads_the_weights(file: dict[str, Any]) -> None:
    """The furthest byte read is at the end of the tensor directory."""
    header = header_bytes(file["header_without_vocabulary"])
    source = BytesSource(header, size_bytes=padded(len(header)) + file["data_section_bytes"])
    result = read_gguf(source)
    assert result.tensors is not None
    assert sum(tensor.size_bytes for tensor in result.tensors) == file["tensor_bytes"]
    assert result.header_bytes is not None
    assert result.header_bytes - 32 < source.furthest <= len(header)


# --- stored values and counted arrays


def test_small_arrays_are_stored_and_large_ones_counted() -> None:
    small, large = [1] * limits.STORED_NUMBERS, [1] * (limits.STORED_NUMBERS + 1)
    file = read(
        gguf(
            [
                key("small", ARRAY, (INT32, small)),
                key("large", ARRAY, (INT32, large)),
                key("last", UINT32, 7),
            ]
        )
    )
    assert file.keys == {"small": tuple(small), "last": 7}
    assert file.arrays == {"large": ArrayFact(element="int32", count=1025)}


def test_tokenizer_arrays_are_counted_not_stored() -> None:
    file = read(
        gguf(
            [
                key("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b"])),
                key("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0, 1.0])),
                key("general.tags", ARRAY, (STRING, ["text", "chat"])),
            ]
        )
    )
    assert file.keys == {"general.tags": ("text", "chat")}
    assert file.arrays == {
        "tokenizer.ggml.tokens": ArrayFact(element="string", count=2),
        "tokenizer.ggml.scores": ArrayFact(element="float32", count=2),
    }


def test_string_arrays_with_many_or_long_entries_are_counted_not_stored() -> None:
    many, long = ["x"] * (limits.STORED_STRINGS + 1), ["x", "y" * (limits.STORED_ENTRY_BYTES + 1)]
    file = read(
        gguf(
            [
                key("many", ARRAY, (STRING, many)),
                key("long", ARRAY, (STRING, long)),
                key("last", STRING, "here"),
            ]
        )
    )
    assert file.keys == {"last": "here"}
    assert file.arrays == {
        "many": ArrayFact(element="string", count=65),
        "long": ArrayFact(element="string", count=2),
    }


def test_length_of_strings_over_64_kib_is_stored_not_the_text() -> None:
    longest, longer = "x" * 65_536, "x" * 65_537
    file = read(gguf([key("longest", STRING, longest), key("longer", STRING, longer)]))
    assert file.keys == {"longest": longest}
    assert file.long_strings == {"longer": 65_537}


def test_stored_values_share_one_limit() -> None:
    keys = [key(f"k{index:03}", STRING, "x" * 65_536) for index in range(70)]
    file = read(gguf(keys))
    assert len(file.keys) == limits.STORED_BYTES // 65_536
    assert len(file.keys) + len(file.long_strings) == 70


def test_invalid_utf8_in_a_value_is_replaced() -> None:
    assert read(gguf([key("general.author", STRING, b"Ren\xe9")])).keys == {
        "general.author": "Ren\ufffd"
    }


# --- broken files

TENSOR = entry("t", [32], F32, 0)
HUGE = 2**60
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "cut in the magic": (b"GG", "truncated"),
    "cut in the version": (b"GGUF\3", "truncated"),
    "cut in the counts": (gguf()[:20], "truncated"),
    "version 1": (gguf(version=1), "version 1 is no longer supported"),
    "version 0": (gguf(version=0), "version 0 is no longer supported"),
    "version 4": (
        gguf(version=4),
        "version 4 is newer than the newest version that edgekit knows .3.; upgrade edgekit",
    ),
    "version 4, big-endian": (
        gguf(version=4, order=">"),
        "newer than the newest version that edgekit knows",
    ),
    "version 2, big-endian": (gguf(version=2, order=">"), "big-endian GGUF needs version 3"),
    "zip": (b"PK\x03\x04" + bytes(40), "not a GGUF file: it looks like a zip archive.*PyTorch"),
    "pickle": (b"\x80\x02}q\x00" + bytes(40), "pickle.*PyTorch"),
    "old ggml": (b"tjgg" + bytes(40), "from before GGUF"),
    "html": (b"\n<!DOCTYPE html><html>" + bytes(40), "a web page"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
    "safetensors": (struct.pack("<Q", 90) + b'{"a":' + bytes(90), "a safetensors file"),
    "json": (b'{"model_type": "llama"}', "JSON text"),
    "zeros": (bytes(64), "only zeros"),
    "noise": (b"\x13\x37" * 20, "it starts with"),
    "too many keys": (gguf(key_count=10_001), "number of keys: 10,001 is over the limit of 10,000"),
    "2^63 keys": (gguf(key_count=2**63), "number of keys"),
    "2^63 tensors": (gguf(tensor_count=2**63), "number of tensors"),
    "more keys than there are": (gguf(ARCHITECTURE, key_count=3), "truncated"),
    "key of 2^60": (gguf([struct.pack("<Q", HUGE)], key_count=1), "length of a key"),
    "empty key": (gguf([key("", UINT32, 1)]), "a key is empty"),
    "key not UTF-8": (gguf([key(b"\xff\xfe", UINT32, 1)]), "is not UTF-8"),
    "key twice": (gguf([key("a", UINT32, 1), key("a", UINT8, 1)]), "key 'a' occurs twice"),
    "array twice": (
        gguf([key("a", ARRAY, (UINT8, [0] * 2000)), key("a", UINT8, 1)]),
        "key 'a' occurs twice",
    ),
    "value type 13": (gguf([text("a") + struct.pack("<II", 13, 0)]), "value type 13 is not one of"),
    "array of type 13": (gguf([text("a") + struct.pack("<IIQ", ARRAY, 13, 1)]), "value type 13"),
    "nested array": (
        gguf([text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]),
        "arrays of arrays are not supported",
    ),
    "bool of 2": (gguf([text("a") + struct.pack("<IB", BOOL, 2)]), "2 is not a bool"),
    "string of 2^60": (gguf([text("a") + struct.pack("<IQ", STRING, HUGE)]), "truncated"),
    "array of 2^60 numbers": (
        gguf([text("a") + struct.pack("<IIQ", ARRAY, UINT8, HUGE)]),
        "truncated",
    ),
    "array of 2^60 strings": (
        gguf([text("a") + struct.pack("<IIQ", ARRAY, STRING, HUGE)]),
        "array length",
    ),
    "array of long strings": (
        gguf([text("tokenizer.a") + struct.pack("<IIQQQ", ARRAY, STRING, 2, 2**64 - 1, 0)]),
        "truncated",
    ),
    "alignment 0": (gguf([key("general.alignment", UINT32, 0)]), "not a power of two"),
    "alignment 48": (gguf([key("general.alignment", UINT32, 48)]), "not a power of two"),
    "alignment text": (gguf([key("general.alignment", STRING, "32")]), "not a power of two"),
    "tensor twice": (gguf([], [TENSOR, TENSOR], data_bytes=256), "tensor 't' occurs twice"),
    "tensor name of 300": (gguf([], [entry("n" * 300, [32], F32, 0)]), "tensor's name: 300"),
    "tensor name not UTF-8": (gguf([], [entry(b"\xff", [32], F32, 0)]), "is not UTF-8"),
    "5 dimensions": (gguf([], [entry("t", [1] * 5, F32, 0)]), "dimensions: 5 is over"),
    "product overflows": (gguf([], [entry("t", [2**32, 2**32], F32, 0)]), "overflow an int64"),
    "dimension overflows": (gguf([], [entry("t", [2**63, 0], F32, 0)]), "overflow an int64"),
    "half a block": (gguf([], [entry("t", [128], Q4_K, 0)]), "128 elements are not a multiple"),
    "unaligned": (gguf([], [entry("t", [8], F32, 8)], data_bytes=99), "multiple of 32"),
    "overlap": (
        gguf([], [entry("a", [64], F32, 0), entry("b", [8], F32, 32)], data_bytes=256),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "past the end": (
        gguf([], [TENSOR], data_bytes=127),
        "file is truncated: tensor 't' ends at byte 192, but the file has 191",
    ),
    "offset of 2^63": (gguf([], [entry("t", [32], F32, 2**63)]), "file is truncated: tensor 't'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_read_gguf_names_the_fault_of_a_broken_file(name: str) -> None:
    data, sentence = BROKEN[name]
    with pytest.raises(HeaderError, match=sentence) as caught:
        read_gguf(BytesSource(data, name="file.gguf"))
    message = str(caught.value)
    assert message.startswith("file.gguf: ")
    assert "\n" not in message


@pytest.mark.parametrize(("kind", "sentence"), [(31, "was removed"), (99, r"formats/dtype\.py")])
def test_unknown_tensor_type_is_an_error(kind: int, sentence: str) -> None:
    with pytest.raises(UnknownDtypeError, match=f"tensor 't'.*{sentence}"):
        read(gguf([], [entry("t", [32], kind, 0)]))


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (gguf(key_count=10_001), limits.KEYS),
        (gguf(tensor_count=49_153), limits.TENSORS_PER_FILE),
        (gguf([key("k" * 1_025, UINT8, 0)]), limits.KEY_BYTES),
    ],
)
def test_header_limit_error_contains_value_and_limit(data: bytes, limit: int) -> None:
    with pytest.raises(HeaderLimitError) as caught:
        read(data)
    assert (caught.value.value, caught.value.limit) == (limit + 1, limit)


def test_header_over_100_mb_is_refused_without_reading_it() -> None:
    data = gguf([text("a") + struct.pack("<IIQ", ARRAY, UINT64, 12_500_001)])
    source = BytesSource(data, size_bytes=10**9)
    with pytest.raises(HeaderLimitError, match="header length"):
        read_gguf(source)
    assert source.furthest < 1_000


# --- split files


def shards(tmp_path: Path) -> list[bytes]:
    writer = oracle.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    writer.add_block_count(2)
    for name in ("a.weight", "b.weight", "c.weight"):
        writer.add_tensor(name, np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path.read_bytes() for path in sorted(tmp_path.glob("m-*.gguf"))]


def read_split(*parts: bytes) -> Any:
    sources = [BytesSource(part, name=f"{n}.gguf") for n, part in enumerate(parts)]
    return read_header(model_files(*sources))


def test_shards_are_joined_to_one_header(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    header = read_split(*parts)
    assert header.keys["llama.block_count"] == 2
    assert [(t.name, t.shard) for t in header.tensors] == [
        ("a.weight", 0),
        ("b.weight", 1),
        ("c.weight", 2),
    ]
    assert header.tensor_count == 3
    assert header.tensor_bytes == 3 * 2 * 32 * 4
    assert header.file_bytes == sum(map(len, parts))


def test_missing_shards_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="shard 1 of 3, but 1 were found"):
        read_split(shards(tmp_path)[0])


def test_shard_given_twice_or_out_of_order_is_an_error(tmp_path: Path) -> None:
    a, b, c = shards(tmp_path)
    with pytest.raises(
        HeaderError, match=r"2\.gguf: shard 3 was expected here, but the file is shard 2"
    ):
        read_split(a, b, b)
    with pytest.raises(HeaderError, match="shard 2 was expected here"):
        read_split(a, c, b)


def test_file_without_a_shard_number_among_shards_is_an_error(tmp_path: Path) -> None:
    a, b, _ = shards(tmp_path)
    with pytest.raises(HeaderError, match="but the file is not a shard"):
        read_split(a, b, gguf(ARCHITECTURE))


def split_keys(number: int, *, count: int = 2, tensors: int = 2) -> list[bytes]:
    return [
        key("split.no", UINT32, number),
        key("split.count", UINT32, count),
        key("split.tensors.count", INT32, tensors),
    ]


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (gguf(split_keys(1, tensors=9)), "another model: split.tensors.count is 9"),
        (
            gguf([*split_keys(1), key("general.architecture", STRING, "qwen3")]),
            "another model: general.architecture is 'qwen3'",
        ),
        (gguf(split_keys(1), [TENSOR], data_bytes=128), "tensor 't' is in two shards"),
        (gguf(split_keys(1)), "the shards have 1 tensors, but the first shard lists 2"),
    ],
)
def test_shards_of_different_models_are_an_error(second: bytes, sentence: str) -> None:
    first = gguf([*ARCHITECTURE, *split_keys(0)], [TENSOR], data_bytes=128)
    with pytest.raises(HeaderError, match=sentence):
        read_split(first, second)


# --- remote files

LLAMA_KEYS = [*ARCHITECTURE, key("llama.context_length", UINT32, 8192)]


def vocabulary(tokens: int, merges: int) -> bytes:
    """A header like Llama 3's: tokens and merges grow longer towards the end, file_type comes last."""
    words = [f"{'x' * (1 + index * 12 // tokens)}" for index in range(tokens)]
    pairs = [f"{'x' * (4 + index * 8 // merges)} {'y' * 4}" for index in range(merges)]
    directory = [
        entry(f"blk.{index}.attn_output.weight", [32, 32], F16, index * 2048)
        for index in range(291)
    ]
    return gguf(
        [
            *LLAMA_KEYS,
            key("tokenizer.ggml.tokens", ARRAY, (STRING, words)),
            key("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * tokens)),
            key("tokenizer.ggml.merges", ARRAY, (STRING, pairs)),
            key("general.file_type", UINT32, 15),
        ],
        directory,
    )


@pytest.fixture(scope="module")
def llama3() -> tuple[bytes, int]:
    data = vocabulary(128_256, 280_147)
    return data, len(data) + 291 * 2048


def test_remote_header_takes_few_requests_and_little_extra(
    llama3: tuple[bytes, int],
) -> None:
    data, size = llama3
    source = GrowingSource(data, size_bytes=size)
    file = read_gguf(source)
    assert file.keys["general.file_type"] == 15
    assert file.arrays["tokenizer.ggml.merges"].count == 280_147
    assert len(source.requests) <= 8
    assert source.available_bytes <= len(data) + 2**20
    starts = [start for start, _ in source.requests]
    assert starts == [
        0,
        *(end for _, end in source.requests[:-1]),
    ]  # each request continues the one before


def test_architecture_of_a_remote_file_takes_one_request(llama3: tuple[bytes, int]) -> None:
    data, size = llama3
    source = GrowingSource(data, size_bytes=size)
    file = read_gguf(source, Depth.ARCHITECTURE)
    assert source.requests == [(0, 524_288)]
    assert file.keys["llama.context_length"] == 8192
    assert file.arrays["tokenizer.ggml.tokens"].count == 128_256  # its type and length were read
    assert "general.file_type" not in file.keys
    assert (file.complete, file.tensors, file.header_bytes) == (False, None, None)
    assert file.tensor_count == 291


def test_local_header_is_always_read_to_its_end(llama3: tuple[bytes, int]) -> None:
    data, size = llama3
    file = read_gguf(BytesSource(data, size_bytes=size), Depth.ARCHITECTURE)
    assert file.complete
    assert file.keys["general.file_type"] == 15


def test_architecture_after_the_vocabulary_is_fetched() -> None:
    words = ["x" * 100] * 10_000
    data = gguf([key("tokenizer.ggml.tokens", ARRAY, (STRING, words)), *ARCHITECTURE])
    source = GrowingSource(data)
    file = read_gguf(source, Depth.ARCHITECTURE)
    assert file.keys["llama.block_count"] == 2
    assert len(source.requests) > 1


def test_architecture_keys_after_a_long_value_are_fetched() -> None:
    filler = key("llama.notes", ARRAY, (UINT8, [0] * 600_000))
    last = key("llama.attention.head_count_kv", UINT32, 2)
    source = GrowingSource(gguf([*ARCHITECTURE, filler, last]))
    assert read_gguf(source, Depth.ARCHITECTURE).keys["llama.attention.head_count_kv"] == 2
    assert len(source.requests) > 1


def test_directory_beyond_the_first_request_is_not_fetched() -> None:
    filler = key("tokenizer.notes", ARRAY, (UINT8, [0] * 524_288))
    source = GrowingSource(gguf([*ARCHITECTURE, filler], [TENSOR], data_bytes=128))
    file = read_gguf(source, Depth.ARCHITECTURE)
    assert (file.complete, file.tensors) == (True, None)
    assert len(source.requests) == 1


def test_architecture_of_remote_shards_opens_only_the_first() -> None:
    first = GrowingSource(gguf([*ARCHITECTURE, *split_keys(0)], [TENSOR], data_bytes=128), name="a")
    second = GrowingSource(
        gguf(split_keys(1), [entry("u", [32], F32, 0)], data_bytes=128), name="b"
    )
    files = model_files(first, second, origin=Origin.HUB)
    architecture = read_header(files, depth=Depth.ARCHITECTURE)
    assert architecture.tensors is None
    assert (architecture.tensor_count, architecture.tensor_bytes) == (2, None)
    assert architecture.file_bytes == first.size_bytes + second.size_bytes
    assert (first.kept, first.closed, second.requests) == (True, True, [])
    header = read_header(files)
    assert header.tensor_bytes == 2 * 128
    assert second.kept


def test_source_of_a_broken_header_is_closed_and_not_cached() -> None:
    source = GrowingSource(b"PK\x03\x04" + bytes(100))
    with pytest.raises(EdgekitError):
        read_header(model_files(source))
    assert (source.closed, source.kept) == (True, False)


WITH_VOCABULARY = [model for model in models() if model.get("header_with_vocabulary")]


@pytest.mark.parametrize("model", WITH_VOCABULARY, ids=lambda model: str(model["model"]))
def test_read_gguf_of_real_headers_with_vocabularies(model: dict[str, Any]) -> None:
    folder = TRUTH / "headers"
    if not (folder / model["header_with_vocabulary"]).is_file():
        pytest.skip("headers with vocabularies are not part of the project; set EDGEKIT_TRUTH")
    header = header_bytes(model["header_with_vocabulary"], folder)
    size = padded(len(header)) + model["data_section_bytes"]
    remote = GrowingSource(header, size_bytes=size)
    file = read_gguf(remote)
    assert file.tensors is not None
    assert sum(tensor.size_bytes for tensor in file.tensors) == model["tensor_bytes"]
    assert sum(tensor.elements for tensor in file.tensors) == model["n_params"]
    assert file.arrays["tokenizer.ggml.tokens"].count == model["real_layout"]["n_vocab"]
    assert len(remote.requests) <= 8
    assert remote.available_bytes <= len(header) + 2**20
    architecture = GrowingSource(header, size_bytes=size)
    assert read_gguf(architecture, Depth.ARCHITECTURE).keys.keys() <= file.keys.keys()
    assert architecture.requests == [(0, 524_288)]
    local = BytesSource(header, size_bytes=size)
    assert read_gguf(local).tensors == file.tensors
    assert local.furthest <= len(header)
