"""Against llama.cpp: its own vectors, and what it answered to 362 texts in many scripts; in pieces as in one.

Tests of one vocabulary, or of one way to cut, follow each other: building a tokenizer takes up to three seconds.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.vocabularies import pairs_tokenizer, tokenizer_answers, tokenizer_of, vectors

from edgekit.engines.native.tokenizer.kinds import pre_tokenizers
from edgekit.engines.native.tokenizer.text import TextTokenizer, windows
from edgekit.errors import UnknownTokenizerError

# Reading a vocabulary takes a second or two: in the normal run there is one of each kind, with WITHOUT_VECTORS.
# The others merge pairs as gpt-2 or llama-spm do, and the ways they cut into words are WAYS.
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
REFUSED = ("aquila", "gpt-neox")  # of before tokenizer.ggml.pre
WAYS = sorted({row: name for name, row in pre_tokenizers().items()}.values())
ALPHABET = "aB\u00e9\u0301\u4e2d\u304b1\u00bd .,'s!\u3002\uff0c\n\r\t\u00a0\u3000\U0001f600-_<|>"


@pytest.mark.parametrize("name", WITH_VECTORS, scope="module")
def test_llama_cpps_own_vectors(name: str) -> None:
    result = vectors(name)
    assert len(result) >= 46
    tokenizer = tokenizer_of(name)
    for text, tokens in result:
        assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


@pytest.mark.parametrize("name", [*WITH_VECTORS, *WITHOUT_VECTORS], scope="module")
def test_tokenizer_equals_recorded_llama_cpp(name: str) -> None:
    """As its server embeds a text; and as plain text, where special tokens would change it.

    BERT is held against its own tokenizer where llama.cpp departs from it: see docs/embed.md.
    """
    answers = tokenizer_answers()
    theirs, own = answers["vocabularies"][name], answers["own"].get(name, {})
    tokenizer = tokenizer_of(name)
    for index, text in enumerate(answers["texts"]):
        expected = own.get(str(index), theirs["embedded"][index])
        assert tokenizer.encode(text) == expected, text
    for index, tokens in theirs["plain"].items():
        text = answers["texts"][int(index)]
        assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


def test_bert_departs_from_llama_cpp_in_few_texts() -> None:
    """Hangul, marks that take room, and three kinds of spaces. A new departure is a new finding."""
    answers = tokenizer_answers()
    departing = [answers["texts"][int(index)] for index in answers["own"]["bert-bge"]]
    assert len(departing) == 34
    odd = range(0x0900, 0x0C00), range(0xAC00, 0xD7A4), (0x0B, 0x0C, 0x85)
    assert all(any(ord(c) in codes for c in text for codes in odd) for text in departing)


def test_a_word_of_more_than_100_letters_is_unknown_to_bert() -> None:
    """As in its training; llama.cpp cuts it into pieces."""
    tokenizer = tokenizer_of("bert-bge")
    assert len(tokenizer.encode("x" * 100)) > 3
    assert tokenizer.encode("x" * 101) == [101, 100, 102]


@pytest.mark.parametrize("name", REFUSED)
def test_a_vocabulary_that_does_not_say_how_is_refused(name: str) -> None:
    with pytest.raises(UnknownTokenizerError, match="convert the model again"):
        tokenizer_of(name)


@pytest.mark.parametrize("pre", WAYS, scope="module")
def test_every_way_to_cut_into_words(pre: str) -> None:
    """Names that stand for the same way were asked together, or each had the same answers."""
    answers, tokenizer = tokenizer_answers(), pairs_tokenizer(pre)
    requests = [group for group in answers["pre"] if is_among(pre, group["names"])]
    assert requests
    for group in requests:
        for text, tokens in zip(answers["texts"], group["plain"], strict=True):
            assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


def is_among(pre: str, names: list[str]) -> bool:
    return any(pre_tokenizers()[name] == pre_tokenizers()[pre] for name in names)


def test_every_pre_tokenizer_is_recorded() -> None:
    requests = [name for group in tokenizer_answers()["pre"] for name in group["names"]]
    assert sorted(requests) == sorted(pre_tokenizers())


@pytest.mark.parametrize("pre", WAYS, scope="module")
def test_pieces_have_the_tokens_of_the_whole(pre: str) -> None:
    """Every way to cut into words, at every place where a text may be parted."""
    tokenizer = pairs_tokenizer(pre)
    _check_pieces(tokenizer, " ".join(tokenizer_answers()["texts"]))

    @settings(
        max_examples=200 if LONG else 15, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.text(st.sampled_from(ALPHABET), max_size=60))
    def check(text: str) -> None:
        _check_pieces(tokenizer, text)

    check()


@pytest.mark.parametrize(
    "name",
    ["bert-bge", "llama-spm", "baichuan", "nomic-bert-moe", *(["phi-3"] if LONG else [])],
    scope="module",
)
def test_pieces_have_the_tokens_of_the_whole_without_words(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text in tokenizer_answers()["texts"]:
        _check_pieces(tokenizer, text)


def _check_pieces(tokenizer: TextTokenizer, text: str) -> None:
    parts = list(windows(text, tokenizer._split_points, truncate=False, window_characters=1))
    assert "".join(parts) == text
    pieces = [n for index, part in enumerate(parts) for n in tokenizer._cut(part, index == 0)]
    assert pieces == tokenizer._cut(text, True)
