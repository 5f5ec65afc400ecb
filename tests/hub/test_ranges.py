"""HttpFile: reads a growing prefix of a file by range requests, within limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.hub.hub_files import MIB, gguf_header, write_gguf
from tests.hub.nginx_hub import Hub
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response

from edgekit.errors import (
    HeaderLimitError,
    RangeNotSupportedError,
    RemoteChangedError,
    RemoteInspectError,
    SourceError,
)
from edgekit.sources import cache, remote
from edgekit.sources.http import Transport
from edgekit.sources.remote import GGUF, JSON, SAFETENSORS, HttpFile, stride_of
from edgekit.sources.types import Reach

Server = Callable[[Script], RawServer]
LARGE = "/acme/large-GGUF/large-Q4_K_M.gguf"
HEADER = gguf_header(vocabulary=100_000)  # 2,000,361 bytes
SIZE = len(HEADER) + 64 * MIB


def open_file(url: str, reach: Reach, stride: remote.Stride = GGUF) -> HttpFile:
    return HttpFile(Transport(reach), url, name="the file", stride=stride)


def test_first_request_is_half_a_mebibyte_and_returns_the_size(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + LARGE, reach)
    assert (file.size_bytes, file.available_bytes) == (SIZE, 512 * 1024)
    assert file.read(0, 524_288) == HEADER[:524_288]
    traffic = reach.traffic
    assert (traffic.requests, traffic.ranges, traffic.received_bytes) == (1, 1, 524_288)
    assert hub.log("cdn") == [f"GET {LARGE} 206 bytes=0-524287 auth=[-]"]
    file.close()


def test_later_ranges_append_without_repeating_bytes(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + LARGE, reach)
    assert file.read(524_280, 16) == HEADER[524_280:524_296]  # one step of 256 KiB
    assert file.read(800_000, 100_000, ahead=300_000) == HEADER[800_000:900_000]
    assert file.read(0, 1_200_000) == HEADER[:1_200_000]  # already received
    requests = [line.split()[3] for line in hub.log("cdn")]
    assert requests == ["bytes=0-524287", "bytes=524288-786431", "bytes=786432-1199999"]
    assert reach.traffic.received_bytes == file.available_bytes == 1_200_000
    file.close()


def test_requested_lookahead_comes_in_the_same_request(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + LARGE, reach)
    file.read(524_288, 8, ahead=len(HEADER) - 524_296)
    assert file.read(0, len(HEADER)) == HEADER
    assert (reach.traffic.ranges, reach.traffic.received_bytes) == (2, len(HEADER))
    file.close()


def test_range_in_memory_is_at_most_8_mib(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + LARGE, reach)
    file.read(524_288, 8, ahead=20 * MIB)
    starts = [524_288 + 8 * MIB * number for number in range(3)]
    assert [int(line.split()[3][6:].split("-")[0]) for line in hub.log("cdn")[1:]] == starts
    file.close()


def test_read_past_the_end_is_short_without_a_request(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + "/acme/tensors/config.json", reach, JSON)
    size = file.size_bytes
    assert size < 100
    assert len(file.read(0, 1000)) == size
    assert file.read(size + 5, 10) == b""
    assert reach.traffic.requests == 1
    file.close()


def test_empty_file_has_no_bytes(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + "/empty.gguf", reach)
    assert (file.size_bytes, file.read(0, 10)) == (0, b"")
    file.close()


def test_status_416_with_a_total_of_zero_is_an_empty_file(raw_server: Server, reach: Reach) -> None:
    reply = response("416 Range Not Satisfiable", {"Content-Range": "bytes */0"})
    file = open_file(raw_server(lambda _, send: send(reply)).address + "/a.gguf", reach)
    assert file.size_bytes == 0
    file.close()


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("model-Q4_K_M.GGUF", GGUF),
        ("model.safetensors", SAFETENSORS),
        ("model.safetensors.index.json", JSON),
        ("download", GGUF),
    ],
)
def test_range_length_depends_on_the_suffix(name: str, stride: remote.Stride) -> None:
    assert stride_of(name) is stride


def test_header_over_100_megabytes_is_refused_unread(hub: Hub, reach: Reach) -> None:
    big = write_gguf(hub.root / "cdn/huge.gguf", gguf_header(), weights_bytes=200 * 10**6)
    file = open_file(hub.cdn + "/huge.gguf", reach)
    with pytest.raises(HeaderLimitError, match="100,000,001 is over the limit of 100,000,000"):
        file.read(100_000_000, 1)
    assert file.read(0, len(big)) == big
    assert reach.traffic.received_bytes == 524_288
    file.close()


def test_lookahead_stops_at_the_limit(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_HEADER_BYTES", 600_000)
    file = open_file(hub.cdn + LARGE, reach)
    file.read(550_000, 10, ahead=10 * MIB)
    assert file.available_bytes == reach.traffic.received_bytes == 600_000
    file.close()


def test_body_of_a_server_without_ranges_is_not_read(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RangeNotSupportedError, match=r"ignores Range.*download the file"):
        open_file(f"{hub.cdn}/whole{LARGE}", reach)
    assert reach.traffic.requests == 1
    assert reach.traffic.received_bytes == 0


def test_small_file_of_a_server_without_ranges_is_read_completely(hub: Hub, reach: Reach) -> None:
    file = open_file(f"{hub.cdn}/whole/acme/tensors/config.json", reach, JSON)
    assert file.read(0, 1000).startswith(b'{"model_type"')
    file.close()


def test_file_that_changes_between_ranges_is_an_error(hub: Hub, reach: Reach) -> None:
    path = hub.root / "cdn/moving.gguf"
    write_gguf(path, HEADER, weights_bytes=0)
    file = open_file(hub.cdn + "/moving.gguf", reach)
    write_gguf(path, HEADER[:-1] + b"?", weights_bytes=5)
    with pytest.raises(RemoteChangedError, match="changed while it was being read; try again"):
        file.read(600_000, 10)
    assert reach.traffic.received_bytes == 524_288
    file.close()


def test_file_that_shrinks_between_ranges_is_an_error(hub: Hub, reach: Reach) -> None:
    path = hub.root / "cdn/shrinking.gguf"
    write_gguf(path, HEADER, weights_bytes=0)
    file = open_file(hub.cdn + "/shrinking.gguf", reach)
    write_gguf(path, HEADER[:1000], weights_bytes=0)
    with pytest.raises(RemoteChangedError):
        file.read(600_000, 10)
    file.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ETag": '"a"'}, {"ETag": '"b"'}),
        ({"ETag": 'W/"a"'}, {"ETag": 'W/"b"'}),
        (
            {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            {"Last-Modified": "Tue, 02 Jan 2024 00:00:00 GMT"},
        ),
    ],
)
def test_status_206_of_another_version_is_an_error(
    raw_server: Server, reach: Reach, before: dict[str, str], after: dict[str, str]
) -> None:
    """For servers that ignore If-Range."""

    def script(request: Request, send: Send) -> None:
        send(range_response(HEADER, request, before if request.number == 1 else after))

    file = open_file(raw_server(script).address + "/a.gguf", reach)
    with pytest.raises(RemoteChangedError):
        file.read(600_000, 10)
    file.close()


def test_status_206_of_another_total_is_an_error(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        send(range_response(HEADER + b"x" * request.number, request))

    file = open_file(raw_server(script).address + "/a.gguf", reach)
    with pytest.raises(RemoteChangedError):
        file.read(600_000, 10)
    file.close()


@pytest.mark.parametrize(
    ("headers", "if_range"),
    [
        ({"ETag": '"a"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, '"a"'),
        ({"ETag": 'W/"a"'}, None),  # If-Range must not be weak
        (
            {"ETag": 'W/"a"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            "Mon, 01 Jan 2024 00:00:00 GMT",
        ),
        ({}, None),
    ],
)
def test_later_ranges_send_the_first_validator(
    raw_server: Server, reach: Reach, headers: dict[str, str], if_range: str | None
) -> None:
    server = raw_server(lambda request, send: send(range_response(HEADER, request, headers)))
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(600_000, 10) == HEADER[600_000:600_010]
    assert [request.headers.get("if-range") for request in server.requests] == [None, if_range]
    file.close()


def test_listing_with_another_size_is_an_error(hub: Hub, reach: Reach) -> None:
    with pytest.raises(RemoteChangedError, match=r"listed with 5 bytes, but the server sends 69,"):
        HttpFile(Transport(reach), hub.cdn + LARGE, name="large", expected_bytes=5)


def test_server_that_sends_small_pieces_is_read(raw_server: Server, reach: Reach) -> None:
    def script(request: Request, send: Send) -> None:
        last = min(request.first_byte + 100_000, 524_288) - 1
        request.headers["range"] = f"bytes={request.first_byte}-{last}"
        send(range_response(HEADER, request))

    server = raw_server(script)
    file = open_file(server.address + "/a.gguf", reach)
    assert file.read(0, 524_288) == HEADER[:524_288]
    assert [request.first_byte for request in server.requests] == list(range(0, 524_288, 100_000))
    file.close()


def test_server_that_sends_single_bytes_is_given_up(
    raw_server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_RANGES", 8)

    def script(request: Request, send: Send) -> None:
        request.headers["range"] = f"bytes={request.first_byte}-{request.first_byte}"
        send(range_response(HEADER, request))

    server = raw_server(script)
    with pytest.raises(RemoteInspectError, match="8 requests were not enough"):
        open_file(server.address + "/a.gguf", reach)
    assert len(server.requests) == 8


def test_progress_reports_what_is_about_to_be_read(hub: Hub) -> None:
    lines: list[str] = []
    reach = Reach(cache=False, progress=lines.append)
    file = open_file(hub.cdn + LARGE, reach)
    file.read(524_288, 8)
    assert lines == ["the file: reading 512.00 KiB", "the file: reading 256.00 KiB"]
    file.close()


def test_small_reads_share_one_request_per_step(hub: Hub, reach: Reach) -> None:
    file = open_file(hub.cdn + LARGE, reach)
    for offset in range(0, 1_000_000, 1000):
        assert file.read(offset, 8) == HEADER[offset : offset + 8]
    assert reach.traffic.ranges == 1 + 2  # 512 + 256 + 256 KiB hold the first million bytes
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_for_the_temporary_file_is_an_error(
    hub: Hub, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = partial(Path("/dev/full").open, "r+b", buffering=0)
    monkeypatch.setattr(cache, "new_prefix", full)
    with pytest.raises(SourceError, match=r"no space for its header .*set TMPDIR"):
        open_file(hub.cdn + LARGE, reach)
