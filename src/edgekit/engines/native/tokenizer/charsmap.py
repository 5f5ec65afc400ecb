"""sentencepiece's precompiled_charsmap: which letters are written how before a text is cut.

Four bytes of length, then a double array (XCDA) of that many bytes: a tree of UTF-8 bytes whose
leaves are offsets into what follows, texts that end with a zero. As in llm_tokenizer_ugm_session::
normalize_prefix, src/llama-vocab.cpp:1177-1232 @ b21e4de.
"""

from __future__ import annotations

import re
import sys
from array import array

from edgekit.engines.native.tokenizer.types import Vocabulary

# ASCII that no rule of a map can touch: rules begin with control characters, with letters outside
# ASCII, or with an ASCII letter that such a letter follows (e and an accent become one).
_AS_IT_IS = re.compile(r"[ -~]+(?![^\x00-\x7f])")
_LONGEST_RULE_BYTES = 256  # the longest of NFKC's has 30


class Charsmap:
    """`write(text)` is the text as the model's training had it written."""

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
        self._plain = self._is_plain_in_ascii()

    def write(self, text: str) -> str:
        if self._plain and text.isascii() and text.isprintable():
            return text
        parts: list[str] = []
        at = 0
        while at < len(text):
            run = _AS_IT_IS.match(text, at) if self._plain else None
            if run is not None:
                parts.append(run[0])
                at = run.end()
            else:
                written, read = self._rule(text, at)
                parts.append(text[at] if written is None else written)
                at += read
        return "".join(parts)

    def _is_plain_in_ascii(self) -> bool:
        """Whether no rule is for printable ASCII alone."""
        return all(self._longest(bytes((letter,)))[0] is None for letter in range(0x20, 0x7F))

    def _rule(self, text: str, at: int) -> tuple[str | None, int]:
        """What the longest rule that fits here writes, and how many characters it replaces."""
        window = text[at : at + 32]
        written, read_bytes = self._longest(window.encode()[:_LONGEST_RULE_BYTES])
        if written is None:
            return None, 1
        return written, len(window.encode()[:read_bytes].decode(errors="ignore")) or 1

    def _longest(self, text: bytes) -> tuple[str | None, int]:
        units, found, length = self._units, None, 0
        try:
            node = _base(units[0])
            for index, letter in enumerate(text):
                node ^= letter
                unit = units[node]
                if letter == 0 or unit & 0x800000FF != letter:
                    break
                node ^= _base(unit)
                if unit >> 8 & 1:
                    found, length = units[node] & 0x7FFFFFFF, index + 1
        except IndexError as error:
            raise self._error from error
        return (None, 0) if found is None else (self._text(found), length)

    def _text(self, offset: int) -> str:
        end = self._texts.find(b"\0", offset)
        if end < 0:
            raise self._error
        try:
            return self._texts[offset:end].decode()
        except UnicodeDecodeError as error:
            raise self._error from error


def _base(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
