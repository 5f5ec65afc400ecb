"""Texts -> the numbers of their tokens, as llama.cpp's embedding server would have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgekit.engines.native.tokenizer.families import Method
from edgekit.engines.native.tokenizer.specials import Specials
from edgekit.engines.native.tokenizer.types import SPACE, Vocabulary
from edgekit.engines.native.tokenizer.windows import cut_places, windows
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
