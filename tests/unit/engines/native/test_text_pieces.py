"""TextPieces: tokens back into text, characters split over tokens, and end tokens, compared with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embed_models import write_model
from tests.embed_vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    byte_bpe,
    sentencepiece,
    wordpiece,
)
from tests.served_oracle import llamacpp_replies
from tests.thoroughness import sampled
from tests.vocabularies import find_vocabulary, vectors

from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.text import TextPieces
from edgekit.engines.native.tokenizer.build import build_tokenizer
from edgekit.engines.native.tokenizer.text import TextTokenizer
from edgekit.engines.native.tokenizer.vocabulary import ANSWER_ENDS, FILL_ENDS, read_vocabulary
from edgekit.errors import HeaderError, HeaderLimitError, SourceError, TextError

TINY: dict[str, Any] = {"kind": "F16", "layers": 1, "width": 64, "inner": 64, "heads": 1, "kv_heads": 1}  # fmt: skip
KINDS = {"byte-level": byte_bpe, "sentencepiece": sentencepiece}
TEXTS = (
    "",
    "the quick brown fox",
    " the  lazy\n\n\tdog ",
    "\u00e9\u00fc \u4e2d\u6587 \ud55c\uad6d \u0627\u0644 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\x00\x01 a\u2581b \u0120",
    "<0x41> </s> <|im_end|>",
)


def write(path: Path, vocabulary: Vocabulary) -> Path:
    return write_model(
        path, "qwen2" if vocabulary.model == "gpt2" else "llama", vocabulary=vocabulary, **TINY
    )


@contextmanager
def pieces_of(path: Path) -> Iterator[TextPieces]:
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        yield TextPieces(file, header, read_vocabulary(file, header))


def decode(pieces: TextPieces, tokens: list[int]) -> str:
    return "".join([pieces.push(token) for token in tokens]) + pieces.flush()


@pytest.fixture(scope="module", params=KINDS)
def coder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A tokenizer, the TextPieces of its file, and the space that sentencepiece adds before a text."""
    path = write(tmp_path_factory.mktemp("pieces") / "model.gguf", KINDS[request.param]())
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        vocabulary = read_vocabulary(file, header)
        prefix = " " if vocabulary.space_prefix else ""
        yield build_tokenizer(vocabulary), TextPieces(file, header, vocabulary), prefix


Coder = tuple[TextTokenizer, TextPieces, str]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_round_trip(coder: Coder, text: str) -> None:
    tokenizer, pieces, prefix = coder
    tokens = tokenizer.encode_plain(text, parse_special=False)
    plain = text.replace("\u2581", " ") if prefix else text  # sentencepiece's space is not a letter
    assert decode(pieces, tokens) == (prefix + plain if text else "")


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=30)
)
@settings(max_examples=60, deadline=None)
def test_pieces_round_trip_of_any_text(coder: Coder, text: str) -> None:
    tokenizer, pieces, prefix = coder
    tokens = tokenizer.encode_plain(text, parse_special=False)
    assert decode(pieces, tokens) == (prefix + text if text else "")


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pieces_of_any_tokens_are_whole_characters(coder: Coder, data: st.DataObject) -> None:
    """The text so far is always a prefix of the final text."""
    _, pieces, _ = coder
    tokens = data.draw(st.lists(st.integers(0, len(pieces._kinds) - 1), max_size=20))
    raw = b"".join(pieces.piece(token) for token in tokens)
    shown = ""
    for token in tokens:
        shown += pieces.push(token)
        assert raw.decode(errors="replace").startswith(shown)
    assert shown + pieces.flush() == raw.decode(errors="replace")


# The normal run has one of each kind: sentencepiece, bytes as letters, letters themselves.
NAMES = sampled(("llama-spm", "llama-bpe", "falcon", "qwen2", "gemma-4", "phi-3"), each=2)


@pytest.mark.parametrize("name", NAMES)
def test_pieces_round_trip_of_llamacpp_texts(name: str) -> None:
    path = find_vocabulary(name)
    prefix = " " if name in ("llama-spm", "phi-3") else ""
    with pieces_of(path) as pieces:
        for text, tokens in vectors(name):
            assert decode(pieces, tokens) == (prefix + text if text else "")


# --- characters split over tokens


def byte_tokens(text: str) -> list[int]:
    """Byte tokens of the sentencepiece vocabulary, in which <0x00> is token 3."""
    return [3 + byte for byte in text.encode()]


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextPieces]:
    path = write(tmp_path_factory.mktemp("spm") / "model.gguf", sentencepiece())
    with pieces_of(path) as pieces:
        yield pieces


def test_pieces_show_a_character_after_its_last_byte(spm: TextPieces) -> None:
    assert [spm.push(token) for token in byte_tokens("a\u00e9\u4e2d\U0001f600")] == [
        "a", "", "\u00e9", "", "", "\u4e2d", "", "", "", "\U0001f600",
    ]  # fmt: skip
    assert spm.flush() == ""


def test_pieces_incomplete_character_at_the_end(spm: TextPieces) -> None:
    half = byte_tokens("\U0001f600")[:3]
    assert [spm.push(token) for token in half] == ["", "", ""]
    assert spm.flush() == "\ufffd"
    assert decode(spm, byte_tokens("a")) == "a"  # flush discarded the incomplete character
    assert [spm.push(token) for token in (half[0], *byte_tokens("b"))] == ["", "\ufffdb"]


def test_pieces_bytes_that_start_no_character(spm: TextPieces) -> None:
    assert decode(spm, [3 + 0xFF, 3 + 0x80, 3 + 0x41]) == "\ufffd\ufffdA"


# --- tokens that are shown


def mixed() -> Vocabulary:
    plain = sentencepiece()
    added = (
        ("<|tool|>", USER_DEFINED),
        ("\u2581raw\u2581", USER_DEFINED),
        ("<unused0>", UNUSED),
        ("<control>", CONTROL),
        ("<odd>", UNKNOWN),
        ("<undefined>", 0),
        ("\u2581\u2581two", NORMAL),
    )
    return replace(
        plain,
        tokens=plain.tokens + tuple(text for text, _ in added),
        types=plain.types + tuple(kind for _, kind in added),
        scores=plain.scores + (-900.0,) * len(added),
    )


def test_pieces_show_only_text_tokens(tmp_path: Path) -> None:
    """A user-defined token is shown literally, including U+2581."""
    vocabulary = mixed()
    first = len(vocabulary.tokens) - 7
    with pieces_of(write(tmp_path / "m.gguf", vocabulary)) as pieces:
        shown = [pieces.push(first + index) for index in range(7)]
        assert shown == ["<|tool|>", "\u2581raw\u2581", "", "", "", "", "  two"]
        assert decode(pieces, [0, 1, 2]) == ""


def test_pieces_character_outside_the_byte_alphabet(tmp_path: Path) -> None:
    plain = byte_bpe()
    vocabulary = replace(plain, tokens=(*plain.tokens, "a\u4e2db"), types=(*plain.types, NORMAL))
    with pieces_of(write(tmp_path / "m.gguf", vocabulary)) as pieces:
        assert pieces.push(len(plain.tokens)) == "a\u4e2db"


@pytest.mark.parametrize("make", [mixed, byte_bpe], ids=["sentencepiece", "byte-level"])
def test_pieces_equal_llamacpp_detokenize(make: Any, tmp_path: Path) -> None:
    """Tokens that are shown, alone and in runs. /detokenize also shows special tokens."""
    pytest.importorskip("xllamacpp")
    vocabulary = make()
    path = write(tmp_path / "m.gguf", vocabulary)
    plain = [n for n, kind in enumerate(vocabulary.types) if kind in (NORMAL, USER_DEFINED)]
    random = np.random.default_rng(1)
    runs = [[token] for token in plain if vocabulary.types[token] != BYTE]
    runs = [run for run in runs if not vocabulary.tokens[run[0]].isascii()][:150]
    runs += [random.choice(plain, 30).tolist() for _ in range(10)]
    if vocabulary.model == "gpt2":  # parts of characters, which the server cannot put in JSON
        runs = [[token for token in run if vocabulary.tokens[token].isascii()] for run in runs]
    replies = llamacpp_replies(path, [("/detokenize", {"tokens": run}) for run in runs])
    with pieces_of(path) as pieces:
        assert [decode(pieces, run) for run in runs] == [reply["content"] for reply in replies]


# --- tokens that end an answer


def many_ends(*, leave_out: frozenset[str] = frozenset(), **keys: int) -> Vocabulary:
    """Every text that ends an answer in some model, and some that do not."""
    plain = sentencepiece()
    texts = {*ANSWER_ENDS, *(text for texts in FILL_ENDS.values() for text in texts[:1])}
    texts |= {"<|im_start|>", "<|fim_prefix|>", "<|channel|>", "<end_of_turns>", "</S>", "[eos]"}
    added = tuple(sorted(texts - leave_out - set(plain.tokens)))
    return replace(
        plain,
        tokens=plain.tokens + added,
        types=plain.types + tuple(CONTROL if index % 2 else NORMAL for index in range(len(added))),
        scores=plain.scores + (-900.0,) * len(added),
        extra_keys=tuple((dict(plain.extra_keys) | keys).items()),
    )


HARMONY = frozenset({"<|return|>", "<|flush|>", "<|call|>", "<|calls|>"})
VOCABULARIES = {
    "all names": many_ends(),
    "no exceptions": many_ends(leave_out=HARMONY | {"<|tool_response>"}),
    "by keys": many_ends(
        leave_out=ANSWER_ENDS | {texts[0] for texts in FILL_ENDS.values()},
        eos_token_id=300,
        eot_token_id=301,
        eom_token_id=302,
        fim_pad_token_id=303,
        fim_rep_token_id=304,
        fim_sep_token_id=305,
    ),
    "keys before names": many_ends(fim_pad_token_id=310, eos_token_id=1, eot_token_id=10**6),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_end_tokens_equal_llamacpp(name: str, tmp_path: Path) -> None:
    """Each candidate is forced with a logit bias, and the server says why it stopped."""
    pytest.importorskip("xllamacpp")
    vocabulary = VOCABULARIES[name]
    path = write(tmp_path / "m.gguf", vocabulary)
    candidates = [
        1,
        2,
        *range(298, 312),
        *range(len(sentencepiece().tokens), len(vocabulary.tokens)),
    ]
    body = {"prompt": [1, 300], "n_predict": 1, "temperature": 0, "samplers": ["temperature"]}
    replies = llamacpp_replies(
        path, [("/completion", body | {"logit_bias": [[token, 1e6]]}) for token in candidates]
    )
    expected = {
        token
        for token, reply in zip(candidates, replies, strict=True)
        if reply["stop_type"] == "eos"
    }
    assert expected
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        actual = TextPieces(file, header, read_vocabulary(file, header)).ends
    assert {token for token in actual if token in candidates} == expected


# --- memory and invalid files


def test_pieces_need_five_bytes_per_token(tmp_path: Path) -> None:
    with pieces_of(write(tmp_path / "m.gguf", sentencepiece())) as pieces:
        assert pieces._text_ends.itemsize == 4
        assert len(pieces._text_ends) == len(pieces._kinds) == len(sentencepiece().tokens)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_pieces_refuse_a_token_that_does_not_exist(spm: TextPieces, token: int) -> None:
    with pytest.raises(TextError, match="does not exist"):
        spm.push(token)


@pytest.mark.parametrize("text", ["<0xG0>", "<0x1>", "A", ""])
def test_pieces_refuse_an_invalid_byte_token(text: str, tmp_path: Path) -> None:
    plain = sentencepiece()
    vocabulary = replace(plain, tokens=(*plain.tokens[:3], text, *plain.tokens[4:]))
    with (
        pieces_of(write(tmp_path / "m.gguf", vocabulary)) as pieces,
        pytest.raises(HeaderError, match=r"tokens\[3\].*not a byte"),
    ):
        pieces.push(3)


def test_pieces_refuse_a_token_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", byte_bpe())
    path.write_bytes(path.read_bytes().replace("\u0120quick".encode(), b"\xffxquick", 1))
    with pytest.raises(HeaderError, match="not valid UTF-8"), pieces_of(path):
        pass


def test_pieces_refuse_tokens_after_the_file_is_closed(tmp_path: Path) -> None:
    with pieces_of(write(tmp_path / "m.gguf", sentencepiece())) as pieces:
        pass
    with pytest.raises(SourceError, match="closed"):
        pieces.push(300)


def test_pieces_refuse_a_token_over_the_length_limit(tmp_path: Path) -> None:
    plain = sentencepiece()
    vocabulary = replace(plain, tokens=(*plain.tokens[:-1], "x" * 5000))
    with pytest.raises(HeaderLimitError), pieces_of(write(tmp_path / "m.gguf", vocabulary)):
        pass


def test_pieces_of_wordpiece_join_words_like_llamacpp(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "bert", **TINY)
    tokens = [wordpiece().tokens.index(text) for text in ("\u2581hello", "ed", "\u2581world")]
    with pieces_of(path) as pieces:
        assert decode(pieces, tokens) == " helloed world"
