"""JSON from untrusted files, read within limits: `JsonStream` entry by entry, `read_config` a whole config.json."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from edgekit.errors import HeaderError, check_limit
from edgekit.formats import limits
from edgekit.formats.cursor import LOOK_BYTES, describe
from edgekit.sources.types import ByteSource
from edgekit.units import KIB

_BLANKS = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'"([^"\\\x00-\x1f]*)"')  # a string that needs no decoding: nearly all of them
_KEY_LENGTH = 4 * KIB
_CHUNK_BYTES = 64 * KIB  # the first chunk of an index has its metadata: writers sort the keys


class JsonStream:
    """A position in JSON text that only moves forward: objects are walked, their values decoded one by one.

    `eager`: all of it will be read, so a remote source may fetch it in one request.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        start: int,
        end: int,
        eager: bool = True,
    ) -> None:
        self._source = source
        self._next, self._end = start, end  # the offsets of the bytes that are not decoded yet
        self._eager = eager
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text, self._index = "", 0  # decoded text, and the position in it
        self._text_start = start  # offset of the decoded text in the file

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        character = self._text[self._index : self._index + 1]
        if character > " ":  # nearly always: writers leave little white space
            return character
        while True:
            blanks = _BLANKS.match(self._text, self._index)
            self._index = blanks.end() if blanks else self._index
            if self._index < len(self._text):
                return self._text[self._index]
            if not self._more():
                return ""

    def expect(self, character: str) -> None:
        """Moves past the next character, which must be this one; HeaderError if it is not."""
        actual = self.peek()
        if actual != character:
            raise self.error(f"expected {character!r}, found {actual!r}")
        self._index += 1

    def pairs(self) -> Iterator[str]:
        """The keys of the object that begins here. The caller must read each value before the next key."""
        self.expect("{")
        if self.peek() != "}":
            yield self._key()
            while self.peek() == ",":
                self._index += 1
                yield self._key()
        self.expect("}")

    def value(self, what: str, limit: int) -> Any:
        """The value that begins here, decoded. HeaderLimitError if it is longer than `limit`."""
        self.peek()
        while True:
            try:
                value, end = _DECODE(self._text, self._index)
            except RecursionError as error:
                raise self.error(f"{what} is nested too deeply") from error
            except ValueError as error:
                # The value may only be incomplete: the decoder then fails near the end of the text, but reports an
                # incomplete string where the string begins.
                is_incomplete = isinstance(error, json.JSONDecodeError) and (
                    error.msg.startswith("Unterminated string") or error.pos + 16 > len(self._text)
                )
                if not is_incomplete:
                    raise self.error(f"{what} is not valid JSON ({explain(error)})") from error
                self.check_limit(f"{what}: length", self._unread_chars, limit)
                if not self._more():
                    raise self.error(f"{what} is cut off") from error
                continue
            # A number at the end of the text may continue in the next chunk.
            if end < len(self._text) or not self._more():
                self.check_limit(f"{what}: length", end - self._index, limit)
                self._index = end
                return value

    def string(self, what: str, limit: int) -> str:
        """The string that begins here. `what` names it in errors."""
        if self.peek() != '"':
            raise self.error(f"{what} is not a string")
        plain = _PLAIN.match(self._text, self._index)
        if plain is None or plain.end() - self._index > limit:
            text: str = self.value(what, limit)
            return text
        self._index = plain.end()
        return plain[1]

    def error(self, what: str) -> HeaderError:
        offset = self._text_start + len(self._text[: self._index].encode())
        return HeaderError(what, file=self._source.name, offset=offset)

    def check_limit(self, what: str, value: int, limit: int) -> None:
        check_limit(what, value, limit, file=self._source.name)

    @property
    def _unread_chars(self) -> int:
        """How much of the decoded text has not been read yet."""
        return len(self._text) - self._index

    def _key(self) -> str:
        key = self.string("a name", _KEY_LENGTH)
        self.expect(":")
        return key

    def _more(self) -> bool:
        """Decodes the next chunk, at least as long as what is left of the last; False at the end."""
        length = min(max(_CHUNK_BYTES, self._unread_chars), self._end - self._next)
        if length <= 0:
            return False
        ahead = self._end - self._next - length if self._eager else 0
        raw = self._source.read(self._next, length, ahead=ahead)
        if len(raw) < length:
            raise self.error("file is truncated inside its header (an interrupted download?)")
        self._next += length
        try:
            text = self._utf8.decode(raw, final=self._next >= self._end)
        except UnicodeDecodeError as error:
            raise self.error("header is not UTF-8") from error
        self._text_start += len(self._text[: self._index].encode())
        self._text, self._index = self._text[self._index :] + text, 0
        return True


def explain(error: ValueError) -> str:
    """Why json's decoder failed, in a few words."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} in line {error.lineno}, column {error.colno}"
    text = str(error)
    return "a number with thousands of digits" if text.startswith("Exceeds the limit") else text


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs; ValueError if a key occurs twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_DECODE = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
).raw_decode


def read_config(source: ByteSource) -> Mapping[str, Any]:
    """The object in the file. If a key occurs twice the last value counts, as in json.loads."""
    name = source.name
    check_limit("length", source.size_bytes, limits.CONFIG_BYTES, file=name)
    raw = source.read(0, source.size_bytes)
    # Counted before anything is built: four million empty lists would take 300 MB.
    containers = raw.count(b"[") + raw.count(b"{")
    check_limit("lists and objects", containers, limits.CONFIG_CONTAINERS, file=name)
    check_limit("values", raw.count(b","), limits.CONFIG_VALUES, file=name)
    try:
        config = json.loads(raw.decode("utf-8-sig"))
    except RecursionError as error:
        raise HeaderError("nested too deeply", file=name) from error
    except UnicodeDecodeError as error:
        raise HeaderError("not UTF-8", file=name, offset=error.start) from error
    except ValueError as error:
        looks = describe(raw[:LOOK_BYTES])
        reason = explain(error) if looks.endswith("JSON text") else looks
        what = f"not JSON: {reason}" if raw.strip() else "the file is empty"
        raise HeaderError(what, file=name) from error
    if not isinstance(config, dict):
        raise HeaderError(f"holds a {type(config).__name__}, not an object", file=name)
    check_limit("nesting", _depth(config), limits.CONFIG_DEPTH, file=name)
    return config


def _depth(value: Any) -> int:
    """How deeply lists and objects are nested, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for container in level:
            inner += container.values() if isinstance(container, dict) else container
        level = [item for item in inner if isinstance(item, (dict, list))]
    return depth
