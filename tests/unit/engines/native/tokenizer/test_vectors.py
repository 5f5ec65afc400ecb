"""TextTokenizer compared with llama.cpp: its own test vectors, and its recorded tokens of 362 texts in many scripts.

Tests of one vocabulary or pre-tokenizer follow each other: building a tokenizer takes up to three seconds.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.vocabularies import pairs_tokenizer, recorded_tokens, tokenizer_of, vectors

from edgekit.engines.native.tokenizer.kinds import pre_tokenizers
from edgekit.engines.native.tokenizer.text import TextTokenizer, windows
from edgekit.errors import UnknownTokenizerError

# Reading a vocabulary takes a second or two: the normal run has one of each kind, including WITHOUT_VECTORS.
# The others merge like gpt-2 or llama-spm, and their pre-tokenizers are in PRE_TOKENIZERS.
WITH_VECTORS = ["bert-bge", "gpt-2", "llama-spm"]
if LONG:
    WITH_VECTORS += [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "llama-bpe",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ]
WITHOUT_VECTORS = ("baichuan", "nomic-bert-moe")
REFUSED = ("aquila", "gpt-neox")  # older than the key tokenizer.ggml.pre
PRE_TOKENIZERS = sorted({row: name for name, row in pre_tokenizers().items()}.values())
ALPHABET = "aB\u00e9\u0301\u4e2d\u304b1\u00bd .,'s!\u3002\uff0c\n\r\t\u00a0\u3000\U0001f600-_<|>"


@pytest.mark.parametrize("name", WITH_VECTORS, scope="module")
def test_tokenizer_equals_llamacpp_test_vectors(name: str) -> None:
    result = vectors(name)
    assert len(result) >= 46
    tokenizer = tokenizer_of(name)
    for text, tokens in result:
        assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


@pytest.mark.parametrize("name", [*WITH_VECTORS, *WITHOUT_VECTORS], scope="module")
def test_tokenizer_equals_recorded_llama_cpp(name: str) -> None:
    """As its server tokenizes a text to embed; and as plain text, where special tokens would change it.

    Where llama.cpp differs from BERT's own tokenizer, the latter is expected: see docs/embed.md.
    """
    recorded = recorded_tokens()
    llamacpp, own = recorded["vocabularies"][name], recorded["own"].get(name, {})
    tokenizer = tokenizer_of(name)
    for index, text in enumerate(recorded["texts"]):
        expected = own.get(str(index), llamacpp["embedded"][index])
        assert tokenizer.encode(text) == expected, text
    for index, tokens in llamacpp["plain"].items():
        text = recorded["texts"][int(index)]
        assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


def test_bert_differs_from_llamacpp_in_34_texts() -> None:
    """Hangul, Indic spacing marks, and three kinds of spaces. Any new difference needs a look."""
    recorded = recorded_tokens()
    differing = [recorded["texts"][int(index)] for index in recorded["own"]["bert-bge"]]
    assert len(differing) == 34
    ranges = range(0x0900, 0x0C00), range(0xAC00, 0xD7A4), (0x0B, 0x0C, 0x85)
    assert all(any(ord(c) in codes for c in text for codes in ranges) for text in differing)


def test_bert_word_of_more_than_100_letters_is_unknown() -> None:
    """As in BERT's own tokenizer; llama.cpp splits such a word."""
    tokenizer = tokenizer_of("bert-bge")
    assert len(tokenizer.encode("x" * 100)) > 3
    assert tokenizer.encode("x" * 101) == [101, 100, 102]


@pytest.mark.parametrize("name", REFUSED)
def test_tokenizer_refuses_a_vocabulary_without_pre_tokenizer(name: str) -> None:
    with pytest.raises(UnknownTokenizerError, match="convert the model again"):
        tokenizer_of(name)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS, scope="module")
def test_pre_tokenizer_equals_recorded_llamacpp(pre: str) -> None:
    """Names of the same pre-tokenizer were recorded as one group, or in groups with equal tokens."""
    recorded, tokenizer = recorded_tokens(), pairs_tokenizer(pre)
    groups = [group for group in recorded["pre"] if has_pre_tokenizer(pre, group["names"])]
    assert groups
    for group in groups:
        for text, tokens in zip(recorded["texts"], group["plain"], strict=True):
            assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


def has_pre_tokenizer(pre: str, names: list[str]) -> bool:
    return any(pre_tokenizers()[name] == pre_tokenizers()[pre] for name in names)


def test_every_pre_tokenizer_is_recorded() -> None:
    recorded = [name for group in recorded_tokens()["pre"] for name in group["names"]]
    assert sorted(recorded) == sorted(pre_tokenizers())


@pytest.mark.parametrize("pre", PRE_TOKENIZERS, scope="module")
def test_tokens_of_split_text_equal_those_of_the_whole_text(pre: str) -> None:
    """Split at every possible point, with every pre-tokenizer."""
    tokenizer = pairs_tokenizer(pre)
    _check_split(tokenizer, " ".join(recorded_tokens()["texts"]))

    @settings(
        max_examples=200 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.text(st.sampled_from(ALPHABET), max_size=60))
    def check(text: str) -> None:
        _check_split(tokenizer, text)

    check()


@pytest.mark.parametrize(
    "name",
    ["bert-bge", "llama-spm", "baichuan", "nomic-bert-moe", *(["phi-3"] if LONG else [])],
    scope="module",
)
def test_tokens_of_split_text_without_pre_tokenizer(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text in recorded_tokens()["texts"]:
        _check_split(tokenizer, text)


def _check_split(tokenizer: TextTokenizer, text: str) -> None:
    parts = list(windows(text, tokenizer._split_points, truncate=False, window_characters=1))
    assert "".join(parts) == text
    tokens = [n for index, part in enumerate(parts) for n in tokenizer._cut(part, index == 0)]
    assert tokens == tokenizer._cut(text, True)
