"""Special tokens in a text: turns it into numbers of tokens and the stretches between them.

llama.cpp looks for the longest special token in the whole text, then for the next; here the text
is read once, from the left, the longest token first. That differs only where the end of one special
token is the beginning of another: of the vocabularies in docs/embed.md only Falcon has such
tokens (">>TITLE<<|endoftext|>"). Runs of the same letter come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from edgekit.engines.native.tokenizer.types import TokenKind, Vocabulary
from edgekit.engines.native.tokenizer.vocabulary import SPECIAL_KINDS

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
