"""Servers that send false headers, contradict themselves or send something else: an error after little traffic."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response
from tests.thoroughness import LONG

from edgekit.errors import EdgekitError, RemoteInspectError
from edgekit.sources.http import ResponseHead, Transport
from edgekit.sources.remote import GGUF, HttpFile, announced_piece
from edgekit.sources.types import Reach

Server = Callable[[Script], RawServer]
CONTENT = bytes(range(256)) * 4096  # 1 MiB
FIRST = CONTENT[:524_288]


def open_file(url: str, reach: Reach) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=GGUF)


@pytest.mark.parametrize(
    "content_range",
    [
        None,
        "bytes */1048576",
        "bytes 0-524287/*",
        "bytes 1-524288/1048576",  # another start
        "bytes 0-524288/1048576",  # one more than requested
        "bytes 0-524287/524287",  # past its own end
        "bytes 524287-0/1048576",
        "bytes 0-524286/1048576",  # one less than the body
        "bytes 0-99999999999999999999999/1048576",
        "octets 0-524287/1048576",
        "bytes -1-524287/1048576",
        "bytes 0-524287/1048576, bytes 0-524287/1048576",
        "\u0660-\u0661/\u0662",
    ],
)
def test_wrong_content_range_is_an_error(
    raw_server: Server, reach: Reach, content_range: str | None
) -> None:
    headers = (
        {} if content_range is None else {"Content-Range": content_range.encode().decode("latin-1")}
    )
    server = raw_server(lambda _, send: send(response("206 Partial Content", headers, FIRST)))
    with pytest.raises(RemoteInspectError, match=r"the file: 127\.0\.0\.1:[0-9]+ .*check the addr"):
        open_file(server.address + "/a.gguf", reach)
    assert (reach.traffic.requests, reach.traffic.received_bytes) == (1, 0)


@pytest.mark.parametrize("content_range", ["bytes 0-262143/1048576", "bytes 524289-786432/1048576"])
def test_wrong_later_content_range_is_an_error(
    raw_server: Server, reach: Reach, content_range: str
) -> None:
    def script(request: Request, send: Send) -> None:
        wrong = response(
            "206 Partial Content", {"Content-Range": content_range}, CONTENT[: 256 * 1024]
        )
        send(range_response(CONTENT, request) if request.number == 1 else wrong)

    file = open_file(raw_server(script).address + "/a.gguf", reach)
    with pytest.raises(RemoteInspectError, match="was asked for bytes 524288-786431 and announced"):
        file.read(524_288, 8)
    assert file.read(0, 524_288) == FIRST
    file.close()


def test_body_longer_than_announced_is_an_error(raw_server: Server, reach: Reach) -> None:
    """Without Content-Length the body should end after its Content-Range, but continues."""
    content_range = {"Content-Range": "bytes 0-524287/1048576", "Content-Length": ""}
    reply = response("206 Partial Content", content_range, CONTENT * 8)
    server = raw_server(lambda _, send: send(reply))
    with pytest.raises(RemoteInspectError, match="sent more than the 524,288 bytes it announced"):
        open_file(server.address + "/a.gguf", reach)
    assert reach.traffic.received_bytes < 524_288 + 2 * 65_536  # at most a socket buffer more


def test_body_shorter_than_announced_is_continued(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        if request.number > 1:
            send(range_response(CONTENT, request))
            return
        content_range = {"Content-Range": "bytes 0-524287/1048576", "Content-Length": ""}
        send(response("206 Partial Content", content_range, FIRST[:1000]))

    server = raw_server(script)
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(0, 524_288) == FIRST
    assert [request.first_byte for request in server.requests] == [0, 1000]
    file.close()


def test_compressed_answer_is_refused_unread(raw_server: Server, reach: Reach) -> None:
    body = gzip.compress(FIRST)
    content_range = f"bytes 0-{len(body) - 1}/1048576"
    headers = {"Content-Range": content_range, "Content-Encoding": "gzip"}
    server = raw_server(lambda _, send: send(response("206 Partial Content", headers, body)))
    with pytest.raises(RemoteInspectError, match="sends the file compressed although"):
        open_file(server.address + "/a.gguf", reach)
    assert server.requests[0].headers["accept-encoding"] == "identity"
    assert reach.traffic.received_bytes == 0


def test_web_page_instead_of_a_model_is_an_error(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RemoteInspectError, match="answered with a web page instead of a file"):
        open_file(f"{hub.cdn}/page.gguf", reach)
    assert reach.traffic.received_bytes == 0


@pytest.mark.parametrize(
    "reply",
    [
        response("204 No Content"),
        response("304 Not Modified"),
        response("416 Range Not Satisfiable", {"Content-Range": "bytes */1048576"}),
        response(
            "206 Partial Content", {"Content-Type": "multipart/byteranges; boundary=x"}, FIRST
        ),
        response("302 Found"),
        response("300 Multiple Choices"),
        response("200 OK", {"Content-Length": "99999999999999999999999"}),
    ],
)
def test_nonsensical_answers_are_errors(raw_server: Server, reach: Reach, reply: bytes) -> None:
    server = raw_server(lambda _, send: send(reply))
    with pytest.raises(RemoteInspectError, match="the file: "):
        open_file(server.address + "/a.gguf", reach)
    assert reach.traffic.received_bytes == 0


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 206 OK\r\n" + b"X-Filler: " + b"a" * 300_000,  # headers without an end
        b"",
        b"\0" * 1000,
    ],
)
def test_answer_that_is_not_http_is_an_error(
    raw_server: Server, reach: Reach, reply: bytes
) -> None:
    server = raw_server(lambda _, send: send(reply))
    with pytest.raises(RemoteInspectError, match=r"closed the connection .* .4 attempts"):
        open_file(server.address + "/a.gguf", reach)
    assert len(server.requests) == 4


def test_unusable_validator_is_not_sent_back(raw_server: Server, reach: Reach) -> None:
    etag = {"ETag": '"\u00e9"', "Last-Modified": "x" * 5000}
    server = raw_server(lambda request, send: send(range_response(CONTENT, request, etag)))
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(524_288, 8) == CONTENT[524_288:524_296]
    assert "if-range" not in server.requests[1].headers
    file.close()


NUMBERS = st.integers(-2, 2**70) | st.sampled_from([0, 99, 100, 524_287, 524_288])
PLACES = st.builds("bytes {}-{}/{}".format, NUMBERS, NUMBERS, NUMBERS | st.just("*"))


@given(
    status=st.sampled_from([200, 203, 204, 206, 304, 416]),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "content-range": PLACES | st.text(),
            "content-length": NUMBERS.map(str) | st.text(),
            "content-type": st.sampled_from(["text/html; charset=utf-8", "", "application/json"]),
            "etag": st.text(),
        },
    ),
)
@settings(max_examples=100 if LONG else 40)
def test_announced_piece_never_exceeds_the_request(status: int, headers: dict[str, str]) -> None:
    head = ResponseHead(status=status, headers=headers, url="https://a.example/a.gguf")
    with contextlib.suppress(EdgekitError):
        piece = announced_piece(
            head,
            start=0,
            requested_bytes=524_288,
            max_whole_file_bytes=100,
            known_version=None,
            name="a.gguf",
        )
        assert 0 <= piece.length <= min(524_288, piece.version.total_bytes)
        assert status == 206 or piece.length <= 100
