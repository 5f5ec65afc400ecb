"""read_vocabulary and build_tokenizer: valid files of each kind, and invalid ones, each with its own error."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.vocabularies import write_model

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.tokenizer import vocabulary as tokenizer_limits
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.kinds import tokenizer_cost_bytes
from edgekit.engines.native.tokenizer.vocabulary import read_vocabulary
from edgekit.errors import (
    EdgekitError,
    HeaderError,
    HeaderLimitError,
    UnknownTokenizerError,
)

GGML = "tokenizer.ggml."
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gpt2(**keys: Any) -> dict[str, Any]:
    return _keys(
        {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": ["<s>", "a", "b", "ab", "c", "abc"],
            "token_type": [3, 1, 1, 1, 1, 1],
            "merges": ["a b", "ab c"],
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        keys,
    )


def spm(**keys: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "a", "b", "ab"]
    return _keys(
        {
            "model": "llama",
            "tokens": tokens,
            "scores": [0.0] * 259 + [-3.0, -2.0, -1.0],
            "token_type": [2, 3, 3] + [6] * 256 + [1] * 3,
        },
        keys,
    )


def bert(**keys: Any) -> dict[str, Any]:
    return _keys(
        {
            "model": "bert",
            "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "b"],
            "token_type": [3, 3, 3, 3, 1, 1],
            "unknown_token_id": 1,
            "cls_token_id": 2,
            "seperator_token_id": 3,
        },
        keys,
    )


def t5(**keys: Any) -> dict[str, Any]:
    return _keys(
        {
            "model": "t5",
            "tokens": ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "ab"],
            "scores": [0.0, 0.0, 0.0, -1.0, -2.0, -2.0, -1.5],
            "token_type": [3, 3, 2, 1, 1, 1, 1],
            "add_space_prefix": True,
        },
        keys,
    )


def _keys(usual: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The keys with their prefix; a value of None removes the key."""
    return {GGML + key: value for key, value in {**usual, **other}.items() if value is not None}


def build(folder: Path, keys: dict[str, Any]) -> list[int]:
    path = folder / "model.gguf"
    write_model(path, keys)
    with WeightFile(path, Limits()) as file:
        vocabulary = read_vocabulary(file, scan_header(file))
    return build_tokenizer(vocabulary).encode("abc")


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        (gpt2(), [5]),
        (gpt2(add_bos_token=True, add_eos_token=True), [0, 5, 0]),
        (spm(), [1, 3 + 0xE2, 3 + 0x96, 3 + 0x81, 261, 3 + ord("c")]),
        (
            spm(add_space_prefix=False, add_bos_token=False, add_eos_token=True),
            [261, 3 + ord("c"), 2],
        ),
        (bert(), [2, 1, 3]),
        (bert(tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "bc"]), [2, 4, 5, 3]),
        (t5(), [3, 6, 2, 1]),
    ],
)
def test_build_tokenizer_of_each_kind(
    keys: dict[str, Any], tokens: list[int], tmp_path: Path
) -> None:
    assert build(tmp_path, keys) == tokens


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (gpt2(model="rwkv"), UnknownTokenizerError, "engines/native/tokenizer/kinds.py"),
        (gpt2(model=None), UnknownTokenizerError, "is missing"),
        (gpt2(model=7), HeaderError, "not a string"),
        (gpt2(pre="of-tomorrow"), UnknownTokenizerError, "engines/native/tokenizer/pretokenizers.json"),
        (gpt2(pre=None), UnknownTokenizerError, "tokenizer.ggml.pre is missing"),
        (gpt2(pre="whitespace"), UnknownTokenizerError, "unsupported combination"),
        (gpt2(merges=None), HeaderError, "merges is missing"),
        (gpt2(merges=["a b", "ab x"]), HeaderError, "out of vocabulary"),
        (gpt2(merges=["a b", "a c"]), HeaderError, "out of vocabulary"),
        (gpt2(merges=["a b", "abc"]), HeaderError, r"merges\[1\] is 'abc', not two tokens"),
        (gpt2(merges=["a b", ""]), HeaderError, r"merges\[1\] is '', not two tokens"),
        (gpt2(merges=["a b c"]), HeaderError, "does not match its tokens"),
        (gpt2(merges=["a\n b"]), HeaderError, "does not match its tokens"),
        (gpt2(tokens=["<s>", "a", "b", "ab", "c", "a"], merges=["a b"]), HeaderError, "1 and 5 are both 'a'"),
        (gpt2(tokens=["<s>", "a", "b", "ab", b"\xff\xfe", "abc"]), HeaderError, r"tokens\[4\].*not valid UTF-8"),
        (gpt2(merges=["a b", b"ab \xc3"]), HeaderError, r"merges\[1\].*not valid UTF-8"),
        (gpt2(tokens=["x" * 5_000, "a", "b", "ab", "c", "abc"]), HeaderLimitError, r"tokens\[0\]: length in bytes: 5,000"),
        (gpt2(token_type=[1, 1]), HeaderError, "token_type has 2 entries, but there are 6 tokens"),
        (gpt2(token_type=[1.0] * 6), HeaderError, "token_type holds float32, not int32"),
        (gpt2(tokens=[1, 2, 3]), HeaderError, "tokens holds int32, not strings"),
        (gpt2(tokens="abc"), HeaderError, "tokens is missing or not an array"),
        (gpt2(add_bos_token=True, bos_token_id=6), HeaderError, "bos token is number 6, but there are only 6"),
        (gpt2(add_bos_token=True, bos_token_id=None), HeaderError, "bos token, but the file does not state"),
        (gpt2(add_eos_token=True, eos_token_id=2**31), HeaderError, "eos token is number 2,147,483,648"),
        (gpt2(add_bos_token="yes"), HeaderError, "neither true nor false"),
        (gpt2(add_bos_token=True, bos_token_id="a"), HeaderError, "not a token number"),
        (spm(scores=None), HeaderError, "scores is missing"),
        (spm(scores=[0.0] * 5), HeaderError, "scores has 5 entries, but there are 262 tokens"),
        (spm(scores=[float("nan")] * 262), HeaderError, r"scores\[0\] is nan"),
        (spm(tokens=["<unk>", "<s>", "</s>", *BYTES[1:], "x", "a", "b", "ab"]), HeaderError, "is missing 1 of the 256 bytes, starting with <0x00>"),
        (spm(tokens=["<unk>", "<s>", "</s>", *BYTES, "a", "a", "ab"]), HeaderError, "are both 'a'"),
        (bert(unknown_token_id=99), HeaderError, "unknown token is number 99"),
        (bert(seperator_token_id=None), HeaderError, "sep token, but the file does not state"),
        (bert(tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "b", "b"]), HeaderError, "are both 'b'"),
        (t5(tokens=["<pad>", "</s>", "<unk>", "\u2581", "a", "a", "ab"]), HeaderError, "same token twice"),
        (t5(tokens=["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "x" * 200]), HeaderLimitError, "longest token"),
        (t5(precompiled_charsmap=b"\0"), HeaderError, "charsmap is cut off"),
        (t5(precompiled_charsmap=b"\xff\xff\xff\xffabcdefgh"), HeaderError, "charsmap is cut off"),
        (t5(precompiled_charsmap=struct.pack("<II", 4, 0xFFFFFFFF) + b"x\0"), HeaderError, "points outside itself"),
    ],
)  # fmt: skip
def test_build_tokenizer_refuses_invalid_vocabularies(
    keys: dict[str, Any], error: type[EdgekitError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        build(tmp_path, keys)


def test_build_tokenizer_accepts_an_invalid_special_token_that_is_not_used(tmp_path: Path) -> None:
    """Some files have an invalid BOS or padding token that they never use; llama.cpp only warns."""
    assert build(tmp_path, gpt2(bos_token_id=4_000_000_000)) == [5]


def test_build_tokenizer_limits_the_merges_rebuilt_from_scores(tmp_path: Path) -> None:
    short = ["a" * length for length in range(1, 40)]
    keys = spm(
        tokens=["<unk>", "<s>", "</s>", *BYTES, *short],
        scores=[0.0] * (259 + len(short)),
        token_type=[2, 3, 3] + [6] * 256 + [1] * len(short),
    )
    assert build(tmp_path, keys)  # 741 merges for 298 tokens
    long = ["a" * length for length in range(1, 60)]
    keys = spm(
        tokens=["<unk>", "<s>", "</s>", *BYTES, *long],
        scores=[0.0] * (259 + len(long)),
        token_type=[2, 3, 3] + [6] * 256 + [1] * len(long),
    )
    with pytest.raises(HeaderLimitError, match="ways to build a token"):  # 1,711 for 318
        build(tmp_path, keys)


@pytest.mark.parametrize("claimed", [10**9, 2**63])
def test_read_vocabulary_refuses_a_claimed_billion_tokens(claimed: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    key, model = b"tokenizer.ggml.tokens", b"tokenizer.ggml.model"
    path.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 2)
        + struct.pack("<Q", len(model)) + model + struct.pack("<IQ", 8, 4) + b"bert"
        + struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, claimed)
    )  # fmt: skip
    tracemalloc.start()
    with WeightFile(path, Limits()) as file, pytest.raises(HeaderError):
        read_vocabulary(file, scan_header(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_read_vocabulary_checks_limits_before_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, gpt2())
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        for key, limit in (
            ("tokens", tokenizer_limits.MOST_TOKENS),
            ("merges", tokenizer_limits.MOST_MERGES),
        ):
            array = header.arrays[GGML + key]
            too_many = replace(array, count=limit + 1)
            changed = replace(header, arrays={**header.arrays, GGML + key: too_many})
            with pytest.raises(HeaderLimitError, match=f"{key}: number of entries"):
                read_vocabulary(file, changed)
            too_long = replace(array, end=array.offset + tokenizer_limits.MOST_STRINGS_BYTES + 1)
            changed = replace(header, arrays={**header.arrays, GGML + key: too_long})
            with pytest.raises(HeaderLimitError, match="length in bytes"):
                read_vocabulary(file, changed)


def test_read_vocabulary_of_a_file_truncated_after_scan_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(
        path, gpt2(tokens=["<s>", "a", "b", "ab", "c", "abc", *(f"x{n}" for n in range(5_000))])
    )
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        with path.open("r+b") as other:
            other.truncate(header.arrays[GGML + "tokens"].offset + 1_000)
        with pytest.raises(EdgekitError, match=r"tokenizer\.ggml\.tokens"):
            read_vocabulary(file, header)


def test_tokenizer_cost_refuses_an_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, gpt2(model="plamo2"))
    with WeightFile(path, Limits()) as file, pytest.raises(UnknownTokenizerError):
        tokenizer_cost_bytes(scan_header(file))


@pytest.mark.parametrize(
    ("keys", "lowercase"),
    [
        ({}, True),
        ({"tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581Berlin", "b"]}, False),
        (
            {
                "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581Berlin", "b"],
                "normalizer.lowercase": True,
            },
            True,
        ),
        ({"normalizer.lowercase": False}, False),
    ],
    ids=["no key", "no key, capitals in tokens", "key true", "key false"],
)
def test_wordpiece_lowercase_by_key_or_by_tokens(
    tmp_path: Path, keys: dict[str, Any], *, lowercase: bool
) -> None:
    path = tmp_path / "v.gguf"
    write_model(path, bert(**keys))
    with WeightFile(path, Limits()) as file:
        assert read_vocabulary(file, scan_header(file)).lowercase is lowercase
