"""Against llama.cpp: its own vectors, and what it answered to 362 texts in many scripts."""

from __future__ import annotations

import pytest
from tests.vocabularies import pairs_tokenizer, tokenizer_answers, tokenizer_of, vectors

from edgekit.embed.tokenizer.pretokenizers import PRE_TOKENIZERS
from edgekit.errors import UnknownTokenizerError

WITH_VECTORS = (
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)
WITHOUT_VECTORS = ("baichuan", "nomic-bert-moe")
REFUSED = ("aquila", "gpt-neox")  # of before tokenizer.ggml.pre


@pytest.mark.parametrize("name", WITH_VECTORS, scope="module")
def test_llama_cpps_own_vectors(name: str) -> None:
    found = vectors(name)
    assert len(found) >= 46
    tokenizer = tokenizer_of(name)
    for text, tokens in found:
        assert tokenizer.encode_plain(text, parse_special=False) == tokens, text


@pytest.mark.parametrize("name", WITH_VECTORS + WITHOUT_VECTORS, scope="module")
def test_what_llama_cpp_answered(name: str) -> None:
    """As its server embeds a text; and as plain text, where special tokens would change it.

    BERT is held against its own tokenizer where llama.cpp departs from it: see docs/tokenizers.md.
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


@pytest.mark.parametrize("group", range(len(tokenizer_answers()["pre"])))
def test_every_way_to_cut_into_words(group: int) -> None:
    answers = tokenizer_answers()
    names, expected = answers["pre"][group]["names"], answers["pre"][group]["plain"]
    for name in {PRE_TOKENIZERS[name]: name for name in names}.values():
        tokenizer = pairs_tokenizer(name)
        for text, tokens in zip(answers["texts"], expected, strict=True):
            assert tokenizer.encode_plain(text, parse_special=False) == tokens, (name, text)


def test_every_name_was_asked() -> None:
    asked = [name for group in tokenizer_answers()["pre"] for name in group["names"]]
    assert sorted(asked) == sorted(PRE_TOKENIZERS)
