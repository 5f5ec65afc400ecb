"""Unigram: the tokens with the highest sum of scores.

`tokenizers` has a Unigram, too, but its tree takes 258 MB for XLM-R's 250,000 tokens; the dict here takes 35 MB. The
result is the same as from llm_tokenizer_ugm_session, src/llama-vocab.cpp:955 @ b21e4de.
"""

from __future__ import annotations

import re
import sys
from array import array

from edgekit.engines.native.tokenizer.vocabulary import (
    SPACE,
    UNIGRAM_CHARACTERS,
    TokenKind,
    Vocabulary,
)
from edgekit.errors import HeaderLimitError

_UNKNOWN_PENALTY = 10.0  # llama-vocab.cpp:946
_MATCHED = frozenset({TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED})
_SPACES = re.compile(" +")


class Unigram:
    """Tokenizes with one Unigram vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        scores = vocabulary.scores
        assert scores is not None  # noqa: S101 - a vocabulary of this family has them
        assert vocabulary.unknown is not None  # noqa: S101 - a vocabulary of this family has one
        kinds = vocabulary.kinds
        self._numbers = {
            token: number
            for number, token in enumerate(vocabulary.tokens)
            if kinds[number] in _MATCHED
        }
        if len(self._numbers) != sum(kinds.count(kind) for kind in _MATCHED):
            raise vocabulary.error("tokenizer.ggml.tokens has the same token twice")
        self._scores = array("d", scores)
        for number, kind in enumerate(kinds):
            if kind == TokenKind.USER_DEFINED:
                self._scores[number] = 0.0
        self._longest = max(map(len, self._numbers), default=0)
        # Every length is tried at every position of a text.
        if self._longest > UNIGRAM_CHARACTERS:
            raise HeaderLimitError(
                "tokenizer.ggml.tokens: characters of the longest token",
                value=self._longest,
                limit=UNIGRAM_CHARACTERS,
                file=vocabulary.file,
            )
        self._unknown = vocabulary.unknown
        normal = (
            score for score, kind in zip(scores, kinds, strict=False) if kind == TokenKind.NORMAL
        )
        self._unknown_score = min(normal, default=0.0) - _UNKNOWN_PENALTY
        self._charsmap = Charsmap(vocabulary) if vocabulary.charsmap else None
        self._space_prefix = vocabulary.space_prefix
        self._merge_spaces = vocabulary.merge_spaces

    def cut(self, text: str, first: bool) -> list[int]:  # noqa: FBT001 - a Cut
        """The tokens of a piece of text. `first`: it begins the text, or follows a special token."""
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        if self._merge_spaces:
            words = _SPACES.sub(SPACE, text.strip(" "))
            text = SPACE + words if words and (first or text[0] == " ") else words
        elif self._space_prefix and first and text.strip(" "):
            text = " " + text
        return self._best_tokens(text.replace(" ", SPACE))

    def _best_tokens(self, text: str) -> list[int]:
        """Viterbi: the best sum of scores up to each position, from the left; then back from the end."""
        size = len(text)
        # Of the best tokens up to each position: the sum of their scores, where the last one begins, and its number.
        sums = [0.0] + [float("-inf")] * size
        begins, numbers = [0] * (size + 1), [self._unknown] * (size + 1)
        find, scores, longest = self._numbers.get, self._scores, self._longest
        for begin in range(size):
            sum_before = sums[begin]
            has_letter = False  # whether the single letter at `begin` is a token
            for end in range(begin + 1, min(begin + longest, size) + 1):
                number = find(text[begin:end])
                if number is None:
                    continue
                has_letter = has_letter or end == begin + 1
                total = sum_before + scores[number]
                if total > sums[end]:
                    sums[end], begins[end], numbers[end] = total, begin, number
            if not has_letter and sum_before + self._unknown_score > sums[begin + 1]:
                sums[begin + 1] = sum_before + self._unknown_score
                begins[begin + 1], numbers[begin + 1] = begin, self._unknown
        tokens: list[int] = []
        end = size
        while end > 0:
            number = numbers[end]
            # Adjacent unknown letters are one unknown token.
            if not (number == self._unknown and tokens and tokens[-1] == self._unknown):
                tokens.append(number)
            end = begins[end]
        tokens.reverse()
        return tokens


# ASCII that no rule changes: rules begin with a control character, with a letter outside ASCII, or with an ASCII letter
# before one (e and an accent become one letter).
_UNCHANGED = re.compile(r"[ -~]+(?![^\x00-\x7f])")
_LONGEST_RULE_CHARACTERS = 32  # at most 128 bytes; the longest rule of NFKC has 30 bytes


class Charsmap:
    """sentencepiece's precompiled_charsmap: `normalize(text)` rewrites a text as in the model's training.

    It has four bytes of length, then a double array (XCDA) of that many bytes: a tree of UTF-8 bytes whose leaves are
    offsets into the rest, which is a list of texts that end with a zero byte. As in
    llm_tokenizer_ugm_session::normalize_prefix, src/llama-vocab.cpp:1177-1232 @ b21e4de.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        raw = vocabulary.charsmap
        size = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 or size % 4 or size + 4 >= len(raw):
            raise vocabulary.error("tokenizer.ggml.precompiled_charsmap is cut off or invalid")
        self._error = vocabulary.error("tokenizer.ggml.precompiled_charsmap points outside itself")
        self._units = array("I", raw[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = raw[4 + size :]
        self._keeps_ascii = all(  # no rule changes a printable ASCII character
            self._longest_rule(bytes((letter,)))[0] is None for letter in range(0x20, 0x7F)
        )

    def normalize(self, text: str) -> str:
        if self._keeps_ascii and text.isascii() and text.isprintable():
            return text
        parts: list[str] = []
        position = 0
        while position < len(text):
            run = _UNCHANGED.match(text, position) if self._keeps_ascii else None
            if run is not None:
                parts.append(run[0])
                position = run.end()
            else:
                window = text[position : position + _LONGEST_RULE_CHARACTERS].encode()
                replacement, read_bytes = self._longest_rule(window)
                parts.append(text[position] if replacement is None else replacement)
                position += len(window[:read_bytes].decode(errors="ignore")) or 1
        return "".join(parts)

    def _longest_rule(self, text: bytes) -> tuple[str | None, int]:
        """The replacement by the longest rule for the beginning of `text`, and the number of bytes it replaces."""
        units, offset, length = self._units, None, 0
        try:
            node = _base(units[0])
            for index, letter in enumerate(text):  # go down the tree, and remember the last leaf
                node ^= letter
                unit = units[node]
                if letter == 0 or unit & 0x800000FF != letter:
                    break
                node ^= _base(unit)
                if unit >> 8 & 1:
                    offset, length = units[node] & 0x7FFFFFFF, index + 1
        except IndexError as error:
            raise self._error from error
        if offset is None:
            return None, 0
        end = self._texts.find(b"\0", offset)
        if end < 0:
            raise self._error
        try:
            return self._texts[offset:end].decode(), length
        except UnicodeDecodeError as error:
            raise self._error from error


def _base(unit: int) -> int:
    """The node that the children of a node are counted from."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)
