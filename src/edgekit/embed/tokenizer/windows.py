"""A text of any length -> pieces of it that are cut into tokens one after another.

The tokens of the pieces, one after another, are the tokens of the whole: a text is only parted where
no token can lie on both sides. So a text of 4 MB needs the memory of a few thousand letters, and
work stops at the limit of tokens, not at the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgekit.embed.tokenizer.limits import STRETCH_CHARACTERS, WINDOW_CHARACTERS
from edgekit.embed.tokenizer.types import SPACE, Method, Vocabulary
from edgekit.errors import TextError

# Han and kana, and the marks that end a part of a sentence with them.
_EAST, _EAST_MARKS = "\u3041-\u30fa\u4e00-\u9fa5", "\u3001\u3002\uff01\uff0c\uff1f"
# Before a space that follows a letter or digit; before a line end or an eastern mark that follows
# a letter of which every table of letters knows that it is one. No pattern of pretokenizers.py goes
# over such a place (but for those with ends_words=False), looks back over it, or ends otherwise
# when the text ends there.
_AFTER_WORD = re.compile(rf"(?<=[^\W_])(?=[ \t])|(?<=[0-9A-Za-z{_EAST}])(?=[\n{_EAST_MARKS}])")
# Where BERT's words end whatever stands around: its marks and Han letters are words of their own.
_BERT = re.compile(r"(?=[ \t\n!-/:-@\[-`{-~\u4e00-\u9fff\u3001\u3002\uff01\uff0c\uff1f])")
_BEFORE_SPACE = re.compile(r"(?<=[!-~\w])(?= )")  # after nothing that could itself become a space
_LINES = re.compile(r"(?<=[^\n])(?=\n)")  # all that raw patterns part
_ACROSS = re.compile(f"[^{SPACE}]{SPACE}")


def cut_places(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    """Where texts of this vocabulary may be parted. None: nowhere."""
    method, pre = vocabulary.family.method, vocabulary.pre
    if method is Method.WORDPIECE:
        return _BERT
    if pre is not None and not pre.raw:
        return _AFTER_WORD if pre.ends_words else None
    if pre is not None and pre.ends_words:  # texts are cut at every space
        return _BEFORE_SPACE
    # Nothing but the tokens themselves decides: can one of them go on behind a space?
    crosses = any(_ACROSS.search(token) for token in vocabulary.tokens)
    if not crosses:
        return _BEFORE_SPACE
    return None if pre is None else _LINES


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
                    f"has {STRETCH_CHARACTERS:,} characters without a place where the tokenizer"
                    " could part them (no spaces between words?): truncate cuts it"
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
