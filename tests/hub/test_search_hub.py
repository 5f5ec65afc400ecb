"""The search on the hub: what is asked, what of the answer is used, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.hub.raw_server import RawServer, Request, Script, Send, response

from edgekit.errors import RemoteInspectError, UsageError
from edgekit.sources.hub import MAX_SEARCH_BYTES, FoundRepository, search_hub
from edgekit.sources.types import Reach

Server = Callable[[Script], None]


@pytest.fixture
def server(raw_server: Callable[[Script], RawServer], monkeypatch: pytest.MonkeyPatch) -> Server:
    """Starts a hub that answers as the script does."""

    def start(script: Script) -> None:
        monkeypatch.setenv("HF_ENDPOINT", raw_server(script).address)

    return start


FOUND = [
    {
        "id": "unsloth/Qwen3-8B-GGUF",
        "downloads": 1_000_000,
        "likes": 90,
        "pipeline_tag": "text-generation",
        "tags": ["gguf"],
    },
    {"id": "somebody/secret", "private": True, "downloads": 5},
    {"id": "Qwen/Qwen3-Embedding-0.6B", "pipeline_tag": "feature-extraction"},
]


def answering(body: bytes, seen: list[Request] | None = None) -> Script:
    def script(request: Request, send: Send) -> None:
        if seen is not None:
            seen.append(request)
        send(response("200 OK", {"Content-Type": "application/json"}, body))

    return script


def test_search_asks_for_the_words_and_leaves_out_private_repositories(
    server: Server, reach: Reach
) -> None:
    seen: list[Request] = []
    server(answering(json.dumps(FOUND).encode(), seen))
    found = search_hub(" qwen3 & co/8b ", 5, reach)
    assert found == (
        FoundRepository(
            id="unsloth/Qwen3-8B-GGUF",
            downloads=1_000_000,
            likes=90,
            pipeline="text-generation",
            tags=("gguf",),
        ),
        FoundRepository(id="Qwen/Qwen3-Embedding-0.6B", pipeline="feature-extraction"),
    )
    (request,) = seen
    path = urlsplit(request.line.split()[1])
    assert path.path == "/api/models"
    fields = {
        "search": ["qwen3 & co/8b"],
        "limit": ["5"],
        "sort": ["downloads"],
        "direction": ["-1"],
    }
    assert parse_qs(path.query) == fields


@pytest.mark.parametrize(
    "item",
    [
        7, None, [], {}, {"id": 7}, {"id": "no-owner"}, {"id": "../../etc"}, {"id": "a/b\u202e"},
        {"id": "a/b c"}, {"id": f"a/{'x' * 400}"},
    ],
)  # fmt: skip
def test_what_is_not_a_repository_is_left_out(server: Server, reach: Reach, item: Any) -> None:
    server(answering(json.dumps([item, {"id": "a/b"}]).encode()))
    assert [found.id for found in search_hub("x", 8, reach)] == ["a/b"]


def test_invalid_facts_are_left_out(server: Server, reach: Reach) -> None:
    item = {"id": "a/b", "downloads": -1, "likes": 10**30, "pipeline_tag": 7, "tags": [1, "ok"]}
    server(answering(json.dumps([item]).encode()))
    assert search_hub("x", 8, reach) == (FoundRepository(id="a/b", tags=("ok",)),)


def test_no_more_than_the_limit_are_returned(server: Server, reach: Reach) -> None:
    server(answering(json.dumps([{"id": f"a/b{number}"} for number in range(500)]).encode()))
    assert len(search_hub("x", 3, reach)) == 3


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"[" * 100_000, b'"text"'])
def test_answer_that_is_no_list_is_an_error(server: Server, reach: Reach, body: bytes) -> None:
    server(answering(body))
    with pytest.raises(RemoteInspectError, match="list of models"):
        search_hub("x", 8, reach)


def test_long_answer_is_an_error(server: Server, reach: Reach) -> None:
    server(answering(b"[" + b" " * MAX_SEARCH_BYTES + b"]"))
    with pytest.raises(RemoteInspectError, match="more than"):
        search_hub("x", 8, reach)


@pytest.mark.parametrize("text", ["", "   ", "x" * 101, "a\nb", "a\x00b"])
def test_words_that_cannot_be_searched_for_are_refused(reach: Reach, text: str) -> None:
    with pytest.raises(UsageError, match="q: give 1 to 100"):
        search_hub(text, 8, reach)


@pytest.mark.parametrize("limit", [0, -1, 51])
def test_limit_is_bounded(reach: Reach, limit: int) -> None:
    with pytest.raises(UsageError, match="limit"):
        search_hub("x", limit, reach)


def test_search_without_a_network_says_so(
    server: Server, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Request] = []
    server(answering(b"[]", seen))
    with pytest.raises(RemoteInspectError, match="network is off"):
        search_hub("x", 8, replace(reach, network=False))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RemoteInspectError, match="HF_HUB_OFFLINE"):
        search_hub("x", 8, reach)
    assert seen == []
