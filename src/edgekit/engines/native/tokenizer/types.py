"""Nouns of the tokenizer: what a file says about its vocabulary, held as densely as the file holds it."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edgekit.engines.native.tokenizer.families import TokenizerFamily
from edgekit.errors import HeaderError
from edgekit.terminal import quoted

SPACE = "▁"  # what sentencepiece writes for a space


class TokenKind(enum.IntEnum):
    """What a token is for; the number is GGUF's token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """How a BPE vocabulary's texts are cut into words, before any merge.

    Each pattern cuts what the one before has left. The patterns are Oniguruma's.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token
    add_bos: bool = False
    has_bos: bool = True
    raw: bool = False  # merges are over letters with `▁` for spaces, not over bytes
    newline_runs: bool = False  # a run of line ends that is a token is that token
    lists_letters: bool = False  # some letters are words with their spaces, others are what is left
    ends_words: bool = True  # a letter or digit before a space always ends a word


class Strings:
    """Many short texts in one piece of memory: 150,000 tokens in 2 MB, as objects they were 10."""

    __slots__ = ("_bytes", "_ends", "_file", "_what")

    def __init__(self, what: str, *, file: str) -> None:
        self._what = what
        self._file = file
        self._bytes = bytearray()
        self._ends = array("I")

    def append(self, text: bytes | memoryview) -> None:
        self._bytes += text
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        begin = self._ends[index - 1] if index else 0
        return self._text(index, begin, self._ends[index])

    def __iter__(self) -> Iterator[str]:
        begin, raw = 0, self._bytes
        for index, end in enumerate(self._ends):
            try:  # as _text does, without a call for each
                text = raw[begin:end].decode()
            except UnicodeDecodeError:
                text = self._text(index, begin, end)
            yield text
            begin = end

    def _text(self, index: int, begin: int, end: int) -> str:
        raw = self._bytes[begin:end]
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise HeaderError(
                f"{self._what}[{index}] is {quoted(bytes(raw))}, which is not valid UTF-8",
                file=self._file,
            ) from error

    @property
    def all_bytes(self) -> bytearray:
        """One after another, without anything between."""
        return self._bytes

    @property
    def ends(self) -> array[int]:
        return self._ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of one file and how they are used. Everything in it has been checked."""

    file: str
    family: TokenizerFamily
    pre: PreTokenizer | None  # of BPE only
    tokens: Strings = field(repr=False)
    kinds: bytes = field(repr=False)  # one TokenKind for each token
    scores: array[float] | None = field(repr=False)  # of SPM and Unigram
    merges: Strings | None = field(repr=False)  # of BPE
    charsmap: bytes = field(repr=False)  # of Unigram: what is written how, sentencepiece's own form
    before: tuple[int, ...]  # tokens that are put before every text
    after: tuple[int, ...]
    unknown: int | None
    space_prefix: bool
    merge_spaces: bool
    lowercase: bool
    strip_accents: bool
    strip_left: frozenset[int]  # special tokens that swallow the spaces before them
    strip_right: frozenset[int]

    def error(self, what: str) -> HeaderError:
        return HeaderError(what, file=self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlaces:
    """Where the text of each token lies in its file, and what the token is for: 5 bytes for each."""

    file: str
    family: TokenizerFamily
    pre: PreTokenizer | None  # of BPE only
    offset: int  # of the first
    ends: array[int] = field(repr=False)  # of the texts, as if nothing were between them
    kinds: bytes = field(repr=False)  # one TokenKind for each token
    named: Mapping[str, int] = field(repr=False)  # tokens whose text alone means something
    stops: frozenset[int]  # tokens that end an answer

    def __len__(self) -> int:
        return len(self.ends)

    def place(self, number: int) -> tuple[int, int]:
        """Offset and length of a text, without the 8 bytes before it that tell the length."""
        begin = self.ends[number - 1] if number else 0
        return self.offset + 8 * (number + 1) + begin, self.ends[number] - begin
