"""The tokenizer of a GGUF file, from the file's own keys. See docs/embed.md.

The `tokenizers` library tokenizes the text between special tokens. A BPE of 150,000 tokens takes the least memory if it
is loaded from two files: 52 MB at its peak, against 85 from lists of Python objects and 119 from one tokenizer.json.
The two files are written to a temporary folder, or to the caller's cache folder for reuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.engines.native.tokenizer.kinds import SPLITS_PER_TOKEN, Method
from edgekit.engines.native.tokenizer.text import TextTokenizer, cut_by
from edgekit.engines.native.tokenizer.unigram import Unigram
from edgekit.engines.native.tokenizer.vocabulary import (
    SPACE,
    Strings,
    TokenKind,
    Vocabulary,
)
from edgekit.errors import EdgekitError, HeaderLimitError, SourceError, quoted
from edgekit.sources.local import open_file, read_small

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models


def build_tokenizer(vocabulary: Vocabulary, *, cache: Path | None = None) -> TextTokenizer:
    """The tokenizer of a vocabulary. Raises HeaderError if tokens and merges contradict each other.

    `cache` is a folder for the two files of a BPE.
    """
    method = vocabulary.family.method
    if method is Method.UNIGRAM:
        return TextTokenizer(vocabulary, Unigram(vocabulary).cut)
    is_wordpiece = method is Method.WORDPIECE
    tokenizer = make_wordpiece(vocabulary) if is_wordpiece else make_bpe(vocabulary, cache)
    # glibc returns freed memory to the system only on request: 15 MB for Llama 3's vocabulary.
    with contextlib.suppress(AttributeError, TypeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    return TextTokenizer(vocabulary, cut_by(tokenizer, vocabulary))


CACHED_WORDS = 1_024  # words that a BPE caches: at most 256 letters each, 32 bytes per letter
_WORD_CHARACTERS = 100  # WordPiece treats longer words as unknown, as in the training of every BERT
# Stands for letters without a token in a BPE, and is removed from the result. `tokenizers` would remove such letters
# before the merges, which would join the letters around them. No word contains a space.
_TOKENLESS = " "
_BREAKS = (b"\n", b"\r", b"#version")  # bytes that a line of a merges file cannot contain


def make_wordpiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer. GGUF writes "▁word" and "piece" for BERT's "word" and "##piece"."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    assert vocabulary.unknown is not None  # noqa: S101 - a vocabulary of this family has it
    names: dict[str, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        if vocabulary.kinds[number] in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            name = f" {number}"  # special tokens were split off before; no word has a space
        else:
            name = token.removeprefix(SPACE) if token.startswith(SPACE) else f"##{token}"
        names[name] = number
    _check_unique(vocabulary, len(names))
    unknown = f" {vocabulary.unknown}"
    names = {name: number for name, number in names.items() if number != vocabulary.unknown}
    names[unknown] = vocabulary.unknown
    model = models.WordPiece(names, unk_token=unknown, max_input_chars_per_word=_WORD_CHARACTERS)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=vocabulary.strip_accents,
        lowercase=vocabulary.lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def make_bpe(vocabulary: Vocabulary, cache: Path | None) -> tokenizers.Tokenizer:
    """A BPE tokenizer from the vocabulary's merges, or from its scores, which are turned into merges."""
    import tokenizers
    from tokenizers import pre_tokenizers

    pre = vocabulary.pre
    is_raw = pre is None or pre.raw
    if is_raw and vocabulary.family.model != "whitespace":
        # Letters without a token are encoded as bytes: each byte needs a token.
        missing = {f"<0x{byte:02X}>" for byte in range(256)}
        missing.difference_update(vocabulary.tokens)
        if missing:
            raise vocabulary.error(
                f"tokenizer.ggml.tokens is missing {len(missing)} of the 256 bytes, starting "
                f"with {min(missing)}: characters without a token could not be encoded"
            )
    options: dict[str, Any] = {
        "cache_capacity": CACHED_WORDS,
        "byte_fallback": is_raw,
        "unk_token": _TOKENLESS,
        "ignore_merges": pre is not None and pre.ignore_merges,
    }
    try:
        model = _make_bpe_model(vocabulary, cache, options)
    except EdgekitError:
        raise
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise vocabulary.error(
            f"tokenizer.ggml.merges does not match its tokens: {quoted(str(error))}"
        ) from error
    tokenizer = tokenizers.Tokenizer(model)
    _check_unique(vocabulary, tokenizer.get_vocab_size() - 1)
    splitters: list[pre_tokenizers.PreTokenizer] = []
    if pre is not None:
        splitters += [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in pre.patterns
        ]
        if not pre.raw:
            splitters.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        if vocabulary.family.model == "whitespace":
            splitters.append(pre_tokenizers.WhitespaceSplit())
    if splitters:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    return tokenizer


def _make_bpe_model(
    vocabulary: Vocabulary, cache: Path | None, options: Mapping[str, Any]
) -> models.BPE:
    """The BPE model, loaded from two files, or from Python objects if a token or merge does not fit on a line."""
    from tokenizers import models

    strings = vocabulary.tokens if vocabulary.merges is None else vocabulary.merges
    if any(mark in strings.all_bytes for mark in _BREAKS):
        tokens = {
            token: number
            for number, token in enumerate(chain(_token_names(vocabulary.tokens), (_TOKENLESS,)))
        }
        # Merges share the string objects of the tokens: 10 MB less for 150,000 merges.
        token_objects = {token: token for token in tokens}
        merges = [
            (token_objects.get(left, left), token_objects.get(right, right))
            for left, right in _read_merges(vocabulary)
        ]
        return models.BPE(tokens, merges, **options)
    try:
        with tempfile.TemporaryDirectory(prefix="edgekit-") as temporary_name:
            temporary = Path(temporary_name)
            folder = cache_folder(vocabulary, cache) or temporary
            if folder == temporary or not is_complete(folder):
                folder = write_files(
                    folder,
                    temporary,
                    lambda: _vocabulary_json(vocabulary),
                    lambda: (f"{left} {right}\n" for left, right in _read_merges(vocabulary)),
                )
            return models.BPE.from_file(
                str(folder / VOCABULARY_FILE), str(folder / MERGES_FILE), **options
            )
    except OSError as error:
        raise SourceError(
            "cannot write the temporary files (a few MB) needed to build a tokenizer: "
            f"{error}. Set TMPDIR to another folder"
        ) from error


def _token_names(tokens: Strings) -> Iterator[str]:
    """The texts of the tokens, with a name for each empty one: llama-vocab.cpp:2461."""
    for number, token in enumerate(tokens):
        yield token or f"[EMPTY_{number}]"


def _vocabulary_json(vocabulary: Vocabulary) -> Iterator[str]:
    """The text of vocab.json, token by token."""
    # json.dumps would create an encoder for each token.
    quote = json.JSONEncoder(ensure_ascii=False).encode
    yield "{"
    for number, token in enumerate(chain(_token_names(vocabulary.tokens), (_TOKENLESS,))):
        yield f"{',' if number else ''}{quote(token)}:{number}"
    yield "}"


def _read_merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    if vocabulary.merges is None:
        yield from merges_by_score(vocabulary)
        return
    for index, merge in enumerate(vocabulary.merges):
        space = merge.find(" ", 1)  # the first token may begin with a space
        if not 0 < space < len(merge) - 1:
            raise vocabulary.error(
                f"tokenizer.ggml.merges[{index}] is {quoted(merge)}, not two tokens"
            )
        yield merge[:space], merge[space + 1 :]


def merges_by_score(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Every pair of tokens that together form a token, ordered by the score of that token, highest first.

    Pairs that form the same token are ordered by their token numbers.
    """
    scores = vocabulary.scores
    assert scores is not None  # noqa: S101 - a vocabulary of this family has them
    numbers = {token: number for number, token in enumerate(_token_names(vocabulary.tokens))}
    _check_unique(vocabulary, len(numbers))
    pair_count, limit = 0, SPLITS_PER_TOKEN * len(numbers)
    number_of = numbers.get
    for token in sorted(numbers, key=lambda token: -scores[numbers[token]]):
        pairs = [
            (left, right, cut)
            for cut in range(1, len(token))
            if (left := number_of(token[:cut])) is not None
            and (right := number_of(token[cut:])) is not None
        ]
        pair_count += len(pairs)
        if pair_count > limit:
            raise HeaderLimitError(
                "ways to build a token from two others",
                value=pair_count,
                limit=limit,
                file=vocabulary.file,
            )
        for _, _, cut in sorted(pairs):
            yield token[:cut], token[cut:]


def _check_unique(vocabulary: Vocabulary, name_count: int) -> None:
    """Raises HeaderError if the tokens have only `name_count` different names, because two of them are the same."""
    if name_count == len(vocabulary.tokens):
        return
    numbers: dict[str, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        if token in numbers:
            raise vocabulary.error(
                f"tokenizer.ggml.tokens: {numbers[token]:,} and {number:,} are both {quoted(token)}"
            )
        numbers[token] = number
    raise vocabulary.error("tokenizer.ggml.tokens has the same token twice, in two spellings")


# --- the two files of a BPE
#
# The cache folder has a subfolder for each vocabulary, named by a digest of its contents. The third file is written
# last and has the digests of the other two. If the digests do not match, both files are written again.

VOCABULARY_FILE, MERGES_FILE, DIGESTS_FILE = "vocab.json", "merges.txt", "digests.json"
TextSource = Callable[[], Iterable[str]]
# Increase the number when the files or the merges are written differently.
_VERSION = b"edgekit tokenizer 1"
_CHUNK_BYTES = 1 << 16
_DIGESTS_BYTES = 1024  # two names and two digests have about 120


def cache_folder(vocabulary: Vocabulary, cache: Path | None) -> Path | None:
    """The vocabulary's folder in the cache. Its name is a digest of everything that the two files are made from."""
    if cache is None:
        return None
    digest = hashlib.blake2b(_VERSION, digest_size=16)
    for part in (vocabulary.tokens, vocabulary.merges):
        if part is not None:
            digest.update(f"{len(part)} {len(part.all_bytes)}".encode())
            digest.update(part.ends)
            digest.update(part.all_bytes)
    if vocabulary.scores is not None:
        digest.update(vocabulary.scores)
    return cache / digest.hexdigest()


def is_complete(folder: Path) -> bool:
    """Whether both files exist and match their digests."""
    try:
        digests = json.loads(read_small(folder / DIGESTS_FILE, limit=_DIGESTS_BYTES) or b"")
        return bool(
            digests == {name: _digest(folder / name) for name in (VOCABULARY_FILE, MERGES_FILE)}
        )
    except (OSError, EdgekitError, ValueError, RecursionError):
        return False


def write_files(folder: Path, temporary: Path, vocabulary: TextSource, merges: TextSource) -> Path:
    """Writes both files and returns their folder: `temporary` if `folder` cannot be written."""
    if folder != temporary:
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                _write_all(new, vocabulary, merges)
                folder.mkdir(exist_ok=True)
                # The digests are last: until then, another process sees that they do not match.
                for name in (VOCABULARY_FILE, MERGES_FILE, DIGESTS_FILE):
                    os.replace(new / name, folder / name)  # noqa: PTH105 - atomic everywhere
            finally:
                shutil.rmtree(new, ignore_errors=True)
            return folder
    return _write_all(temporary, vocabulary, merges)


def _write_all(folder: Path, vocabulary: TextSource, merges: TextSource) -> Path:
    for name, parts in ((VOCABULARY_FILE, vocabulary), (MERGES_FILE, merges)):
        with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(parts())
    digests = {name: _digest(folder / name) for name in (VOCABULARY_FILE, MERGES_FILE)}
    (folder / DIGESTS_FILE).write_text(json.dumps(digests), encoding="utf-8")
    return folder


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
