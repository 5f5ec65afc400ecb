"""Tokens -> text as it comes: what a token adds is shown when its last letter is whole.

As llama_vocab::impl::token_to_piece without special tokens, src/llama-vocab.cpp @ b21e4de.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

from edgekit.engines.native.tokenizer.families import Method
from edgekit.engines.native.tokenizer.types import SPACE, TokenKind, TokenPlaces
from edgekit.engines.native.tokenizer.vocabulary import read_places
from edgekit.errors import HeaderError, TextError
from edgekit.terminal import quoted

if TYPE_CHECKING:
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.walk import Walked

_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


class TextPieces:
    """The texts of a file's tokens stay in the file, which must stay open. One answer at a time."""

    def __init__(self, file: WeightFile, walked: Walked) -> None:
        """UnknownTokenizerError where a table lacks the row; HeaderError where the file lies."""
        self._file = file
        self._places = read_places(file, walked)
        self._letters = _byte_letters() if _has_byte_letters(self._places) else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._places.stops

    def push(self, token: int) -> str:
        """The letters that are whole now; none for a token that is not shown. TextError for no token."""
        return self._decoder.decode(self.piece(token))

    def flush(self) -> str:
        """What is left of a letter that was never finished, shown as such; ready for the next answer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    def piece(self, token: int) -> bytes:
        """The bytes of one token: empty for control tokens and for those that stand for nothing."""
        if not 0 <= token < len(self._places):
            raise TextError(f"token {token:,} does not exist: there are {len(self._places):,}")
        kind = self._places.kinds[token]
        if kind not in (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.BYTE):
            return b""
        raw = self._file.read(*self._places.place(token))
        if kind == TokenKind.NORMAL:
            return self._normal(token, raw)
        return raw if kind == TokenKind.USER_DEFINED else self._byte(token, raw)

    def _normal(self, token: int, raw: bytes) -> bytes:
        if self._letters is None:
            return raw.replace(SPACE.encode(), b" ")
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(token, raw, "which is not valid UTF-8") from error
        # A letter that stands for no byte is itself.
        return b"".join(self._letters.get(letter) or letter.encode() for letter in text)

    def _byte(self, token: int, raw: bytes) -> bytes:
        if not (told := _BYTE.fullmatch(raw)):
            raise self._error(token, raw, "which is not a byte like <0x0A>")
        return bytes((int(told[1], 16),))

    def _error(self, token: int, raw: bytes, what: str) -> HeaderError:
        return HeaderError(
            f"tokenizer.ggml.tokens[{token}] is {quoted(raw)}, {what}", file=self._places.file
        )


def _has_byte_letters(places: TokenPlaces) -> bool:
    raw = places.pre is not None and places.pre.raw
    return places.family.method is Method.BPE and not raw


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's letters for the 256 bytes: what prints is itself, the others are those from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(shown))
    letters = dict(zip(map(chr, shown), shown, strict=True))
    letters |= {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
    return {letter: bytes((byte,)) for letter, byte in letters.items()}
