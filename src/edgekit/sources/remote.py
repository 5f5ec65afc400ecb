"""Files over HTTP: the first bytes, fetched range by range and never twice; and models at a plain web address.

Range, If-Range, Content-Range and validators: RFC 9110, sections 8.8, 13 and 14.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import IO
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from edgekit.errors import (
    HeaderError,
    HeaderLimitError,
    RangeNotSupportedError,
    RemoteAccessError,
    RemoteChangedError,
    RemoteInspectError,
    RemoteNotFoundError,
    SourceError,
    UsageError,
)
from edgekit.sources import cache
from edgekit.sources.address import host_of, redact, site_of
from edgekit.sources.cache import Version, usable_validator
from edgekit.sources.filenames import (
    CONFIG_NAME,
    INDEX_NAME,
    MODEL_SUFFIXES,
    base_of,
    choose_files,
    shard_names,
)
from edgekit.sources.http import (
    Reply,
    ResponseHead,
    RetrySchedule,
    TransientFailure,
    Transport,
)
from edgekit.sources.types import (
    MAX_HEADER_BYTES,
    ByteSource,
    Container,
    ModelFile,
    ModelFiles,
    Origin,
    Reach,
)
from edgekit.units import KIB, MIB, format_bytes

MAX_RANGE_BYTES = 8 * MIB  # one range is held in memory while it comes in
MAX_RANGES = 512  # 382 ranges of 256 KiB cover MAX_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """How one kind of file is read."""

    first_bytes: int  # of the first range
    step_bytes: int  # the minimum of a later range, so that small reads share a request
    # A server without ranges may send a file of up to this size in one piece.
    max_whole_file_bytes: int


# 512 KiB hold the architecture keys of every GGUF. A safetensors header states its length. A
# config or an index is read whole: an index of 90,000 expert tensors (DeepSeek V3) is 9 MB.
GGUF = Stride(first_bytes=512 * KIB, step_bytes=256 * KIB, max_whole_file_bytes=512 * KIB)
SAFETENSORS = Stride(first_bytes=64 * KIB, step_bytes=64 * KIB, max_whole_file_bytes=64 * KIB)
JSON = Stride(first_bytes=64 * KIB, step_bytes=64 * KIB, max_whole_file_bytes=16 * MIB)


def stride_of(filename: str) -> Stride:
    """The stride for a file's suffix; a file with an unknown suffix is read like a GGUF."""
    lowered = filename.lower()
    if lowered.endswith(".safetensors"):
        return SAFETENSORS
    return JSON if lowered.endswith(".json") else GGUF


class HttpFile:
    """A ByteSource that holds a prefix of the file and only appends to it."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        name: str,
        stride: Stride = GGUF,
        expected_bytes: int | None = None,
    ) -> None:
        """Makes the first request. `expected_bytes` is the size according to a listing."""
        self._transport = transport
        self._url = url
        self._final_url = url  # after redirects; may carry a signature
        self.name = name
        self._stride = stride
        self._version: Version | None = None
        self._linked_etag: str | None = None
        self._prefix: IO[bytes] = cache.new_prefix()
        self.available_bytes = 0  # length of the prefix, which can be read without another request
        self._cached_bytes = 0  # how much of the prefix is in the disk cache
        self._ranges = 0
        entry = cache.load(url) if transport.reach.cache else None
        try:
            if entry is None or transport.is_online:
                self._fetch(stride.first_bytes, entry)
            else:
                self._adopt(entry)
        except BaseException:
            self.close()
            raise
        finally:
            if entry is not None and self._prefix is not entry.prefix:
                entry.prefix.close()
        if expected_bytes is not None and expected_bytes != self.size_bytes:
            self.close()
            raise RemoteChangedError(
                f"{name}: listed with {expected_bytes:,} bytes, but the server "
                f"sends {self.size_bytes:,}; it may just be changing: try again later"
            )

    @property
    def size_bytes(self) -> int:
        assert self._version is not None  # noqa: S101 - set by the first request
        return self._version.total_bytes

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        end = min(offset + length, self.size_bytes)
        if end > self.available_bytes:
            if end > MAX_HEADER_BYTES:
                raise HeaderLimitError(
                    "bytes to read from the start of the file",
                    value=end,
                    limit=MAX_HEADER_BYTES,
                    file=self.name,
                )
            stop = max(end + ahead, self.available_bytes + self._stride.step_bytes)
            self._fetch(min(stop, MAX_HEADER_BYTES))
        self._prefix.seek(offset)
        return self._prefix.read(max(0, end - offset))

    def keep(self) -> None:
        """Store the prefix in the disk cache, because the header turned out to be valid."""
        if (
            self._version is None
            or self._version.validator is None  # a later change could not be detected
            or not self._transport.reach.cache
            or self.available_bytes <= self._cached_bytes
        ):
            return
        cache.store(
            self._url,
            cache.CachedRange(
                version=self._version,
                linked_etag=self._linked_etag,
                prefix=self._prefix,
                length=self.available_bytes,
            ),
        )
        self._cached_bytes = self.available_bytes

    def close(self) -> None:
        self._prefix.close()

    def __del__(self) -> None:
        """Release the prefix: a file that was only opened to check that it exists may never be closed."""
        self.close()

    def _adopt(self, entry: cache.CachedRange) -> None:
        """Use the prefix from the disk cache."""
        self._prefix.close()
        self._prefix = entry.prefix
        self._version = entry.version
        self._linked_etag = entry.linked_etag
        self.available_bytes = self._cached_bytes = entry.length
        self._transport.count(cached_bytes=entry.length)

    def _fetch(self, stop: int, entry: cache.CachedRange | None = None) -> None:
        """Append until the prefix reaches `stop` or the end of the file.

        `entry` is from the disk cache: the server sends the first range only if the file has changed since.
        """
        retries = RetrySchedule(self._transport, name=self.name)
        while self._version is None or self.available_bytes < min(stop, self.size_bytes):
            reply, piece = self._request(stop, entry)
            if entry is not None and _confirms(reply, piece, entry):
                self._adopt(entry)
                return
            failure, head = reply.failure, reply.head
            if piece is not None and head is not None:
                entry = None  # out of date
                if reply.overrun:
                    what = f"sent more than the {piece.length:,} bytes it announced"
                    raise _unexpected_answer(head, what, name=self.name)
                is_complete = len(reply.body) == piece.length
                # A body that broke off is appended too, and the next range continues after it. A server without
                # ranges (200) cannot continue in the middle, so its incomplete body is dropped.
                if is_complete or head.status != 200:
                    self._version = self._version or piece.version
                    self._linked_etag = self._linked_etag or usable_validator(reply.linked_etag)
                    self._final_url = head.url
                    self._append(reply.body)
                    if reply.body:
                        retries.reset()
                if not is_complete and failure is None:
                    host, received_bytes = host_of(self._final_url), len(reply.body)
                    failure = TransientFailure(
                        what=f"{host} closed the connection after {received_bytes:,} bytes"
                    )
            if failure is not None:
                retries.wait(failure)

    def _append(self, body: bytearray) -> None:
        """Extend the prefix."""
        try:
            self._prefix.seek(self.available_bytes)
            self._prefix.write(body)
        except OSError as error:  # a long prefix is in a temporary file
            raise SourceError(
                f"{self.name}: no space for its header in the folder for temporary files "
                f"({error.strerror}); set TMPDIR to a folder with free space"
            ) from error
        self.available_bytes += len(body)

    def _request(self, stop: int, entry: cache.CachedRange | None) -> tuple[Reply, Piece | None]:
        """Request the next range, up to `stop`: the reply, and the piece it announces if it has a body."""
        self._ranges += 1
        self._transport.count(ranges=1)
        if self._ranges > MAX_RANGES:
            raise RemoteInspectError(
                f"{self.name}: the server sends so little per request that {MAX_RANGES} "
                f"requests were not enough ({self.available_bytes:,} bytes so far); "
                "download the file and give its path"
            )
        start, known_version = self.available_bytes, self._version
        stop = stop if known_version is None else min(stop, known_version.total_bytes)
        requested_bytes = min(stop - start, MAX_RANGE_BYTES)
        headers = {"range": f"bytes={start}-{start + requested_bytes - 1}"}
        if known_version is not None and known_version.validator is not None:
            headers["if-range"] = known_version.validator
        if entry is not None:
            headers |= entry.version.condition
        if self._transport.reach.progress is not None:
            self._transport.reach.progress(f"{self.name}: reading {format_bytes(requested_bytes)}")
        piece: Piece | None = None

        def body_limit(head: ResponseHead) -> int:
            nonlocal piece
            if entry is not None and head.status == 304:
                return 0
            piece = announced_piece(
                head,
                start=start,
                requested_bytes=requested_bytes,
                max_whole_file_bytes=self._stride.max_whole_file_bytes,
                known_version=known_version,
                name=self.name,
            )
            return piece.length

        def is_unchanged(redirect: ResponseHead) -> bool:
            return entry is not None and _is_linked(redirect, entry)

        reply = self._transport.request(
            self._final_url,
            headers,
            name=self.name,
            body_limit=body_limit,
            is_final_redirect=is_unchanged,
        )
        return reply, piece


def opened_file(name: str, source: ByteSource, reopen: Callable[[], ByteSource]) -> ModelFile:
    """A file that was already opened to check that it exists: the first `open` returns that source."""
    unused = [source]

    def open_source() -> ByteSource:
        return unused.pop() if unused else reopen()

    return ModelFile(name=name, open=open_source, size_bytes=source.size_bytes)


def _is_linked(head: ResponseHead, entry: cache.CachedRange) -> bool:
    """Whether the hub's redirect states the hash of the cached content: then it need not be followed."""
    etag = head.headers.get("x-linked-etag")
    return etag is not None and etag == entry.linked_etag


def _confirms(reply: Reply, piece: Piece | None, entry: cache.CachedRange) -> bool:
    """Whether the file is still the one in the disk cache."""
    if reply.head is None:
        return False
    if piece is None:
        return reply.head.status == 304 or _is_linked(reply.head, entry)
    is_same = piece.version.validator == entry.version.validator
    return is_same and piece.version.total_bytes == entry.version.total_bytes


# -- responses to range requests -----------------------------------------------------------------

# 18 digits are more bytes than any file has, and few enough to convert.
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The bytes that a response announces."""

    version: Version
    length: int


def announced_piece(
    head: ResponseHead,
    *,
    start: int,
    requested_bytes: int,
    max_whole_file_bytes: int,
    known_version: Version | None,
    name: str,
) -> Piece:
    """The bytes announced by the response to `bytes=start-(start + requested_bytes - 1)`.

    For the first range no version is known; the server may send the whole file instead if that is at most
    `max_whole_file_bytes`. A later range must be of the known version.
    """
    content_type = head.headers.get("content-type", "").lower()
    is_web_page = content_type.startswith(("text/html", "application/xhtml"))
    if is_web_page and (known_version is None or head.status == 206):
        raise _unexpected_answer(head, "answered with a web page instead of a file", name=name)
    changed = RemoteChangedError(
        f"{name}: the file on the server changed while it was being read; try again"
    )
    if head.status == 206:
        piece = _ranged_piece(head, start=start, requested_bytes=requested_bytes, name=name)
        if known_version is not None and not piece.version.is_same(known_version):
            raise changed
        return piece
    if head.status == 416:  # the file has no bytes from `start` on
        if known_version is not None:
            raise changed
        if head.headers.get("content-range", "").strip() != "bytes */0":
            raise _unexpected_answer(head, "reports an empty file (416)", name=name)
        return Piece(version=_version(head, 0), length=0)
    if head.status != 200:
        raise _unexpected_answer(head, f"answered {head.status} to a range request", name=name)
    # The whole file: the server ignores Range, or If-Range did not match.
    text = head.headers.get("content-length", "")
    length = int(text) if _LENGTH.fullmatch(text) else None
    if known_version is not None:
        total_bytes = known_version.total_bytes if length is None else length
        if not _version(head, total_bytes).is_same(known_version):
            raise changed
    elif length is not None and length <= max_whole_file_bytes:
        return Piece(version=_version(head, length), length=length)
    raise RangeNotSupportedError(
        f"{name}: {host_of(head.url)} only sends whole files (it ignores Range), so the "
        "header could not be read; download the file and give its path"
    )


def _ranged_piece(head: ResponseHead, *, start: int, requested_bytes: int, name: str) -> Piece:
    """The bytes that a 206 response announces. It may be shorter than requested, but must start at `start`."""
    text = head.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        stated = f"Content-Range {text[:60]!r}" if text else "no Content-Range"
        raise _unexpected_answer(head, f"answered a range request with {stated}", name=name)
    first, last, total_bytes = (int(number) for number in match.groups())
    if not (first == start <= last < min(start + requested_bytes, total_bytes)):
        what = (
            f"was asked for bytes {start}-{start + requested_bytes - 1} and announced {text[:60]!r}"
        )
        raise _unexpected_answer(head, what, name=name)
    length = last - first + 1
    stated_length = head.headers.get("content-length", str(length))
    if stated_length != str(length):
        what = f"contradicts itself: {text[:60]!r} in {stated_length[:20]!r} bytes"
        raise _unexpected_answer(head, what, name=name)
    return Piece(version=_version(head, total_bytes), length=length)


def _version(head: ResponseHead, total_bytes: int) -> Version:
    return Version(
        total_bytes=total_bytes,
        etag=usable_validator(head.headers.get("etag")),
        last_modified=usable_validator(head.headers.get("last-modified")),
    )


def _unexpected_answer(head: ResponseHead, what: str, *, name: str) -> RemoteInspectError:
    return RemoteInspectError(
        f"{name}: {host_of(head.url)} {what}; check the address, or download the file and give "
        "its path"
    )


# -- a model at a web address --------------------------------------------------------------------


def locate_url(url: str, reach: Reach) -> ModelFiles:
    """A .gguf or .safetensors with the rest of its shard set, or a config.json.

    The files next to a .safetensors are requested by name: a plain server has no listing.
    """
    try:
        site_of(url)
    except ValueError as error:
        raise UsageError(f"{redact(url)!r} is not the address of a file on the web") from error
    transport = Transport(reach)
    parts = urlsplit(url)
    filename = base_of(unquote(parts.path))
    lowered = filename.lower()
    if not lowered.endswith(MODEL_SUFFIXES):
        return _locate_by_magic(url, filename, transport)

    def opener(name: str) -> Callable[[], HttpFile]:
        path = f"{parts.path.rpartition('/')[0]}/{quote(name)}"
        return partial(_open, name, urlunsplit(parts._replace(path=path)), transport)

    names = shard_names(filename)
    if len(names) > 1:
        # Shards count from 1, unless the user named shard 0.
        counts_from_zero = filename == names[0]
        names = names[:-1] if counts_from_zero else names[1:]
    files = [ModelFile(name=name, open=opener(name)) for name in names]
    if lowered.endswith((".safetensors", ".index.json")):
        for name in (CONFIG_NAME, *((INDEX_NAME,) if len(files) > 1 else ())):
            try:
                files.append(opened_file(name, opener(name)(), opener(name)))
            except (RemoteNotFoundError, RemoteAccessError):  # the file is optional
                continue
    chosen = choose_files(files, label=filename, origin=Origin.URL, filename=filename)
    return replace(chosen, label=filename)


def _open(name: str, url: str, transport: Transport) -> HttpFile:
    """The file at `url`; the suffix of `name` decides how it is read."""
    return HttpFile(transport, url, name=redact(url), stride=stride_of(name))


def _locate_by_magic(url: str, filename: str, transport: Transport) -> ModelFiles:
    """A model at an address without a known suffix, such as a download link, identified by its first bytes."""
    first = _open(filename, url, transport)
    if first.read(0, 4) != b"GGUF":
        first.close()
        raise HeaderError(
            "the address does not end in .gguf, .safetensors or .json, and the file is not a GGUF; "
            "give the address of a model file",
            file=redact(url),
        )
    name = filename or "model"
    return ModelFiles(
        label=name,
        origin=Origin.URL,
        container=Container.GGUF,
        weights=(opened_file(name, first, partial(_open, filename, url, transport)),),
    )
