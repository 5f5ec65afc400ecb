"""Texts -> token numbers, identical to those of llama.cpp's embedding server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from edgekit.engines.native.tokenizer.kinds import Method
from edgekit.engines.native.tokenizer.vocabulary import (
    SPACE,
    SPECIAL_KINDS,
    STRETCH_CHARACTERS,
    WINDOW_CHARACTERS,
    TokenKind,
    Vocabulary,
)
from edgekit.errors import TextError

if TYPE_CHECKING:
    import tokenizers


Cut = Callable[[str, bool], list[int]]
"""Tokenizes a piece of the text between two special tokens. The flag says whether it is the first piece."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_NEWLINES = re.compile("\n+")


class TextTokenizer:
    """Turns texts into token numbers. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, cut: Cut) -> None:
        self._cut = cut
        self._specials = Specials(vocabulary)
        self._split_points = split_points(vocabulary)
        self.before = vocabulary.before  # the tokens that every text begins with
        self._after = vocabulary.after
        self._newline_runs = {}
        if vocabulary.pre is not None and vocabulary.pre.newline_runs:
            self._newline_runs = {
                token: number
                for number, token in enumerate(vocabulary.tokens)
                if token and not token.strip("\n")
            }

    def encode(
        self,
        text: str,
        *,
        limit_tokens: int | None = None,
        truncate: bool = False,
        parse_special: bool = True,
    ) -> list[int]:
        """The tokens of a text, with those that the vocabulary adds before and after every text.

        Raises TextError for a text of more than `limit_tokens`, without tokenizing all of it. With `truncate` the text
        is cut instead; the added tokens stay. With `parse_special`, "[SEP]" in a text becomes that token, as in
        llama.cpp's server and in sentence-transformers; without it, "[SEP]" is tokenized as five letters.
        """
        added = len(self.before) + len(self._after)  # two for [CLS] and [SEP]
        limit = None if limit_tokens is None else limit_tokens - added
        if limit is not None and limit < 0:
            raise TextError(
                f"a limit of {limit_tokens} tokens is too small: every text needs "
                f"{added} special tokens"
            )
        tokens = self.encode_plain(
            text, limit=limit, truncate=truncate, parse_special=parse_special
        )
        if limit is not None and len(tokens) > limit:
            if not truncate:
                raise TextError(
                    f"has more than {limit_tokens:,} tokens: use truncate (--truncate) to "
                    "cut it, or raise Limits.tokens (--max-tokens) as far as the model "
                    "allows"
                )
            del tokens[limit:]
        return [*self.before, *tokens, *self._after]

    def encode_plain(
        self,
        text: str,
        *,
        limit: int | None = None,
        truncate: bool = False,
        parse_special: bool = True,
    ) -> list[int]:
        """The tokens of the text, without added ones. Stops soon after `limit` tokens, so it may return a few more."""
        if half := _SURROGATE.search(text):
            raise TextError(
                f"character {half.start():,} is {half[0]!a}, half of a surrogate pair: "
                "not valid Unicode"
            )
        tokens: list[int] = []
        for part in self._specials.split(text, parse_special=parse_special):
            pieces = [[part]] if isinstance(part, int) else self._tokenize(part, truncate=truncate)
            for piece in pieces:
                tokens.extend(piece)
                if limit is not None and len(tokens) > limit:
                    return tokens
        return tokens

    def _tokenize(self, text: str, *, truncate: bool) -> Iterator[list[int]]:
        """The tokens of the text between two special tokens, piece by piece."""
        is_first = True
        for part in self._split_newline_runs(text):
            if isinstance(part, int):
                yield [part]
                continue
            for window in windows(part, self._split_points, truncate=truncate):
                yield self._cut(window, is_first)
                is_first = False

    def _split_newline_runs(self, text: str) -> Iterator[int | str]:
        """The tokens for runs of line ends, if the vocabulary has such tokens, and the text between them."""
        if not self._newline_runs:
            yield text
            return
        position = 0
        for run in _NEWLINES.finditer(text):
            if position < run.start():
                yield text[position : run.start()]
            yield self._newline_runs.get(run[0], run[0])
            position = run.end()
        if position < len(text):
            yield text[position:]


def cut_by(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> Cut:
    """A Cut that uses a `tokenizers` object, and spells spaces as the vocabulary does."""
    method, pre = vocabulary.family.method, vocabulary.pre
    prefix = " " if method is Method.SPM and vocabulary.space_prefix else ""
    is_raw = pre is not None and pre.raw and vocabulary.family.model != "whitespace"
    space = SPACE if method is Method.SPM or is_raw else " "
    # Stands for letters without a token: build.py adds it after the last token.
    tokenless = len(vocabulary.tokens)
    lowercases = vocabulary.lowercase and method is Method.BPE  # `tokenizers` does it for WordPiece

    def cut(text: str, first: bool) -> list[int]:  # noqa: FBT001 - a Cut
        spelled = prefix + text if first else text
        if space != " ":
            spelled = spelled.replace(" ", space)
        if lowercases:
            # As in llama.cpp, a letter whose lowercase form is longer than one letter is left as it is.
            letters = [(letter, letter.lower()) for letter in spelled]
            spelled = "".join(small if len(small) == 1 else letter for letter, small in letters)
        numbers = tokenizer.encode(spelled, add_special_tokens=False).ids
        if tokenless in numbers:
            return [number for number in numbers if number != tokenless]
        return numbers

    return cut


# --- special tokens

_START = 3  # the search pattern matches this many letters
_SPACES = " \t\n\v\f\r"  # C's isspace


class Specials:
    """The special tokens of one vocabulary.

    llama.cpp searches the whole text for the longest special token, then for the next longest. Here the text is read
    once, from the left, and the longest token at each position is taken. The results differ only where the end of one
    special token is the beginning of another: of the vocabularies in docs/embed.md only Falcon has such tokens
    (">>TITLE<<|endoftext|>"). Runs of the same letter give the same result.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds, tokens = vocabulary.kinds, vocabulary.tokens
        specials = [
            (tokens[number], number) for number, kind in enumerate(kinds) if kind in SPECIAL_KINDS
        ]
        self._all = _Finder({text: number for text, number in specials if text})
        self._user_defined = _Finder(
            {
                text: number
                for text, number in specials
                if text and kinds[number] == TokenKind.USER_DEFINED
            }
        )
        self._strip_left = vocabulary.strip_left
        self._strip_right = vocabulary.strip_right

    def split(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """The special tokens, and the non-empty texts between them.

        Without `parse_special` only user-defined tokens are special; control tokens are plain text.
        """
        finder = self._all if parse_special else self._user_defined
        position = 0
        for begin, end, number in finder.find(text):
            before = text[position:begin]
            if number in self._strip_left:
                before = before.rstrip(_SPACES)
            if before:
                yield before
            yield number
            position = end
            if number in self._strip_right:
                while position < len(text) and text[position] in _SPACES:
                    position += 1
        if position < len(text):
            yield text[position:] if position else text


class _Finder:
    """Finds special tokens in a text from left to right, the longest token at each position.

    A pattern of 6,000 words is large and slow to compile, but the words have few different beginnings and lengths. So
    the pattern only matches the first three letters, and a dict has the token for each text.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        lengths: dict[str, set[int]] = {}
        for text in numbers:
            lengths.setdefault(text[:_START], set()).add(len(text))
        # Where the three letters of a longer token match, a token of one or two of these letters may be the answer.
        for start, sizes in lengths.items():
            sizes.update(size for size in range(1, len(start)) if start[:size] in numbers)
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}
        self._pattern = re.compile(_pattern_of(self._lengths)) if numbers else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yields the begin, the end and the number of each token."""
        if self._pattern is None:
            return
        position = 0
        while match := self._pattern.search(text, position):
            begin = match.start()
            position = begin + 1
            for length in self._lengths[match[0]]:
                number = self._numbers.get(text[begin : begin + length])
                if number is not None:
                    position = begin + length
                    yield begin, position, number
                    break


def _pattern_of(starts: Mapping[str, object]) -> str:
    """A pattern that matches any of the starts, and prefers the longer ones.

    Starts of three letters are grouped by their first two: "<e[no]" matches "<en" and "<eo".
    """
    third_letters: dict[str, str] = {}
    for start in starts:
        third_letters[start[:2]] = third_letters.get(start[:2], "") + start[2:]
    long_patterns = [
        f"{re.escape(first_two)}[{re.escape(letters)}]"
        for first_two, letters in third_letters.items()
        if letters
    ]
    short_starts = sorted((start for start in starts if len(start) < _START), key=len, reverse=True)
    return "|".join(long_patterns + [re.escape(start) for start in short_starts])


# --- windows: a long text is tokenized in pieces. The result is the same as for the complete text, because a text is
# --- only split where no token can extend over both sides. So a text of 4 MB needs no more memory than a few thousand
# --- letters, and the work stops at the limit of tokens, not at the end of the text.

# Han and kana, and the marks that end a phrase written in them.
_EAST, _EAST_MARKS = "\u3041-\u30fa\u4e00-\u9fa5", "\u3001\u3002\uff0c"
_SURE = f"0-9A-Za-z{_EAST}"  # letters and digits in every version of Unicode's tables
_MARKS = rf"\n,.!?{_EAST_MARKS}"
# Safe split points: before a space after a letter or digit, and before a line end or a mark after one of _SURE. No
# pattern of pretokenizers.json matches across such a point (except, across spaces, those with ends_words=False),
# looks back across it, or matches differently if the text ends there.
_BEFORE_MARK = rf"(?<=[{_SURE}])(?=[{_MARKS}])"
_AFTER_PHRASE = re.compile(_BEFORE_MARK)
_AFTER_WORD = re.compile(rf"(?<=[^\W_])(?=[ \t])|{_BEFORE_MARK}")
# For patterns that list their letters: they ignore a space between two letters that are not listed.
_AFTER_LISTED = re.compile(rf"(?<=[{_SURE}\u00c0-\u00d6\u00d8-\u00f6\u0410-\u044f])(?=[ \t\n])")
# Where a word always ends for BERT: marks and Han letters are separate words.
_BERT = re.compile(rf"(?=[ \t\n!-/:-@\[-`{{-~\u4e00-\u9fff{_EAST_MARKS}])")
# For vocabularies without patterns: a text may be split before these characters if no token has one of them after a
# letter or digit. The space is spelled as in tokens; the comma is missing because sentencepiece replaces it.
_MAYBE = f"{SPACE}\n\u3001\u3002"
_ACROSS = re.compile(rf"(?<=[^\W_])[{_MAYBE}]")


def split_points(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """A pattern that matches where texts may be split for this vocabulary; None: nowhere."""
    method, pre = vocabulary.family.method, vocabulary.pre
    if method is Method.WORDPIECE:
        return _BERT
    if pre is not None and not pre.raw:
        if not pre.ends_words:
            return _AFTER_PHRASE
        return _AFTER_LISTED if pre.lists_letters else _AFTER_WORD
    crossed_marks = {mark for token in vocabulary.tokens for mark in _ACROSS.findall(token)}
    marks = "".join(mark for mark in _MAYBE if mark not in crossed_marks).replace(SPACE, " ")
    return re.compile(rf"(?<=[^\W_])(?=[{marks}])") if marks else None


def windows(
    text: str,
    points: re.Pattern[str] | None,
    *,
    truncate: bool,
    window_characters: int = WINDOW_CHARACTERS,
) -> Iterator[str]:
    """Splits the text into pieces. Raises TextError for a long piece that has no split point.

    With `truncate` that piece is cut, and the rest of the text is dropped.
    """
    start = 0
    while len(text) - start > window_characters:
        limit = start + STRETCH_CHARACTERS
        point = points and points.search(text, start + window_characters, min(limit + 1, len(text)))
        if point:
            end = point.start()
        elif len(text) <= limit:
            end = len(text)
        else:
            if not truncate:
                raise TextError(
                    f"has {STRETCH_CHARACTERS:,} characters without a place where the "
                    "tokenizer could split them (no spaces between words?): use truncate "
                    "to cut it"
                )
            yield text[start:limit]
            return
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:] if start else text
