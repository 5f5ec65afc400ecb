"""Answers to a Range request, checked: which bytes of which version of the file they bring.

Range, If-Range, Content-Range and validators: RFC 9110, sections 8.8, 13 and 14.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.errors import RangeNotSupportedError, RemoteChangedError, RemoteInspectError
from edgekit.sources.address import host_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgekit.sources.failures import ResponseHead

# 18 digits are more bytes than any file has, and few enough to convert.
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
MAX_VALIDATOR_CHARS = 256  # a SHA-256 in quotes has 66
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Which state of a file the bytes are of."""

    total_bytes: int
    etag: str | None = None
    last_modified: str | None = None

    @property
    def validator(self) -> str | None:
        """For If-Range: a strong ETag, else the date; None where the server gives neither."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    @property
    def condition(self) -> dict[str, str]:
        """Headers that make the server answer 304 while the file is still this one."""
        if self.etag is not None:
            return {"if-none-match": self.etag}
        return {"if-modified-since": self.last_modified} if self.last_modified is not None else {}

    def is_same(self, other: Version) -> bool:
        """What both state must agree: one server of several may state less."""
        pairs = ((self.etag, other.etag), (self.last_modified, other.last_modified))
        stated = [
            mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None
        ]
        return self.total_bytes == other.total_bytes and (stated[0] if stated else True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What an answer promises to bring."""

    version: Version
    length: int


def first_piece(answer: ResponseHead, *, asked_bytes: int, whole_bytes: int, name: str) -> Piece:
    """The promise of the answer to `bytes=0-(asked_bytes - 1)`.

    A server may send the whole file instead if that is no more than `whole_bytes`.
    """
    _refuse_web_page(answer, name=name)
    if answer.status == 416:
        return _empty_file(answer, name=name)
    if answer.status == 206:
        return _ranged_piece(answer, start=0, asked_bytes=asked_bytes, name=name)
    length = answer.headers.get("content-length", "")
    if answer.status != 200:
        raise _odd(answer, f"answered {answer.status} to a range request", name=name)
    if _LENGTH.fullmatch(length) and int(length) <= whole_bytes:
        return Piece(version=_version(answer.headers, int(length)), length=int(length))
    raise _no_ranges(answer, name=name)


def next_piece(
    answer: ResponseHead, *, start: int, asked_bytes: int, known: Version, name: str
) -> Piece:
    """The promise of the answer to a later range of a file whose version is known."""
    if answer.status == 206:
        _refuse_web_page(answer, name=name)
        piece = _ranged_piece(answer, start=start, asked_bytes=asked_bytes, name=name)
        if not piece.version.is_same(known):
            raise changed(name=name)
        return piece
    length = answer.headers.get("content-length", "")
    total_bytes = int(length) if _LENGTH.fullmatch(length) else known.total_bytes
    if answer.status == 200 and _version(answer.headers, total_bytes).is_same(known):
        raise _no_ranges(answer, name=name)
    if answer.status in {200, 416}:  # If-Range did not match, or the file is shorter now
        raise changed(name=name)
    raise _odd(answer, f"answered {answer.status} to a range request", name=name)


def changed(*, name: str) -> RemoteChangedError:
    return RemoteChangedError(
        f"{name}: the file on the server changed while it was being read; try again"
    )


def sent_too_much(answer: ResponseHead, piece: Piece, *, name: str) -> RemoteInspectError:
    return _odd(answer, f"sent more than the {piece.length:,} bytes it announced", name=name)


def _ranged_piece(answer: ResponseHead, *, start: int, asked_bytes: int, name: str) -> Piece:
    """Less than was asked for is fine (some servers send little at a time), anything else is not."""
    text = answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        stated = f"Content-Range {text[:60]!r}" if text else "no Content-Range"
        raise _odd(answer, f"answered a range request with {stated}", name=name)
    first, last, total_bytes = (int(number) for number in match.groups())
    if not (first == start <= last < min(start + asked_bytes, total_bytes)):
        what = f"was asked for bytes {start}-{start + asked_bytes - 1} and announced {text[:60]!r}"
        raise _odd(answer, what, name=name)
    stated_length = answer.headers.get("content-length", str(last - first + 1))
    if stated_length != str(last - first + 1):
        what = f"contradicts itself: {text[:60]!r} in {stated_length[:20]!r} bytes"
        raise _odd(answer, what, name=name)
    return Piece(version=_version(answer.headers, total_bytes), length=last - first + 1)


def _version(headers: Mapping[str, str], total_bytes: int) -> Version:
    return Version(
        total_bytes=total_bytes,
        etag=usable_validator(headers.get("etag")),
        last_modified=usable_validator(headers.get("last-modified")),
    )


def usable_validator(text: str | None) -> str | None:
    """None for one that could not be sent back in a header."""
    is_sane = text is not None and len(text) <= MAX_VALIDATOR_CHARS
    return text if is_sane and text and text.isascii() and text.isprintable() else None


def _empty_file(answer: ResponseHead, *, name: str) -> Piece:
    if answer.headers.get("content-range", "").strip() != "bytes */0":
        raise _odd(answer, "reports an empty file (416)", name=name)
    return Piece(version=_version(answer.headers, 0), length=0)


def _refuse_web_page(answer: ResponseHead, *, name: str) -> None:
    if (
        answer.headers.get("content-type", "")
        .lower()
        .startswith(("text/html", "application/xhtml"))
    ):
        raise _odd(answer, "answered with a web page instead of a file", name=name)


def _no_ranges(answer: ResponseHead, *, name: str) -> RangeNotSupportedError:
    return RangeNotSupportedError(
        f"{name}: {host_of(answer.url)} only sends whole files (it ignores Range), so the "
        "header could not be read; download the file and give its path"
    )


def _odd(answer: ResponseHead, what: str, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: {host_of(answer.url)} {what}; check the address, or download the file and give "
        "its path"
    )
