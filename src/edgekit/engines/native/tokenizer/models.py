"""A vocabulary -> a `tokenizers` object that cuts stretches of text, special tokens apart.

The leanest way measured to a BPE of 150,000 tokens is through two files (52 MB at its peak, against
85 through lists of Python objects and 119 through one tokenizer.json): written to a temporary
folder, or to a folder of the caller's where they stay for the next time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.engines.native.tokenizer import kept
from edgekit.engines.native.tokenizer.families import SPLITS_PER_TOKEN
from edgekit.engines.native.tokenizer.types import (
    SPACE,
    PreTokenizer,
    Strings,
    TokenKind,
    Vocabulary,
)
from edgekit.errors import EdgekitError, HeaderLimitError, SourceError
from edgekit.terminal import quoted

if TYPE_CHECKING:
    import tokenizers

CACHED_WORDS = 1_024  # of BPE: at most 256 letters each, 32 bytes a letter
_WORD_CHARACTERS = 100  # of WordPiece: longer words are unknown, as in every BERT's training
# Stands in a BPE for letters that have no token, and is left out of the answer; left out before the
# merges, as `tokenizers` would, it brings together what was apart. No word has a space in it.
_TOKENLESS = " "
_BREAKS = (b"\n", b"\r", b"#version")  # what a file of merges cannot hold in a line


def make_wordpiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """GGUF writes "▁word" and "piece" for BERT's "word" and "##piece"."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    assert vocabulary.unknown is not None  # noqa: S101 - a vocabulary of this family has it
    names = {
        _wordpiece(token, vocabulary.kinds[number], number): number
        for number, token in enumerate(vocabulary.tokens)
    }
    _check_names(vocabulary, len(names))
    unknown = f" {vocabulary.unknown}"
    names = {name: n for name, n in names.items() if n != vocabulary.unknown}
    names[unknown] = vocabulary.unknown
    model = models.WordPiece(names, unk_token=unknown, max_input_chars_per_word=_WORD_CHARACTERS)
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=vocabulary.strip_accents,
        lowercase=vocabulary.lowercase,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _wordpiece(token: str, kind: int, number: int) -> str:
    """Special tokens are found before: here they get a name that no word has, with a space in it."""
    if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
        return f" {number}"
    return token.removeprefix(SPACE) if token.startswith(SPACE) else f"##{token}"


def make_bpe(vocabulary: Vocabulary, cache: Path | None) -> tokenizers.Tokenizer:
    """BPE by merges, and by scores: those are turned into merges."""
    import tokenizers
    from tokenizers import pre_tokenizers

    pre = vocabulary.pre
    raw = pre is None or pre.raw
    if raw and vocabulary.family.model != "whitespace":
        _check_bytes(vocabulary)
    options: dict[str, Any] = {
        "cache_capacity": CACHED_WORDS,
        "byte_fallback": raw,
        "unk_token": _TOKENLESS,
        "ignore_merges": pre is not None and pre.ignore_merges,
    }
    try:
        model = _model(vocabulary, cache, options)
    except EdgekitError:
        raise
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise vocabulary.error(
            f"tokenizer.ggml.merges does not match its tokens: {quoted(str(error))}"
        ) from error
    made = tokenizers.Tokenizer(model)
    _check_names(vocabulary, made.get_vocab_size() - 1)
    cutters = list(_cutters(vocabulary, pre)) if pre is not None else []
    if cutters:
        made.pre_tokenizer = pre_tokenizers.Sequence(cutters)
    return made


def _cutters(vocabulary: Vocabulary, pre: PreTokenizer) -> Iterator[Any]:
    from tokenizers import Regex, pre_tokenizers

    for pattern in pre.patterns:
        yield pre_tokenizers.Split(Regex(pattern), "isolated")
    if not pre.raw:
        yield pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if vocabulary.family.model == "whitespace":
        yield pre_tokenizers.WhitespaceSplit()


def _model(vocabulary: Vocabulary, cache: Path | None, options: dict[str, Any]) -> Any:
    from tokenizers import models

    named = vocabulary.tokens if vocabulary.merges is None else vocabulary.merges
    if any(mark in named.all_bytes for mark in _BREAKS):
        tokens = {token: number for number, token in enumerate(_all_named(vocabulary.tokens))}
        return models.BPE(tokens, list(_shared(tokens, _merges(vocabulary))), **options)
    try:
        with tempfile.TemporaryDirectory(prefix="edgekit-") as temporary:
            folder = _write_files(vocabulary, cache, Path(temporary))
            return models.BPE.from_file(
                str(folder / kept.VOCABULARY), str(folder / kept.MERGES), **options
            )
    except OSError as error:
        raise SourceError(
            "cannot write the temporary files (a few MB) needed to build a tokenizer: "
            f"{error}. Set TMPDIR to another folder"
        ) from error


def _write_files(vocabulary: Vocabulary, cache: Path | None, temporary: Path) -> Path:
    folder = kept.folder_of(vocabulary, cache) or temporary
    if folder != temporary and kept.is_whole(folder):
        return folder
    return kept.write(
        folder, temporary, lambda: _vocabulary_json(vocabulary), lambda: _lines(vocabulary)
    )


def _named(tokens: Strings) -> Iterator[str]:
    """An empty token has a name all the same: llama-vocab.cpp:2461."""
    for number, token in enumerate(tokens):
        yield token or f"[EMPTY_{number}]"


def _all_named(tokens: Strings) -> Iterator[str]:
    """With the one that is not in the file, behind the last."""
    yield from _named(tokens)
    yield _TOKENLESS


def _vocabulary_json(vocabulary: Vocabulary) -> Iterator[str]:
    quote = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder for each
    yield "{"
    for number, token in enumerate(_all_named(vocabulary.tokens)):
        yield f"{',' if number else ''}{quote(token)}:{number}"
    yield "}"


def _lines(vocabulary: Vocabulary) -> Iterator[str]:
    for left, right in _merges(vocabulary):
        yield f"{left} {right}\n"


def _merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    if vocabulary.merges is None:
        yield from merges_by_score(vocabulary)
        return
    for index, merge in enumerate(vocabulary.merges):
        between = merge.find(" ", 1)  # the first letter may itself be a space
        if not 0 < between < len(merge) - 1:
            raise vocabulary.error(
                f"tokenizer.ggml.merges[{index}] is {quoted(merge)}, not two tokens"
            )
        yield merge[:between], merge[between + 1 :]


def _shared(tokens: dict[str, int], merges: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The same, with the texts of the tokens themselves: 10 MB less for 150,000 merges."""
    same = {token: token for token in tokens}
    for left, right in merges:
        yield same.get(left, left), same.get(right, right)


def merges_by_score(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Every way to make a token of two others, the token of the highest score first."""
    scores = vocabulary.scores
    assert scores is not None  # noqa: S101 - a vocabulary of this family has them
    numbers = {token: number for number, token in enumerate(_named(vocabulary.tokens))}
    _check_names(vocabulary, len(numbers))
    made, limit = 0, SPLITS_PER_TOKEN * len(numbers)
    find = numbers.get
    for token in sorted(numbers, key=lambda token: -scores[numbers[token]]):
        pairs = [
            (left, right, at)
            for at in range(1, len(token))
            if (left := find(token[:at])) is not None and (right := find(token[at:])) is not None
        ]
        made += len(pairs)
        if made > limit:
            raise HeaderLimitError(
                "ways to build a token from two others",
                value=made,
                limit=limit,
                file=vocabulary.file,
            )
        for _, _, at in sorted(pairs):
            yield token[:at], token[at:]


def _check_names(vocabulary: Vocabulary, names: int) -> None:
    if names == len(vocabulary.tokens):
        return
    seen: dict[str, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        if token in seen:
            raise vocabulary.error(
                f"tokenizer.ggml.tokens: {seen[token]:,} and {number:,} are both {quoted(token)}"
            )
        seen[token] = number
    raise vocabulary.error("tokenizer.ggml.tokens has the same token twice, in two spellings")


def _check_bytes(vocabulary: Vocabulary) -> None:
    """Letters without a token are cut into bytes: each of them needs one."""
    wanted = {f"<0x{byte:02X}>" for byte in range(256)}
    wanted.difference_update(vocabulary.tokens)
    if wanted:
        raise vocabulary.error(
            f"tokenizer.ggml.tokens is missing {len(wanted)} of the 256 bytes, starting "
            f"with {min(wanted)}: characters without a token could not be encoded"
        )
