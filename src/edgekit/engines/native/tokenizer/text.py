"""Texts -> the numbers of their tokens, as llama.cpp's embedding server would have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from edgekit.engines.native.tokenizer.cost import Method
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
"""A piece of text, and whether it is the first of its stretch -> tokens."""

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_NEWLINES = re.compile("\n+")


class TextTokenizer:
    """Cuts texts. Any number of threads may do so at once."""

    def __init__(self, vocabulary: Vocabulary, cut: Cut) -> None:
        self._cut = cut
        self._specials = Specials(vocabulary)
        self._places = cut_places(vocabulary)
        self._before = vocabulary.before
        self._after = vocabulary.after
        self._newline_runs = _newline_runs(vocabulary)

    @property
    def frame_tokens(self) -> int:
        """How many tokens every text has besides its own: [CLS] and [SEP] are two."""
        return len(self._before) + len(self._after)

    @property
    def before(self) -> tuple[int, ...]:
        """The tokens that every text begins with."""
        return self._before

    def encode(
        self,
        text: str,
        *,
        limit_tokens: int | None = None,
        truncate: bool = False,
        parse_special: bool = True,
    ) -> list[int]:
        """The tokens with what the file puts before and after them.

        A text of more than `limit_tokens` is a TextError, found without cutting all of it; with
        `truncate` its end is left out, but not what is put after it. `parse_special`: "[SEP]" in a
        text is that token, as it is for llama.cpp's server and for sentence-transformers; False
        takes it for five letters.
        """
        room = None if limit_tokens is None else limit_tokens - self.frame_tokens
        if room is not None and room < 0:
            raise TextError(
                f"a limit of {limit_tokens} tokens is too small: every text needs "
                f"{self.frame_tokens} special tokens"
            )
        tokens = self._tokens(text, room, truncate=truncate, parse_special=parse_special)
        if room is not None and len(tokens) > room:
            if not truncate:
                raise TextError(
                    f"has more than {limit_tokens:,} tokens: use truncate (--truncate) to "
                    "cut it, or raise Limits.tokens (--max-tokens) as far as the model "
                    "allows"
                )
            del tokens[room:]
        return [*self._before, *tokens, *self._after]

    def encode_plain(self, text: str, *, parse_special: bool = True) -> list[int]:
        """The tokens of the text alone."""
        return self._tokens(text, None, truncate=False, parse_special=parse_special)

    def _tokens(
        self, text: str, room: int | None, *, truncate: bool, parse_special: bool
    ) -> list[int]:
        """All of them, or a few more than there is room for."""
        if half := _HALF_CHARACTER.search(text):
            raise TextError(
                f"character {half.start():,} is {half[0]!a}, half of a surrogate pair: "
                "not valid Unicode"
            )
        found: list[int] = []
        for part in self._specials.split(text, parse_special=parse_special):
            for more in (
                (part,) if isinstance(part, int) else self._stretch(part, truncate=truncate)
            ):
                found.extend((more,) if isinstance(more, int) else more)
                if room is not None and len(found) > room:
                    return found
        return found

    def _stretch(self, text: str, *, truncate: bool) -> Iterator[int | list[int]]:
        """The tokens between two special ones."""
        first = True
        for part in self._without_runs(text):
            if isinstance(part, int):
                yield part
                continue
            for window in windows(part, self._places, truncate=truncate):
                yield self._cut(window, first)
                first = False

    def _without_runs(self, text: str) -> Iterator[int | str]:
        if not self._newline_runs:
            yield text
            return
        at = 0
        for run in _NEWLINES.finditer(text):
            if at < run.start():
                yield text[at : run.start()]
            yield self._newline_runs.get(run[0], run[0])
            at = run.end()
        if at < len(text):
            yield text[at:]


def _newline_runs(vocabulary: Vocabulary) -> dict[str, int]:
    if vocabulary.pre is None or not vocabulary.pre.newline_runs:
        return {}
    return {
        token: number
        for number, token in enumerate(vocabulary.tokens)
        if token and not token.strip("\n")
    }


def cut_by(made: tokenizers.Tokenizer, vocabulary: Vocabulary) -> Cut:
    """With a `tokenizers` object; spaces are written as the vocabulary has them."""
    method, pre = vocabulary.family.method, vocabulary.pre
    prefix = " " if method is Method.SPM and vocabulary.space_prefix else ""
    raw = pre is not None and pre.raw and vocabulary.family.model != "whitespace"
    space = SPACE if method is Method.SPM or raw else " "
    no_token = len(vocabulary.tokens)  # stands for letters that have none
    lower = vocabulary.lowercase and method is Method.BPE

    def cut(text: str, first: bool) -> list[int]:  # noqa: FBT001 - a Cut
        written = prefix + text if first else text
        if space != " ":
            written = written.replace(" ", space)
        if lower:
            written = "".join(map(_lowered, written))
        numbers = made.encode(written, add_special_tokens=False).ids
        return [n for n in numbers if n != no_token] if no_token in numbers else numbers

    return cut


def _lowered(character: str) -> str:
    """One character for one, as llama.cpp has it."""
    small = character.lower()
    return small if len(small) == 1 else character


_START = 3  # letters by which a special token is looked for
_SPACES = " \t\n\v\f\r"  # C's isspace


class Specials:
    """The special tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds, tokens = vocabulary.kinds, vocabulary.tokens
        special = {n: tokens[n] for n, kind in enumerate(kinds) if kind in SPECIAL_KINDS}
        user = {n: text for n, text in special.items() if kinds[n] == TokenKind.USER_DEFINED}
        self._all = _Finder({text: n for n, text in special.items() if text})
        self._user = _Finder({text: n for n, text in user.items() if text})
        self._strip_left = vocabulary.strip_left
        self._strip_right = vocabulary.strip_right

    def split(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """Stretches of text, never empty, and the special tokens between them.

        Without `parse_special` only those of the user's: control tokens are letters then.
        """
        finder = self._all if parse_special else self._user
        at = 0
        for begin, end, number in finder.find(text):
            before = text[at:begin]
            if number in self._strip_left:
                before = before.rstrip(_SPACES)
            if before:
                yield before
            yield number
            at = end
            if number in self._strip_right:
                at = _skip_spaces(text, at)
        if at < len(text):
            yield text[at:] if at else text


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


class _Finder:
    """Finds the leftmost and there the longest, one after another.

    A pattern of 6,000 words is slow to compile and large. Their first three letters are few, and so
    are their lengths: the pattern finds the places, a dict says what stands there.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        lengths: dict[str, set[int]] = {}
        for text in numbers:
            lengths.setdefault(text[:_START], set()).add(len(text))
        for start, found in lengths.items():  # and those that are its beginning
            found.update(size for size in range(1, len(start)) if start[:size] in numbers)
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        self._pattern = re.compile(_pattern_of(self._lengths)) if numbers else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Where it begins, where it ends, which it is."""
        if self._pattern is None:
            return
        at = 0
        while match := self._pattern.search(text, at):
            begin = match.start()
            at = begin + 1
            for length in self._lengths[match[0]]:
                number = self._numbers.get(text[begin : begin + length])
                if number is not None:
                    at = begin + length
                    yield begin, at, number
                    break


def _pattern_of(starts: Mapping[str, object]) -> str:
    """Each two letters with all their third ones; the shorter come last."""
    thirds: dict[str, str] = {}
    for start in starts:
        thirds[start[:2]] = thirds.get(start[:2], "") + start[2:]
    longest = [f"{re.escape(two)}[{re.escape(third)}]" for two, third in thirds.items() if third]
    shorter = sorted((start for start in starts if len(start) < _START), key=len, reverse=True)
    return "|".join(longest + [re.escape(start) for start in shorter])


# Han and kana, and the marks that end a part of a sentence with them.
_EAST, _EAST_MARKS = "\u3041-\u30fa\u4e00-\u9fa5", "\u3001\u3002\uff0c"
_SURE = f"0-9A-Za-z{_EAST}"  # of these every table of letters knows what they are
_MARKS = rf"\n,.!?{_EAST_MARKS}"
# Before a space that follows a letter or digit, before a line end or a mark that follows a sure one.
# No pattern of pretokenizers.py goes over such a place (but, over spaces, those with
# ends_words=False), looks back over it, or ends otherwise when the text ends there.
_BEFORE_MARK = rf"(?<=[{_SURE}])(?=[{_MARKS}])"
_AFTER_PHRASE = re.compile(_BEFORE_MARK)
_AFTER_WORD = re.compile(rf"(?<=[^\W_])(?=[ \t])|{_BEFORE_MARK}")
# The same for a pattern that lists its letters: between two that it does not list, a space is nothing.
_AFTER_LISTED = re.compile(rf"(?<=[{_SURE}\u00c0-\u00d6\u00d8-\u00f6\u0410-\u044f])(?=[ \t\n])")
# Where BERT's words end whatever stands around: its marks and Han letters are words of their own.
_BERT = re.compile(rf"(?=[ \t\n!-/:-@\[-`{{-~\u4e00-\u9fff{_EAST_MARKS}])")
# Where only the tokens decide: before these, if no token has them behind a letter or digit. With a
# space as the tokens have it; without the comma that sentencepiece writes as another.
_MAYBE = f"{SPACE}\n\u3001\u3002"
_ACROSS = re.compile(rf"(?<=[^\W_])[{_MAYBE}]")


def cut_places(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """Where texts of this vocabulary may be parted. None: nowhere."""
    method, pre = vocabulary.family.method, vocabulary.pre
    if method is Method.WORDPIECE:
        return _BERT
    if pre is not None and not pre.raw:
        if not pre.ends_words:
            return _AFTER_PHRASE
        return _AFTER_LISTED if pre.lists_letters else _AFTER_WORD
    crossed = {mark for token in vocabulary.tokens for mark in _ACROSS.findall(token)}
    free = "".join(mark for mark in _MAYBE if mark not in crossed).replace(SPACE, " ")
    return re.compile(rf"(?<=[^\W_])(?=[{free}])") if free else None


def windows(
    text: str,
    places: re.Pattern[str] | None,
    *,
    truncate: bool,
    window_characters: int = WINDOW_CHARACTERS,
) -> Iterator[str]:
    """The pieces in order. TextError for a stretch that is too long and has no such place.

    With `truncate` such a stretch is the last piece, without its end.
    """
    at = 0
    while len(text) - at > window_characters:
        end = _next_place(text, places, at + window_characters, at + STRETCH_CHARACTERS)
        if end is None:
            if not truncate:
                raise TextError(
                    f"has {STRETCH_CHARACTERS:,} characters without a place where the "
                    "tokenizer could split them (no spaces between words?): use truncate "
                    "to cut it"
                )
            yield text[at : at + STRETCH_CHARACTERS]
            return
        yield text[at:end]
        at = end
    if at < len(text):
        yield text[at:] if at else text


def _next_place(text: str, places: re.Pattern[str] | None, at: int, end: int) -> int | None:
    if places is not None and (match := places.search(text, at, min(end + 1, len(text)))):
        return match.start()
    return len(text) if len(text) <= end else None
