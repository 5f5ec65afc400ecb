"""TextTokenizer: special tokens, length limits, threads, and texts that make slow tokenizers hang."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.thoroughness import LONG, sampled
from tests.vocabularies import recorded_tokens, tokenizer_of

from edgekit.engines.native.tokenizer.vocabulary import STRETCH_CHARACTERS
from edgekit.errors import TextError


def test_tokenizer_special_tokens_in_a_text() -> None:
    """Parsed as by llama.cpp's server and sentence-transformers; plain text with parse_special=False."""
    bert = tokenizer_of("bert-bge")
    assert bert.encode("a [SEP] b") == [101, 1037, 102, 1038, 102]
    assert 102 not in bert.encode_plain("a [SEP] b", parse_special=False)
    phi = tokenizer_of("phi-3")
    assert phi.encode_plain("<|user|>\n hi") == phi.encode_plain("<|user|>hi")  # swallows spaces
    assert phi.encode_plain("<s>\n hi") != phi.encode_plain("<s>hi")
    xlmr = tokenizer_of("nomic-bert-moe")
    assert xlmr.encode_plain("a  <mask>b") == xlmr.encode_plain("a<mask>b")


def test_tokenizer_refuses_or_truncates_a_text_over_the_limit() -> None:
    bert = tokenizer_of("bert-bge")
    assert len(bert.encode("a " * 510, limit_tokens=512)) == 512
    with pytest.raises(TextError, match="more than 512 tokens"):
        bert.encode("a " * 511, limit_tokens=512)
    cut = bert.encode("a " * 511, limit_tokens=512, truncate=True)
    assert (len(cut), cut[0], cut[-1]) == (512, 101, 102)
    with pytest.raises(TextError, match="too small"):
        bert.encode("a", limit_tokens=1)


def test_tokenizer_truncation_does_not_change_the_first_tokens() -> None:
    gpt = tokenizer_of("gpt-2")
    text = "The quick brown fox, 漢字です。 " * 1_000
    tokens = gpt.encode(text)
    assert gpt.encode(text, limit_tokens=2_048, truncate=True) == tokens[:2_048]


def test_tokenizer_refuses_a_lone_surrogate() -> None:
    with pytest.raises(TextError, match=r"character 2 is '\\ud800'"):
        tokenizer_of("bert-bge").encode("ab\ud800")


def test_tokenizer_empty_text_has_only_special_tokens() -> None:
    assert tokenizer_of("bert-bge").encode("") == [101, 102]
    assert tokenizer_of("llama-spm").encode("") == [1]
    assert tokenizer_of("gpt-2").encode("") == []


MANY = 1_000_000
SLOW_NAMES = ["bert-bge", "gpt-2", "llama-spm", "nomic-bert-moe"]  # one of each kind
SLOW_NAMES += ["qwen2", "deepseek-llm"] if LONG else []
SLOW_TEXTS: dict[str, Callable[[], str]] = {
    "word": lambda: "a" * 4 * MANY,
    "spaces": lambda: " " * MANY,
    "spaces then x": lambda: " " * MANY + "x",
    "lines": lambda: "\n" * MANY,
    "marks": lambda: "e" + "\u0301" * MANY,
    "digits": lambda: "7" * MANY,
    "quotes": lambda: "'s" * MANY,
    "half tokens": lambda: "<|" * MANY,
    "tabs": lambda: " \t" * MANY,
    "han": lambda: "漢" * MANY,
    "emoji": lambda: "\U0001f469\u200d" * (MANY // 2),
    "words": lambda: "word " * 800_000,
}


@pytest.mark.parametrize("name", SLOW_NAMES)
def test_tokenizer_refuses_or_truncates_texts_of_a_million_characters(name: str) -> None:
    """They are refused or truncated in 0.01 to 1.5 s, where a quadratic algorithm would take hours.

    Each vocabulary has a different quarter of the texts; with LONG, all of them.
    """
    tokenizer = tokenizer_of(name)
    for kind in sampled(tuple(SLOW_TEXTS), each=4, turn=SLOW_NAMES.index(name)):
        text = SLOW_TEXTS[kind]()
        try:
            assert len(tokenizer.encode(text, limit_tokens=2_048)) <= 2_048, kind
        except TextError as error:
            assert "truncate" in str(error), kind  # noqa: PT017 - an error is not required
        assert len(tokenizer.encode(text, limit_tokens=2_048, truncate=True)) <= 2_048, kind


def test_tokenizer_refuses_a_stretch_that_cannot_be_split() -> None:
    gpt = tokenizer_of("gpt-2")
    assert len(gpt.encode("a" * STRETCH_CHARACTERS)) > 1_000
    with pytest.raises(TextError, match="8,192 characters without a place"):
        gpt.encode("a" * 2 * STRETCH_CHARACTERS)


def test_tokenizer_in_several_threads() -> None:
    tokenizer = tokenizer_of("gpt-2")
    texts = recorded_tokens()["texts"]
    alone = [tokenizer.encode(text) for text in texts]
    result: list[list[list[int]]] = []

    def encode_all() -> None:
        result.append([tokenizer.encode(text) for text in texts])

    threads = [threading.Thread(target=encode_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [alone] * 4
