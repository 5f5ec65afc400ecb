"""A text of any length -> pieces of it that are cut into tokens one after another.

The tokens of the pieces, one after another, are the tokens of the whole: a text is only parted where
no token can lie on both sides. So a text of 4 MB needs the memory of a few thousand letters, and
work stops at the limit of tokens, not at the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgekit.engines.native.tokenizer.families import Method
from edgekit.engines.native.tokenizer.limits import STRETCH_CHARACTERS, WINDOW_CHARACTERS
from edgekit.engines.native.tokenizer.types import SPACE, Vocabulary
from edgekit.errors import TextError

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
