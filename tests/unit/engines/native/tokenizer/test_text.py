"""Texts of any kind: limits, special tokens, threads, and time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.thoroughness import LONG, sampled
from tests.vocabularies import tokenizer_answers, tokenizer_of

from edgekit.engines.native.tokenizer.vocabulary import STRETCH_CHARACTERS
from edgekit.errors import TextError


def test_special_tokens_in_a_text() -> None:
    """As llama.cpp's server (parse_special) and sentence-transformers; letters if one asks for that."""
    bert = tokenizer_of("bert-bge")
    assert bert.encode("a [SEP] b") == [101, 1037, 102, 1038, 102]
    assert 102 not in bert.encode_plain("a [SEP] b", parse_special=False)
    phi = tokenizer_of("phi-3")
    assert phi.encode_plain("<|user|>\n hi") == phi.encode_plain("<|user|>hi")  # swallows spaces
    assert phi.encode_plain("<s>\n hi") != phi.encode_plain("<s>hi")
    xlmr = tokenizer_of("nomic-bert-moe")
    assert xlmr.encode_plain("a  <mask>b") == xlmr.encode_plain("a<mask>b")


def test_longer_than_the_limit() -> None:
    bert = tokenizer_of("bert-bge")
    assert len(bert.encode("a " * 510, limit_tokens=512)) == 512
    with pytest.raises(TextError, match="more than 512 tokens"):
        bert.encode("a " * 511, limit_tokens=512)
    cut = bert.encode("a " * 511, limit_tokens=512, truncate=True)
    assert (len(cut), cut[0], cut[-1]) == (512, 101, 102)
    with pytest.raises(TextError, match="too small"):
        bert.encode("a", limit_tokens=1)


def test_the_beginning_does_not_depend_on_the_limit() -> None:
    gpt = tokenizer_of("gpt-2")
    text = "The quick brown fox, 漢字です。 " * 1_000
    whole = gpt.encode(text)
    assert gpt.encode(text, limit_tokens=2_048, truncate=True) == whole[:2_048]


def test_half_a_character() -> None:
    with pytest.raises(TextError, match=r"character 2 is '\\ud800'"):
        tokenizer_of("bert-bge").encode("ab\ud800")


def test_an_empty_text_has_its_frame() -> None:
    assert tokenizer_of("bert-bge").encode("") == [101, 102]
    assert tokenizer_of("llama-spm").encode("") == [1]
    assert tokenizer_of("gpt-2").encode("") == []


MANY = 1_000_000


HURTING = ["bert-bge", "gpt-2", "llama-spm", "nomic-bert-moe"]  # one of each kind
HURTING += ["qwen2", "deepseek-llm"] if LONG else []
HURT: dict[str, Callable[[], str]] = {
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


@pytest.mark.parametrize("name", HURTING)
def test_a_text_made_to_hurt(name: str) -> None:
    """Millions of letters are refused or cut; in 0.01 to 1.5 s, where a slow way would take hours.

    Each vocabulary has every fourth text, the next one others; with LONG all.
    """
    tokenizer = tokenizer_of(name)
    for kind in sampled(tuple(HURT), each=4, turn=HURTING.index(name)):
        text = HURT[kind]()
        try:
            assert len(tokenizer.encode(text, limit_tokens=2_048)) <= 2_048, kind
        except TextError as error:
            assert "truncate" in str(error), kind  # noqa: PT017 - both are right
        assert len(tokenizer.encode(text, limit_tokens=2_048, truncate=True)) <= 2_048, kind


def test_a_stretch_without_a_place_to_part_it() -> None:
    gpt = tokenizer_of("gpt-2")
    assert len(gpt.encode("a" * STRETCH_CHARACTERS)) > 1_000
    with pytest.raises(TextError, match="8,192 characters without a place"):
        gpt.encode("a" * 2 * STRETCH_CHARACTERS)


def test_tokenizer_in_several_threads() -> None:
    tokenizer = tokenizer_of("gpt-2")
    texts = tokenizer_answers()["texts"]
    alone = [tokenizer.encode(text) for text in texts]
    result: list[list[list[int]]] = []

    def cut_all() -> None:
        result.append([tokenizer.encode(text) for text in texts])

    threads = [threading.Thread(target=cut_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [alone] * 4
