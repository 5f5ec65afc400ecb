"""scan_header stores only what an embedder needs: a single read buffer, and less than 100 KiB in total."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.header_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_K,
    STRING,
    UINT8,
    UINT32,
    entry,
    gguf,
    key,
)
from tests.recorded import header_bytes

from edgekit.engines.native import file as file_module
from edgekit.engines.native.file import FileHeader, Limits, WeightFile, scan_header
from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats.gguf import read_gguf
from edgekit.units import KIB

ONE = entry("token_embd.weight", [32], F32, 0)


def scan(
    path: Path,
    content: bytes,
    selects: Callable[[str], bool] = lambda _: True,
    *,
    size_bytes: int = 0,
) -> FileHeader:
    path = path / "model.gguf"
    path.write_bytes(content)
    if size_bytes:
        with path.open("r+b") as file:
            file.truncate(size_bytes)
    with WeightFile(path, Limits()) as file:
        return scan_header(file, selects=selects)


def model(keys: Sequence[bytes], tensors: Sequence[bytes] = (ONE,), data_bytes: int = 128) -> bytes:
    return gguf(keys, tensors, data_bytes=data_bytes)


@pytest.mark.parametrize(
    "model_name", ["all-minilm-l6-v2.F16", "lfm2-1.2b.Q4_K_M"], ids=["bert", "lfm2"]
)
def test_scan_header_equals_read_gguf(model_name: str, tmp_path: Path) -> None:
    header = header_bytes(f"{model_name}.novocab.gguf.head.gz")
    result = scan(tmp_path, header, size_bytes=4 * 10**9)
    with WeightFile(tmp_path / "model.gguf", Limits()) as file:
        expected = read_gguf(file)
    assert expected.tensors is not None
    assert tuple(result.tensors.values()) == expected.tensors
    assert result.tensor_count == len(expected.tensors)
    architecture = expected.keys["general.architecture"]
    for key_name, value in expected.keys.items():
        is_stored = key_name.startswith((f"{architecture}.", "tokenizer."))
        if is_stored and key_name not in result.arrays:
            assert result.keys[key_name] == value
    assert {name: result.arrays[name] for name in expected.arrays} == dict(expected.arrays)


def test_scan_header_stores_only_selected_tensors_and_the_first_names(tmp_path: Path) -> None:
    tensors = [entry(f"blk.{n}.weight", [32], F32, 128 * n) for n in range(20)]
    content = model(ARCHITECTURE, tensors, data_bytes=128 * 20)
    result = scan(tmp_path, content, lambda name: name == "blk.7.weight")
    assert list(result.tensors) == ["blk.7.weight"]
    assert result.tensors["blk.7.weight"].offset == len(content) - 128 * 20 + 128 * 7
    assert result.tensor_count == 20
    assert result.first_names == tuple(f"blk.{n}.weight" for n in range(8))


KEYS = {  # key -> whether scan_header stores it for the architecture "llama"
    "general.name": True,
    "general.license": False,
    "llama.context_length": True,
    "llama2.context_length": False,
    "tokenizer.ggml.model": True,
    "split.no": True,
    "quantize.imatrix.file": False,
}


def test_scan_header_stores_only_keys_of_the_model_and_its_vocabulary(tmp_path: Path) -> None:
    result = scan(tmp_path, model([*ARCHITECTURE, *(key(name, STRING, "x") for name in KEYS)]))
    expected = {name for name, is_stored in KEYS.items() if is_stored}
    assert set(result.keys) == {"general.architecture", "llama.block_count", *expected}


def test_scan_header_stores_keys_before_the_architecture(tmp_path: Path) -> None:
    assert scan(tmp_path, model(ARCHITECTURE[::-1])).keys["llama.block_count"] == 2


def test_scan_header_stores_where_vocabulary_arrays_are(tmp_path: Path) -> None:
    words = ["a", "", "grün", "x" * 300]
    content = model(
        [
            *ARCHITECTURE,
            key("tokenizer.ggml.tokens", ARRAY, (STRING, words)),
            key("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.5, -1.0])),
            key("tokenizer.ggml.token_type", ARRAY, (INT32, [1, 2, 3])),
            key("llama.head_count_kv", ARRAY, (INT32, [4, 8])),
            key("llama.long", ARRAY, (UINT8, [7] * 513)),
            key("tokenizer.ggml.add_bos_token", BOOL, 1),
        ]
    )
    result = scan(tmp_path, content)
    array = result.arrays["tokenizer.ggml.tokens"]
    raw = content[array.offset : array.end]
    assert (array.element, array.count) == ("string", 4)
    assert raw == b"".join(struct.pack("<Q", len(word.encode())) + word.encode() for word in words)
    array = result.arrays["tokenizer.ggml.scores"]
    assert (array.element, array.count) == ("float32", 2)
    assert struct.unpack("<2f", content[array.offset : array.end]) == (0.5, -1.0)
    array = result.arrays["tokenizer.ggml.token_type"]
    assert struct.unpack("<3i", content[array.offset : array.end]) == (1, 2, 3)
    array = result.arrays["llama.long"]
    assert content[array.offset : array.end] == bytes([7] * 513)
    assert result.keys["llama.head_count_kv"] == (4, 8)
    assert result.keys["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize("length", [2_048, 2_049, 65_000, 1_000_000])
def test_scan_header_skips_strings_over_2_kib(tmp_path: Path, length: int) -> None:
    result = scan(
        tmp_path, model([*ARCHITECTURE, key("tokenizer.chat_template", STRING, "x" * length)])
    )
    assert ("tokenizer.chat_template" in result.keys) == (length <= 2_048)
    assert list(result.tensors) == ["token_embd.weight"]


class Recorder(WeightFile):
    longest = 0

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        self.longest = max(self.longest, length)
        return super().read(offset, length, ahead=ahead)


def large_vocabulary(path: Path) -> Path:
    """70,000 tokens with merges and types, a long template, 340 tensors: one byte per token is more than 64 KiB."""
    keys = [
        *ARCHITECTURE,
        *(key(f"llama.setting_{n}", UINT32, n) for n in range(20)),
        key("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{n}" for n in range(70_000)])),
        key("tokenizer.ggml.token_type", ARRAY, (INT32, [1] * 70_000)),
        key("tokenizer.ggml.merges", ARRAY, (STRING, [f"a{n} b{n}" for n in range(70_000)])),
        key("tokenizer.chat_template", STRING, "x" * 65_000),
    ]
    size = 144 * 64  # 64 rows of one Q4_K block
    names = ["token_embd.weight", *(f"blk.{n // 12}.part_{n % 12}.weight" for n in range(339))]
    tensors = [entry(name, [256, 64], Q4_K, size * n) for n, name in enumerate(names)]
    path.write_bytes(gguf(keys, tensors, data_bytes=size * 340))
    return path


def test_scan_header_needs_less_than_64_kib_and_reads_32_kib_at_a_time(tmp_path: Path) -> None:
    """A peak below 64 KiB: no single allocation can be larger."""
    with Recorder(large_vocabulary(tmp_path / "model.gguf"), Limits()) as file:
        # The first call imports modules.
        scan_header(file, selects=lambda name: name == "token_embd.weight")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        result = scan_header(file, selects=lambda name: name == "token_embd.weight")
        held, peak = (size - before for size in tracemalloc.get_traced_memory())
        tracemalloc.stop()
    print(f"scan_header: {peak / KIB:.1f} KiB at its peak, {held / KIB:.1f} KiB after it")
    assert result.arrays["tokenizer.ggml.merges"].count == 70_000
    assert file.longest <= 32 * KIB
    assert peak < 64 * KIB
    assert held < 16 * KIB


BROKEN: dict[str, tuple[bytes, str]] = {
    "big-endian": (
        gguf([key("general.architecture", STRING, "llama", ">")], order=">"),
        "big-endian",
    ),
    "a shard": (
        model([*ARCHITECTURE, key("split.count", UINT32, 3)]),
        "one of 3 shards.*llama-gguf-split --merge",
    ),
    "a shard count that is a string": (
        model([key("split.count", STRING, "three")]),
        "one of 'three' shards",
    ),
    "duplicate key": (model([*ARCHITECTURE, ARCHITECTURE[0]]), "occurs twice"),
    "duplicate tensor": (model(ARCHITECTURE, [ONE, ONE]), "occurs twice"),
    "overlapping tensors": (
        model(ARCHITECTURE, [ONE, entry("b", [32], F32, 96)], data_bytes=999),
        "overlaps",
    ),
    "tensor beyond the end": (
        model(ARCHITECTURE, data_bytes=127),
        "truncated: tensor 'token_embd.weight'",
    ),
    "not a GGUF file": (b"PK\3\4" + bytes(60), "not a GGUF file"),
    "empty": (b"", "empty"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_scan_header_refuses_a_broken_file(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    with pytest.raises(HeaderError, match=message):
        scan(tmp_path, content)


def test_scan_header_checks_the_extent_of_tensors_that_are_not_selected(tmp_path: Path) -> None:
    tensors = [ONE, entry("output.weight", [32], F32, 128)]
    with pytest.raises(HeaderError, match=r"tensor 'output\.weight' ends at byte"):
        scan(tmp_path, model(ARCHITECTURE, tensors, 255), lambda name: name == "token_embd.weight")


def test_scan_header_accepts_a_single_shard(tmp_path: Path) -> None:
    assert scan(tmp_path, model([*ARCHITECTURE, key("split.count", UINT32, 1)])).tensors


def test_scan_header_limits_the_number_of_stored_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "STORED_TENSORS", 3)
    tensors = [entry(f"t{n}", [8], F32, 32 * n) for n in range(4)]
    content = model(ARCHITECTURE, tensors, data_bytes=128)
    with pytest.raises(HeaderLimitError, match="tensors to store: 4 is over the limit of 3"):
        scan(tmp_path, content)
    assert len(scan(tmp_path, content, lambda name: name != "t0").tensors) == 3
